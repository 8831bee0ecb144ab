"""The ring against a list: whatever is offered, forgotten, interrupted, damaged and read again."""

from __future__ import annotations

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logclient.shm import layout
from logclient.shm.record import BODY, Shape
from logclient.shm.ring import Blocks, RingReader, RingWriter, TooLarge, read_block
from tests.interrupts import interrupted
from tests.lanes import bare_file

HEADER = layout.LANE_HEADERS
CELL_BYTES = 1024
MAX_LOOKS = 5  # more than a reader needs to give a frame up


class Offered:
    """What the list knows of one record."""

    def __init__(
        self, seq: int, start: int, stop: int, content: bytes, reference: bytes | None = None
    ) -> None:
        self.seq = seq
        self.start = start
        self.stop = stop
        self.content = content  # what a reader must see behind the frame's first word
        self.reference = reference
        self.is_damaged = False


class RingMachine(RuleBasedStateMachine):
    """One writer and its reader; the reader keeps what it took in a list of its own."""

    @initialize(ring=st.integers(32, 300), cells=st.integers(0, 2))
    def make(self, ring: int, cells: int) -> None:
        self.ring_bytes = 8 * ring
        self.mem = bare_file(self.ring_bytes, cells, CELL_BYTES)
        self.base = layout.KEYS_OFFSET + cells * CELL_BYTES
        self.words = self.mem.cast("Q")
        self.blocks = Blocks(self.mem)
        self.home: list[RingWriter] = []
        self.writer = RingWriter(self.mem, HEADER, self.home, self.blocks)
        self.reader = RingReader(self.mem, HEADER)
        self.offered: list[Offered] = []
        self.order = 0
        self.forgot_walk_was_damaged = False

    # ---- the writer ------------------------------------------------------------------------------------

    def _note(self, seq_before: int, content_size: int) -> bool:
        """Take over into the list what the writer committed, if it did."""
        writer, words = self.writer, self.words
        assert words[HEADER + layout.SEQ] == writer.seq
        if writer.seq == seq_before:
            return False
        assert writer.seq == seq_before + 1
        stop = words[HEADER + layout.TAIL]
        start = stop - layout.FRAME_HEADER - content_size
        at = self.base + start % self.ring_bytes
        content = bytes(self.mem[at + 8 : at + 8 + content_size])
        self.offered.append(Offered(writer.seq, start, stop, content))
        return True

    def _offer(self, call, content_size: int, at: int, *, anywhere: bool = True) -> bool:
        before = self.writer.seq
        forgot = self.words[HEADER + layout.FORGOT]
        try:
            was_cut = (
                interrupted(call, at=at, module="logclient.shm.ring", anywhere=anywhere)
                if at
                else call() and False
            )
        except TooLarge:
            assert layout.FRAME_HEADER + content_size > self.ring_bytes // 2
            self.writer.resync()
            assert self.writer.seq == before
            return False
        self.writer.resync()
        committed = self._note(before, content_size)
        assert committed or was_cut
        now = self.words[HEADER + layout.FORGOT]
        if now != forgot and any(o.is_damaged and forgot <= o.start < now for o in self.offered):
            self.forgot_walk_was_damaged = True
        return committed

    @rule(
        values=st.lists(st.floats(), max_size=24),
        step=st.integers(-(1 << 63), (1 << 63) - 1),
        at=st.integers(0, 90),
    )
    def offer_floats(self, values: list[float], step: int, at: int) -> None:
        """A record of the hot path, perhaps interrupted at its `at`-th instruction."""
        self.order += 1
        shape = Shape(tuple(map(str, range(len(values)))), "d" * len(values), 7 | 3 << layout.RANK_SHIFT)
        size = shape.frame_bytes - layout.FRAME_HEADER
        if self._offer(lambda: self.writer.offer(shape, self.order, step, values), size, at):
            seq, order, its_step, _, head = BODY.unpack(self.offered[-1].content[: BODY.size])
            assert (seq, order, its_step, head) == (self.writer.seq, self.order, step, shape.head)
            assert self.offered[-1].content[BODY.size :] == shape.pack(0, 0, 0, 0, 0, *values)[BODY.size :]

    @rule(words=st.integers(0, 170), fill=st.integers(0, 255), at=st.integers(0, 90))
    def offer_bytes(self, words: int, fill: int, at: int) -> None:
        """A record that describes itself, of any size, too large ones too."""
        payload = bytes([fill]) * 8 * words
        prefix = BODY.pack(self.writer.seq + 1, 0, -1, 0, layout.INLINE_SHAPE)
        size = len(prefix) + len(payload)
        if self._offer(lambda: self.writer.offer_body(prefix, payload, self.writer.seq + 1), size, at):
            assert self.offered[-1].content == prefix + payload

    @rule(size=st.integers(1, CELL_BYTES), fill=st.integers(0, 255), at=st.integers(0, 30))
    def offer_large(self, size: int, fill: int, at: int) -> None:
        """A record whose payload lies in a cell, perhaps interrupted where signal handlers run."""
        payload = bytes([fill]) * size
        prefix = BODY.pack(self.writer.seq + 1, 0, -1, 0, layout.BLOCK_SHAPE)
        took = []
        call = lambda: took.append(self.blocks.offer(self.writer, prefix, payload, self.writer.seq + 1))  # noqa: E731
        before = self.writer.seq
        was_cut = bool(at) and interrupted(call, at=at, module="logclient.shm.ring")
        if not at:
            call()
        self.writer.resync()
        if self._note(before, len(prefix) + 32):
            self.offered[-1].reference = self.offered[-1].content[len(prefix) :]
            self.offered[-1].content += payload
        else:
            assert was_cut or took == [False]
        assert not self.blocks._claims

    # ---- the reader ------------------------------------------------------------------------------------

    @rule(most=st.sampled_from([64, 256, 1 << 20]), keeps=st.booleans(), releases=st.booleans())
    def take(self, most: int, keeps: bool, releases: bool) -> None:
        """Every whole frame comes once and in order; what is missing is counted by the jump of seq."""
        words, reader = self.words, self.reader
        position, before = reader.position, reader.seq
        taken = None
        for _ in range(MAX_LOOKS):
            taken = reader.take(most)
            if taken is not None:
                break
        readable = [o for o in self.offered if o.start >= max(position, words[HEADER + layout.FORGOT])]
        if taken is None:
            assert not readable and words[HEADER + layout.TAIL] <= max(
                position, words[HEADER + layout.FORGOT]
            )
            return
        seqs = self._check_frames(taken)
        expected = [o.seq for o in readable if o.stop <= taken.end and not o.is_damaged]
        assert seqs == expected
        self._check_counts(taken, before, seqs)
        if not keeps:
            reader.position = position
            return
        reader.seq = max(reader.seq, taken.last_seq)
        if releases:
            words[HEADER + layout.STAGED_SEQ] = reader.seq
            words[HEADER + layout.RELEASED] = reader.position
            self.offered = [o for o in self.offered if o.start >= reader.position]

    def _check_frames(self, taken) -> list[int]:
        known = {o.seq: o for o in self.offered}
        seqs = []
        for at, size, head in taken.frames:
            seq = int.from_bytes(taken.data[at + 8 : at + 16], "little")
            seqs.append(seq)
            content = taken.data[at + 8 : at + size]
            if head & layout.SHAPE_MASK == layout.BLOCK_SHAPE:
                block = read_block(self.mem, content[BODY.size :])
                assert block is not None, f"the payload of {seq} is gone while its frame is there"
                content += block
            assert content == known[seq].content
        return seqs

    def _check_counts(self, taken, before: int, seqs: list[int]) -> None:
        assert seqs == sorted(set(seqs))
        damaged = [seq for first, last in taken.damaged for seq in range(first, last + 1)]
        assert damaged == sorted(set(damaged)) and not set(damaged) & set(seqs)
        assert all(before < seq <= self.writer.seq for seq in damaged)
        its = {o.seq for o in self.offered if o.is_damaged}
        assert set(damaged) <= its or self.words[HEADER + layout.FORGOT] > 0, (
            "only damaged or forgotten ones are missing"
        )
        if not self.forgot_walk_was_damaged:
            lost = its & set(range(before + 1, max(seqs or [0]) + 1))
            position = {o.seq: o.start for o in self.offered}
            lost = {seq for seq in lost if position[seq] >= self.words[HEADER + layout.FORGOT]}
            assert lost <= set(damaged)

    @rule()
    def restart_reader(self) -> None:
        """A new agent goes on where the last one released."""
        self.reader = RingReader(self.mem, HEADER)

    # ---- damage ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.offered)
    @rule(which=st.integers(0, 1 << 30), at=st.integers(0, 1 << 30), bit=st.integers(0, 7))
    def damage(self, which: int, at: int, bit: int) -> None:
        """Flip a bit in a committed frame."""
        found = self.offered[which % len(self.offered)]
        if self.words[HEADER + layout.TAIL] - found.start > self.ring_bytes or found.is_damaged:
            return
        at = self.base + found.start % self.ring_bytes + at % (found.stop - found.start)
        note(f"flip bit {bit} of byte {at - self.base} in seq {found.seq} at {found.start % self.ring_bytes}")
        self.mem[at] ^= 1 << bit
        found.is_damaged = True

    @invariant()
    def counters_are_in_order(self) -> None:
        if not hasattr(self, "words"):
            return
        words = self.words
        tail, forgot, released = (words[HEADER + i] for i in (layout.TAIL, layout.FORGOT, layout.RELEASED))
        assert tail - max(forgot, released) <= self.ring_bytes
        assert forgot <= tail and released <= tail


TestRing = RingMachine.TestCase
