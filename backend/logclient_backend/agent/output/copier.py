"""The copier: the only thread that touches the run folder. It may hang there for ever; nothing waits for it.

Runs as a daemon thread of the worker. It copies what is staged (`Replica`, same bytes at the same place), fsyncs,
seals, trims, and writes the documents and the agent's log. The main thread reads the results from plain attributes.

Invariants:

- every step can be repeated, by this copier or by the one of a successor while this one still hangs;
- an error is kept, told in the status page, and tried again with a growing pause: late, never lost;
- where a file system is better asked rarely (`pace_s`), what is new is copied that often, unless somebody waits;
- a segment that cannot be sealed stays as it was copied: whole and durable, only larger;
- a run folder that somebody removes is made again while the run is open, or as long as not all was in it; once the run
  is over and was there whole it stays removed;
- it never touches a lane.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from logclient.shm import layout, modes
from logclient.shm.calls import KEPT
from logclient.shm.regular import OddFile

from ... import failpoint
from ...wal.coverage import Spans
from ...wal.documents import DocumentFile
from ...wal.encoded import StreamColumns
from ...wal.files import CREATE, REAL, read_file
from ...wal.reader import OPEN, SEALED
from ...wal.repair import sweep
from ...wal.scan import Scan
from ...wal.seal import seal
from ...wal.segment import parse_name
from ...wal.writer import Replica
from ..drain import other_nodes
from ..drain.other_nodes import Beside
from ..host.crash_report import describe
from ..host.shm_dir_handle import Kept
from . import agent_log
from .disk_budget import DiskBudget
from .spooler import SpooledSegment
from .staged import Staged

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_START_EVERY_S = 1.0
_MAX_REST_S = 1.0  # while there is something to do, and it is not time for it


class _Lost(Exception):
    """A segment went from the spool; that is seen to."""


class Copier:
    """Takes work by `segments`, `document` and `write_line`; results are in the first two, `error` and `busy_since`."""

    def __init__(self, segments: list[Staged], writer: bytes, budget: DiskBudget, status: memoryview) -> None:
        self.budget = budget
        self.segments = segments  # the stage's own list: read by snapshot
        self.folder = ""  # of this node; empty: there is none (yet)
        self.found: bytes | None = None  # the documents as they were on disk, once that was looked at
        self.document: tuple[int, bytes] = (0, b"")  # version and content wanted on disk
        self.document_done = 0
        self.beside_at_ns = 0  # when that was, by the monotonic clock
        self.beside: Beside = {}  # the other nodes of the run, as the last look found them
        # numbers of looks: the last that is wanted, and that was made
        self.beside_asked = self.beside_done = 0
        self.highest_writer = (
            b""  # the greatest id of a writer that the folder showed when it was looked into
        )
        self.error = 0  # errno of the last try; 0: it worked
        self.busy_since = 0  # monotonic ns since when it does not answer or takes nothing; 0: idle
        self.lines_logged = 0  # lines written to the agent's log
        self.turns = 0  # grows with every result
        self.on_result: Callable[[], None] = lambda: (
            None
        )  # called in our thread, after a result that may be awaited
        self.is_over = False  # nobody has the run open, and all that was logged was in the folder
        self.was_made = False  # the folder, by this agent
        self.pace_s = 0.0  # at least so much between the beginnings of two looks that nobody waits for
        self.aside: list[
            Kept
        ] = []  # kept as they are, beside the segments: lane files that cannot be read, last calls
        self._lines: deque[tuple[int, str]] = deque(maxlen=1000)  # of the agent's log
        self._status = status  # only AGENT_WRITTEN: bytes past an fsync, told at once since it is progress
        self._writer = writer
        self._replicas: dict[str, Replica] = {}
        self._wake = threading.Event()
        self._is_urgent = False
        self._begun_at = 0.0
        self._pause_s = 0.0
        self._made = ""
        self._documents: DocumentFile | None = None
        self._thread: threading.Thread | None = None
        self._started_at = 0.0

    def keep_running(self) -> None:
        """Start the thread, or a new one where the last died."""
        now = time.monotonic()
        if self._thread is not None:
            if self._thread.is_alive() or now - self._started_at < _START_EVERY_S:
                return
            self.write_line("the copier had died and was started again")
        self._started_at = now
        self._replicas.clear()  # half-done copies of a dead thread are made anew
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._thread.start()

    def wake(self, *, at_once: bool = True) -> None:
        """There is something new to copy; `at_once`: somebody waits for it, or memory gets short."""
        self._is_urgent |= at_once
        self._wake.set()

    def write_line(self, line: str) -> None:
        """A line for the agent's log."""
        self._lines.append((time.time_ns(), line))
        self._wake.set()

    @property
    def has_written(self) -> bool:
        """Did the folder take anything yet?"""
        return self._made == self.folder != ""

    @property
    def is_done(self) -> bool:
        """Nothing is left to do (but what was handed in only now)?"""
        is_saved = self.document[0] == self.document_done
        return is_saved and self.budget.is_kept and not (self.segments or self.aside or self._lines)

    # ---- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(None if self._is_idle() else min(_MAX_REST_S, self._rest_s() or _MAX_REST_S))
            self._wake.clear()
            if self.folder and (self._is_urgent or not self._rest_s()):
                self._try()

    def _is_idle(self) -> bool:
        """Is there nothing to do until somebody wakes this thread?"""
        if self.document[0] != self.document_done or self._lines or self.aside or self.error:
            return False
        if not self.budget.is_settled:
            return False
        return all(
            staged.synced >= staged.end and (staged.is_sealed or not staged.is_complete)
            for staged in tuple(self.segments)
        )

    def _results(self) -> tuple[object, ...]:
        """All that the main thread reads of this thread."""
        segments = tuple(self.segments)
        synced = sum(staged.synced for staged in segments)
        sealed = sum(staged.is_sealed for staged in segments)
        saved = (self.document_done, self.found is not None, len(self.aside), self._made)
        return (synced, sealed, *saved, self.error, self.lines_logged)

    def _rest_s(self) -> float:
        return max(0.0, self._begun_at + self.pace_s - time.monotonic())

    def _try(self) -> None:
        time.sleep(self._pause_s)
        self._is_urgent = False
        self._begun_at = time.monotonic()
        self.busy_since = self.busy_since or time.monotonic_ns()
        before = self._results()
        try:
            self._try_work()
        finally:
            if self._results() != before:
                self.turns += 1
                self.on_result()

    def _try_work(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told and tried again
            if isinstance(error, FileNotFoundError):
                self._start_over()
            code = getattr(error, "errno", None) or errno.EIO
            if self.error != code:
                self.write_line(f"the run folder refused: {describe(error)}")
            self.error = code
            self._pause_s = min(_MAX_PAUSE_S, 2 * self._pause_s or _FIRST_PAUSE_S)
            self.wake()
            return  # busy_since stays: to a waiter, an error and a hang are the same
        if self.error:
            self.write_line("the run folder works again")
        self.error = 0
        self._pause_s = 0.0
        self.busy_since = 0

    def _work(self) -> None:
        if self.is_over and self.was_made and not os.path.lexists(self.folder):
            return self._pass_over()
        documents = self._make_folder()
        asked = self.beside_asked
        if asked != self.beside_done:
            self.beside, self.beside_at_ns = other_nodes.look(self.folder), time.monotonic_ns()
            self.beside_done = asked
        for staged in tuple(self.segments):
            self._copy(staged)
        version, content = self.document
        if version != self.document_done:
            failpoint.hit("documents.save")
            documents.save(content)
            self.document_done = version
        for staged in tuple(self.segments):
            if staged.is_complete and not staged.is_sealed and staged.synced == staged.end:
                self._seal(staged)
        staged_bytes = sum(staged.synced for staged in self.segments)
        is_last = all(staged.is_sealed for staged in self.segments)
        self.budget.keep(self.folder, staged_bytes, is_last=is_last)
        self._keep_aside()
        self._write_log()

    def _make_folder(self) -> DocumentFile:
        wanted = self.folder
        if self._documents is None or self._made != wanted:
            os.makedirs(os.path.dirname(os.path.dirname(wanted)), exist_ok=True)
            for folder in (os.path.dirname(wanted), wanted):
                try:
                    os.mkdir(folder)
                except FileExistsError:
                    pass
            self._documents = DocumentFile(wanted, writer=self._writer)
            self.found = self._documents.load() or b""
            for name, why in self._documents.odd.items():
                self.write_line(f"{name} is passed over: {why}")
            self._seal_orphans()
            self._made, self.was_made = wanted, True
        return self._documents

    def _seal_orphans(self) -> None:
        """Open segments whose staged copy is gone (a reboot): nobody will ever add to them."""
        staged = {each.segment.name for each in self.segments}
        sweep(self.folder, is_live=staged.__contains__)
        for name in REAL.list(self.folder):
            parsed = parse_name(name)
            if parsed is not None and parsed.number and parsed.writer != self._writer:
                self.highest_writer = max(self.highest_writer, parsed.writer)
            if parsed is None or parsed.is_sealed or name in staged or parsed.writer == self._writer:
                continue
            try:
                self._seal_as(name, read_file(REAL, os.path.join(self.folder, name)))
            except OddFile as error:
                self.write_line(f"{name} is passed over: {error.reason}")

    def _copy(self, staged: Staged) -> None:
        end = staged.end
        if staged.synced >= end:
            return
        failpoint.hit("copy.write")
        name = staged.segment.name
        replica = self._replicas.get(name)
        if replica is None:
            replica = self._replicas[name] = Replica(REAL, self.folder, name)
        try:
            durable = replica.copy(self._source(staged), end)
        except _Lost:
            return
        finally:
            replica.close()  # a supervisor that is forked now must not inherit it: to close may wait for the disk
        failpoint.hit("copy.synced")
        self._status[layout.AGENT_WRITTEN] += durable - staged.synced
        staged.synced = durable

    def _source(self, staged: Staged) -> int:
        """A descriptor of its bytes; `_Lost` where they are gone, which is seen to."""
        segment = staged.segment
        if isinstance(segment, SpooledSegment):
            try:
                segment.open()
            except FileNotFoundError:
                self._write_off(segment.name, staged)
                raise _Lost from None
        return segment.fd

    def _write_off(self, name: str, staged: Staged) -> None:
        """It went from the spool: what the run folder has of it is all there is."""
        if not os.path.exists(os.path.join(self.folder, name.removesuffix(OPEN) + SEALED)):
            try:
                data = read_file(REAL, os.path.join(self.folder, name))
            except FileNotFoundError:
                data = b""
            there = Spans()
            for item in Scan(data, name=name).items() if data else ():
                if isinstance(item, StreamColumns):
                    there.of(item.stream, item.process, item.lane).add(item.columns)
            if there:
                self._seal_as(name, data)
            self.write_line(f"{name} was removed from the spool: what is not in the run folder of it is gone")
            staged.gone = {
                stream: span.stored.minus(there[stream].stored) if stream in there else span.stored
                for stream, span in staged.segment.summary.items()
            }
        staged.is_sealed = True
        staged.synced = staged.end

    def _seal(self, staged: Staged) -> None:
        failpoint.hit("copy.seal")
        name = staged.segment.name
        if staged.segment.summary:
            data = REAL.pread(self._source(staged), staged.end, 0)
            if len(data) < staged.end:
                raise OSError(errno.EAGAIN, "moved to the spool in this moment", name)
            self._seal_as(name, data)
        else:
            modes.remove_if_there(os.path.join(self.folder, name))  # nothing was logged into it
        self._replicas.pop(name, None)
        failpoint.hit("copy.sealed")
        staged.is_sealed = True

    def _seal_as(self, name: str, data: bytes) -> None:
        try:
            self.budget.sealed(seal(REAL, data, name, self.folder))
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - it must not keep the others from being sealed
            self.write_line(f"{name} stays unsealed: {describe(error)}")

    def _start_over(self) -> None:
        """Somebody removed the folder: make it again, and in it all that is still here."""
        self._made = ""
        self._replicas.clear()
        for staged in self.segments:
            staged.synced = 0
        self.document_done = 0

    def _pass_over(self) -> None:
        """Somebody removed the folder with all that was in it, and it stays so: nothing is left to do there."""
        self.found = self.found or b""
        for staged in tuple(self.segments):
            staged.synced = staged.end
            staged.is_sealed = staged.is_complete
        self.document_done = self.document[0]
        self.beside_done = self.beside_asked
        self.budget.gone()
        self.aside.clear()
        self._lines.clear()

    def _keep_aside(self) -> None:
        for kept in tuple(self.aside):
            name = kept.name if kept.name.startswith(KEPT) else f"aside-{kept.name}"
            path = os.path.join(self.folder, name)
            fd = REAL.open(path, CREATE)
            try:
                with kept.opened() as source:
                    at = 0
                    while data := REAL.pread(source, 1 << 20, at):
                        REAL.pwrite(fd, data, at)
                        at += len(data)
                REAL.fsync(fd)
            except FileNotFoundError:
                self.write_line(f"{kept.name} is gone: its bytes are not kept")
            finally:
                REAL.close(fd)
            self.aside.remove(kept)

    def _write_log(self) -> None:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        if lines:
            agent_log.write(self.folder, lines)
            self.lines_logged += len(lines)
