"""The copier: the only thread that touches the run folder. It may hang there for ever; nothing waits for it.

Runs as a daemon thread of the worker. It copies what is staged (`Replica`, same bytes at the same place), fsyncs,
seals, and writes the documents and the agent's log. The main thread reads the results from plain attributes.

Invariants:

- every step can be repeated, by this copier or by the one of a successor while this one still hangs;
- an error is kept, told in the status page, and tried again with a growing pause: late, never lost;
- it never touches a lane.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque

from .. import failpoint
from ..wal.documents import DocumentFile
from ..wal.files import REAL, read_file
from ..wal.repair import sweep
from ..wal.seal import seal
from ..wal.segment import parse_name
from ..wal.trim import trim
from ..wal.writer import Replica
from .stage import Staged

_FIRST_PAUSE_S = 0.1
_MOST_PAUSE_S = 5.0
_LOG_BYTES = 256 << 10
_TRIM_EVERY_S = 5.0


class Copier:
    """Work goes in through `segments`, `document` and `log`; results come out of them, `error` and `busy_since`."""

    def __init__(self, segments: list[Staged], writer: bytes, disk_bytes: int) -> None:
        self.segments = segments  # the stage's own list: read by snapshot
        self.folder = ""  # of this node; empty: there is none (yet)
        self.document: tuple[int, bytes] = (0, b"")  # version and content wanted on disk
        self.document_done = 0
        self.log: deque[str] = deque(maxlen=1000)
        self.error = 0  # errno of the last try; 0: it worked
        self.busy_since = 0  # monotonic ns; 0: idle
        self.written = 0  # bytes past an fsync
        self._writer = writer
        self._disk_bytes = disk_bytes
        self._replicas: dict[str, Replica] = {}
        self._wake = threading.Event()
        self._pause_s = 0.0
        self._made = ""
        self._documents: DocumentFile | None = None
        self._trimmed_at = 0.0
        self._thread: threading.Thread | None = None

    def keep_running(self) -> bool:
        """Start the thread, or a new one where the last died; False if it had died."""
        if self._thread is not None and self._thread.is_alive():
            return True
        died = self._thread is not None
        self.busy_since = 0
        for replica in self._replicas.values():
            replica.close()
        self._replicas.clear()  # half-done copies of a dead thread are made anew
        self._thread = threading.Thread(target=self._run, name="copier", daemon=True)
        self._thread.start()
        return not died

    def wake(self) -> None:
        """There is something new to copy."""
        self._wake.set()

    @property
    def stalled_ns(self) -> int:
        """Since when (monotonic) the run folder does not answer or takes nothing; 0: it does."""
        return self.busy_since

    # ---- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause_s or 1.0)
            self._wake.clear()
            if not self.folder:
                continue
            if self._pause_s:
                time.sleep(self._pause_s)
            self.busy_since = self.busy_since or time.monotonic_ns()
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told and tried again
                self.error = getattr(error, "errno", None) or errno.EIO
                self._pause_s = min(_MOST_PAUSE_S, 2 * self._pause_s or _FIRST_PAUSE_S)
                self.log.append(f"the run folder refused: {type(error).__name__}: {error}")
                if isinstance(error, FileNotFoundError):
                    self._made = (
                        ""  # somebody removed the folder: it is made again, and filled from what is staged
                    )
                continue  # busy_since stays: to a waiter, an error and a hang are the same
            self.error = 0
            self._pause_s = 0.0
            self.busy_since = 0

    def _work(self) -> None:
        self._make_folder()
        for staged in tuple(self.segments):
            self._copy(staged)
        version, content = self.document
        if version != self.document_done and self._documents is not None:
            failpoint.hit("documents.save")
            self._documents.save(content)
            self.document_done = version
        for staged in tuple(self.segments):
            if staged.is_complete and not staged.is_sealed and staged.synced == staged.end:
                self._seal(staged)
        self._write_log()

    def _make_folder(self) -> None:
        if self._made == self.folder:
            return
        os.makedirs(os.path.dirname(os.path.dirname(self.folder)), exist_ok=True)
        for folder in (os.path.dirname(self.folder), self.folder):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                pass
        self._documents = DocumentFile(self.folder, writer=self._writer)
        self._seal_orphans()
        self._made = self.folder

    def _seal_orphans(self) -> None:
        """Open segments whose staged copy is gone (a reboot): nobody will ever add to them."""
        staged = {each.segment.name for each in self.segments}
        sweep(self.folder, is_live=staged.__contains__)
        for name in REAL.list(self.folder):
            parsed = parse_name(name)
            if parsed is None or parsed.is_sealed or name in staged or parsed.writer == self._writer:
                continue
            seal(REAL, read_file(REAL, os.path.join(self.folder, name)), name, self.folder)

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
            durable = replica.copy(staged.segment.fd, end)
            os.stat(replica.path)  # what is written into a removed file is nowhere
        except FileNotFoundError:  # removed, or sealed by a copier that was thought dead
            replica.close()
            del self._replicas[name]
            raise
        failpoint.hit("copy.synced")
        self.written += durable - staged.synced
        staged.synced = durable

    def _seal(self, staged: Staged) -> None:
        failpoint.hit("copy.seal")
        name = staged.segment.name
        if staged.segment.summary:
            seal(REAL, REAL.pread(staged.segment.fd, staged.end, 0), name, self.folder)
        replica = self._replicas.pop(name, None)
        if replica is not None:
            replica.close()
        failpoint.hit("copy.sealed")
        staged.is_sealed = True
        if time.monotonic() - self._trimmed_at > _TRIM_EVERY_S:
            self._trimmed_at = time.monotonic()
            trim(self.folder, self._disk_bytes)

    def _write_log(self) -> None:
        if not self.log:
            return
        path = os.path.join(self.folder, "agent.log")
        lines = []
        while self.log:
            lines.append(self.log.popleft())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(fd).st_size > _LOG_BYTES:
                os.rename(path, f"{path}.old")
            os.write(fd, "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        finally:
            os.close(fd)
