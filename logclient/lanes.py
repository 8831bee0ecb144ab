"""A process's lanes: its lane file, who may write to which ring, and lanes that got lost.

Runs in the training process. A lane is taken by popping it from a list and given back by appending it: both are
atomic, so threads, signal handlers, finalizers and re-entry need no lock, and a fork inherits nothing held.

Invariants:

- a lane is in at most one list, and in none while somebody writes to it;
- the file is complete before it is visible: reserved with posix_fallocate, so that a full mount is an error here
  and never a SIGBUS later, mapped and populated, then renamed into place (`show`);
- lane 0 has at least 3/4 of the file and serves the single-threaded case alone.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from time import time_ns

from . import layout, meeting
from .owner import pid_namespace, start_ticks
from .ring import Blocks, RingWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

_FULL = 4 << 20  # the proportions below are for this size and shrink with it


class Lanes:
    """The lane file of this process incarnation."""

    __slots__ = ("_all", "_map", "_misses", "first", "mem", "others", "path", "process", "words")

    def __init__(self, folder: str, total_bytes: int, count: int, rank: int | None) -> None:
        """Make the file, not yet visible. Raises OSError where the memory cannot be reserved."""
        self.process = os.urandom(16)
        self.path = os.path.join(folder, f"{self.process.hex()}.lanes")
        making = f"{self.path}.new"
        fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, total_bytes)
            self._map = mmap.mmap(fd, total_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self.mem = memoryview(self._map)
            self.words = self.mem.cast("Q")
            _lay_out(self.words, total_bytes, count, self.process, rank)
        except BaseException:
            os.unlink(making)
            raise
        finally:
            os.close(fd)
        self._misses = 0
        blocks = Blocks(self.mem)
        self.first: list[RingWriter] = []
        self.others: list[RingWriter] = []
        for index in range(count):
            header = layout.LANE_HEADERS + index * layout.LANE_HEADER_WORDS
            home = self.others if index else self.first
            home.append(RingWriter(self.mem, header, home, blocks))
        self._all = self.first + self.others
        self.others.reverse()

    def show(self) -> None:
        """Let the agent see the file; by now the process holds its live lock."""
        os.rename(f"{self.path}.new", self.path)

    def __iter__(self) -> Iterator[RingWriter]:
        return iter(self._all)

    def take_other(self, code: CodeType) -> RingWriter | None:
        """A lane beside lane 0, or None; `code` is the function that holds lanes in a local named `lane`."""
        self._misses += 1
        if not self._misses & 0xFF:
            self.find_lost(code, sys._getframe(1))  # lane 0 itself may be the lost one
        for attempt in (0, 1):
            for home in (self.others, self.first):
                try:
                    return home.pop()
                except IndexError:
                    continue
            if attempt == 0:
                self.find_lost(code, sys._getframe(1))
        return None

    def find_lost(self, code: CodeType, asking: FrameType | None = None) -> None:
        """Take back lanes that an exception hit between pop and try, or in the moment of giving back.

        A lane is lost when it is in no list and no frame of `code` on any thread's stack could hold it. A frame
        that may have popped a lane and not yet stored it makes all of them unsure: then nothing is taken back.
        `asking` is the frame that called in order to get a lane, and so has none.
        """
        held: set[int] = set()
        for frame in sys._current_frames().values():
            step: FrameType | None = frame
            while step is not None:
                if step.f_code is code and step is not asking:
                    lane = step.f_locals.get("lane")
                    if lane is None:
                        return
                    held.add(id(lane))
                step = step.f_back
        for lane in self._all:
            if id(lane) not in held and lane not in self.first and lane not in self.others:
                lane.resync()
                lane.home.append(lane)

    def close(self) -> list[RingWriter]:
        """Take all free lanes out of circulation; those still in use are not in the answer."""
        taken = []
        for home in (self.first, self.others):
            while home:
                try:
                    taken.append(home.pop())
                except IndexError:
                    break
        return taken

    def detach(self) -> None:
        """In a forked child: never write to the parent's memory again, not even from an interrupted call."""
        for lane in self._all:
            lane.detach()


def _lay_out(words: memoryview, total: int, count: int, process: bytes, rank: int | None) -> None:
    scale = min(1.0, total / _FULL)
    keys = _page(scale * (128 << 10), 8 << 10)
    large = _page(scale * (64 << 10), 4 << 10)
    small = _page(scale * (8 << 10), 1 << 10, 1 << 10)
    documents = 2 * (layout.LARGE_KINDS * large + (len(layout.DOCUMENT_KINDS) - layout.LARGE_KINDS) * small)
    cells = 2 if scale > 0.2 else 0
    cell = _page(scale * (128 << 10), 4 << 10)
    at = layout.KEYS_OFFSET
    words[layout.FILE_KEYS], words[layout.FILE_KEYS + 1] = at, keys
    at += keys
    words[layout.FILE_DOCUMENTS] = at
    words[layout.FILE_DOCUMENTS + 1], words[layout.FILE_DOCUMENTS + 2] = large, small
    at += documents
    words[layout.FILE_BLOCKS], words[layout.FILE_BLOCKS + 1], words[layout.FILE_BLOCKS + 2] = at, cell, cells
    at += cell * cells
    first = total * 3 // 4 if count > 1 else total - at
    rest = (total - at - first) // max(1, count - 1) & ~7
    for index in range(count):
        header = layout.LANE_HEADERS + index * layout.LANE_HEADER_WORDS
        size = (rest if index else first) & ~7
        words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES] = at, size
        stream = os.urandom(16)
        for word in (0, 1):
            words[header + layout.LANE_STREAM + word] = int.from_bytes(stream[8 * word : 8 * word + 8], "little")
        at += size
    if at > total or rest < 4096 and count > 1:
        raise OSError(errno.ENOMEM, f"{total} bytes are too few for {count} lanes")
    words[layout.FILE_VERSION] = layout.VERSION
    words[layout.FILE_BYTES] = total
    words[layout.FILE_LANES] = count
    words[layout.FILE_PID] = os.getpid()
    words[layout.FILE_START_TICKS] = start_ticks()
    words[layout.FILE_PID_NAMESPACE] = pid_namespace()
    words[layout.FILE_PROCESS] = int.from_bytes(process[:8], "little")
    words[layout.FILE_PROCESS + 1] = int.from_bytes(process[8:], "little")
    words[layout.FILE_CREATED_NS] = time_ns()
    words[layout.FILE_RANK] = 0 if rank is None else rank + 1
    words[layout.FILE_MAGIC] = layout.MAGIC


def _page(size: float, least: int, step: int = 4096) -> int:
    return max(least, int(size) // step * step)


def make(place: meeting.Meeting, total_bytes: int, count: int, rank: int | None, *, forked: bool = False) -> Lanes:
    """Lanes within the run's budget on this node: smaller where it is short. Raises OSError."""
    floor = meeting.LANES_FLOOR
    left = place.budget_bytes - place.taken_bytes()
    # other processes and the spill of the agent want a share too; the last ones still get the floor
    wanted = floor if forked else max(floor, min(total_bytes, left // 4)) // mmap.PAGESIZE * mmap.PAGESIZE
    if left < floor:
        raise OSError(errno.ENOSPC, f"the run's share of shared memory ({place.budget_bytes:,} bytes) is used up")
    while True:
        try:
            return Lanes(place.path, wanted, count, rank)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT) or wanted == floor:
                raise
            wanted = max(floor, wanted // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
