"""A process's lanes: its lane file, who may write to which ring, and lanes that got lost.

Runs in the training process. A lane is taken by popping it from a list and given back by appending it: both are
atomic, so threads, signal handlers, finalizers and re-entry need no lock, and a fork inherits nothing held.

Invariants:

- a lane is in at most one list, and in none while somebody writes to it;
- a closed lane comes back to a list that nobody takes lanes from, so no call that begins later finds one;
- a lane is lost when nothing but this object refers to it: not a list, not a variable of any frame, not a value
  that a frame has not yet stored. Its reference count says so in one indivisible look;
- the file is complete before it is visible: reserved with posix_fallocate, so that a full mount is an error here
  and never a SIGBUS later, mapped and populated, then renamed into place (`show`);
- lane 0 has at least 3/4 of the file, of a file below `LANES_FLOOR` most of what the areas leave, and serves
  the single-threaded case alone;
- the last lanes of a file that is large enough are for records with device values (`device.py`) and nothing else.
"""

from __future__ import annotations

import errno
import mmap
import os
from sys import getrefcount

from ..guest.descriptors import Mapped
from ..shm import lane_file, layout, modes
from ..shm.proc import file_limit
from ..shm.ring import Blocks, RingWriter
from ..shm.shm_dir import LANES_FLOOR, MIN_LANES, SHARE, ShmDir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..shm.ring import Mark

_FULL = 4 << 20  # the proportions below are for this size and shrink with it
_NEVER_FORKED = b"\1"
_DEVICE_LANES = (128 << 10, 32 << 10)  # bytes of each, at _FULL
_MIN_LANE = 4096
_SMALL_LANES = 2  # in a file below the floor
_TOO_LARGE = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG)  # a smaller file may do
_LANES = ".lanes"  # in the names of lane files, those in the making too


def is_empty(error: IndexError) -> bool:
    """Raised by `pop` in the frame that caught it; else it comes from a signal handler, or was injected."""
    step = error.__traceback__
    return error.args == ("pop from empty list",) and step is not None and step.tb_next is None


