"""The spooler: moves complete segments from tmpfs to a disk of this machine, so that their memory is free again.

A daemon thread of the worker does it, one segment at a time, and may hang there for ever; the main thread hands out
work and looks for results, and waits for nothing. The copier reads a moved segment as before, from the disk.

Invariants:

- only where the run folder is on a network file system that takes nothing, and the stage gets full;
- the memory of a segment is given back after it is past an fsync in the spool, and a note on tmpfs tells a successor
  where it is and what it holds;
- a segment that went from the spool (somebody cleared the folder) is told as damaged, seq by seq.
"""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections import deque

from logclient.shm import modes
from logclient.shm.shm_dir import ShmDir

from ...wal.coverage import Spans, pack_footer, parse_footer
from ...wal.files import READ, REAL
from ...wal.segment import parse_name
from ...wal.writer import OpenSegment
from ..host.crash_report import describe
from ..settings import Settings
from . import spool

_PAUSE_S = 5.0  # after a disk refused
_PATIENCE_S = 5.0  # for what is to be removed at the end


class SpooledSegment:
    """A complete segment whose bytes lie on a local disk; stands in for the `OpenSegment` it was."""

    capacity_bytes = 0  # of memory

    def __init__(self, name: str, path: str, end: int, created_ns: int, summary: Spans, fd: int = -1) -> None:
        self.name = name
        self.path = path
        self.end = end
        self.created_ns = created_ns
        self.summary = summary
        self.fd = fd

    @property
    def number(self) -> int:
        parsed = parse_name(self.name)
        return parsed.number if parsed else 0

    def open(self) -> None:
        """For the copier. Raises FileNotFoundError where it is gone."""
        if self.fd < 0:
            self.fd = REAL.open(self.path, READ)

    def close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)

    def note(self) -> bytes:
        """For a successor."""
        streams = [(span.stream, span.process, span.lane) for span in self.summary.values()]
        spans = base64.b85encode(pack_footer(self.summary, streams, [], self.created_ns)).decode()
        facts = {"path": self.path, "end": self.end, "created_ns": self.created_ns, "spans": spans}
        return json.dumps(facts).encode()

    @classmethod
    def from_note(cls, name: str, note: bytes) -> SpooledSegment:
        """ValueError, KeyError or TypeError where it is none."""
        facts = json.loads(note)
        spans = parse_footer(base64.b85decode(facts["spans"])).spans
        return cls(name, str(facts["path"]), int(facts["end"]), int(facts["created_ns"]), spans)


class Spooler:
    """Main thread: `move`, `moved`, `remove`, `is_done`. The rest is the thread's."""

    def __init__(self, shm_dir: ShmDir, public: str, settings: Settings) -> None:
        self.folder = ""  # of this node in the run folder; empty: nothing is spooled
        self.network = ""  # the type of its file system
        self.lines: deque[str] = deque(maxlen=100)  # for the agent's log
        self.moving: object | None = None  # the segment in hand
        self.moved: tuple[str, int] | None = None  # where it is now, and a descriptor of it
        self._shm_dir = shm_dir
        self._public = public
        self._spool_dir = settings.spool_dir
        self._spool_bytes = settings.spool_bytes
        self._spool: spool.Spool | None = None
        self._job: tuple[str, int, int] | None = None  # name, descriptor (ours), end
        self._rubbish: deque[str] = deque()
        self._rest_until = 0.0
        self._removing_since = 0.0
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    # ---- the main thread --------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """May a segment be handed out now?"""
        is_on = self.folder and self._spool_bytes
        return bool(is_on) and self.moving is None and time.monotonic() >= self._rest_until

    def move(self, segment: OpenSegment) -> None:
        """Begin to move a complete segment."""
        self.moving = segment
        self._job = (
            segment.name,
            os.dup(segment.fd),
            segment.end,
        )  # ours: the segment may be closed meanwhile
        self._go()

    def rest(self) -> None:
        """Nothing more for a while."""
        self._rest_until = time.monotonic() + _PAUSE_S

    def remove(self, path: str) -> None:
        """This spooled segment is in the run folder."""
        self._removing_since = time.monotonic()
        self._rubbish.append(path)
        self._go()

    @property
    def is_done(self) -> bool:
        """Nothing is to be removed, or the disk takes too long for it: the next agent of this user does it then."""
        return not self._rubbish or time.monotonic() - self._removing_since > _PATIENCE_S

    def _go(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="spooler", daemon=True)
            self._thread.start()
        self._wake.set()

    # ---- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            try:
                if self._job is not None:
                    self._move(*self._job)
                while self._rubbish:
                    self._remove(self._rubbish[0])
                    self._rubbish.popleft()
            except Exception as error:  # noqa: BLE001 - whatever it is: the segment stays where it is
                self.lines.append(f"the spool refused: {describe(error)}")
                self.rest()
                self._rubbish.clear()
            if self._job is not None:
                os.close(self._job[1])
                self._job = None
                if self.moved is None:
                    self.moving = None

    def _move(self, name: str, fd: int, end: int) -> None:
        if self._spool is None:
            self._spool = spool.make(self._shm_dir, self._public, self.folder, self.network, self._spool_dir)
            self.lines.append(f"what the network folder does not take goes to {self._spool.path} meanwhile")
        if self._spool.taken_bytes() + end > self._spool_bytes:
            self.rest()
            return
        data = REAL.pread(fd, end, 0)
        if len(data) == end:  # else it was stored meanwhile, and its memory given back
            path = self._spool.add(name, data)
            self.moved = (path, REAL.open(path, READ))

    def _remove(self, path: str) -> None:
        modes.remove_if_there(path)
        here = self._spool
        folder = os.path.dirname(path)
        if here is None or here.path != folder:  # a dead worker's
            if not os.path.isdir(folder):
                return
            here = spool.Spool(folder)
        elif here.segments():
            return
        else:
            self._spool = None
        here.leave()
        here.close()
