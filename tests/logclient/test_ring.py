"""One ring: what damage costs, what `offer` refuses, what cannot make it hang."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from logclient.shm import layout
from logclient.shm.record import BODY, Shape
from logclient.shm.ring import (
    Blocks,
    Forked,
    RingReader,
    RingWriter,
    Taken,
    TooLarge,
    read_block,
    release_block,
)
from tests.interrupts import interrupted
from tests.lanes import bare_file

HEADER = layout.LANE_HEADERS
MAX_LOOKS = 5
SHAPE = Shape(("a", "b"), "dd", 1)  # frames of 64 bytes


class Ring(NamedTuple):
    mem: memoryview
    writer: RingWriter
    reader: RingReader
    blocks: Blocks

    @property
    def cells(self) -> memoryview:
        return self.writer._cells

    def offer(self, count: int = 1) -> None:
        for _ in range(count):
            self.writer.offer(SHAPE, 1, self.writer.seq + 1, (0.5, 1.5))

    def take(self) -> list[Taken]:
        """All there is, as an agent would that takes everything."""
        found, looks = [], 0
        while self.reader.pending > 0 and looks < MAX_LOOKS:
            taken = self.reader.take()
            if taken is None:
                looks += 1
                continue
            found.append(taken)
            self.reader.seq = max(self.reader.seq, taken.last_seq)
        return found


def make_ring(frames: int = 16, cells: int = 0, mark: bytes = b"\1") -> Ring:
    mem = bare_file(frames * SHAPE.frame_bytes, cells, 4096)
    blocks = Blocks(mem, mark)
    return Ring(mem, RingWriter(mem, HEADER, [], blocks, mark), RingReader(mem, HEADER), blocks)


def seqs(found: list[Taken]) -> list[int]:
    return [int.from_bytes(t.data[at + 8 : at + 16], "little") for t in found for at, _, _ in t.frames]


def damaged(found: list[Taken]) -> list[tuple[int, int]]:
    return [span for taken in found for span in taken.damaged]


def test_full_ring_forgets_its_oldest_and_says_so_before() -> None:
    """FORGOT is past a frame before a byte of it is overwritten, and the jump of seq counts what is gone."""
    ring = make_ring()
    ring.offer(100)
    found = ring.take()
    kept = seqs(found)
    assert kept == list(range(kept[0], 101)) and 8 <= len(kept) <= 16
    assert found[0].first_seq == kept[0]


def test_zeroed_length_does_not_make_offer_loop() -> None:
    """A frame whose length reads 0 is forgotten with all after it; the producer goes on at once."""
    ring = make_ring()
    ring.offer(16)
    ring.cells[0] = 0
    ring.offer(3)
    assert ring.writer.seq == 19
    assert seqs(ring.take())[-3:] == [17, 18, 19]


@pytest.mark.parametrize("length", [8, 7, 1 << 30, layout.PADDING | 64, 0x7FFF_FFF8])
def test_wrong_length_never_stops_the_producer(length: int) -> None:
    """Whatever a damaged length says, later records are whole, in order, and the missing ones are counted."""
    ring = make_ring()
    ring.offer(16)
    for index in range(16):
        ring.cells[8 * index] = ring.cells[8 * index] >> 32 << 32 | length
    ring.offer(40)
    found = seqs(ring.take())
    assert found == list(range(found[0], 57))


def test_damaged_frame_costs_only_itself() -> None:
    """A flipped bit is looked at again, then skipped and counted; its neighbours arrive."""
    ring = make_ring()
    ring.offer(5)
    ring.mem[layout.KEYS_OFFSET + 2 * 64 + 50] ^= 1
    first = ring.reader.take()
    assert first is not None and seqs([first]) == [1, 2] and not first.damaged
    ring.reader.seq = 2
    assert ring.reader.take() is None, "it may only not be visible yet"
    found = ring.take()
    assert seqs(found) == [4, 5] and damaged(found) == [(3, 3)]


def test_frame_that_checks_on_a_later_look_is_not_damaged() -> None:
    """Stores seen out of order cost a look, nothing else."""
    ring = make_ring()
    ring.offer(2)
    ring.mem[layout.KEYS_OFFSET + 30] ^= 1
    assert ring.reader.take() is None
    ring.mem[layout.KEYS_OFFSET + 30] ^= 1
    found = ring.take()
    assert seqs(found) == [1, 2] and not damaged(found)


def test_damage_at_the_end_of_a_lap_is_counted_as_damage() -> None:
    """The count of damage survives from one copy to the next: it does not turn into forgotten records."""
    ring = make_ring()
    ring.offer(8)
    ring.take()
    ring.reader.words[layout.RELEASED] = ring.reader.position
    ring.offer(12)
    ring.mem[layout.KEYS_OFFSET + 15 * 64 + 20] ^= 1
    found = ring.take()
    assert seqs(found) == [*range(9, 16), *range(17, 21)] and damaged(found) == [(16, 16)]


def test_damage_at_the_tail_is_counted_at_once() -> None:
    """Nothing sound behind it: SEQ says how many did not check, so a flush does not wait for them."""
    ring = make_ring()
    ring.offer(3)
    ring.mem[layout.KEYS_OFFSET + 64 + 20] ^= 1
    ring.mem[layout.KEYS_OFFSET + 2 * 64 + 20] ^= 1
    found = ring.take()
    assert seqs(found) == [1] and damaged(found) == [(2, 3)]
    assert ring.reader.seq == 3


def test_frames_of_an_earlier_lap_are_never_taken_for_new_ones() -> None:
    """Damaged padding hides frames that were read long ago; a scan for the next sound frame passes over them."""
    ring = make_ring()
    wide = Shape(
        tuple("abcdefghijklmnopqrst"), "d" * 20, 2
    )  # 208 bytes: the end of the lap keeps three old frames
    ring.offer(16)
    ring.take()
    ring.reader.words[layout.RELEASED] = ring.reader.position
    for _ in range(5):
        ring.writer.offer(wide, 1, 0, [1.0] * 20)
    padding_at = 4 * wide.frame_bytes
    assert ring.cells[padding_at >> 3] & layout.PADDING
    ring.cells[padding_at >> 3] ^= 1 << 40
    found = ring.take()
    assert seqs(found)[-2:] == [20, 21] and min(seqs(found)) >= 17 and not damaged(found)


def test_bit_that_makes_a_frame_look_like_padding_is_damage() -> None:
    """Padding reaches to the end of the lap; a frame with that bit flipped does not."""
    ring = make_ring()
    ring.offer(4)
    ring.cells[8] ^= layout.PADDING
    found = ring.take()
    assert seqs(found) == [1, 3, 4] and damaged(found) == [(2, 2)]


@pytest.mark.parametrize("size", [8, 16, 504])
def test_too_large_is_refused_with_nothing_written(size: int) -> None:
    """A frame above half the ring raises, and the next one of any size still fits."""
    ring = make_ring(frames=8)
    ring.offer(8)
    prefix = BODY.pack(9, 1, 1, 1, layout.INLINE_SHAPE)
    for room in (bytes(ring.writer.largest + size), bytes(1 << 20)):
        with pytest.raises(TooLarge):
            ring.writer.offer_body(prefix, room, 9)
    assert seqs(ring.take()) == list(range(1, 9))
    ring.writer.offer_body(prefix, bytes(ring.writer.largest), 9)
    assert seqs(ring.take()) == [9]


def test_large_payload_takes_a_cell_until_it_is_stored_or_forgotten() -> None:
    """Two cells: the third record finds none, until the agent stores one or the ring forgets its frame."""
    ring = make_ring(cells=2)
    payload = bytes(2000)

    def offer() -> bool:
        seq = ring.writer.seq + 1
        return ring.blocks.offer(ring.writer, BODY.pack(seq, 1, 1, 1, layout.BLOCK_SHAPE), payload, seq)

    assert [offer(), offer(), offer()] == [True, True, False]
    (taken,) = ring.take()
    references = [taken.data[at + layout.FRAME_PREFIX : at + size] for at, size, _ in taken.frames]
    assert [read_block(ring.mem, reference) for reference in references] == [payload, payload]
    release_block(ring.mem, references[0])
    assert [offer(), offer()] == [True, False]
    assert read_block(ring.mem, references[0]) is None, "it was taken again"
    ring.offer(40)
    assert [offer(), offer(), offer()] == [True, True, False]


def test_cell_taken_again_is_not_freed_by_the_frame_that_had_it_before() -> None:
    """Stored, taken by a second record, then the first frame is forgotten: the second keeps its payload."""
    ring = make_ring(cells=1)
    offer = lambda fill: ring.blocks.offer(  # noqa: E731
        ring.writer,
        BODY.pack(ring.writer.seq + 1, 1, 1, 1, layout.BLOCK_SHAPE),
        fill * 2000,
        ring.writer.seq + 1,
    )
    assert offer(b"1")
    ring.offer(8)
    (first,) = ring.take()
    release_block(ring.mem, first.data[layout.FRAME_PREFIX :])  # stored, but the lane is not yet released
    assert offer(b"2")
    ring.offer(7)  # forgets the first frame, not the second
    assert not offer(b"3")
    second = next(
        t.data[at + layout.FRAME_PREFIX :] for t in ring.take() for at, size, _ in t.frames if size == 80
    )
    assert read_block(ring.mem, second) == b"2" * 2000


@pytest.mark.parametrize("call", ["floats", "bytes", "block"])
def test_forked_process_writes_nothing(call: str) -> None:
    """With the fork mark gone no word and no byte of the file changes, whatever is offered or resynced."""
    mark = bytearray(b"\1")
    ring = make_ring(cells=1, mark=mark)  # type: ignore[arg-type]
    ring.offer(15)
    mark[0] = 0
    ring.reader.words[layout.SEQ] += 1  # the parent goes on
    before = bytes(ring.mem)
    seq = ring.writer.seq + 1
    prefix = BODY.pack(seq, 1, 1, 1, layout.BLOCK_SHAPE)
    for _ in range(3):
        with pytest.raises(Forked):
            if call == "floats":
                ring.offer()
            elif call == "bytes":
                ring.writer.offer_body(prefix, bytes(400), seq)
            else:
                ring.blocks.offer(ring.writer, prefix, bytes(400), seq)
        ring.writer.resync()
    assert bytes(ring.mem) == before


def test_fork_between_any_two_instructions_of_offer_writes_all_or_nothing() -> None:
    """Wherever a signal handler forks inside `offer`, the child that returns into it changes nothing of the lane."""
    at, was_reached = 0, True
    while was_reached:
        at += 1
        mark = bytearray(b"\1")
        ring = make_ring(frames=4, mark=mark)  # type: ignore[arg-type]
        ring.offer(4)
        seen: list[bytes] = []

        def fork(mark: bytearray = mark, ring: Ring = ring, seen: list[bytes] = seen) -> None:
            mark[0] = 0
            seen.append(bytes(ring.mem))

        try:
            was_reached = interrupted(ring.offer, at=at, module="logclient.shm.ring", action=fork)
        except Forked:
            pass
        assert not seen or bytes(ring.mem) == seen[0], (
            f"interrupted at point {at}, the child wrote to the ring"
        )
    assert at > 5


def test_frames_in_the_way_of_the_next_one() -> None:
    """None while there is room, else those that are forgotten by it, as a reader finds them: padding is none."""
    ring = make_ring()
    size, words = SHAPE.frame_bytes, ring.writer._words
    ring.offer(15)
    assert list(ring.writer.in_the_way(size)) == []
    for _ in range(40):  # two frames at once need padding at the end of a lap
        oldest = [bytes(frame) for frame in ring.writer.in_the_way(2 * size)]
        ring.reader.position = words[layout.FORGOT]
        first = next(taken for taken in ring.take() if taken.frames)
        found = [first.data[at : at + length] for at, length, _ in first.frames]
        assert oldest and oldest == found[: len(oldest)]
        ring.writer.offer_body(
            bytes(layout.BODY_HEADER), bytes(2 * size - layout.FRAME_PREFIX), ring.writer.seq + 1
        )
        ring.offer()
    words[layout.RELEASED] = words[layout.TAIL]
    assert list(ring.writer.in_the_way(2 * size)) == []


OTHER = Shape(("a", "b", "c"), "ddd", 2)  # frames of 72 bytes
FLIPS = [0, 3, 4, 9, 17, 41, 63, 64, 31 * 64 + 8, 39 * 64 + 2, 40 * 64 - 1]


def change(ring: Ring, how: object) -> None:
    """What a lane of 40 frames of one size may look like beside whole."""
    data = ring.reader._mem
    if isinstance(how, int):
        data[how] ^= 0x10
    elif how == "another shape in the middle":
        ring.writer.offer(OTHER, 1, 41, (0.5, 1.5, 2.5))
        ring.offer(20)
    elif how == "a jump of seq":
        ring.writer.seq += 5
        ring.offer(20)
    elif how == "a lap":
        ring.offer(30)
    elif how == "taken before":
        ring.reader.seq = 7


@pytest.mark.parametrize(
    "how", [None, *FLIPS, "another shape in the middle", "a jump of seq", "a lap", "taken before"]
)
def test_frames_that_are_alike_are_taken_as_each_by_itself(
    how: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short way gives the same frames, bytes and damage as the look at each, whatever lies between them."""
    results = []
    for least in (16, 1 << 30):
        monkeypatch.setattr("logclient.shm.ring._ALIKE_FRAMES", least)
        ring = make_ring(frames=64)
        ring.offer(40)
        change(ring, how)
        found = ring.take()
        frames = [t.data[at : at + size] for t in found for at, size, _ in t.frames]
        heads = [head for t in found for _, _, head in t.frames]
        times_out = [frame[:4] + frame[8:32] + frame[40:] for frame in frames]  # time and CRC differ by run
        results.append((times_out, heads, seqs(found), damaged(found), found[-1].end))
        is_short = least == 16 and how in (None, "a lap", "taken before")
        assert any(t.is_alike for t in found) == is_short
    assert results[0] == results[1]