class Lanes:
    """The lane file of this process incarnation."""

    __slots__ = (
        "_all",
        "_closed",
        "_lost_references",
        "_misses",
        "blocks",
        "device",
        "device_count",
        "first",
        "map",
        "mem",
        "others",
        "path",
        "process",
        "words",
    )

    def __init__(
        self,
        folder: str,
        total_bytes: int,
        count: int,
        rank: int | None,
        mark: Mark = _NEVER_FORKED,
        *,
        room_of: ShmDir | None = None,
    ) -> None:
        """Make the file, not yet visible. Raises OSError.

        With `room_of` the share of that run is looked at when the memory is reserved: processes that start in the same
        moment each saw that much left.
        """
        self.process = os.urandom(16)
        self.path = os.path.join(folder, f"{self.process.hex()}.lanes")
        making = self.path + modes.MAKING
        fd = modes.new_file(making, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, total_bytes)  # `make` keeps to the limit of file sizes
            if room_of is not None and not _has_room(room_of, total_bytes):
                raise OSError(errno.ENOSPC, "the run's share of shared memory is used up", making)
            self.map = Mapped(fd, total_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self.mem = memoryview(self.map)
            self.words = self.mem.cast("Q")
            _lay_out(self.words, total_bytes, count, self.process, rank)
        except BaseException:
            os.unlink(making)
            raise
        finally:
            os.close(fd)
        self._misses = 0
        self.blocks = Blocks(self.mem, mark)
        self.first: list[RingWriter] = []
        self.others: list[RingWriter] = []
        self.device: list[RingWriter] = []
        self.device_count = self.words[layout.FILE_DEVICE_LANES]
        count = self.words[layout.FILE_LANES] - self.device_count
        self._closed: list[RingWriter] = []
        self._all: list[RingWriter] = []
        for index in range(count + self.device_count):
            header = layout.lane_header(index)
            home = self.device if index >= count else self.others if index else self.first
            # of a device's lanes none is forgotten ahead: its values may come
            ahead = {"ahead": 0} if home is self.device else {}
            self._all.append(RingWriter(self.mem, header, home, self.blocks, mark, **ahead))
        for lane in self._all:
            self._lost_references = getrefcount(lane)  # as `find_lost` will see it: now they are in no list
        for lane in reversed(self._all):
            lane.home.append(lane)

    def show(self) -> None:
        """Let the agent see the file; by now the process holds its live lock."""
        os.rename(self.path + modes.MAKING, self.path)

    def withdraw(self) -> None:
        """Remove the file, which nobody has seen yet."""
        modes.remove(self.path + modes.MAKING)

    def __iter__(self) -> Iterator[RingWriter]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def take_other(self) -> RingWriter | None:
        """A lane for a caller who found `first` empty, or None."""
        self._misses += 1
        if not self._misses & 0xFF:
            self.find_lost()  # lane 0 itself may be the lost one
        return self._take(self.first, self.others)

    def take_device(self) -> RingWriter | None:
        """A lane for a record with device values, or None."""
        return self._take(self.device)

    def _take(self, *homes: list[RingWriter]) -> RingWriter | None:
        """From the first of them that has one, lost ones included."""
        for attempt in (0, 1):
            for home in homes:
                try:
                    return home.pop()
                except IndexError as error:
                    if not is_empty(error):
                        raise
            if attempt == 0:
                self.find_lost()
        return None

    def find_lost(self) -> None:
        """Take back lanes that an exception hit between pop and try; see `foreign.forget_frames`, too."""
        for lane in self._all:
            if getrefcount(lane) == self._lost_references:
                lane.resync()
                lane.home.append(lane)

    def close(self) -> bool:
        """Take the lanes out of circulation for good; False while some are in use or lost: they come back elsewhere."""
        closed = self._closed
        for lane in self._all:
            lane.home = closed
        for home in (self.first, self.others, self.device):
            while home:
                try:
                    closed.append(home.pop())
                except IndexError as error:
                    if not is_empty(error):
                        raise
                    break
        return len(closed) >= len(self._all)

    def detach(self) -> None:
        """Nothing more is written, not even by a call that is under way: of a forked child, of a finished run."""
        for lane in self._all:
            lane.detach()
        self.blocks.detach()

    def forget(self) -> None:
        """Break the cycles between lanes and lists: the memory goes with the last reference, not with a collection."""
        self._closed.clear()


def _lay_out(words: memoryview, total: int, count: int, process: bytes, rank: int | None) -> None:
    scale = min(1.0, total / _FULL)
    keys = _page(scale * (128 << 10), 8 << 10)
    large = _page(scale * (64 << 10), 4 << 10)
    small = _page(scale * (8 << 10), 1 << 10, 1 << 10)
    cells = 2 if scale > 0.2 else 0
    cell = _page(scale * (128 << 10), 4 << 10)
    at = lane_file.start_of_lanes(keys, (large, small), (cell, cells))
    first = total * 3 // 4
    if total < LANES_FLOOR:
        count = min(count, _SMALL_LANES)
        first = total - at - _MIN_LANE * (count - 1)
    device = [_page(scale * size, _MIN_LANE) for size in _DEVICE_LANES]
    if total - at - first - sum(device) < _MIN_LANE * (count - 1):
        device = []  # what every process needs goes before
    if count == 1:
        first = total - at - sum(device)
    rest = (total - at - first - sum(device)) // max(1, count - 1) & ~7
    sizes = [first & ~7, *[rest] * (count - 1), *device]
    if at + sum(sizes) > total or (rest < _MIN_LANE and count > 1):
        raise OSError(errno.ENOMEM, f"{total} bytes are too few for {count} lanes")
    lanes = [(size, os.urandom(16)) for size in sizes]
    lane_file.lay_out(words, process, rank, keys, (large, small), (cell, cells), lanes, len(device))


def _page(size: float, least: int, step: int = 4096) -> int:
    return max(least, int(size) // step * step)


def make(
    shm_dir: ShmDir,
    total_bytes: int,
    count: int,
    rank: int | None,
    mark: Mark = _NEVER_FORKED,
    *,
    forked: bool = False,
) -> Lanes:
    """Lanes within the run's budget on this node: smaller where it is short. Raises OSError."""
    last: OSError | None = None
    for size in _sizes(shm_dir, total_bytes, forked=forked):
        try:
            return Lanes(shm_dir.path, size, count, rank, mark, room_of=shm_dir)
        except OSError as error:
            if error.errno not in _TOO_LARGE:
                raise
            last = error
    raise last or OSError(errno.EFBIG, f"the limit of file sizes is {file_limit():,} bytes (ulimit -f)")


def _sizes(shm_dir: ShmDir, wanted: int, *, forked: bool) -> list[int]:
    """Return the sizes to try, the largest first."""
    size = floor = LANES_FLOOR
    if (
        not forked
    ):  # a forked child takes the floor, without a look at the folder: its first `log` waits for this
        left = shm_dir.budget_bytes // 2 - shm_dir.taken_bytes(_LANES)
        # other processes want a share too; the last ones still get the floor
        size = max(floor, min(wanted, left // 2))
    limit = file_limit()
    sizes = [min(size, limit) // mmap.PAGESIZE * mmap.PAGESIZE]
    while sizes[-1] > MIN_LANES:
        least = floor if sizes[-1] > floor else MIN_LANES
        sizes.append(max(least, sizes[-1] // 2 // mmap.PAGESIZE * mmap.PAGESIZE))
    return [size for size in sizes if size >= MIN_LANES]


def _has_room(shm_dir: ShmDir, size: int) -> bool:
    """May the run have a lane file of this size, which is there already?

    Within the run's share of the mount, half of it for lanes. Beyond that a process still gets the floor, or less: all
    that the run takes may be a quarter of the mount with the floor and half of it with less, where enough stays free.
    """
    budget: int = shm_dir.budget_bytes
    if size > LANES_FLOOR:
        return shm_dir.taken_bytes(_LANES) <= budget // 2  # the other half is for the agent's segments
    taken = shm_dir.taken_bytes()
    if taken <= budget:
        return True
    mount = os.statvfs(shm_dir.path)
    whole, free = mount.f_blocks * mount.f_frsize, mount.f_bavail * mount.f_frsize
    share = 4 if size == LANES_FLOOR else 2
    return taken <= whole // share and free >= whole // SHARE
