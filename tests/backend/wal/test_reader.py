"""Reading a folder beside its writer: every record once, whatever the writer does meanwhile."""

from __future__ import annotations

import os
import signal
import time

import pytest

from logclient_backend.wal.dedup import Seen
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import REAL, RealFiles
from logclient_backend.wal.reader import Follower, WalReader
from logclient_backend.wal.scan import Damage, Gap
from logclient_backend.wal.seal import seal
from logclient_backend.wal.segment import SegmentEncoder, segment_name
from logclient_backend.wal.seqs import SeqSet
from logclient_backend.wal.trim import trim
from logclient_backend.wal.writer import OpenSegment, replicate

from .samples import CAPACITY, FLOATS, MIXED, NOW_NS, PROCESS, WRITER, Found, read_all, records, stream


def segment_with(folder, number: int, *ranges: tuple[int, int], writer: bytes = WRITER) -> OpenSegment:
    """An open segment of stream 1 with a block for each (first, last)."""
    made = OpenSegment.create(REAL, str(folder), writer, number, NOW_NS + number, CAPACITY)
    for first, last in ranges:
        made.append(stream(1), PROCESS, 0, records(range(first, last + 1)))
    return made


def seal_in(folder, segment: OpenSegment) -> str:
    data = segment.bytes()
    segment.close()
    return seal(REAL, data, segment.name, str(folder))


def seqs_of(items) -> list[int]:
    return [seq for item in items if isinstance(item, StreamColumns) for seq in item.columns.seq]


def test_missing_folder_is_empty(tmp_path):
    """A run that has not logged yet has no folder: that is nothing, not an error, and none is made."""
    folder = tmp_path / "none"
    assert list(WalReader(str(folder)).items()) == []
    assert WalReader(str(folder)).spans() == {}
    assert not folder.exists()


def test_follower_gives_only_what_is_new(tmp_path):
    """Each poll returns what came since the last one, whether a block, a segment or a gap."""
    segment = segment_with(tmp_path, 1, (1, 5))
    follower = Follower(str(tmp_path))
    assert seqs_of(follower.poll()) == [1, 2, 3, 4, 5]
    assert follower.poll() == []
    segment.append(stream(1), PROCESS, 0, records([6, 7]))
    segment.append_gap(stream(1), PROCESS, 0, 8, 9, "forgotten")
    items = follower.poll()
    assert seqs_of(items) == [6, 7]
    assert [item.cause for item in items if isinstance(item, Gap)] == ["forgotten"]
    seal_in(tmp_path, segment)
    assert follower.poll() == []
    segment_with(tmp_path, 2, (10, 12))
    assert seqs_of(follower.poll()) == [10, 11, 12]


def test_follower_reads_on_in_the_sealed_form(tmp_path):
    """What was appended between the last poll and the sealing comes, once."""
    segment = segment_with(tmp_path, 1, (1, 5))
    follower = Follower(str(tmp_path))
    follower.poll()
    segment.append(stream(1), PROCESS, 0, records(range(6, 20), shape=MIXED))
    seal_in(tmp_path, segment)
    assert seqs_of(follower.poll()) == list(range(6, 20))


def test_torn_tail_comes_when_it_is_whole(tmp_path):
    """A block that is half written is not damage, and not skipped when it is whole."""
    staged = segment_with(tmp_path / "..", 1, (1, 5), (6, 10), writer=os.urandom(8))
    follower = Follower(str(tmp_path))
    seen = []
    for end in range(staged.end + 1):
        (tmp_path / staged.name).write_bytes(staged.bytes()[:end])
        items = follower.poll()
        assert not [item for item in items if isinstance(item, Damage)]
        seen += seqs_of(items)
    assert seen == list(range(1, 11))
    staged.unlink()


