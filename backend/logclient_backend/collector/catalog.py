"""State and description of a run, derived from its nodes' documents as they come in, by the collector's clock.

`Catalog` runs in the committing thread alone (`ingest.py`); `state_now` is pure and for everybody.

Nothing is derived twice: nodes are parsed by `runs.node`, and merged by `runs.view`, the same code that reads a run
folder. What a collector knows better is handed to it: how long each node has been silent, by the time of last contact.

Invariants:

- of two versions of a node's documents the one with the higher revision is the newer one, whatever the clocks showed;
- clocks of other hosts are never compared with ours: a node whose clock is wrong is not lost for that;
- how long a node is silent is a difference of the steady clock (`store/clock.py`): a clock that is set changes nothing;
- an upload after the fact (`is_sync`) is as old as its documents state: it makes no dead run look alive. Of a run that
  lived when it was uploaded nothing is known later (`uploaded_ns`): it is late from then on, never lost;
- parsed nodes are kept within `_KEPT_BYTES` of documents, and read again from the store when they are wanted;
- the derivation takes at most about a tenth of the time, however many nodes report one run: what was put off is named
  by `overdue`.

Does not: store anything.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from logclient.errors import Unsupported

from ..runs import edits as runs_edits
from ..runs import node as nodes
from ..runs.edits import NONE, Edits
from ..runs.folder import Found
from ..runs.node import Node
from ..runs.state import SILENT_S, State
from ..runs.view import RunView, view
from ..wal.coverage import Spans
from .store.interface import Description, Reader, Run

LATE_S, LOST_S = 15.0, 60.0  # an agent that has nothing to send sends a keepalive every few seconds

_KEPT_BYTES = 16 << 20  # of documents; parsed they take some five times as much
_SHARE = 10  # deriving takes at most 1 / _SHARE of the time, run by run
_MAX_STALLS = 100  # the newest
_MAX_ALERTS = 200  # the newest; all are in the documents
_MAX_RANK_ENDS = 1000
_MAX_ENVIRONMENTS = 16  # the newest; all are in the documents
_NOWHERE = ""  # no path is ever made of an id


class Unreadable(Exception):
    """The documents cannot be used; the text is the reason."""


class Outdated(Exception):
    """The documents are older than those that are known of the node: an old copy's, which change nothing."""


