"""The interface of a store for ingest and API. An engine implements `Store`; one suite of contract tests holds for all.

Invariants of every engine:

- `write` is all or nothing, and durable when it returns: only then is anything acknowledged;
- a record is known by (run, stream, seq); what is there already is skipped inside the same transaction, so whatever
  is sent again, by a retry, a restart or a copied folder, is stored once;
- a point is (run, stream, seq, position in the record); repeats of a step are kept;
- keys, run ids and texts are data: no query and no path is ever built from one;
- readers never wait for the writer, and see one state of the store per call;
- memory is bounded by the size of the answer, never by that of the run.

Times are ns since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from logclient.errors import LogclientError

from ...runs import strict
from ...wal.coverage import Spans
from ...wal.encoded import StreamColumns
from ...wal.scan import Gap
from ...wal.seqs import SeqSet
from .news import News, Position, Question

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from logclient.shm.record import Value


class StoreError(LogclientError):
    """The store cannot do what was asked; the sentence states why and what helps."""


class StoreFull(StoreError):
    """The disk is full or failing: nothing was changed, reading goes on."""


class RunDeleted(StoreError):
    """The run was deleted and takes no more data."""

    run = ""  # its id


Bytes: TypeAlias = bytes  # `Run` has a field of that name
_MAX_BRIEF = 300  # characters of a verdict in a list


@dataclass(frozen=True, slots=True)
class Description:
    """Description of a run, derived by `collector/catalog.py` from its documents; stored for lists and filters."""

    project: str = ""
    name: str = ""
    group: str = ""
    notes: str = ""
    tags: tuple[str, ...] = ()
    state: str = "running"  # as the documents state; `late` and `lost` depend on the clock: see `Run`
    reason: str = ""  # why it ended, in words
    created_ns: int = 0
    ended_ns: int = 0  # 0: not yet
    config: Mapping[str, Any] = field(default_factory=dict)  # as logged: nested, JSON types
    summary: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # accepted, forgotten, refused, left_out, damaged
    attempts: Mapping[str, int] = field(default_factory=dict)  # process (hex) -> attempt, from 1
    ranks: tuple[int, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # alerts, notices, ...: JSON

    def brief(self) -> dict[str, Any]:
        """The part that lists show, as strict JSON has it; its size depends on no config.

        An engine keeps it apart, as text, for lists of many runs. Who adds a field makes the stored ones anew, or gives
        it a default for readers.
        """
        active, rest_s = self.more.get("active_ns"), self.more.get("rest_s")
        made = {
            "name": self.name,
            "project": self.project,
            "group": self.group,
            "tags": list(self.tags),
            "state": self.state,
            "reason": self.reason,
            "created_ns": self.created_ns,
            "ended_ns": self.ended_ns,
            "active_ns": active if isinstance(active, int) else 0,
            "rest_s": rest_s if isinstance(rest_s, int) else 0,
            "uploaded_ns": self._uploaded_ns,
            "observed": self._observed_briefly(),
            "edited": [str(field) for field in self.more.get("edited") or ()],
            "attempts": max(self.attempts.values(), default=0),
            "counts": dict(self.counts),
        }
        return {name: strict.plain(value) for name, value in made.items()}

    @property
    def _uploaded_ns(self) -> int:
        found = self.more.get("uploaded_ns")
        return found if isinstance(found, int) else 0

    def _observed_briefly(self) -> dict[str, Any] | None:
        """Return what an observer found; None where the run gets on, or is over."""
        found = self.more.get("observed")
        if (
            self.state != "running"
            or self._uploaded_ns
            or not isinstance(found, dict)
            or found.get("kind") in (None, "ok")
        ):
            return None
        brief = {name: found.get(name) for name in ("kind", "verdict", "text", "since_ns", "rank", "step")}
        return brief | {"text": str(brief["text"])[:_MAX_BRIEF]}


SIDE_MARK = "\x1f"  # between the id of a run and a side; in no id of a run


def side_id(run: str, side: str) -> str:
    """Return the id under which a store keeps the records of a side of a run (`shm/side_stream.py`).

    It is a run for `keys`, `key_names`, `points`, `buckets`, `contents`, `records` and `last_values`, and for nothing
    else: no list has it, and what is done to its run is done to it. No run has such an id: control characters are in
    none.
    """
    return f"{run}{SIDE_MARK}{side}"


@dataclass(slots=True)
class Parcel:
    """Records and documents of one node of one run that are written together."""

    run: str
    node: str
    received_ns: int
    batches: Sequence[StreamColumns] = ()
    holes: Sequence[Gap] = ()
    documents: bytes | None = None  # the node's, whole: JSON as the agent writes it
    description: Description | None = None  # of the run with these documents and edits; with one of both only
    edits: bytes | None = None  # all of the run, as `runs/edits.py` writes them


@dataclass(frozen=True, slots=True)
class Held:
    """Coverage of the streams that one node reported."""

    stored: Mapping[bytes, SeqSet]
    gaps: Mapping[bytes, Mapping[str, SeqSet]]
    documents: bytes | None
    edits: bytes | None = None  # of the run


@dataclass(frozen=True, slots=True)
class Written:
    """Result of one `write`."""

    records: int  # that were new
    repeated: int  # that were there already
    points: int  # new


@dataclass(frozen=True, slots=True)
class Run:
    """One run, whole."""

    id: str
    description: Description
    last_seen_ns: int  # when anything came from it last, by the collector's clock as it is set now
    records: int
    points: int
    bytes: int  # about, on disk
    deleted_ns: int = 0  # 0: it is there
    edits: Bytes | None = None  # as they were written; None: it has none


@dataclass(frozen=True, slots=True)
class Listed:
    """A run in a list. Nothing of it was parsed, and its config was read only where `columns` ask for it."""

    id: str
    brief: str  # JSON of `Description.brief()`
    state: str  # in `brief`, too: as the documents state
    last_seen_ns: int
    records: int
    points: int
    bytes: int
    deleted_ns: int = 0
    columns: Mapping[tuple[str, str], Any] = field(default_factory=dict)  # those asked for that it has


ANYWHERE = "any"  # with `contains`: id, project, name, group or a tag, ASCII letters in capitals or not


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on runs; all of a list must hold."""

    field: str  # id, project, name, group, state, tag, created_ns, last_seen_ns, config, summary, or ANYWHERE
    key: str = ""  # with config and summary: as `runs/flatten.py` names it
    op: str = "="  # =, !=, <, <=, >, >=, contains
    value: str | float | bool | None = None


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A question for runs: filters and order."""

    filters: Sequence[Filter] = ()
    sort: str = (
        "created_ns"  # created_ns, last_seen_ns, name, project, state, or config::… and summary::… keys
    )
    descending: bool = True
    limit: int = 100
    after: str = ""  # `next` of the page before
    deleted: bool = False  # those in the bin instead
    columns: Sequence[tuple[str, str]] = ()  # ("config" or "summary", key): values to give with each run


@dataclass(frozen=True, slots=True)
class RunPage:
    runs: Sequence[Listed]
    next: str  # empty: that was all
    total: int


@dataclass(frozen=True, slots=True)
class ColumnKey:
    """A key under which runs of a list have values."""

    key: str
    runs: int  # that have it
    is_same: bool  # all of them have the same value under it; False for metrics, which are not compared


@dataclass(frozen=True, slots=True)
class ColumnKeys:
    """Keys under which the newest runs have values: config and summary as `flatten.py` names them, and metrics."""

    config: Sequence[ColumnKey]  # by name
    summary: Sequence[ColumnKey]
    metrics: Sequence[ColumnKey]
    runs: int  # that were looked at


@dataclass(frozen=True, slots=True)
class Last:
    """The newest value of a key: of a process the one that it logged last; of several by attempt, then by time."""

    value: Value
    code: str
    step: int
    time_ns: int
    rank: int | None


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a run, over all streams."""

    name: str
    codes: str  # every type it was logged with, sorted: "d", "qr", ...
    points: int
    first_step: int
    last_step: int
    last: Last


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Some of a run's keys, in the order in which they came first."""

    keys: Sequence[Key]
    total: int  # keys that the run has


