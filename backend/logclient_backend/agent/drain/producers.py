"""The producers of a shm directory: who came, who is gone, and what becomes of their files.

Runs in the worker's main thread; part of `Worker`.

Invariants:

- a lane file that cannot be read, or in whose handling workers crashed, is set aside: nothing looks into it again,
  and its bytes are kept in the run folder;
- the files of a producer go when all it logged is durable, its documents are on disk, and why it ended is known, or
  nobody will tell any more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from logclient.shm import layout
from logclient.shm.calls import KEPT

from ..host.crash_report import Handover
from ..host.process_handle import Cause, Watch
from ..host.shm_dir_handle import Kept, ShmDirHandle, is_lane_file, open_regular, side_of_file
from .node_document import Ledger
from .producer import BadLaneFile, Producer, remove_files
from .slurm import Scheduler, is_cut_short, job_of

_ASIDE = ".aside"
_MAX_CALLS = 16  # files with last calls that are stored
_ALIVE_EVERY_S = 1.0  # for processes whose end the kernel does not report
_EXEC_EVERY_S = 2.0  # the others are asked whether they have become another program


class Roster:
    """Producers, by name of their lane file."""

    def __init__(
        self, handle: ShmDirHandle, handover: Handover, ledger: Ledger, log: Callable[[str], None]
    ) -> None:
        self.producers: dict[str, Producer] = {}
        self.aside: list[Kept] = []
        self.swept: list[Producer] = []  # since `mark_swept`
        self._handle = handle
        self._handover = handover
        self._ledger = ledger
        self._log = log
        self._ask_at = 0.0
        self._scheduler = Scheduler(log)
        self._calls: set[str] = set()  # files with last calls that were set aside
        self._changes = -1  # of the handle, up to which all were met

    def takes(self, name: str) -> bool:
        """Is it the name of a lane file of such a producer?"""
        return is_lane_file(name)

    @property
    def is_behind(self) -> bool:
        """Was another file found in the directory since `find`, or could somebody not be met?"""
        return self._changes != self._handle.changes

    def find(self) -> Iterator[Producer]:
        """Return new producers."""
        self._handle.look()
        self._changes = self._handle.changes
        for kept in self._handle.kept():
            if not self.takes(kept.name) or kept.name in self.producers:
                continue
            if kept.is_done:  # a worker died just before it removed it
                remove_files(self._handle, kept)
                continue
            process = bytes.fromhex(kept.name.partition(".")[0])
            if process in self._handover.set_aside:
                self._set_aside(kept, "workers crashed while they read it")
                continue
            self._handover.take(process)
            try:
                producer = Producer(self._handle, kept)
            except (BadLaneFile, ValueError) as error:
                self._set_aside(kept, str(error))
                continue
            except OSError:
                self._changes = -1
                continue  # no descriptor or no memory left just now: the next look tries again
            self.producers[kept.name] = producer
            yield producer
        self._handover.put_down()

    def each(
        self,
        position: Callable[[Producer], int] = lambda producer: 0,
        which: Callable[[Producer], bool] = lambda producer: True,
    ) -> Iterator[Producer]:
        """One after the other; a crash meanwhile is because of the one that is in hand, at that position."""
        for producer in [each for each in self.producers.values() if which(each)]:
            self._handover.take(producer.process, position(producer))
            yield producer
        self._handover.put_down()  # not in a `finally`: an exception must not hide whose fault it was

    def _set_aside(self, kept: Kept, reason: str) -> None:
        self._log(f"{kept.name} is set aside: {reason}")
        self._ledger.set_aside(kept.name, reason)
        try:
            os.rename(self._handle.file(kept.name), self._handle.file(kept.name + _ASIDE))
        except OSError:
            pass  # the folder was removed
        kept.name += _ASIDE
        self.aside.append(kept)

    def set_calls_aside(self) -> None:
        """Have the last calls of processes that were killed stored in the run folder; once, when all are gone."""
        for name in sorted(os.listdir(self._handle.path)):
            if name.startswith(KEPT) and name not in self._calls and len(self._calls) < _MAX_CALLS:
                self._calls.add(name)
                fd = open_regular(self._handle.file(name))
                if fd >= 0:
                    self.aside.append(Kept(self._handle, name, fd))

    @property
    def is_over(self) -> bool:
        """Has nobody the run open, and is all on disk that they logged?"""
        return all(each.has_left and each.is_durable for each in self.producers.values())

    def watches(self) -> list[Watch]:
        """Processes whose end the kernel reports."""
        producers = self.producers.values()
        return [each.watch for each in producers if each.watch is not None and not each.is_gone]

    def has_lost_one(self, now: float) -> bool:
        """Ask when it is time: has a process ended, or become another program, that had not the last time?"""
        if now < self._ask_at:
            return False
        before = sum(producer.is_gone for producer in self.producers.values())
        self._ask(now)
        return sum(producer.is_gone for producer in self.producers.values()) != before

    def _ask(self, now: float) -> None:
        is_watched = True
        for producer in self.producers.values():
            producer.is_gone = producer.is_gone or not producer.kept.is_alive()
            is_watched &= producer.is_gone or (producer.watch is not None and producer.watch.is_open)
        self._ask_at = now + (_EXEC_EVERY_S if is_watched else _ALIVE_EVERY_S)

    def gone(self, *, at_once: bool = False) -> list[Producer]:
        """Return producers from which nothing more can come. `at_once`: a process ended, so ask now."""
        now = time.monotonic()
        if at_once or now >= self._ask_at:
            self._ask(now)
        return [producer for producer in self.producers.values() if producer.has_left]

    def farewell(self, producer: Producer, *, saved_version: int, linger_s: float) -> bool:
        """Note the end of a producer of which all is staged; True: all is stored, and it was let go."""
        self._handover.take(producer.process)
        producer.read_documents()
        self._ledger.note(producer)
        self._handover.put_down()
        alive = producer.has_finished and producer.kept.is_alive()
        is_replaced = producer.kept.is_replaced
        cause = None
        if (
            producer.watch is not None and not alive and not is_replaced
        ):  # else its process's end is not its own
            cause = producer.watch.cause()
        self._ledger.end(producer, cause, alive=alive, is_replaced=is_replaced)
        is_explained = self._is_explained(producer, cause, alive=alive or is_replaced)
        if self._ledger.version_of(producer) > saved_version or producer.pending:
            return False
        if any(lane.durable < lane.staged_seq or lane.lost for lane in producer.lanes):
            return False
        if not is_explained or producer.awaits_exit_code(
            alive=alive, is_unknown=cause is None and not is_replaced, linger_s=linger_s
        ):
            return False
        del self.producers[producer.name]
        self._ledger.let_go(producer)
        if not producer.has_finished and (cause is None or cause.exit_code != 0):
            producer.keep_calls()
        self.swept.append(producer)
        return True

    def mark_swept(self) -> None:
        """Mark those that went: they may do with the run folder what they like."""
        for producer in self.swept:
            producer.words[layout.FOLDER_LEFT] = 1
        self.swept.clear()

    def _is_explained(self, producer: Producer, cause: Cause | None, *, alive: bool) -> bool:
        """Is it known whether a scheduler had to do with this end?"""
        job = job_of(producer.documents)
        if job is None or not is_cut_short(producer.documents, cause, alive=alive):
            return True
        producer.cut_short_at = producer.cut_short_at or time.monotonic()
        verdict = self._scheduler.verdict(job, producer.cut_short_at)
        if verdict:
            self._ledger.note_job(producer, verdict)
        return verdict is not None


class SideRoster(Roster):
    """Lane files of a side (`shm/side_stream.py`), which nobody waits for.

    They are beside the producers: no count, no pace and no end of the run depends on them.
    """

    def __init__(
        self,
        side: str,
        handle: ShmDirHandle,
        handover: Handover,
        ledger: Ledger,
        log: Callable[[str], None],
    ) -> None:
        super().__init__(handle, handover, ledger, log)
        self._side = side

    def takes(self, name: str) -> bool:
        return side_of_file(name) == self._side

    def farewell(self, producer: Producer, *, saved_version: int, linger_s: float = 0.0) -> bool:
        """Let a producer go once all that is wanted of it is stored; True: it was. Its process may live on."""
        self._handover.take(producer.process)
        producer.read_documents()
        self._ledger.note(producer)
        self._handover.put_down()
        if any(lane.durable < lane.staged_seq or lane.lost for lane in producer.lanes):
            return False
        self._ledger.end(producer, None, alive=False)
        if self._ledger.version_of(producer) > saved_version:
            return False
        del self.producers[producer.name]
        self._ledger.let_go(producer)
        return True