@dataclass(slots=True)
class _Known:
    """One run's nodes, parsed, and when each was seen."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edits: Edits = NONE
    edits_size: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # live nodes: the steady clock at the last contact
    # uploads: (our clock, theirs) at the last one
    uploaded: dict[str, tuple[int, int]] = field(default_factory=dict)
    uploaded_ns: int = (
        0  # as of when the documents are, where the newest came by an upload of a run that lived
    )
    cost_s: float = 0.0  # of the last derivation
    next_s: float = 0.0  # not before

    @property
    def size(self) -> int:
        return sum(self.sizes.values()) + self.edits_size


class Catalog:
    """Descriptions of the runs that something comes in for."""

    def __init__(
        self,
        documents: Callable[[str], Mapping[str, bytes]],
        contents: Callable[[str], Spans],
        edits: Callable[[str], bytes | None] = lambda run: None,
        uploaded: Callable[[str], int] = lambda run: 0,
        *,
        is_over_folder: bool = False,
        lost_s: float = LOST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The functions ask the store for a run's documents by node, what is stored of it, its edits, `uploaded_ns`.

        `is_over_folder`: all runs are uploaded again and again, so silence is a sign there.
        """
        self._documents = documents
        self._contents = contents
        self._edits = edits
        self._uploaded = uploaded
        self._is_over_folder = is_over_folder
        self._lost_ns = int(lost_s * 1e9)
        self._patience_ns = int((lost_s - SILENT_S) * 1e9)
        self._clock = clock
        self._runs: OrderedDict[str, _Known] = OrderedDict()
        self._size = 0
        # runs whose derivation was put off, with a node of it. Nothing here walks all runs: it is done at each commit
        self._behind: dict[str, str] = {}

    def seen(self, run: str, node: str, steady_ns: int) -> None:
        """Something came from a live node."""
        known = self._runs.get(run)
        if known is not None:
            known.seen[node], known.uploaded_ns = steady_ns, 0

    def take(
        self,
        run: str,
        node: str,
        documents: bytes,
        steady_ns: int,
        *,
        is_sync: bool,
        is_urgent: bool = False,
        now_ns: int = 0,
    ) -> Description | None:
        """The run with these new documents of a node; None: not now, `overdue` names it in a moment.

        `now_ns`: when an upload came, by the wall clock. `Unreadable` where they are none, or of a newer version;
        `Outdated`.
        """
        parsed = self._parse(run, node, documents)
        known = self._open(run)
        before = known.nodes.get(node)
        # of an earlier build's documents only a copy may be the older one: its agent itself must know
        has_revision = before is not None and bool(parsed.revision or before.revision)
        if before is not None and (is_sync or has_revision) and nodes.is_older(parsed, before):
            raise Outdated(
                f"outdated: these are documents of revision {parsed.revision} of the node, and revision "
                f"{before.revision} is stored: its records are taken, its config, summary and state are not"
            )
        self._keep(known, parsed, len(documents))
        if is_sync:
            known.seen.pop(node, None)
            known.uploaded_ns = self._uploaded_at(parsed, now_ns)
        else:
            known.seen[node], known.uploaded_ns = steady_ns, 0
            known.uploaded.pop(node, None)
        self._shrink(run)
        is_news = before is None or parsed.closed or len(before.processes) != len(parsed.processes)
        if self._clock() < known.next_s and not (is_news or is_urgent):
            self._behind[run] = node
            return None
        return self._derive(run, known, steady_ns)

    def _uploaded_at(self, node: Node, now_ns: int) -> int:
        """Return as of when an upload is, where its node lived then by both clocks; else 0."""
        is_alive = now_ns - node.heard_ns <= self._lost_ns + int(node.rest_s * 1e9)
        return node.heard_ns if now_ns and is_alive and not self._is_over_folder else 0

    def take_edits(self, run: str, edits: Edits, steady_ns: int) -> tuple[Edits, Description]:
        """All edits of the run with these, and its description with them."""
        known = self._open(run)
        self._keep_edits(known, known.edits.merged(edits))
        made = self.again(run, steady_ns) or described_by_edits(known.edits)
        self._shrink(run)
        return known.edits, made

    def edits(self, run: str) -> Edits:
        """All edits of the run."""
        return self._open(run).edits

    def alive_ns(self, run: str, node: str, now_ns: int) -> int:
        """Return when the sender of an upload after the fact was alive last, as its documents (`take`) state.

        Its clock may be wrong; so the second time only what passed between two uploads is taken from it.
        """
        known = self._open(run)
        heard_ns = known.nodes[node].heard_ns
        before = known.uploaded.get(node)
        known.uploaded[node] = (now_ns, heard_ns)
        if before is None:
            return min(now_ns, heard_ns)
        passed = heard_ns - before[1]
        if passed > 0:
            return min(now_ns, before[0] + passed)
        return now_ns if passed < 0 else 0  # newer documents with an older time: its clock was set back

    def overdue(self) -> list[tuple[str, str]]:
        """Runs, each with a node of it, whose description is to be derived now: call `again`."""
        if not self._behind:
            return []
        now = self._clock()
        return [(run, node) for run, node in self._behind.items() if now >= self._runs[run].next_s]

    def again(self, run: str, steady_ns: int) -> Description | None:
        """The run's description from what is known of it; None where nothing is."""
        known = self._open(run)
        return self._derive(run, known, steady_ns) if known.nodes else None

    def forget(self, run: str) -> None:
        """It was deleted, or somebody else changed it."""
        known = self._runs.pop(run, None)
        if known is not None:
            self._size -= known.size
            self._behind.pop(run, None)

    # ---- cache --------------------------------------------------------------------------------------------

    def _open(self, run: str) -> _Known:
        known = self._runs.get(run)
        if known is None:
            known = self._runs[run] = _Known()
            for node, documents in self._documents(run).items():
                try:
                    self._keep(known, self._parse(run, node, documents), len(documents))
                except Unreadable:
                    continue  # an older program than the one that stored it
            self._keep_edits(known, stored_edits(self._edits(run)))
            known.uploaded_ns = self._uploaded(run)
        self._runs.move_to_end(run)
        return known

    def _keep(self, known: _Known, parsed: Node, size: int) -> None:
        self._size += size - known.sizes.get(parsed.id, 0)
        known.sizes[parsed.id] = size
        known.nodes[parsed.id] = parsed

    def _keep_edits(self, known: _Known, edits: Edits) -> None:
        size = len(edits.dumps()) if edits else 0
        self._size += size - known.edits_size
        known.edits, known.edits_size = edits, size

    def _shrink(self, current: str) -> None:
        """Let go of the runs that nothing came for, for the longest time."""
        size, going = self._size, []
        for run, known in self._runs.items():
            if size <= _KEPT_BYTES or run == current:
                break
            if run not in self._behind:
                size -= known.size
                going.append(run)
        for run in going:
            self.forget(run)

    # ---- derivation ---------------------------------------------------------------------------------------

    def _parse(self, run: str, node: str, documents: bytes) -> Node:
        return _parse(node, documents, lambda: self._contents(run))

    def _derive(self, run: str, known: _Known, steady_ns: int) -> Description:
        started = self._clock()
        newest = max(node.heard_ns for node in known.nodes.values())
        for id, node in known.nodes.items():
            if id in known.seen:
                silent = max(0, steady_ns - known.seen[id] - self._patience_ns)
            else:
                # an upload, or not seen since we started: by the hosts' clocks
                silent = max(0, newest - node.heard_ns)
            node.now_ns = node.heard_ns + silent
        found = Found(run, _NOWHERE, list(known.nodes.values()), edits=known.edits)
        made = describe(view(found, newest))
        if known.uploaded_ns and not known.seen and made.state == "running":
            made = replace(made, more={**made.more, "uploaded_ns": known.uploaded_ns})
        self._behind.pop(run, None)
        known.cost_s = self._clock() - started
        known.next_s = self._clock() + _SHARE * known.cost_s
        return made