@dataclass(frozen=True, slots=True)
class Points:
    """Raw points of one key, each once, ordered by stream and seq; arrays of one length."""

    step: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]
    seq: npt.NDArray[np.uint64]
    order: npt.NDArray[np.uint64]  # process-wide number of the record
    stream: npt.NDArray[np.int32]  # index into `streams`
    rank: npt.NDArray[np.int32]  # -1: none
    values: Sequence[Value]  # an array of float64 or int64 where one type holds them all, else a list
    streams: Sequence[StreamInfo]
    next: str  # cursor: ask again with it, and the same range of steps, for what came later; always there
    is_all: bool  # nothing more now
    spans: Mapping[int, tuple[int, int]] = field(
        default_factory=dict
    )  # by attempt: the lowest and the highest step that it logged of this key, whatever was asked for


@dataclass(frozen=True, slots=True)
class StreamInfo:
    stream: bytes
    process: bytes
    lane: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """A key reduced to the extremes of ranges of steps: nothing that sticks out is lost, and the points are counted.

    A bucket covers the steps from `start` to `start + width - 1`; widths are powers of two and starts are multiples of
    them, so the same data give the same picture, whatever was compacted and whatever came since elsewhere.
    The width is the smallest that divides the range of steps into at most `most` buckets; where many of these are empty
    (a stray step) it is halved as long as the others surely stay within `most`. Texts are no points here.
    A single bucket over steps on both sides of 0 starts at minus half its width, which is no multiple of it.
    Of attempts that overlap, the newest counts, unless all are asked for.
    """

    width: int
    start: npt.NDArray[np.int64]  # of buckets that hold something, rising
    count: npt.NDArray[np.int64]  # points, NaN and infinities included
    nans: npt.NDArray[np.int64]
    infs: npt.NDArray[np.int64]  # of plus infinity
    neg_infs: npt.NDArray[np.int64]  # of minus infinity
    min: npt.NDArray[np.float64]  # over what is finite; NaN where there is nothing else
    max: npt.NDArray[np.float64]
    last: npt.NDArray[
        np.float64
    ]  # of the highest step; there of the newest attempt, of a stream by seq, else by time
    last_ns: npt.NDArray[np.int64]  # time of that point
    points: int  # that went in
    first_step: int
    last_step: int
    codes: str  # every type the key was logged with, sorted, as in `Key`; with "s" there are texts that did not go in
    rank: int = -1  # the only one that went in, where one was asked for; -1: all


