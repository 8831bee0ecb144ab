"""The ring of raw media values, and the lane of references that follows it."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import layout
from logclient.shm.media_ring import (
    MIN_BYTES,
    RAW_HEADER,
    MediaReader,
    MediaWriter,
    RawValue,
    ReferenceWriter,
)
from logclient.shm.ring import Forked, RingReader, TooLarge

OWNER = bytes(range(16))


class Shared:
    """A media file with its writer, and the mapping that the other side has."""

    def __init__(self, folder: Path, size: int = MIN_BYTES) -> None:
        self.mark = bytearray(b"\1")
        self.writer = MediaWriter(str(folder), size, OWNER, 2, {"kind": "media"}, self.mark)  # type: ignore[arg-type]
        fd = os.open(self.writer.path, os.O_RDWR)
        self.mem = memoryview(mmap.mmap(fd, size))
        os.close(fd)

    def log(self, step: int, size: int, **described: Any) -> bytes:
        payload = bytes([step % 256]) * size
        self.writer.offer(3 << layout.RANK_SHIFT, step, json.dumps(described).encode(), payload)
        return payload

    @property
    def seq(self) -> int:
        return self.writer.progress()[1]


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def taken(reader: MediaReader) -> list[RawValue]:
    found = []
    while (value := reader.take()) is not None:
        found.append(value)
        reader.release(value)
    return found


def test_a_value_arrives_as_it_was_logged(shared: Shared) -> None:
    """Payload, description, step and rank are those of the call, for payloads of any length."""
    sizes = [0, 1, 7, 8, 4095, 4096, 4097, 100_001]
    payloads = [shared.log(step, size, key="k") for step, size in enumerate(sizes)]
    found = taken(MediaReader(shared.mem))
    assert [each.payload for each in found] == payloads
    assert [each.step for each in found] == list(range(len(sizes)))
    assert {each.rank for each in found} == {2}
    assert json.loads(found[0].description) == {"key": "k"}
    assert MediaReader(shared.mem).owner == OWNER


def test_a_full_ring_forgets_its_oldest_values_and_the_seqs_say_how_many(shared: Shared) -> None:
    """What is taken is the newest part without a gap in it, over many laps."""
    reader = MediaReader(shared.mem)
    for lap in range(20):
        for step in range(30):
            shared.log(step, 50_000 + 777 * lap)
        found = taken(reader)
        seqs = [each.seq for each in found]
        assert seqs == list(range(seqs[0], shared.seq + 1)) and seqs[0] > 30 * lap + 1
        assert all(each.payload == bytes([each.step]) * len(each.payload) for each in found)


def test_a_value_over_half_the_ring_is_refused_with_nothing_written(shared: Shared) -> None:
    """The next value follows as if it had not been tried."""
    with pytest.raises(TooLarge):
        shared.log(0, MIN_BYTES)
    with pytest.raises(TooLarge):
        shared.log(0, 1, long="x" * (32 << 10))
    assert shared.writer.largest < MIN_BYTES // 2
    shared.log(1, shared.writer.largest)
    assert [each.seq for each in taken(MediaReader(shared.mem))] == [1]


def test_a_forked_child_writes_nothing_to_its_parents_ring(shared: Shared) -> None:
    """The mark that the kernel wipes in a child is looked at before the stores."""
    shared.log(0, 10)
    shared.mark[0] = 0
    with pytest.raises(Forked):
        shared.log(1, 10)
    shared.mark[0] = 1
    shared.log(2, 10)
    assert [each.step for each in taken(MediaReader(shared.mem))] == [0, 2]


def test_damage_is_reported_once_and_what_comes_later_arrives(shared: Shared) -> None:
    """Where a frame does not check nobody can tell where the next begins: all up to the tail is given up."""
    reader = MediaReader(shared.mem)
    for step in range(3):
        shared.log(step, 1000)
    words = shared.mem.cast("Q")
    base = words[layout.lane_header(RAW_HEADER) + layout.LANE_OFFSET]
    shared.mem[base + 20] ^= 1
    found = [value for value in (reader.take() for _ in range(8)) if value is not None]
    assert [(each.seq, bool(each.damage)) for each in found] == [(3, True)]
    reader.release(found[0])
    shared.log(3, 1000)
    assert [each.step for each in taken(reader)] == [3]


def test_a_payload_whose_end_was_written_over_does_not_check(shared: Shared) -> None:
    """The ends of a payload have a checksum; its middle is protected by the order of the stores alone."""
    shared.log(0, 100_000)
    words = shared.mem.cast("Q")
    base = words[layout.lane_header(RAW_HEADER) + layout.LANE_OFFSET]
    shared.mem[base + 100_000] ^= 1
    reader = MediaReader(shared.mem)
    found = [value for value in (reader.take() for _ in range(8)) if value is not None]
    assert [bool(each.damage) for each in found] == [True]


def test_references_have_the_seqs_of_their_values_and_overwrite_none(shared: Shared) -> None:
    """Without room nothing is written; once the worker has released some there is."""
    references = ReferenceWriter(shared.mem)
    values = []
    for seq in range(1, 2000):
        value = RawValue(seq, 0)
        value.step, value.rank = seq, 5
        if not references.offer(value, f"key {seq % 3}", "x" * 400):
            break
        values.append(seq)
    lane = RingReader(shared.mem, layout.lane_header(0))
    assert lane.words[layout.FORGOT] == 0 and 100 < len(values) < 1999
    found: list[int] = []
    while (some := lane.take()) is not None:
        found += [int.from_bytes(some.data[at + 8 : at + 16], "little") for at, _, _ in some.frames]
    assert found == values
    lane.words[layout.RELEASED] = lane.position
    assert references.offer(RawValue(values[-1] + 1, 0), "key 0", "x")


@pytest.mark.parametrize("released", [False, True])
def test_a_writer_goes_on_behind_the_last_reference_of_one_that_was_killed(
    shared: Shared, released: bool
) -> None:
    """Also where that one had stored the seq of a frame that it never committed."""
    first = ReferenceWriter(shared.mem)
    for seq in (1, 2, 5):
        assert first.offer(RawValue(seq, 0), "key", "text")
    words = shared.mem.cast("Q")
    header = layout.lane_header(0)
    if released:
        words[header + layout.STAGED_SEQ] = 5
        words[header + layout.RELEASED] = words[header + layout.TAIL]
    words[header + layout.SEQ] = 6
    second = ReferenceWriter(shared.mem)
    assert second.seq == words[header + layout.SEQ] == 5
    used = words[layout.KEYS_USED]
    assert second.offer(RawValue(6, 0), "key", "text") and words[layout.KEYS_USED] == used
    assert second.offer(RawValue(7, 0), "other", "text") and words[layout.KEYS_USED] > used


def test_a_process_that_died_with_a_value_in_hand_is_counted_for_that_value(shared: Shared) -> None:
    """Two in a row show that it may be the cause; what is released meanwhile does not hide it."""
    shared.log(0, 10)
    shared.log(1, 10)
    reader = MediaReader(shared.mem)
    value, other = reader.take(), reader.take()
    assert value is not None and other is not None
    assert not reader.has_suspect
    for times in (1, 2):
        reader.begin(value)
        reader.end()
        reader.begin(other)
        reader = MediaReader(shared.mem)
        reader.conclude()
        assert (reader.deaths(value), reader.deaths(other), reader.has_suspect) == (0, times, True)
    reader.go_back()
    again = taken(reader)
    assert [each.seq for each in again] == [1, 2] and not reader.has_suspect
