"""The WAL against plain dictionaries: stage, copy, die, lose power, seal, trim, follow, in any order."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import READ, REAL
from logclient_backend.wal.reader import Follower, WalReader
from logclient_backend.wal.repair import repair, sweep
from logclient_backend.wal.scan import Damage, Item
from logclient_backend.wal.seal import seal
from logclient_backend.wal.trim import trim
from logclient_backend.wal.writer import OpenSegment, Replica, replicate
from tests.fakes import Crash, FaultyFiles

from .samples import NOW_NS, PROCESS, SHAPES, Found, records, rows, stream

CAPACITY = 1 << 12
MEMORY = (
    "/dev/shm" if os.path.isdir("/dev/shm") else None
)  # thousands of fsyncs: on a disk they would be the test
Key = tuple[bytes, int]


class Staged:
    """A staged segment with its copy, and which records lie below which offset."""

    def __init__(self, segment: OpenSegment, disk: str) -> None:
        self.segment = segment
        self.replica = Replica(REAL, disk, segment.name)
        self.ends: list[tuple[int, list[Key]]] = []

    def below(self, end: int) -> set[Key]:
        return {key for at, keys in self.ends if at <= end for key in keys}


class WalMachine(RuleBasedStateMachine):
    """One agent after another writes; a reader and a follower look on."""

    @initialize()
    def start(self) -> None:
        self.root = tempfile.mkdtemp(prefix="wal-model-", dir=MEMORY)
        self.stage, self.disk = os.path.join(self.root, "stage"), os.path.join(self.root, "disk")
        os.mkdir(self.stage)
        os.mkdir(self.disk)
        self.incarnation = 0
        self.number = 0
        self.written: dict[Key, tuple[Any, ...]] = {}  # all that was ever accepted
        self.gone: dict[Key, str] = {}  # noted as not there
        self.durable: set[Key] = set()
        self.next = dict.fromkeys((1, 2, 3), 1)
        self.closed: list[Staged] = []
        self.zombies: list[tuple[int, str, int]] = []  # descriptor, name, end: copiers that hang
        self.follower = Follower(self.disk)
        self.followed: set[Key] = set()
        self.new_agent()

    def new_agent(self) -> None:
        self.incarnation += 1
        self.writer = self.incarnation.to_bytes(8, "big")
        self.new_segment()

    def new_segment(self) -> None:
        self.number += 1
        made = OpenSegment.create(REAL, self.stage, self.writer, self.number, NOW_NS + self.number, CAPACITY)
        self.current = Staged(made, self.disk)

    @rule(
        number=st.integers(1, 3),
        shape=st.sampled_from(SHAPES),
        count=st.integers(1, 6),
        skip=st.integers(0, 2),
    )
    def append(self, number: int, shape: Any, count: int, skip: int) -> None:
        """Records arrive; some may have been forgotten before them."""
        of, first = stream(number), self.next[number]
        segment = self.current.segment
        if skip:
            segment.append_gap(of, PROCESS, number, first, first + skip - 1, "forgotten")
            self.gone.update({(of, seq): "forgotten" for seq in range(first, first + skip)})
            first += skip
        columns = records(range(first, first + count), shape=shape, rank=number)
        end = segment.append(of, PROCESS, number, columns)
        self.written.update({(of, row[0]): row for row in rows(columns)})
        self.current.ends.append((end, [(of, seq) for seq in columns.seq]))
        self.next[number] = first + count
        assert segment.summary[of].last == first + count - 1
        if segment.is_full:
            self.rotate()

    @rule(part=st.floats(0, 1))
    def copy(self, part: float) -> None:
        """The copier brings the disk up to some block."""
        ends = self.current.ends
        if ends:
            end = ends[min(len(ends) - 1, int(part * len(ends)))][0]
            self.current.replica.copy(self.current.segment.fd, max(end, self.current.replica.durable))
            self.durable |= self.current.below(end)

    @rule()
    def rotate(self) -> None:
        self.closed.append(self.current)
        self.new_segment()

    @precondition(lambda self: self.closed)
    @rule(crash_at=st.integers(0, 12))
    def seal_one(self, crash_at: int) -> None:
        """The oldest closed segment is sealed; the agent may die of it."""
        staged = self.closed[0]
        segment = staged.segment
        try:
            seal(FaultyFiles(crash_at=crash_at), segment.bytes(), segment.name, self.disk)
        except Crash:
            self.die(torn=0, go_on=False)
            return
        self.closed.pop(0)
        self.durable |= staged.below(segment.end)
        staged.replica.close()
        segment.unlink()

    @rule(torn=st.integers(0, 200), go_on=st.booleans())
    def die(self, torn: int, go_on: bool) -> None:
        """The agent is killed, perhaps in the middle of a write; its successor takes over what is staged."""
        segment = self.current.segment
        if torn:
            encoder = segment._encoder
            block = encoder.columns(stream(1), PROCESS, 1, records(range(self.next[1], self.next[1] + 3)))
            REAL.pwrite(segment.fd, block[: min(torn, len(block) - 1)], segment.end)
        staged = [*self.closed, self.current]
        for old in staged:
            old.segment.close()
            old.replica.close()
            old.segment = OpenSegment.adopt(REAL, old.segment.path, append=go_on and old is self.current)
            old.replica = Replica(REAL, self.disk, old.segment.name)
            assert not old.segment.damage
            # beyond it only entries or gaps, which a torn write may have completed
            assert old.segment.end >= (old.ends[-1][0] if old.ends else 0)
        if not go_on:
            self.closed = staged
            self.new_agent()

    @rule(parts=st.lists(st.floats(0, 1), min_size=1, max_size=4), garbage=st.binary(max_size=20))
    def lose_power(self, parts: list[float], garbage: bytes) -> None:
        """The machine goes down: tmpfs is gone, and of each open segment on disk what was not past an fsync."""
        for at, staged in enumerate([*self.closed, self.current]):
            path = os.path.join(self.disk, staged.segment.name)
            if os.path.exists(path):
                with open(path, "r+b") as file:
                    size = os.path.getsize(path)
                    unsure = staged.segment.end - staged.replica.durable
                    more = REAL.pread(
                        staged.segment.fd, int(parts[at % len(parts)] * unsure), staged.replica.durable
                    )
                    file.seek(max(staged.replica.durable, 0))
                    if staged.replica.durable >= size:
                        file.write(more + garbage)
            staged.replica.close()
            staged.segment.unlink()
        self.closed = []
        while self.zombies:
            REAL.close(self.zombies.pop()[0])
        repair(self.disk)
        left = set(Found(WalReader(self.disk).items()).records)
        self.written = {
            key: row for key, row in self.written.items() if key in left | self.durable | self.followed
        }
        self.new_agent()

    @rule()
    def hang_copier(self) -> None:
        """A copier hangs in a write that it has already read the bytes for."""
        fd = REAL.open(self.current.segment.path, READ)
        self.zombies.append((fd, self.current.segment.name, self.current.segment.end))

    @precondition(lambda self: self.zombies)
    @rule()
    def late_copy(self) -> None:
        """It wakes up, long after its segment was sealed or trimmed."""
        fd, name, end = self.zombies.pop(0)
        replicate(REAL, fd, name, self.disk, 0, end)
        REAL.close(fd)

    @rule(keep=st.integers(0, 8000))
    def trim(self, keep: int) -> None:
        trim(self.disk, keep, writer=(1 << 32 | self.incarnation << 16 | self.number).to_bytes(8, "big"))

    @rule()
    def sweep(self) -> None:
        sweep(self.disk)

    @rule()
    def follow(self) -> None:
        self.take(self.follower.poll())

    def take(self, items: list[Item]) -> None:
        for item in items:
            assert not isinstance(item, Damage), str(item)
            if isinstance(item, StreamColumns):
                for row in rows(item.columns):
                    key = (item.stream, row[0])
                    assert key not in self.followed
                    self.followed.add(key)
                    assert self.written[key] == row

    @invariant()
    def disk_holds_what_is_durable(self) -> None:
        """Every durable record is there once, as it was, or noted as trimmed; nothing else is there."""
        if not hasattr(self, "written"):
            return
        reader = WalReader(self.disk)
        found = Found(reader.items())
        assert not found.damage, [str(piece) for piece in found.damage]
        for key, row in found.records.items():
            assert self.written[key] == row
        spans = reader.spans()
        assert {(span.stream, seq) for span in spans.values() for seq in span.stored} == set(found.records)
        trimmed = {(span.stream, seq) for span in spans.values() for seq in span.trimmed}
        assert self.durable <= set(found.records) | trimmed
        assert trimmed.isdisjoint(found.records)
        noted = {(span.stream, seq) for span in spans.values() for seq in span.forgotten}
        assert noted <= set(self.gone)

    def teardown(self) -> None:
        if not hasattr(self, "written"):
            return
        for staged in [*self.closed, self.current]:
            seal(REAL, staged.segment.bytes(), staged.segment.name, self.disk)
            self.durable |= staged.below(staged.segment.end)
            staged.replica.close()
            staged.segment.unlink()
        for fd, _, _ in self.zombies:
            REAL.close(fd)
        self.disk_holds_what_is_durable()
        self.take(self.follower.poll())
        spans = WalReader(self.disk).spans()
        trimmed = {(span.stream, seq) for span in spans.values() for seq in span.trimmed}
        assert self.durable <= self.followed | trimmed
        shutil.rmtree(self.root)


TestWal = WalMachine.TestCase
TestWal.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=25)
