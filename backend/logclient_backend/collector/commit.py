"""The committing thread: parcels of all conversations, in groups, each group one transaction of the store.

Conversations hand parcels over with `put`, which waits while the queue is full; answers go out through each one's
`Replies`. Whatever else changes the store (`call`: a run is deleted, brought back) goes through the same thread, in
turn with the parcels. `stop` lets it end once the queue is empty.

Invariants:

- nothing is acknowledged before `store.writer.write` has returned;
- a parcel that cannot be stored is refused, and the others of its group are committed: no parcel of one client can
  stop those of another;
- after a refusal that is not final nothing more of that conversation is committed: its client sends it again;
- the queue is bounded by the memory that its parcels take, unpacked; one parcel alone always finds room;
- the thread lives as long as the collector: what fails is reported, counted and logged.

Does not: look at who sends; `ingest.py` has done that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..runs.edits import COLLECTOR, FOLDER, Changes, Edits, loads
from ..wire.messages import DELETED, DISK, INVALID, OUTDATED, STOPPING, UNKNOWN, NotTaken
from ..wire.messages import Parcel as Sent
from .catalog import Catalog, Outdated, Unreadable
from .eventlog import EventLog
from .metrics import Metrics
from .store.clock import steady_ns
from .store.interface import Parcel, RunDeleted, Store, StoreError, StoreFull

GROUP_BYTES = 16 << 20  # unpacked, of one transaction: some 30 ms of work
LINGER_S = 0.02  # a small group waits so long for more: a commit costs the same for one parcel and for ten
SEEN_S = 2.0  # between two notes of which runs were seen
DISK_RETRY_S = 10.0


class Answers(Protocol):
    """`wire.replies.Replies`, as far as it is used here."""

    def ack(self, upto: int) -> None: ...

    def refuse(self, refused: NotTaken, parcel: int = 0) -> None: ...


@dataclass(slots=True)
class Source:
    """One conversation, as the committing thread sees it."""

    run: str
    node: str
    is_sync: bool
    answers: Answers
    is_over: bool = False  # refused: what of it is queued is let go


@dataclass(slots=True)
class _Item:
    source: Source
    sent: Sent
    bytes: int
    received_ns: int  # by the wall's clock
    steady_ns: int  # by the steady one


@dataclass(slots=True)
class _Call:
    function: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)


class Committer:
    """Owns the thread and the queue."""

    def __init__(
        self, store: Store, catalog: Catalog, metrics: Metrics, log: EventLog, *, queue_bytes: int
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._metrics = metrics
        self._log = log
        self._most = queue_bytes
        self._queue: deque[_Item | _Call] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._is_stopping = False
        self.on_committed: Callable[[list[Parcel]], None] | None = None  # of live runs; must not wait
        self._keepalives: dict[tuple[str, str], tuple[int, int]] = {}  # (run, node): when, by both clocks
        self._seen: dict[str, int] = {}
        self._seen_at = time.monotonic()
        self.last_commit_ns = 0
        self.trouble = ""  # why nothing can be stored now
        self.on_documents: Callable[[str, str], None] = (
            _ignore  # of this node of this run there are newer ones
        )
        self._thread = threading.Thread(target=self._work, name="commit", daemon=True)

    @property
    def queue_parcels(self) -> int:
        return len(self._queue)

    @property
    def queue_bytes(self) -> int:
        return self._bytes

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Commit what is queued, then end; False where that took longer."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- for conversations ----------------------------------------------------------------------------------

    def put(self, source: Source, sent: Sent, size: int, timeout_s: float) -> bool:
        """Queue it; False where there was no room in that time."""
        item = _Item(source, sent, size, time.time_ns(), steady_ns())
        with self._changed:

            def has_room() -> bool:
                return self._is_stopping or not self._bytes or self._bytes + size <= self._most

            if not self._changed.wait_for(has_room, timeout_s):
                return False
            if self._is_stopping:
                raise _stopping()
            self._queue.append(item)
            self._bytes += size
            self._changed.notify_all()
        return True

    def keepalive(self, source: Source) -> None:
        """It has nothing to send, and is there."""
        if not source.is_sync:
            self._keepalives[source.run, source.node] = time.time_ns(), steady_ns()

    # ---- for whoever changes runs -----------------------------------------------------------------------------

    def call(self, function: Callable[[], Any], timeout_s: float = 30.0) -> Any:
        """Its result, from the committing thread. `NotTaken` while the collector stops, `TimeoutError` too late."""
        call = _Call(function)
        with self._changed:
            if self._is_stopping:
                raise _stopping()
            self._queue.append(call)
            self._changed.notify_all()
        return call.result.result(timeout_s)

    def forget(self, run: str) -> None:
        """Drop what is known of a run, since it is out of date; for `call` only."""
        self._catalog.forget(run)

    def edit(self, run: str, changes: Changes, who: str) -> Edits:
        """Store edits of a run, and return all that it has; for `call` only. `StoreError`, `BadArgument`."""
        before = self._catalog.edits(run)
        edits = before.edited(changes, who, COLLECTOR, time.time_ns())
        if edits != before:
            made = Parcel(run, "", 0)
            self._take_edits(made, edits, steady_ns())
            try:
                self._store.writer.write([made])
            except StoreError:
                self._catalog.forget(run)
                raise
        return edits

    def _take_edits(self, made: Parcel, edits: Edits, steady_ns: int) -> None:
        merged, made.description = self._catalog.take_edits(made.run, edits, steady_ns)
        made.edits = merged.dumps()

    # ---- the thread -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            items = self._next()
            if items is None:
                self._note_seen()
                return
            for work in _in_turn(items):
                if isinstance(work, _Call):
                    _run(work)
                else:
                    self._commit(work)
            try:
                self._look_around()
            except Exception as error:  # noqa: BLE001  # the thread must go on; what comes next may work
                self._fault("upkeep between commits", error)

    def _next(self) -> list[_Item | _Call] | None:
        """Return the next work, perhaps nothing; None at the end."""
        with self._changed:
            if not self._queue:
                if self._is_stopping:
                    return None
                self._changed.wait(0.5)
            if self._queue and not self._is_stopping:
                until = time.monotonic() + LINGER_S
                while self._may_wait and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
            taken: list[_Item | _Call] = []
            size = 0
            while self._queue and size < GROUP_BYTES:
                taken.append(self._queue.popleft())
                size += getattr(taken[-1], "bytes", 0)
            return taken

    @property
    def _may_wait(self) -> bool:
        """May a group wait for more? Whoever calls waits for the answer, perhaps with a thousand runs to change."""
        return self._bytes < GROUP_BYTES and not isinstance(self._queue[-1], _Call)

    def _settle(self, items: Iterable[_Item]) -> None:
        """Their memory may be used again."""
        size = sum(item.bytes for item in items)
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def _commit(self, items: list[_Item]) -> None:
        try:
            self._take_keepalives()
            ready = [(item, made) for item in items if (made := self._parcel(item)) is not None]
            self._write(ready)
        except Exception as error:  # noqa: BLE001  # a fault of ours: the senders are refused, and send again
            self._fault("a commit", error)
            for item in items:
                self._refuse(item, NotTaken("a fault in the collector; its log has more", UNKNOWN))
        finally:
            self._settle(items)

    def _parcel(self, item: _Item) -> Parcel | None:
        """Return the parcel as the store takes it; None where it is not wanted any more, or was refused."""
        source, sent = item.source, item.sent
        if source.is_over:
            return None
        made = Parcel(source.run, source.node, item.received_ns, sent.batches, sent.holes, sent.documents)
        started = time.monotonic()
        try:
            if sent.documents is not None:
                made.description = self._catalog.take(
                    source.run,
                    source.node,
                    sent.documents,
                    item.steady_ns,
                    is_sync=source.is_sync,
                    now_ns=item.received_ns,
                )
            elif not source.is_sync:
                self._catalog.seen(source.run, source.node, item.steady_ns)
            if sent.edits is not None:
                # what was edited here is taken from nobody else: it would bear the name of a token
                came = Edits(each for each in loads(sent.edits) if each.place == FOLDER)
                self._take_edits(made, came, item.steady_ns)
            if source.is_sync:
                made.received_ns = self._alive_ns(item)
        except Outdated as error:
            if not source.is_sync:
                self._catalog.seen(source.run, source.node, item.steady_ns)
            self._refuse(item, NotTaken(str(error), OUTDATED, is_final=True))
            return None
        except Unreadable as error:
            self._refuse(item, NotTaken(f"documents cannot be used: {error}", INVALID, is_final=True))
            return None
        except Exception as error:  # noqa: BLE001  # made up documents may hold anything
            self._fault(f"documents of a node of run {source.run!r}", error)
            self._refuse(item, NotTaken("documents that make no sense", INVALID, is_final=True))
            return None
        finally:
            if sent.documents is not None:
                self._metrics.count("deriving_seconds_total", time.monotonic() - started)
        return made

    def _alive_ns(self, item: _Item) -> int:
        """Return when the logger of an upload after the fact was alive, by its own clock."""
        source, sent = item.source, item.sent
        if sent.documents is not None:
            return self._catalog.alive_ns(source.run, source.node, item.received_ns)
        newest = max((max(each.columns.time) for each in sent.batches), default=0)
        return max(0, min(item.received_ns, newest))

    def _write(self, ready: list[tuple[_Item, Parcel]]) -> None:
        """All of them, or each by itself where one will not go."""
        if not ready:
            return
        started = time.monotonic()
        try:
            done = self._store.writer.write([made for _, made in ready])
        except StoreFull as error:
            self._log.write("disk", f"nothing can be stored now: {error}")
            self.trouble = str(error)
            for item, _ in ready:
                self._refuse(item, NotTaken(str(error), DISK, retry_after_s=DISK_RETRY_S))
            return
        except RunDeleted as error:
            self._without_deleted(ready, error)
            return
        except Exception as error:  # noqa: BLE001  # whose parcel it was is not known: each is tried by itself
            self._one_by_one(ready, error)
            return
        self._metrics.took("commit_seconds", time.monotonic() - started)
        self._metrics.count("parcels_total", len(ready))
        self._metrics.count("records_total", done.records)
        self._metrics.count("points_total", done.points)
        self._metrics.count("repeated_records_total", done.repeated)
        self.last_commit_ns = time.time_ns()
        self.trouble = ""
        if self.on_committed is not None:
            self.on_committed([made for item, made in ready if not item.source.is_sync])
        last: dict[int, _Item] = {}
        for item, made in ready:
            last[id(item.source)] = item
            self._seen.pop(made.run, None)  # the store has noted it
        for item in last.values():
            item.source.answers.ack(item.sent.number)
        for item, made in ready:
            if made.documents is not None and not item.source.is_sync:
                self._have_come(made.run, made.node)

    def _have_come(self, run: str, node: str) -> None:
        try:
            self.on_documents(run, node)
        except Exception as error:  # noqa: BLE001  # what was committed is committed
            self._fault(f"requests to stop run {run!r}", error)

    def _without_deleted(self, ready: list[tuple[_Item, Parcel]], error: RunDeleted) -> None:
        deleted = {run for run in {made.run for _, made in ready} if self._store.reader.is_deleted(run)}
        if not deleted:
            self._one_by_one(ready, error)
            return
        for item, made in ready:
            if made.run in deleted and not item.source.is_over:
                self._refuse(item, deleted_run())
        for run in deleted:
            self._catalog.forget(run)
        self._write([pair for pair in ready if pair[1].run not in deleted])

    def _one_by_one(self, ready: list[tuple[_Item, Parcel]], error: Exception) -> None:
        if len(ready) > 1:
            for pair in ready:
                self._write([pair])
            return
        ((item, made),) = ready
        self._catalog.forget(made.run)  # what it knows of these documents was not stored
        if isinstance(error, RunDeleted):
            self._refuse(item, deleted_run())
        elif isinstance(error, StoreError):
            self._log.write("store", f"a parcel of run {made.run!r} was not stored: {error}")
            self._refuse(item, NotTaken(str(error), UNKNOWN, retry_after_s=DISK_RETRY_S))
        else:
            self._fault(f"a parcel of run {made.run!r}", error)
            self._refuse(item, NotTaken("the store cannot take this parcel", INVALID, is_final=True))

    def _refuse(self, item: _Item, why: NotTaken) -> None:
        if item.source.is_over:
            return
        self._metrics.count("refused_total", reason=why.reason)
        # this parcel will never be taken as it is; others may
        is_one = why.is_final and why.reason in (INVALID, OUTDATED)
        item.source.is_over = not is_one
        item.source.answers.refuse(why, item.sent.number if is_one else 0)

    def _fault(self, what: str, error: Exception) -> None:
        self._metrics.count("faults_total")
        self._log.fault(what, error)

    # ---- between commits ----------------------------------------------------------------------------------------

    def _take_keepalives(self) -> None:
        keepalives, self._keepalives = self._keepalives, {}
        for (run, node), (when_ns, at_ns) in keepalives.items():
            self._catalog.seen(run, node, at_ns)
            self._seen[run] = when_ns

    def _look_around(self) -> None:
        self._take_keepalives()
        if time.monotonic() - self._seen_at >= SEEN_S:
            self._note_seen()
        for run, node in self._catalog.overdue():
            documents = self._store.reader.documents(run).get(node)
            description = self._catalog.again(run, steady_ns())
            if documents is not None and description is not None:
                made = Parcel(run, node, 0, documents=documents, description=description)
                try:
                    self._store.writer.write([made])
                    self._have_come(run, node)
                except StoreError as error:
                    self._catalog.forget(run)
                    self._log.write("store", f"what run {run!r} is was not noted: {error}")

    def _note_seen(self) -> None:
        self._seen_at = time.monotonic()
        seen, self._seen = self._seen, {}
        if seen:
            try:
                self._store.writer.seen(seen)
            except StoreError as error:
                self._log.write("store", f"which runs were seen was not noted: {error}")


def _ignore(run: str, node: str) -> None:
    pass


def deleted_run() -> NotTaken:
    return NotTaken(
        "the run was deleted here and takes no more data; `logclient sync --revive` brings it back",
        DELETED,
        is_final=True,
    )


def _stopping() -> NotTaken:
    return NotTaken("the collector is being stopped", STOPPING, retry_after_s=1.0)


def _in_turn(items: list[_Item | _Call]) -> Iterable[list[_Item] | _Call]:
    """Neighbouring parcels as one group; a call sees all that came before it."""
    group: list[_Item] = []
    for item in items:
        if isinstance(item, _Item):
            group.append(item)
            continue
        if group:
            yield group
            group = []
        yield item
    if group:
        yield group


def _run(call: _Call) -> None:
    if not call.result.set_running_or_notify_cancel():
        return
    try:
        call.result.set_result(call.function())
    except BaseException as error:  # noqa: BLE001  # it belongs to whoever asked
        call.result.set_exception(error)