def stored_view(run: str, reader: Reader) -> RunView:
    """Return a stored run, with its nodes as they were when something came from each last."""
    found = []
    for node, documents in reader.documents(run).items():
        try:
            parsed = _parse(node, documents, lambda: reader.contents(run))
        except Unreadable:
            continue  # an older program than the one that stored it
        parsed.now_ns = parsed.heard_ns
        found.append(parsed)
    return view(Found(run, _NOWHERE, found), max((node.heard_ns for node in found), default=0))


def _parse(node: str, documents: bytes, spans: Callable[[], Spans]) -> Node:
    parsed = Node(_NOWHERE, node, spans=spans)
    try:
        nodes.take(parsed, _load(documents))
    except Unsupported as error:
        raise Unreadable(f"{error}: update the collector") from error
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"documents that are none: {error}") from error
    return parsed


def _load(documents: bytes) -> Any:
    """Their JSON. Half of a surrogate pair is no text that could be stored: it becomes a question mark."""
    raw = json.loads(documents)
    if b"\\ud" in documents.lower():
        raw = json.loads(json.dumps(raw, ensure_ascii=False).encode("utf-8", "replace"))
    return raw


def describe(run: RunView) -> Description:
    """Return the parts of a run that lists and filters need."""
    state = run.state
    return Description(
        project=run.project,
        name=run.name,
        group=run.group,
        notes=run.notes,
        tags=tuple(run.tags),
        state=state.name,
        reason=state.cause,
        created_ns=run.created_ns,
        ended_ns=(state.since_ns or run.last_ns) if state.is_over else 0,
        config=run.config,
        summary=run.summary,
        counts=run.counts(),
        attempts=run.attempt_numbers(),
        ranks=tuple(run.ranks),
        more={
            "alerts": run.alerts[-_MAX_ALERTS:],
            "notices": run.notices,
            "hosts": sorted({node.host for node in run.nodes if node.host}),
            "nodes": len(run.nodes),
            "processes": len(run.processes),
            "active_ns": run.active_ns,
            "observed": None if run.observed is None else run.observed.as_dict(),
            "stalls": [asdict(stall) for stall in run.stalls[-_MAX_STALLS:]],
            "rest_s": min((node.rest_s for node in run.nodes if not node.closed), default=0),
            "exit_code": state.exit_code,
            "signal": state.signal,
            "exception": state.exception,
            "rank_ends": _rank_ends(run),
            "rules": _rules(run),
            "environments": [each.brief() for each in run.environments[-_MAX_ENVIRONMENTS:]],
            **_edited(run.found.edits, run.unedited),
        },
    )


