"""The worker: one look at the lanes after the other; decides what is due and leaves the disk to the copier.

Runs in a process forked by the supervisor, single-threaded but for the copier. Opens nothing outside tmpfs and
/proc in this thread, so that a frozen disk, the interpreter's own included, stops nothing but the copying.

Invariants:

- a look never waits for a disk; `AGENT_WORKER_BEAT` moves with every look;
- what was logged is staged and handed to the copier at least every `sync_s`, earlier when a lane is a quarter full,
  somebody flushes, or a producer has gone;
- it leaves only when every producer is gone, everything is sealed and the documents are written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from logclient import layout
from logclient.meeting import Meeting, folder_name

from .. import failpoint
from . import attach
from .attach import BadLaneFile, Lane, Producer
from .copier import Copier
from .drain import harvest
from .ledger import Ledger
from .settings import Settings
from .stage import Stage
from .status import StatusPage

_QUARTER = 0.25
_LIST_EVERY_S = 0.2
_ALIVE_EVERY_S = 0.25
_IDLE_AFTER_S = 2.0
_FOLDER_PATIENCE_S = 5.0
_LAST_LOOKS = 8  # at a producer that is gone; more than RingReader needs to give a frame up


class Worker:
    """All state of one worker incarnation."""

    def __init__(self, meeting: Meeting, status: StatusPage, settings: Settings, kept: dict[str, int]) -> None:
        """`kept`: descriptors of lane files that the supervisor holds, by name."""
        self.meeting = meeting
        self.status = status
        self.settings = settings
        self.producers: dict[str, Producer] = {}
        self.stage = Stage(
            meeting.path,
            status.words,
            segment_bytes=settings.segment_bytes,
            spill_bytes=min(settings.spill_bytes, meeting.facts.get("budget_bytes", 1 << 40) // 2),
            seal_s=settings.seal_s,
        )
        self.copier = Copier(self.stage.segments, self.stage.writer, settings.disk_bytes)
        self.ledger = Ledger(meeting)
        self._kept = kept
        self._bad: set[str] = set()
        self._staged_at = time.monotonic()
        self._listed_at = 0.0
        self._asked_alive_at = 0.0
        self._busy_at = time.monotonic()
        self._started = time.monotonic()

    def run(self, guard: Callable[[], None]) -> None:
        """Until there is nothing left to do; `guard` is called with every look and sees to the supervisor."""
        self.ledger.load()
        for trouble in self.stage.adopt():
            self.say(trouble)
        self._find_producers()
        self.copier.keep_running()
        self.copier.wake()
        while True:
            self.status.beat(layout.AGENT_WORKER_BEAT)
            failpoint.hit("worker.loop")
            guard()
            self._look()
            if not self.producers and self._is_done():
                failpoint.hit("worker.leave")
                return
            time.sleep(self._pause_s())

    def say(self, line: str) -> None:
        """A line for the agent's log."""
        self.copier.log.append(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}")

    # ---- one look ------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._listed_at >= _LIST_EVERY_S:
            self._find_producers()
        if not self.copier.keep_running():
            self.say("the copier had died and was started again")
        self._find_folder()
        self.stage.settle()
        self._report_writing()
        gone = self._gone_producers(now)
        urgent = self._is_urgent() or bool(gone)
        if urgent or now - self._staged_at >= self.settings.sync_s:
            if self._drain_all(gone):
                self._busy_at = now
            self._staged_at = now
            self.stage.close_old()
        for producer in gone:
            if producer.pending == 0 or producer.is_drained:
                self._farewell(producer)
        self._write_documents(at_once=urgent)
        self._answer_flushes()

    def _is_urgent(self) -> bool:
        for producer in self.producers.values():
            asked = producer.words[layout.FLUSH_ASKED]
            if asked != producer.pending_flush:
                producer.pending_flush = asked
                return True
            if producer.fill() >= _QUARTER:
                return True
        return False

    def _pause_s(self) -> float:
        idle = time.monotonic() - self._busy_at > _IDLE_AFTER_S
        return self.settings.poll_s * (2 if idle else 1)

    # ---- producers -------------------------------------------------------------------------------------

    def _find_producers(self) -> None:
        self._listed_at = time.monotonic()
        names = attach.find(self.meeting.path, self._is_known)
        names += [name for name in self._kept if attach.is_lane_file(name) and not self._is_known(name)]
        for name in dict.fromkeys(names):
            try:
                producer = Producer(self.meeting.path, name, self._kept.get(name))
            except FileNotFoundError:
                continue
            except (BadLaneFile, OSError, ValueError) as error:
                self._bad.add(name)
                self.say(f"{name} is set aside: {error}")
                continue
            self._kept.pop(name, None)
            for lane in producer.lanes:
                self.stage.resume(lane)
            self.producers[name] = producer
            self._busy_at = time.monotonic()

    def _is_known(self, name: str) -> bool:
        return name in self.producers or name in self._bad

    def _gone_producers(self, now: float) -> list[Producer]:
        """Those from which nothing more can come."""
        gone = []
        ask = now - self._asked_alive_at >= _ALIVE_EVERY_S
        for producer in self.producers.values():
            watch = producer.watch
            if producer.has_finished or (watch is not None and watch.is_open and watch.has_ended()):
                gone.append(producer)
            elif ask and not producer.is_alive():
                gone.append(producer)
        if ask:
            self._asked_alive_at = now
        return gone

    def _farewell(self, producer: Producer) -> None:
        """Everything it logged is staged: note its end, and remove its files once all is durable."""
        producer.is_drained = True
        producer.read_documents()
        self.ledger.note(producer)
        watch = producer.watch
        alive = producer.has_finished and (watch is None or not watch.has_ended())
        cause = watch.cause() if watch is not None and not alive else None
        self.ledger.end(producer, cause, alive=alive)
        if any(lane.durable < lane.staged_seq for lane in producer.lanes):
            return
        if self.copier.document_done != self.ledger.version or self.ledger.is_due(at_once=True):
            return
        if self._may_still_learn(producer, alive, cause is None):
            return
        producer.sweep()
        del self.producers[producer.name]

    def _may_still_learn(self, producer: Producer, alive: bool, unknown: bool) -> bool:
        """A program that is ending may still fail: its exit code is worth a short wait."""
        state = (producer.documents.get("state") or {}).get("data") or {}
        if state.get("by") != "exit" and producer.has_finished:
            return False
        if not (alive or unknown) or producer.watch is None or not producer.watch.is_open:
            return False
        if producer.ending_since == 0.0:
            producer.ending_since = time.monotonic()
        return time.monotonic() - producer.ending_since < self.settings.linger_s

    # ---- duties ------------------------------------------------------------------------------------------

    def _drain_all(self, gone: list[Producer]) -> bool:
        """Stage what all lanes hold; True if there was anything."""
        some = False
        for producer in self.producers.values():
            patience = _LAST_LOOKS if producer in gone else 1
            for lane in producer.lanes:
                some |= self._drain(producer, lane, patience)
        if some:
            self.copier.wake()
        return some

    def _drain(self, producer: Producer, lane: Lane, patience: int) -> bool:
        """`patience`: looks at a frame that does not check; the reader gives it up after a few."""
        some = False
        upto = lane.reader.words[layout.TAIL]  # what comes meanwhile waits for the next look
        while patience and lane.reader.position < upto and self.stage.has_room():
            found = harvest(producer, lane)
            if found is None:
                patience -= 1
                continue
            failpoint.hit("drain.taken")
            if not self.stage.add(producer, lane, found):
                break
            some = True
        return some

    def _find_folder(self) -> None:
        """Where the copier writes: as the launcher found out, or as wanted if it could not in time."""
        if self.copier.folder:
            return
        found = self.meeting.folder_answer()
        if found.get("state") == "none":
            return  # shared memory only, until `logclient recover --dir`
        base = found.get("dir") or ""
        if not base and time.monotonic() - self._started > _FOLDER_PATIENCE_S:
            base = self.meeting.dir
        if base:
            self.copier.folder = os.path.join(base, folder_name(self.meeting.run_id), self.meeting.node)
            self.copier.wake()

    def _report_writing(self) -> None:
        words = self.status.words
        words[layout.AGENT_WRITTEN] = self.copier.written
        words[layout.AGENT_WRITE_ERROR] = self.copier.error
        since = self.copier.stalled_ns
        slow = since and time.monotonic_ns() - since > 1_000_000_000
        words[layout.AGENT_WRITE_STALLED_NS] = since if slow else 0

    def _write_documents(self, *, at_once: bool) -> None:
        for producer in self.producers.values():
            producer.read_documents()
            self.ledger.note(producer)
        if not self.producers and self.stage.is_settled:
            self.ledger.close()
        if self.ledger.is_due(at_once=at_once or not self.producers):
            for producer in self.producers.values():
                producer.documents_sent = (self.ledger.version + 1, producer.documents_seen)
            self.copier.document = self.ledger.content()
            self.copier.wake()

    def _answer_flushes(self) -> None:
        done = self.copier.document_done
        for producer in self.producers.values():
            version, seen = producer.documents_sent
            if version and done >= version:
                producer.words[layout.DOCUMENTS_DURABLE] = seen

    def _is_done(self) -> bool:
        """Nothing left to copy, seal or write?"""
        self.stage.close_current()
        self.stage.settle()
        if self.stage.segments:
            self.copier.wake()
            return False
        self.ledger.close()
        if self.ledger.is_due(at_once=True) or self.copier.document_done != self.ledger.version:
            self._write_documents(at_once=True)
            return False
        return True