@dataclass(frozen=True, slots=True)
class Outlook:
    """Estimate of bringing a store to the version of this program."""

    version: int
    newest: int
    rows: int  # that are written anew
    bytes: int  # of them, about
    file_bytes: int
    free_bytes: int  # on its disk
    read_s: float  # what it took to read them now

    @property
    def needed_bytes(self) -> int:
        """On the disk, for a moment: the rows as they were, and as they become."""
        return 2 * self.bytes


class Writer(Protocol):
    """Changes the store. One thread at a time."""

    def write(self, parcels: Sequence[Parcel]) -> Written:
        """All of them in one transaction. `StoreFull`, or `RunDeleted` for one of a deleted run: nothing written."""

    def seen(self, runs: Mapping[str, int]) -> None:
        """These runs were seen at that time; need not be durable at once."""

    def delete(self, run: str, now_ns: int) -> bool:
        """Into the bin; False where there is no such run."""

    def undelete(self, run: str) -> bool:
        """Out of the bin again, or ready to take data again after it was purged; False where it is not deleted."""

    def purge(self, keep_ns: int) -> int:
        """Runs that have been in the bin for so long go for good, in small steps; a note that they were deleted stays.

        How many. It is the time in which the store was open that counts: no setting of the wall's clock changes it.
        """


class Watch(Protocol):
    """Notices commits; for one thread."""

    def has_changed(self) -> bool:
        """Was anything committed since the last call? True at the first; costs some microseconds."""

    def close(self) -> None: ...


