"""Two processes, one small ring, flat out: the writer never waits and the reader is never told a lie."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import time
from array import array
from typing import Any

import pytest

from logclient.shm import layout
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient.shm.ring import Blocks, RingReader, RingWriter
from tests.conftest import Pace
from tests.lanes import bare_file

HEADER = layout.LANE_HEADERS
RING_BYTES = 32 << 10
SHAPES = {keys: Shape(tuple(map(str, range(keys))), "d" * keys, keys) for keys in (1, 3, 10, 23)}
SIZES = tuple(SHAPES)
WATCHED = (layout.TAIL, layout.SEQ, layout.FORGOT)


class Untrue(AssertionError):
    """The reader saw what was never written."""


class PackedWords:
    """Counters as they must not be written: `pack_into` zeroes its target first."""

    def __init__(self, mem: memoryview, header: int) -> None:
        self._mem = mem
        self._at = 8 * header

    def __getitem__(self, index: int) -> int:
        return int(struct.unpack_from("<Q", self._mem, self._at + 8 * index)[0])

    def __setitem__(self, index: int, value: int) -> None:
        struct.pack_into("<Q", self._mem, self._at + 8 * index, value)


def write(mem: memoryview, *, packs: bool, seconds: float) -> None:
    """Records whose values all follow from their seq, as fast as it goes."""
    writer = RingWriter(mem, HEADER, [], Blocks(mem))
    if packs:
        writer._words = PackedWords(mem, HEADER)  # type: ignore[assignment]
    deadline = time.monotonic() + seconds
    seq = 0
    while seq & 0xFF or time.monotonic() < deadline:
        seq += 1
        keys = SIZES[seq % len(SIZES)]
        writer.offer(SHAPES[keys], 3 * seq, -seq, [seq + 0.5] * keys)


class Reader:
    """Reads the lane and believes nothing."""

    def __init__(self, mem: memoryview) -> None:
        self.ring = RingReader(mem, HEADER)
        self.read = self.forgotten = self.jumps = 0
        self._last = dict.fromkeys(WATCHED, 0)

    def look(self) -> None:
        for _ in range(50):
            for index in WATCHED:
                now = self.ring.words[index]
                if now < self._last[index]:
                    raise Untrue(f"word {index} went back from {self._last[index]} to {now}")
                self._last[index] = now
        taken = self.ring.take(8192)
        if taken is None:
            return
        if taken.damaged:
            raise Untrue(f"damaged: {taken.damaged}")
        for at, size, head in taken.frames:
            self._check(Columns.from_frames(SHAPES[head], None, taken.data[at : at + size]))
        if self.read % 3:  # released in pieces, now and then not at all
            self.ring.words[layout.RELEASED] = self.ring.position

    def _check(self, record: Columns) -> None:
        seq = record.seq[0]
        if seq <= self.ring.seq:
            raise Untrue(f"{seq} after {self.ring.seq}")
        values = array("d", b"".join(cells.tobytes() for cells in record.cells)).tolist()  # type: ignore[union-attr]
        keys = SIZES[seq % len(SIZES)]
        if (record.order[0], record.step[0], values) != (3 * seq, -seq, [seq + 0.5] * keys):
            raise Untrue(f"{seq} holds {record.order[0]}, {record.step[0]}, {values}")
        self.jumps += seq != self.ring.seq + 1
        self.forgotten += seq - self.ring.seq - 1
        self.read += 1
        self.ring.seq = seq


def torture(seconds: float, *, packs: bool = False) -> Reader:
    """Fork a writer and read until it has ended and everything is read."""
    start = layout.KEYS_OFFSET
    mem = bare_file(RING_BYTES, mem=memoryview(mmap.mmap(-1, start + RING_BYTES)))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write(mem, packs=packs, seconds=seconds)
            code = 0
        finally:
            os._exit(code)
    reader = Reader(mem)
    try:
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            reader.look()
        child = 0
        assert ended[1] == 0, "the writer failed"
        while reader.ring.pending > 0:
            reader.look()
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert mem.cast("Q")[HEADER + layout.SEQ] == reader.read + reader.forgotten
    return reader


@pytest.mark.parametrize(
    "seconds", [pytest.param(40, id="short"), pytest.param(600, id="long", marks=pytest.mark.slow)]
)
def test_every_record_read_is_whole_and_in_order_and_jumps_account_for_the_rest(
    seconds: float, pace: Pace
) -> None:
    """accepted = read + forgotten, exactly, while one process overwrites what another one reads."""
    reader = torture(pace.seconds(seconds))
    print(f"read {reader.read:,}, forgotten {reader.forgotten:,} in {reader.jumps:,} jumps")
    assert reader.read > 100 and reader.forgotten > 100


@pytest.mark.timeout(120)
def test_counter_written_with_pack_into_is_found_out() -> None:
    """The test above fails for a writer that stores its counters with `struct.pack_into`."""
    deadline = time.monotonic() + 60
    found: Any = None
    while found is None and time.monotonic() < deadline:
        try:
            torture(2.0, packs=True)
        except Untrue as untrue:
            found = untrue
    assert found is not None, "a reader never saw a counter in the middle of pack_into"
    assert "went back" in str(found)