def test_bad_piece_of_an_open_segment_is_reported_when_seen_twice(tmp_path):
    """Over a network file system a hole may fill in: a follower waits one poll before it believes in damage."""
    segment = segment_with(tmp_path, 1, (1, 5), (6, 10), (11, 15))
    whole = segment.bytes()
    path = tmp_path / segment.name
    at = whole.index(bytes([0xB7]), len(whole) // 2 - 30)
    holed = whole[:at] + bytes(50) + whole[at + 50 :]
    path.write_bytes(holed)
    follower = Follower(str(tmp_path))
    first = follower.poll()
    assert not [item for item in first if isinstance(item, Damage)]
    path.write_bytes(whole)
    second = follower.poll()
    assert sorted(seqs_of(first) + seqs_of(second)) == list(range(1, 16))
    path.write_bytes(holed)
    patient = Follower(str(tmp_path))
    told = [[item for item in patient.poll() if isinstance(item, Damage)] for _ in range(3)]
    assert [len(items) for items in told] == [0, 1, 0]
    assert len(read_all(tmp_path).damage) == 1


def test_since_leaves_out_what_is_known(tmp_path):
    """With the last seq of each stream that somebody has, only the rest comes."""
    seal_in(tmp_path, segment_with(tmp_path, 1, (1, 5), (6, 10)))
    segment_with(tmp_path, 2, (11, 15))
    assert seqs_of(WalReader(str(tmp_path)).items({stream(1): 8})) == list(range(9, 16))
    assert seqs_of(WalReader(str(tmp_path)).items({stream(1): 15})) == []
    assert seqs_of(WalReader(str(tmp_path)).items({stream(2): 99})) == list(range(1, 16))


def test_sealed_segments_that_hold_nothing_new_are_not_decoded(tmp_path):
    """What a footer says is known is not read again."""

    class CountingFiles(RealFiles):
        read = 0

        def pread(self, fd, size, offset):
            self.read += size
            return super().pread(fd, size, offset)

    path = seal_in(tmp_path, segment_with(tmp_path, 1, (1, 900), (901, 1800)))
    files = CountingFiles()
    assert seqs_of(Follower(str(tmp_path), since={stream(1): 1800}, files=files).poll()) == []
    assert files.read < os.path.getsize(path) / 4


def test_records_of_two_writers_come_once(tmp_path):
    """A worker that hung and its successor both wrote the same records: each is read once."""
    segment_with(tmp_path, 1, (1, 10))
    segment_with(tmp_path, 1, (6, 20), writer=bytes(8))
    found = read_all(tmp_path)
    assert found.seqs(stream(1)) == list(range(1, 21))


class MovingFiles(RealFiles):
    """Does `then` right before the n-th call of `call`."""

    def __init__(self, call: str, number: int, then) -> None:
        self.call, self.number, self.then = call, number, then

    def _step(self, call: str) -> None:
        if call == self.call:
            self.number -= 1
            if self.number == 0:
                self.then()

    def open(self, path, flags):
        self._step("open")
        return super().open(path, flags)

    def list(self, folder):
        self._step("list")
        return super().list(folder)


@pytest.mark.parametrize("call", ["open", "list"])
@pytest.mark.parametrize("number", range(1, 8))
def test_sealing_at_any_moment_hides_nothing(tmp_path, call, number):
    """Segments that are sealed between listing and opening, or two listings, are read once all the same."""
    segments = [segment_with(tmp_path, number, (10 * number, 10 * number + 9)) for number in range(1, 4)]

    def seal_all():
        for segment in segments:
            seal_in(tmp_path, segment)

    found = Found(WalReader(str(tmp_path), files=MovingFiles(call, number, seal_all)).items())
    assert found.seqs(stream(1)) == list(range(10, 40))


class MissingFiles(RealFiles):
    """The first listing misses a segment whose name changed under it, as readdir may."""

    def __init__(self) -> None:
        self.lists = 0

    def list(self, folder):
        self.lists += 1
        names = sorted(super().list(folder))
        return names[1:] if self.lists == 1 else names


def test_a_listing_that_missed_a_segment_is_not_believed(tmp_path):
    """A segment renamed during a listing may be in it under neither name: one listing proves nothing."""
    segment_with(tmp_path, 1, (1, 5))
    assert seqs_of(WalReader(str(tmp_path), files=MissingFiles()).items()) == [1, 2, 3, 4, 5]
    assert WalReader(str(tmp_path), files=MissingFiles()).spans()[stream(1)].records == 5


@pytest.mark.parametrize("number", range(1, 8))
def test_trimming_at_any_moment_leaves_record_or_note(tmp_path, number):
    """Segments that are trimmed while they are read come as records or as a 'trimmed' gap."""
    for at in range(1, 4):
        seal_in(tmp_path, segment_with(tmp_path, at, (10 * at, 10 * at + 9)))
    moving = MovingFiles("open", number, lambda: trim(str(tmp_path), 0))
    found = Found(WalReader(str(tmp_path), files=moving).items())
    noted = {seq for gap in found.gaps for seq in range(gap.first, gap.last + 1)}
    assert set(found.seqs(stream(1))) | noted == set(range(10, 40))


def test_spans_of_open_and_sealed_agree(tmp_path):
    """What is stored is the same, whether told by a footer or by a scan."""
    segment = segment_with(tmp_path, 1, (1, 10), (15, 20))
    segment.append_gap(stream(1), PROCESS, 0, 11, 14, "forgotten")
    reader = WalReader(str(tmp_path))
    before = reader.spans()[stream(1)]
    seal_in(tmp_path, segment)
    after = reader.spans()[stream(1)]
    assert before == after
    assert (after.first, after.last, after.records, len(after.forgotten)) == (1, 20, 16, 4)
    assert (after.first_step, after.last_step, after.process, after.lane) == (5, 195, PROCESS, 0)


def test_stored_wins_over_every_gap(tmp_path):
    """A seq that one writer noted as gone and another stored counts as stored, once."""
    first = segment_with(tmp_path, 1, (1, 10))
    first.append_gap(stream(1), PROCESS, 0, 11, 15, "forgotten")
    second = segment_with(tmp_path, 1, (11, 13), writer=bytes(8))
    second.append_gap(stream(1), PROCESS, 0, 9, 14, "trimmed")
    span = WalReader(str(tmp_path)).spans()[stream(1)]
    counts = [len(seqs) for seqs in (span.stored, span.trimmed, span.forgotten, span.damaged, span.missing())]
    assert counts == [13, 1, 1, 0, 0]


def write_for_a_while(stage: str, disk: str, blocks: int) -> None:
    """A writer as the agent is one: stages, copies, seals, rotates."""
    segment = OpenSegment.create(REAL, stage, WRITER, 1, NOW_NS, CAPACITY)
    copied = 0
    for block in range(blocks):
        shape = (FLOATS, MIXED)[block % 2]
        segment.append(stream(1), PROCESS, 0, records(range(block * 20 + 1, block * 20 + 21), shape=shape))
        if block % 3 == 0:
            replicate(REAL, segment.fd, segment.name, disk, copied, segment.end)
            copied = segment.end
        if block % 20 == 19:
            replicate(REAL, segment.fd, segment.name, disk, copied, segment.end)
            seal(REAL, segment.bytes(), segment.name, disk)
            number = segment.number + 1
            segment.unlink()
            segment = OpenSegment.create(REAL, stage, WRITER, number, NOW_NS + number, CAPACITY)
            copied = 0
    replicate(REAL, segment.fd, segment.name, disk, copied, segment.end)


@pytest.mark.timeout(30)
def test_follower_beside_a_live_writer_gets_every_record_once(tmp_path) -> None:
    """A real second process writes, copies, seals and unlinks as fast as it can; nothing is lost, torn or twice."""
    stage, disk = tmp_path / "stage", tmp_path / "disk"
    stage.mkdir()
    disk.mkdir()
    blocks = 200
    pid = os.fork()
    if pid == 0:
        try:
            write_for_a_while(str(stage), str(disk), blocks)
            os._exit(0)
        finally:
            os._exit(1)
    try:
        follower = Follower(str(disk))
        seen: list[int] = []
        polls = 0
        deadline = time.monotonic() + 20
        while len(seen) < blocks * 20 and time.monotonic() < deadline:
            items = follower.poll()
            assert not [item for item in items if isinstance(item, Damage)]
            seen += seqs_of(items)
            polls += 1
            Found(WalReader(str(disk)).items())  # raises where a record comes twice
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert sorted(seen) == list(range(1, blocks * 20 + 1))
    assert polls > 3


def test_segment_of_another_writer_under_our_name_is_damage(tmp_path):
    """A file that was renamed does not check under its new name: it is reported, and the rest is read."""
    segment_with(tmp_path, 1, (1, 5))
    other = SegmentEncoder(bytes(8), 2, NOW_NS)
    data = other.header() + other.columns(stream(2), PROCESS, 0, records([1]))
    (tmp_path / segment_name(WRITER, 2)).write_bytes(data)
    found = read_all(tmp_path)
    assert found.seqs(stream(1)) == [1, 2, 3, 4, 5]
    assert found.seqs(stream(2)) == []
    assert "of another segment" in found.damage[0].reason


def test_followers_that_share_what_was_seen_give_each_record_once(tmp_path):
    """Two folders hold the same records in part, as a stage and a run folder do."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    segment_with(here, 1, (1, 10), (11, 20))
    seal_in(there, segment_with(there, 1, (1, 10)))
    segment_with(there, 2, (15, 30), writer=b"\x02" * 8)
    seen = Seen({stream(1): SeqSet([(1, 3)])})
    first, second = Follower(str(here), seen=seen), Follower(str(there), seen=seen)
    assert seqs_of(first.poll()) == list(range(4, 21))
    assert seqs_of(second.poll()) == list(range(21, 31))
    assert seqs_of(first.poll()) == seqs_of(second.poll()) == []


def test_an_open_segment_is_read_as_far_as_it_may_be(tmp_path):
    """What lies behind may be taken back; what is read from elsewhere is not read twice."""
    segment = segment_with(tmp_path, 1, (1, 5))
    end = segment.end
    segment.append(stream(1), PROCESS, 0, records(range(6, 9)))
    limits = {segment.name: end}
    away = set()
    follower = Follower(str(tmp_path), limit=limits.get, is_elsewhere=away.__contains__)
    assert seqs_of(follower.poll()) == [1, 2, 3, 4, 5]
    away.add(segment.name)
    limits.clear()
    assert seqs_of(follower.poll()) == []
    away.clear()
    assert seqs_of(follower.poll()) == [6, 7, 8]


def test_what_is_missing_is_what_nothing_explains():
    """Of the seqs that were accepted."""
    seen = Seen({stream(1): SeqSet([(1, 3), (8, 9)])}, {stream(1): {"forgotten": SeqSet([(4, 5)])}})
    assert seen.missing(stream(1), 10) == SeqSet([(6, 7), (10, 10)])
    assert seen.missing(stream(2), 2) == SeqSet([(1, 2)])
    assert not seen.missing(stream(2), 0)