class Reader(Protocol):
    """Answers questions. Any number of threads."""

    def held(self, run: str, node: str) -> Held:
        """Return the coverage of a run; empty where the run is not there."""

    def is_deleted(self, run: str) -> bool: ...

    def run(self, run: str) -> Run | None:
        """Also one that is in the bin."""

    def runs(self, query: RunQuery) -> RunPage: ...

    def documents(self, run: str) -> Mapping[str, bytes]:
        """By node."""

    def keys(self, run: str, *, start: int = 0, most: int = 10_000) -> KeyPage:
        """In the order in which they came first, from the one at `start` on."""

    def key_names(self, run: str) -> Sequence[str]:
        """Their names alone, in any order, and soon: it is asked for whenever somebody begins to ship the run."""

    def last_values(self, runs: Sequence[str], keys: Sequence[str]) -> Mapping[tuple[str, str], Last]:
        """By (run, key)."""

    def points(
        self,
        run: str,
        key: str,
        *,
        after: str = "",
        most: int = 100_000,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> Points:
        """Points of all attempts, or those in a range of steps; blocks that hold none of these are not read."""

    def buckets(
        self,
        run: str,
        key: str,
        *,
        most: int = 2000,
        first_step: int | None = None,
        last_step: int | None = None,
        all_attempts: bool = False,
    ) -> Buckets: ...

    def contents(self, run: str) -> Spans:
        """Return the coverage of each stream, and its gaps."""

    def records(
        self,
        run: str,
        stream: bytes,
        first_seq: int,
        *,
        most: int = 10_000,
        keys: Iterable[str] | None = None,
    ) -> tuple[list[StreamColumns], int]:
        """Records of one stream by seq from there on, whole or only these keys of them; and the seq to ask for next,
        0 where that was all. `most` is a wish. No keys: all records, without their values.

        All columns of a page cover the same range of seqs, up to that seq: per key table and rank there is one, so
        where a stream logged two shapes in turn their seqs lie between each other's.
        """


class LiveReader(Protocol):
    """Answers pages that follow runs. Any number of threads."""

    def curves(
        self,
        series: Sequence[tuple[str, str]],
        *,
        most: int = 1000,
        most_buckets: int = 200_000,
        first_step: int | None = None,
        last_step: int | None = None,
        all_attempts: bool = False,
        main_rank: bool = False,
    ) -> tuple[Position, Sequence[Buckets | None]]:
        """Return the buckets of each (run, key), in turn, until there are so many, and the position of what was seen.

        `main_rank`: of the lowest rank that logged the key, and of records without a rank. None stands for a series
        that is not there. At least one is answered.
        """

    def position(self) -> Position:
        """Return how far the store is now."""

    def news(self, questions: Sequence[Question], *, most: int = 2_000) -> Sequence[News]:
        """Return what is new for each question, all from one state of the store: at most `most` points a series."""

    def column_keys(self, newest: int) -> ColumnKeys:
        """Return the keys of so many runs, those that were created last."""

    def watch(self) -> Watch:
        """Return what notices that something was committed, by any process; its user closes it."""


class ReadableStore(Protocol):
    """The half of an engine that answers questions, in the process that writes or in another one."""

    @property
    def id(self) -> str:
        """Random, made with the store: another id means other contents."""

    @property
    def reader(self) -> Reader: ...

    @property
    def live(self) -> LiveReader: ...

    def statistics(self) -> Mapping[str, float]:
        """For metrics: bytes, records, points, runs, uncompacted_points, ..."""

    def close(self) -> None: ...


class FedStore(ReadableStore, Protocol):
    """A store that another process writes."""

    def take_seen(self, news: Mapping[str, Any]) -> None:
        """Take what a `SeenFeed` of that process gave: when runs were seen last."""


class SeenFeed(Protocol):
    """News of when runs were seen, which are stored late, for one other process."""

    def take(self) -> Mapping[str, Any]:
        """Return what is new, as JSON has it."""

    def end(self) -> None:
        """No more is kept for it."""


class Store(ReadableStore, Protocol):
    """An engine."""

    @property
    def writer(self) -> Writer: ...

    def seen_feed(self) -> SeenFeed: ...

    def compact(self, *, deadline_s: float) -> bool:
        """Do some of the upkeep that is due, in a thread of its own; False where nothing was."""

    def backup(self, folder: str) -> None:
        """A consistent copy while writing goes on; `StoreError` where the folder is not empty or cannot be written."""
