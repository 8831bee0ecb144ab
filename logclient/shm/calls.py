"""The file of the call recorder, `<process>.calls`: the last calls of each thread of one process.

Runs in the training process, which writes it, and in readers.

::

    word 0      magic
    word 1      bytes of the file
    word 2      PID
    word 3      rank + 1; 0: no rank
    word 4      names: byte offset, then capacity
    word 6      names: bytes that are valid
    word 7      threads that found no free ring
    word 16     16 ring headers of 4 words: thread id of the operating system (0: free), byte offset, slots
    byte 4096   names, each: u32 line, u32 number of the entry with its file (0: this one), u16 bytes of the function,
                u16 bytes of the file, then both in UTF-8. The number of an entry is its position, from 1
                rings: `slots` words with codes, then `slots` times (float, time.monotonic)

    code        number of the function in the names, times 2; bit 0: it returned (or raised, or yielded). 1: the
                function of the slot before, which is a call, returned

Invariants:

- each ring has one writer, its thread, and overwrites its oldest slot. It stores the code first and the time last, so
  that slot is torn while it is written to, and no other: a reader drops the slot behind the newest one;
- the times of a ring never decrease, so the newest slot is the one with the highest time; no shared position is kept;
- a reader copies the times before and after the codes, and drops each slot whose time has changed meanwhile;
- names are appended before a code refers to them.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

from ..guest.descriptors import Mapped
from . import modes
from .regular import open_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".calls"
KEPT = "calls-"  # in names of files of processes that were killed, with the process id behind it
MAGIC = int.from_bytes(b"LCCALLS1", "little")
BYTES, PID, RANK, NAMES, NAMES_USED, WITHOUT_RING = 1, 2, 3, 4, 6, 7
RINGS, RING_WORDS, MAX_RINGS = 16, 4, 16
NAMES_OFFSET = 4096
_NAMES_BYTES = 256 << 10
_FIRST_SLOTS, _SLOTS = 32768, 4096  # a call takes two, one when it begins and one when it returns
_MIN_SHARE = 8  # the least size is this part of the wanted one
_MAX_BYTES = 64 << 20
_NAME = Struct("<IIHH")
_MAX_TEXT = 1000


class CallsFile:
    """The file as its process writes it; raises OSError where there is no memory for it."""

    def __init__(self, path: str, rank: int | None, room_bytes: int) -> None:
        """`room_bytes`: the most that it may take. It is made smaller to fit, down to an eighth."""
        share = 1
        while share < _MIN_SHARE and _size(share) > room_bytes:
            share *= 2
        size = _size(share)
        if size > room_bytes:
            raise OSError(f"{size:,} bytes of shared memory are not left of the run's share")
        making = path + modes.MAKING
        fd = modes.new_file(making, os.O_RDWR)
        try:
            os.posix_fallocate(fd, 0, size)
            self.map = Mapped(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self.mem = memoryview(self.map)
            self.words = words = self.mem.cast("Q")
            self.times: memoryview[float] = self.mem.cast("d")
            words[BYTES], words[PID], words[RANK] = size, os.getpid(), 0 if rank is None else rank + 1
            words[NAMES], words[NAMES + 1] = NAMES_OFFSET, _NAMES_BYTES // share
            at = NAMES_OFFSET + _NAMES_BYTES // share
            for index in range(MAX_RINGS):
                slots = (_SLOTS if index else _FIRST_SLOTS) // share
                header = RINGS + index * RING_WORDS
                words[header + 1], words[header + 2] = at, slots
                at += 16 * slots
            words[0] = MAGIC
            os.rename(making, path)
        except BaseException:
            modes.remove(making)
            raise
        finally:
            os.close(fd)
        self._used = self._count = 0
        self._files: dict[str, int] = {}

    def add_name(self, function: str, file: str, line: int) -> int:
        """Return the code of a call of this function; 0 where there is no room for its name. One caller at a time."""
        shown = function.encode("utf-8", "replace")[:_MAX_TEXT]
        known = self._files.get(file, 0)
        path = b"" if known else file.encode("utf-8", "replace")[-_MAX_TEXT:]
        entry = _NAME.pack(min(max(line, 0), 0xFFFF_FFFF), known, len(shown), len(path)) + shown + path
        start, room = self.words[NAMES], self.words[NAMES + 1]
        if self._used + len(entry) > room:
            return 0
        self.mem[start + self._used : start + self._used + len(entry)] = entry
        self._used += len(entry)
        self._count += 1
        self._files.setdefault(file, self._count)
        self.words[NAMES_USED] = self._used
        return 2 * self._count

    def ring(self, index: int, thread: int) -> tuple[memoryview, memoryview[float], int]:
        """Give the ring to that thread; return its codes, its times, and the number of its slots."""
        header = RINGS + index * RING_WORDS
        at, slots = self.words[header + 1], self.words[header + 2]
        self.words[header] = 0
        self.mem[at : at + 16 * slots] = bytes(16 * slots)
        self.words[header] = thread
        first = at // 8
        return self.words[first : first + slots], self.times[first + slots : first + 2 * slots], slots


class Call:
    """One call, or the return from one."""

    __slots__ = ("file", "function", "is_return", "line", "time_s")

    def __init__(self, function: str, file: str, line: int, time_s: float, *, is_return: bool) -> None:
        """`time_s` is by `time.monotonic`; `line` is the first of the function."""
        self.function, self.file, self.line = function, file, line
        self.time_s, self.is_return = time_s, is_return


class Calls:
    """The file as others read it; raises OSError or ValueError where it is none of ours."""

    def __init__(self, path: str) -> None:
        fd = open_regular(path)
        try:
            size = os.fstat(fd).st_size
            if not NAMES_OFFSET < size <= _MAX_BYTES:
                raise ValueError(f"{path}: {size} bytes is no size of a file of calls")
            self._mem = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        self._words = words = self._mem[: size // 8 * 8].cast("Q")
        if words[0] != MAGIC or words[BYTES] != size:
            raise ValueError(f"{path} is no file of calls")
        self.pid: int = words[PID]
        self.rank: int | None = words[RANK] - 1 if words[RANK] else None
        self.without_ring: int = words[WITHOUT_RING]

    def threads(self, most: int) -> dict[int, list[Call]]:
        """Return the newest calls and returns of each thread, oldest first, at most that many of each."""
        names: list[tuple[str, str, int]] = []
        found = {}
        for index in range(MAX_RINGS):
            thread, at, slots = self._words[RINGS + index * RING_WORDS :][:3]
            if not thread or at % 8 or at + 16 * slots > len(self._mem):
                continue
            slots_ = _newest_last(self._words, self._mem.cast("d"), at // 8, slots)[-most - 1 :]
            names = names or list(self._names())
            calls: list[Call] = []
            before = 0
            for code, time_s in slots_:
                number = before if code == 1 else code // 2
                before = 0 if code & 1 else number
                if 0 < number <= len(names):
                    calls.append(Call(*names[number - 1], time_s, is_return=bool(code & 1)))
            if calls:
                found[thread] = calls[-most:]
        return found

    def _names(self) -> Iterator[tuple[str, str, int]]:
        start, room, used = self._words[NAMES : NAMES + 3]
        at, end = start, min(start + min(used, room), len(self._mem))
        files = [""]
        while at + _NAME.size <= end:
            line, known, function, file = _NAME.unpack_from(self._mem, at)
            at += _NAME.size
            text = bytes(self._mem[at : at + function + file])
            at += function + file
            files.append(
                files[known] if 0 < known < len(files) else text[function:].decode("utf-8", "replace")
            )
            yield text[:function].decode("utf-8", "replace"), files[-1], line


def _newest_last(
    words: memoryview, floats: memoryview[float], first: int, slots: int
) -> list[tuple[int, float]]:
    """Return (code, time) of the slots that are whole, oldest first."""
    before = floats[first + slots : first + 2 * slots].tolist()
    codes = words[first : first + slots].tolist()
    times = floats[first + slots : first + 2 * slots].tolist()
    newest = max(range(slots), key=times.__getitem__, default=0)
    order = [(newest + 2 + at) % slots for at in range(slots - 1)]
    whole = [times[at] > 0 and before[at] == times[at] for at in order]
    return [
        (codes[at], times[at])
        for index, at in enumerate(order)
        if whole[index] and (codes[at] != 1 or (index > 0 and whole[index - 1]))
    ]


def _size(share: int) -> int:
    slots = _FIRST_SLOTS // share + (MAX_RINGS - 1) * (_SLOTS // share)
    return NAMES_OFFSET + _NAMES_BYTES // share + 16 * slots
