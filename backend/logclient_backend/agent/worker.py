"""The worker: one look at the lanes after the other; decides what is due and leaves the disk to the copier.

Runs in a process forked by the supervisor, single-threaded but for the copier. Opens nothing outside tmpfs and
/proc in this thread, so that a frozen disk, the interpreter's own included, stops nothing but the copying.

Invariants:

- a look never waits for a disk; `AGENT_WORKER_BEAT` moves with every look;
- looks are as far apart as what comes allows (`worker_pause.py`), and somebody who waits ends the pause (`pauses.py`);
  a look reads the words of lanes and status page, and goes on to documents, disk and producers when one has changed or
  a time has come;
- what was logged is staged at least every `sync_s`, earlier when a lane is a quarter full, somebody flushes, or a
  producer has gone; it is copied at once, but to a network file system only every `network_sync_s` unless somebody
  waits for it or the stage is half full;
- it leaves only when every producer is gone, everything is sealed and the documents are written, and a collector has
  all that too or has taken nothing for long (`ship_status.py`); or when there is no run folder to write to, or the disk
  takes nothing and waiting on would hold a scheduler step open (`leave_deadline.py`): then what is there stays in
  shared memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from logclient.shm import layout
from logclient.shm.side_stream import SYSTEM

from .. import failpoint
from .drain import drain, other_nodes
from .drain.console import Console
from .drain.environments import Environments
from .drain.media import Media
from .drain.node_document import Ledger
from .drain.producer import Lane, Producer
from .drain.producers import Roster, SideRoster
from .drain.stop_requests import StopRequests
from .drain.worker_pause import WorkerPause
from .host.crash_report import Handover
from .host.pauses import MIN_S, REST_S, Pipes, Sleeper
from .host.process_handle import Watch
from .host.shm_dir_handle import ShmDirHandle
from .host.status import StatusPage
from .observer.observations import Observations
from .output.copier import Copier
from .output.destination import Destination
from .output.disk_budget import DiskBudget
from .output.leave_deadline import LeaveDeadline
from .output.spooler import Spooler
from .output.stage import Stage
from .settings import Settings
from .shipping.ship_status import Shipped

STORED, KEPT = 0, 3  # exit codes: nothing is left in shared memory; what is left stays there

_HASTE_S = 2.0  # something under way is looked at more often for so long
_LEAVING_S = 10.0  # after so long without a producer it is the collector or the disk that takes its time
_LEAVING_PAUSE_S = 0.25
_LONG_S = 0.15  # a pause that a result of the copier's ends
_SLOW_NS = 1_000_000_000
_BUSY_NS = 200_000_000  # a copier that is busy for less is not waited for
# host and device metrics are staged together, as small blocks cost most: with few samples in a run at rest more seldom
_SYSTEM_EVERY_S, _SYSTEM_AT_REST_S, _SYSTEM_SAMPLES = 29.0, 119.0, 12
_MEDIA_EVERY_S = (
    0.2  # between two looks at references; their blobs were written one fsync after the other before
)
_MEDIA_WAITED_S = 10.0  # since somebody flushed: values that were logged before may still be encoded
_MEDIA_PATIENCE_S = 120.0  # for a media process that stores nothing, once nobody logs any more
_LAST_LOOKS = 8  # at a producer that is gone; more than RingReader needs to give a frame up


class Worker:
    """All state of one worker incarnation."""

    def __init__(
        self, handle: ShmDirHandle, status: StatusPage, settings: Settings, handover: Handover, pipes: Pipes
    ) -> None:
        self.status = status
        self.settings = settings
        self.spooler = Spooler(handle.shm_dir, handle.public, settings)
        self.stage = Stage(
            handle, status.words, settings.segment_bytes, settings.spill_bytes, settings.seal_s, self.spooler
        )
        budget = DiskBudget(settings.disk_bytes, settings.keep_bytes)
        self.copier = Copier(self.stage.segments, self.stage.writer, budget, status.words)
        self.ledger = Ledger(handle.shm_dir, status.words)
        self.roster = Roster(handle, handover, self.ledger, self.copier.write_line)
        beside = (handle, handover, self.ledger, self.copier.write_line)
        self.system = SideRoster(SYSTEM, *beside)
        self.console = Console(*beside, settings.console_disk_bytes)
        self.media = Media(*beside)
        self.requests = StopRequests(
            handle,
            status.words,
            self.ledger,
            self.roster,
            self.copier.write_line,
            follows_remote=settings.follows_remote,
        )
        self.destination = Destination(handle, self.copier, settings.network_sync_s)
        self.shipped = Shipped(
            handle, status.words, self.ledger, self.copier.write_line, leave_s=settings.ship_leave_s
        )
        self.observations = Observations(handle, status.words, self.ledger)
        self.environments = Environments(
            handle, status.words, self.ledger, pipes.supervisor, is_wanted=bool(settings.captures)
        )
        self.leave_deadline = LeaveDeadline(
            self.roster, self.stage, self.copier, status.words, settings.leave_s
        )
        self.pace = WorkerPause(settings, time.monotonic())
        self.copier.on_result = self._copied
        self.copier.was_made = handover.has_made
        self._handle = handle
        self._handover = handover
        self._pipes = pipes
        self._sleeper = Sleeper(pipes.worker)
        self._staged_at = 0.0  # the first look stages at once
        self._system_at = 0.0  # when host and device metrics were staged last
        self._next_look = 0.0  # not later than then (monotonic) everything is looked at
        self._hasty_since = 0.0  # when something came under way; 0: nothing is
        self._turns = -1  # of the copier, at the last look
        self._has_ended = False  # a watched process, in the last pause
        self._is_full = False  # a lane stays a quarter full: nothing takes its records now
        self._copies = self._copies_at_once = False  # the copier has something to do; somebody waits for it
        self._is_result_awaited = False  # a result of the copier's is to end the pause

    def run(self, see_to_boss: Callable[[], Watch]) -> int:
        """Work until nothing is left to do; returns the exit code. `see_to_boss` returns a watch of the supervisor."""
        for line in self._handover.news:
            self.copier.write_line(line)
        self.ledger.load()
        for trouble in self.stage.adopt(self._beat):
            self.copier.write_line(trouble)
        boss_at = 0.0
        while True:
            self._beat()
            failpoint.hit("worker.loop")
            self.stage.check()
            now = time.monotonic()
            if self._has_ended or now >= boss_at:
                boss, boss_at = see_to_boss(), now + REST_S
            if self._is_due(now):
                self._look()
                if self._is_over():
                    failpoint.hit("worker.leave")
                    return KEPT if self.destination.is_nowhere else STORED
                if self.leave_deadline.has_ended():
                    return KEPT
                self._plan()
                self._sleeper.watch([boss, *self.roster.watches()])
            elif self.copier.turns != self._turns:
                self._settle()
            self._sleep()

    def abandon(self) -> None:
        """In a supervisor that this worker forked: release everything, memory and descriptors.

        The copier's thread does not exist in the child, but its frames do, and nothing ever frees them. Through the
        copier they reach this object: without the last line each generation would keep the descriptors and the
        mappings of all workers before it.
        """
        for staged in self.stage.segments:
            staged.segment.close()
            staged.watermarks.clear()
        self.stage.segments.clear()
        vars(self).clear()

    def _beat(self) -> None:
        self.status.beat(layout.AGENT_WORKER_BEAT)

    # ---- pauses ----------------------------------------------------------------------------------------

    def _is_due(self, now: float) -> bool:
        """Is there anything to do but wait? Reads words of shared memory, and asks whether the folder changed."""
        self.pace.look(self.roster.producers.values(), now)
        pace = self.pace
        return (
            now >= self._next_look
            or self._has_ended
            or pace.is_filling
            or pace.is_asked
            or (pace.has_records and now - self._staged_at >= self.settings.sync_s)
            or self._is_copier_slow()
            or self.shipped.has_news()
            or self.observations.has_news()
            or self.environments.has_news()
            or self._has_newcomers()
            or self.console.is_due(now)
            or self.media.is_due(now)
            or self.requests.is_due
            or self.roster.has_lost_one(now)
        )

    def _has_newcomers(self) -> bool:
        self._handle.look()
        return self.roster.is_behind

    def _is_copier_slow(self) -> bool:
        since = self.copier.busy_since
        return since != 0 and time.monotonic_ns() - since > _BUSY_NS

    def _plan(self) -> None:
        """Compute when everything is to be looked at again, if nothing happens before."""
        now = time.monotonic()
        producers = self.roster.producers.values()
        is_under_way = (
            not producers
            or not self.destination.is_settled
            or self._is_copier_slow()
            or any(
                each.is_gone
                or each.has_finished
                or each.words[layout.DOCUMENTS_DURABLE] < each.documents_wanted
                for each in producers
            )
        )
        if is_under_way:
            self._hasty_since = self._hasty_since or now
            self._next_look = now
            return
        self._hasty_since = 0.0
        self._next_look = min(self.ledger.due_at, self.stage.seal_at)
        if not self.shipped.is_settled:
            self._next_look = min(self._next_look, now + REST_S)
        if any(lane.lost for each in producers for lane in each.lanes):
            self._next_look = min(self._next_look, self._staged_at + self.settings.sync_s)

    def _pause_s(self, now: float) -> float:
        may_be_long = self._sleeper.may_be_long and not self._handle.is_removed
        pause_s = self.pace.pause_s(now, may_be_long=may_be_long)
        if self._is_full:
            pause_s = max(pause_s, self.settings.poll_s)
        if self._next_look <= now:
            hasty_s = now - self._hasty_since if self._hasty_since else 0.0
            if hasty_s > _LEAVING_S and not self.roster.producers and may_be_long:
                return min(pause_s, _LEAVING_PAUSE_S)
            return min(pause_s, self.settings.poll_s * (1 if hasty_s < _HASTE_S else 2))
        pause_s = min(pause_s, self._next_look - now)
        if self.media.has_some:
            pause_s = min(pause_s, self.media.due_in_s(now))
        if self.pace.has_records:
            pause_s = min(pause_s, max(self.settings.poll_s, self._staged_at + self.settings.sync_s - now))
        return pause_s

    def _sleep(self) -> None:
        if self._copies:
            self.copier.wake(at_once=self._copies_at_once)
            self._copies = self._copies_at_once = False
        now = time.monotonic()
        pause_s = max(MIN_S, self.console.pause_s(self._pause_s(now)))
        self._is_result_awaited = self._is_result_awaited or pause_s > _LONG_S
        if self._is_result_awaited and self.copier.turns != self._turns:
            pause_s = MIN_S
        self._has_ended = self._sleeper.sleep(pause_s)
        self._is_result_awaited = False

    def _wake_copier(self, *, at_once: bool) -> None:
        """After this look: its thread would only fight for the interpreter with ours."""
        self._copies, self._copies_at_once = True, self._copies_at_once or at_once

    def _copied(self) -> None:
        """In the copier's thread: there is a result."""
        if self._is_result_awaited:
            self._pipes.worker.ring()

    # ---- one look ------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        self._meet_newcomers()
        self.requests.look()
        self.copier.is_over = self.roster.is_over
        self.copier.keep_running()
        self.destination.look(is_wanted=self.ledger.has_run)
        self._settle()
        self.stage.stay_above(self.copier.highest_writer)
        self._spool()
        self._look_at_shipping()
        self.observations.look()
        self.environments.look(self.roster.producers.values())
        gone = self.roster.gone(at_once=self._has_ended)
        urgent = self._is_asked() or bool(gone)
        self._is_result_awaited = urgent
        if urgent or self.pace.is_filling or now - self._staged_at >= self.settings.sync_s:
            self._drain_all(gone, at_once=urgent)
            self._staged_at = now
            self.stage.close_old()
        gone_console = self._drain_console(now, at_once=urgent)
        gone_system = self._drain_system(now)
        gone_media = self._drain_media(now, at_once=urgent)
        self._write_documents(at_once=urgent)
        is_on_disk = self.destination.is_there
        saved_version = self.copier.document_done if is_on_disk else self.ledger.version
        ended = (self.roster, gone), (self.console, gone_console), (self.media, gone_media)
        for roster, some in (*ended, (self.system, gone_system)):
            for producer in some:
                if roster.farewell(producer, saved_version=saved_version, linger_s=self.settings.linger_s):
                    producer.sweep(is_on_disk=is_on_disk)
        if self.roster.producers or self.shipped.is_behind:
            self.roster.mark_swept()  # the folder is still in use, and not for them

    def _settle(self) -> None:
        self._turns = self.copier.turns
        self.stage.settle()
        self._report_writing()

    def _meet_newcomers(self) -> None:
        if not self._has_newcomers():
            return
        some = False
        for producer in self.roster.find():
            for lane in producer.lanes:
                self.stage.resume(lane)
            self._beat()
            some = True
        if some:
            now = time.monotonic()
            self.pace.note_newcomer(now)
            self.pace.look(self.roster.producers.values(), now)
            self._pipes.supervisor.ring()  # which keeps their files open, too

    def _is_asked(self) -> bool:
        """Does somebody flush or finish?"""
        is_asked = False
        for producer in self.roster.producers.values():
            producer.is_asking = False
            asked = producer.words[layout.FLUSH_ASKED]
            if asked != producer.flush_seen:
                producer.flush_seen = asked
                producer.documents_wanted = producer.words[layout.DOCUMENTS_WRITTEN]
                is_asked = True
        return is_asked

    def _drain_all(self, gone: list[Producer], *, at_once: bool) -> None:
        """Stage what all lanes hold; `at_once`: somebody waits for it."""
        some = False
        self.stage.lacks_room = False
        for producer in self.roster.each(Producer.released, lambda each: at_once or each.has_something):
            for lane in producer.lanes:
                some |= self._drain(producer, lane, is_gone=producer in gone)
            self.pace.drained(producer)
        self._is_full = not some and self.pace.is_filling
        if some:
            self._notify_shipper()
        is_short = self.stage.lacks_room or self.stage.is_half_full
        if some or at_once or self.stage.lacks_room:  # what was staged before may not be copied or sealed yet
            self._wake_copier(at_once=at_once or is_short)

    def _drain_system(self, now: float) -> list[Producer]:
        """Stage host and device metrics, if it is time; returns the producers from which no more is wanted.

        That is all of them once nobody logs any more: whoever measures keeps no run alive. Else it is time when
        documents are due: a run at rest looks, writes and ships for those anyway.
        """
        for producer in self.system.find():
            for lane in producer.lanes:
                self.stage.resume(lane)
        if not self.system.producers:
            return []
        is_last = all(producer.has_left for producer in self.roster.producers.values())
        every_s = _SYSTEM_EVERY_S
        if self.pace.is_at_rest(now):
            every_s = max(every_s, min(_SYSTEM_AT_REST_S, _SYSTEM_SAMPLES * self.settings.system_s))
        is_due = now - self._system_at >= every_s and self.ledger.is_due(at_once=False)
        if not is_last and (not is_due or self.stage.is_half_full):
            return []
        self._system_at = now
        gone = list(self.system.producers.values()) if is_last else self.system.gone()
        some = False
        for producer in self.system.each():
            for lane in producer.lanes:
                some |= self._drain(producer, lane, is_gone=producer in gone)
        if some:
            if is_last:
                self._notify_shipper()
            self._wake_copier(at_once=is_last)
        return gone

    def _drain_media(self, now: float, *, at_once: bool) -> list[Producer]:
        """Stage references to media values, if it is time; returns the producers from which no more is wanted."""
        for producer in self.media.find():
            for lane in producer.lanes:
                self.stage.resume(lane)
        if not self.media.producers:
            return []
        if not self.roster.producers and self.media.is_stuck():
            for line, producer, found in self.media.given_up(self.status.words):
                self.copier.write_line(line)
                self.stage.add(producer, producer.lanes[0], found)
        gone = self.media.gone()
        if not (gone or at_once or self.media.is_due(now)):
            return []
        self.media.note_look(now, at_once=at_once)
        some = False
        for producer in self.media.each():
            for lane in producer.lanes:
                some |= self._drain(producer, lane, is_gone=producer in gone)
        if some:
            self._notify_shipper()
            self._wake_copier(at_once=bool(gone) or self.media.is_awaited(now))
        return gone

    def _drain_console(self, now: float, *, at_once: bool) -> list[Producer]:
        """Stage what was captured of the output, behind what was logged; returns the processes of which all came.

        When nobody logs any more that is all of them: whoever prints keeps no run alive.
        """
        console = self.console
        for producer in console.find():
            for lane in producer.lanes:
                self.stage.resume(lane)
        if not console.producers:
            return []
        is_last = all(producer.has_left for producer in self.roster.producers.values())
        gone = list(console.producers.values()) if is_last else console.ended()
        if not (at_once or gone or console.is_due(now)) or (self.stage.is_half_full and not gone):
            return gone
        some, words = False, self.status.words
        for producer in console.wanted(now, gone):
            before = words[layout.AGENT_DRAINED]
            for lane in producer.lanes:
                some |= self._drain(producer, lane, is_gone=producer in gone)
            console.note_staged(producer, words[layout.AGENT_DRAINED] - before)
        if some:
            self._notify_shipper()
            self._wake_copier(at_once=at_once or bool(gone))
        return gone

    def _notify_shipper(self) -> None:
        if self.status.words[layout.AGENT_SHIP_STATE] != layout.SHIP_OFF:
            self._pipes.shipper.ring()

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
        self._handover.note_written(self.copier.lines_logged, has_made=self.copier.was_made)
        words = self.status.words
        words[layout.AGENT_WRITE_ERROR] = max(0, self.copier.error)
        words[layout.AGENT_RUN_DISK] = self.copier.budget.used_bytes
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
            self.copier.write_line(self.spooler.lines.popleft())

    def _look_at_shipping(self) -> None:
        if not self.shipped.look():
            return
        for producer in self.roster.producers.values():
            for lane in producer.lanes:
                lane.reader.words[layout.ACKED_SEQ] = self.shipped.count(lane.stream)
        self.copier.budget.acked = self.shipped.acked
        self.copier.wake(at_once=False)

    def _write_documents(self, *, at_once: bool) -> None:
        for producer in self.roster.each(which=Producer.has_documents):
            producer.read_documents()
        for producer in self.roster.producers.values():
            self.ledger.note(producer, counts=False)
            version, seen = producer.documents_sent
            if version and self.copier.document_done >= version:
                producer.words[layout.DOCUMENTS_DURABLE] = seen
            at_once |= producer.words[layout.DOCUMENTS_DURABLE] < producer.documents_wanted
            self._look_beside(producer)
        self.ledger.refused = max(self.ledger.refused, self._handle.refused)
        if self.copier.found is not None and not self.ledger.has_absorbed:
            self.ledger.absorb(self.copier.found)
        if self.ledger.is_due(at_once=at_once):
            for roster in (self.roster, self.console, self.media, self.system):
                for producer in roster.producers.values():
                    self.ledger.note(producer)
            self.ledger.is_at_rest = self.pace.is_at_rest(time.monotonic())
            document = self.ledger.content()
            self._notify_shipper()
            if self.ledger.has_absorbed:  # not before: it would hide what only the run folder knows
                for producer in self.roster.producers.values():
                    producer.documents_sent = (document[0], producer.documents_seen)
                self.copier.document = document
                self._wake_copier(at_once=at_once)

    def _look_beside(self, producer: Producer) -> None:
        """Note what lies beside this node when an owner comes; not where that took so long that it may have changed."""
        if not other_nodes.is_wanted(producer):
            return
        if not producer.look_beside:
            self.copier.beside_asked += 1
            producer.look_beside = self.copier.beside_asked
            self._wake_copier(at_once=False)
            self._is_result_awaited = True
        elif self.copier.beside_done >= producer.look_beside:
            age_s = (self.copier.beside_at_ns - producer.created_mono_ns) / 1e9
            producer.found = self.copier.beside if age_s < other_nodes.MAX_AGE_S else {}

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
        if self.system.producers or self.console.producers or self.media.producers:
            return False
        self._is_result_awaited = True
        if self.stage.segments:
            self.copier.wake()
            return False
        self.roster.set_calls_aside()
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
            return False
        self.roster.mark_swept()
        return self.shipped.is_done(self.copier.document[1]) and self.media.are_shipped(
            self.status.words, self.settings.ship_leave_s
        )