def described_by_edits(edits: Edits) -> Description:
    """Return the description of a run of which nothing is known but its edits."""
    nothing = Description()
    return replace(
        nothing,
        name=edits.text("name", ""),
        group=edits.text("group", ""),
        notes=edits.text("notes", ""),
        tags=tuple(edits.tags(())),
        more=_edited(edits, {"name": "", "group": "", "notes": "", "tags": []}),
    )


def stored_edits(data: bytes | None) -> Edits:
    """Return the edits that a store holds; none where they are damaged, or a newer program's."""
    try:
        return NONE if data is None else runs_edits.loads(data)
    except (ValueError, Unsupported):
        return NONE


def edits_in(reader: Reader) -> Callable[[str], bytes | None]:
    """Return a function that asks a store for the edits of a run."""

    def edits(run: str) -> bytes | None:
        found = reader.run(run)
        return None if found is None else found.edits

    return edits


def uploaded_in(reader: Reader) -> Callable[[str], int]:
    """Return a function that asks a store as of when a run was uploaded while it lived; 0: it was not."""

    def uploaded(run: str) -> int:
        found = reader.run(run)
        return 0 if found is None else _uploaded_ns(found.description)

    return uploaded


def _uploaded_ns(described: Description) -> int:
    found = described.more.get("uploaded_ns")
    return found if isinstance(found, int) else 0


def _edited(edits: Edits, unedited: Mapping[str, Any]) -> dict[str, Any]:
    """Return which fields are edited, by which edits, and what is below them; nothing where none is."""
    holding = edits.holding
    if not holding:
        return {}
    return {
        "edited": edits.fields,
        "edits": [each.as_dict() for each in holding],
        "unedited": dict(unedited),
    }


def _rank_ends(run: RunView) -> dict[str, Any]:
    """Return which ranks of the newest attempt live, and how the others ended: [rank, did it end well, how]."""
    by_rank: dict[int, list[State]] = {}
    for id in run.attempts[-1].processes if run.attempts else ():
        rank = run.processes[id].rank
        if rank is not None:
            by_rank.setdefault(rank, []).append(run.states[id])
    living = sorted(rank for rank, some in by_rank.items() if any(not each.is_over for each in some))
    ended = []
    for rank in sorted(by_rank.keys() - set(living))[:_MAX_RANK_ENDS]:
        worst = min(by_rank[rank], key=lambda each: each.name == "finished")
        ended.append(
            [rank, worst.name == "finished", f"{worst.name}: {worst.cause}" if worst.cause else worst.name]
        )
    return {"living": living, "ended": ended}


def _rules(run: RunView) -> list[Any]:
    """Return the rules of alerts that the newest owner of the run was given."""
    owners = [each for each in run.processes.values() if each.is_owner]
    newest = max(owners, key=lambda each: each.created_ns, default=None)
    found = newest.data("start").get("alerts") if newest is not None else None
    return found if isinstance(found, list) else []


def state_now(run: Run, now_ns: int, *, late_s: float = LATE_S, lost_s: float = LOST_S) -> State:
    """The state that a run has now: one that is stored as running is late, then lost, when nothing comes from it.

    Late: it may be the network, or a collector that was stopped; the run itself goes on, as far as anybody knows. A run
    at rest may be silent for longer, as its agents promised. Of one that was uploaded while it ran nothing more comes.
    """
    described = run.description
    if described.state != "running":
        return State(described.state, described.reason, described.ended_ns)
    rest_s = described.more.get("rest_s")
    silent_s = (now_ns - run.last_seen_ns) / 1e9 - (rest_s if isinstance(rest_s, int) else 0)
    if silent_s <= late_s:
        return State("running", described.reason, described.created_ns)
    if uploaded_ns := _uploaded_ns(described):
        as_of = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(uploaded_ns / 1e9))
        return State("late", f"uploaded while it was running: its state as of {as_of}", run.last_seen_ns)
    if silent_s <= lost_s:
        return State("late", "nothing has come from it for a moment", run.last_seen_ns)
    return State("lost", "nothing is heard from it", run.last_seen_ns)
