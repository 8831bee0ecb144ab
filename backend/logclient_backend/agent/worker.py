"""The worker: one look at the lanes after the other; decides what is due and leaves the disk to the copier.

Runs in a process forked by the supervisor, single-threaded but for the copier. Opens nothing outside tmpfs and
/proc in this thread, so that a frozen disk, the interpreter's own included, stops nothing but the copying.

Invariants:

- a look never waits for a disk; `AGENT_WORKER_BEAT` moves with every look;
- what was logged is staged at least every `sync_s`, earlier when a lane is a quarter full, somebody flushes, or a
  producer has gone; it is copied at once, but to a network file system only every `network_sync_s` unless somebody
  waits for it or the stage is half full;
- it leaves only when every producer is gone, everything is sealed and the documents are written, and a collector has
  all that too or has taken nothing for long (`shipped.py`); or when there is no run folder to write to, or the disk
  takes nothing and waiting on would hold a scheduler step open (`patience.py`): then what is there stays in shared
  memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from logclient import layout

from .. import failpoint
from . import drain
from .attach import Lane, Producer
from .budget import Budget
from .copier import Copier
from .destination import Destination
from .handover import Handover
from .ledger import Ledger
from .patience import Patience
from .place import Place
from .roster import Roster
from .settings import Settings
from .shipped import Shipped
from .spooler import Spooler
from .stage import Stage
from .status import StatusPage

STORED, KEPT = 0, 3  # exit codes: nothing is left in shared memory; what is left stays there

_QUARTER = 0.25
_IDLE_AFTER_S = 2.0
_SLOW_NS = 1_000_000_000
_LAST_LOOKS = 8  # at a producer that is gone; more than RingReader needs to give a frame up


class Worker:
    """All state of one worker incarnation."""

    def __init__(self, place: Place, status: StatusPage, settings: Settings, handover: Handover) -> None:
        self.status = status
        self.settings = settings
        self.spooler = Spooler(place.meeting, place.public, settings)
        self.stage = Stage(
            place, status.words, settings.segment_bytes, settings.spill_bytes, settings.seal_s, self.spooler
        )
        budget = Budget(settings.disk_bytes, settings.keep_bytes)
        self.copier = Copier(self.stage.segments, self.stage.writer, budget, status.words)
        self.ledger = Ledger(place.meeting)
        self.roster = Roster(place, handover, self.ledger, self.copier.say)
        self.destination = Destination(place, self.copier, settings.network_sync_s)
        self.shipped = Shipped(
            place, status.words, self.ledger, self.copier.say, leave_s=settings.ship_leave_s
        )
        self.patience = Patience(self.roster, self.stage, self.copier, status.words, settings.leave_s)
        self._handover = handover
        self._place = place
        self._busy_at = time.monotonic()
        self._staged_at = 0.0  # the first look stages at once

    def run(self, see_to_boss: Callable[[], None]) -> int:
        """Until there is nothing left to do; the exit code. `see_to_boss` is called with every look."""
        for line in self._handover.news:
            self.copier.say(line)
        self.ledger.load()
        for trouble in self.stage.adopt(self._beat):
            self.copier.say(trouble)
        while True:
            self._beat()
            failpoint.hit("worker.loop")
            see_to_boss()
            self.stage.check()
            self._look()
            if self._is_over():
                failpoint.hit("worker.leave")
                return KEPT if self.destination.is_nowhere else STORED
            if self.patience.has_ended():
                return KEPT
            time.sleep(self._pause_s())

    def abandon(self) -> None:
        """In a supervisor that we forked: let go of what the frames of the copier, no thread any more, still hold."""
        for staged in self.stage.segments:
            staged.segment.close()
            staged.marks.clear()
        self.stage.segments.clear()

    def _beat(self) -> None:
        self.status.beat(layout.AGENT_WORKER_BEAT)

    def _pause_s(self) -> float:
        idle = time.monotonic() - self._busy_at > _IDLE_AFTER_S
        return self.settings.poll_s * (2 if idle else 1)

    # ---- one look ------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        self._meet_newcomers()
        self.copier.keep_running()
        self.destination.look(is_wanted=self.ledger.has_run)
        self.stage.settle()
        self._report_writing()
        self._spool()
        self._look_at_shipping()
        gone = self.roster.gone()
        urgent = self._is_asked() or bool(gone)
        if urgent or self._is_filling() or now - self._staged_at >= self.settings.sync_s:
            self._drain_all(gone, at_once=urgent)
            self._staged_at = now
            self.stage.close_old()
        self._write_documents(at_once=urgent)
        saved_version = self.copier.document_done if self.destination.is_there else self.ledger.version
        for producer in gone:
            self.roster.farewell(producer, saved_version=saved_version, linger_s=self.settings.linger_s)

    def _meet_newcomers(self) -> None:
        for producer in self.roster.find():
            for lane in producer.lanes:
                self.stage.resume(lane)
            self._beat()
            self._busy_at = time.monotonic()

    def _is_asked(self) -> bool:
        """Does somebody flush or finish?"""
        is_asked = False
        for producer in self.roster.producers.values():
            asked = producer.words[layout.FLUSH_ASKED]
            if asked != producer.flush_seen:
                producer.flush_seen = asked
                producer.documents_wanted = producer.words[layout.DOCUMENTS_WRITTEN]
                is_asked = True
        return is_asked

    def _is_filling(self) -> bool:
        return any(producer.fill() >= _QUARTER for producer in self.roster.producers.values())

    def _drain_all(self, gone: list[Producer], *, at_once: bool) -> None:
        """Stage what all lanes hold; `at_once`: somebody waits for it."""
        some = False
        for producer in self.roster.each(Producer.released):
            for lane in producer.lanes:
                some |= self._drain(producer, lane, is_gone=producer in gone)
        if some:
            self._busy_at = time.monotonic()
        if some or at_once:  # what was staged before may not be copied yet
            self.copier.wake(at_once=at_once or self.stage.is_half_full)

    def _drain(self, producer: Producer, lane: Lane, *, is_gone: bool) -> bool:
        """A frame that does not check may do so at the next look; of a dead producer there will be none."""
        some = False
        looks = _LAST_LOOKS if is_gone else 1
        upto = lane.reader.words[layout.TAIL]  # what comes meanwhile waits for the next look
        while (lane.lost or lane.reader.position < upto) and self.stage.has_room():
            if lane.lost:
                found: drain.Harvest | None = drain.nothing(lane)
            else:
                found = drain.harvest(producer, lane, self.stage.most_taken, is_dead=producer.is_gone)
            if found is None:
                if lane.waits:
                    break
                looks -= 1
                if looks:
                    continue
                if not is_gone:
                    break
                found = drain.written_off(lane)
            failpoint.hit("drain.taken")
            if not self.stage.add(producer, lane, found):
                break
            some = True
            self._beat()  # many lanes may be full at once
        return some

    def _report_writing(self) -> None:
        self._handover.told(self.copier.told)
        words = self.status.words
        words[layout.AGENT_WRITE_ERROR] = max(0, self.copier.error)
        since = self.copier.busy_since
        words[layout.AGENT_WRITE_STALLED_NS] = (
            since if since and time.monotonic_ns() - since > _SLOW_NS else 0
        )

    def _spool(self) -> None:
        """Make room on tmpfs while a network folder takes nothing."""
        if self.destination.network and self.status.words[layout.AGENT_WRITE_STALLED_NS]:
            self.spooler.folder, self.spooler.network = self.copier.folder, self.destination.network
            self.stage.spool()
        while self.spooler.lines:
            self.copier.say(self.spooler.lines.popleft())

    def _look_at_shipping(self) -> None:
        if not self.shipped.look():
            return
        for producer in self.roster.producers.values():
            for lane in producer.lanes:
                lane.reader.words[layout.ACKED_SEQ] = self.shipped.count(lane.stream)
        self.copier.budget.acked = self.shipped.acked
        self.copier.wake(at_once=False)

    def _write_documents(self, *, at_once: bool) -> None:
        for producer in self.roster.each():
            producer.read_documents()
            self.ledger.note(producer)
            version, seen = producer.documents_sent
            if version and self.copier.document_done >= version:
                producer.words[layout.DOCUMENTS_DURABLE] = seen
            at_once |= producer.words[layout.DOCUMENTS_DURABLE] < producer.documents_wanted
        self.ledger.refused = max(self.ledger.refused, self._place.refused)
        if self.copier.found is not None and not self.ledger.has_absorbed:
            self.ledger.absorb(self.copier.found)
        if self.ledger.is_due(at_once=at_once):
            document = self.ledger.content()
            if self.ledger.has_absorbed:  # not before: it would hide what only the run folder knows
                for producer in self.roster.producers.values():
                    producer.documents_sent = (document[0], producer.documents_seen)
                self.copier.document = document
                self.copier.wake(at_once=at_once)

    def _is_kept(self) -> bool:
        """All that there is lies in shared memory to stay: a collector has it, too, or takes nothing."""
        producers = self.roster.producers.values()
        if not self.ledger.is_written or any(not producer.is_gone for producer in producers):
            self.shipped.stay()
        if not self.ledger.is_written or len(self.roster.gone()) < len(producers):
            return False
        lanes = [lane for producer in producers for lane in producer.lanes]
        return self.shipped.has_taken({lane.stream: lane.staged_stored for lane in lanes})

    def _is_over(self) -> bool:
        """No producer is left, and nothing to copy, seal or write either?"""
        if self.destination.is_nowhere:
            return self._is_kept()
        if self.roster.producers:
            self.shipped.stay()
            return False
        self.stage.close_current()
        self.stage.settle()
        if not self.destination.is_there and not self.ledger.has_run:
            return True  # `init` raised, and nothing is to be left of it
        if self.stage.segments:
            self.copier.wake()
            return False
        self.copier.aside.extend(self.roster.aside)
        self.roster.aside.clear()
        self.ledger.close()
        self._write_documents(at_once=not self.shipped.is_behind)
        is_done = (
            self.ledger.has_absorbed
            and self.ledger.is_written
            and self.copier.is_done
            and self.spooler.is_done
        )
        if not is_done:
            self.copier.wake()
        return is_done and self.shipped.is_done(self.copier.document[1])
