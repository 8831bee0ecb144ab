"""The open segment and its copy on the disk, whole and under faults."""

from __future__ import annotations

import errno
import os

import pytest

from logclient.errors import Corrupt
from logclient_backend.wal.files import READ, REAL, read_file
from logclient_backend.wal.scan import Scan
from logclient_backend.wal.seal import seal
from logclient_backend.wal.writer import OpenSegment, Replica, replicate
from tests.fakes import Crash, FaultyFiles

from .samples import CAPACITY, MIXED, NOW_NS, PROCESS, WRITER, Found, read_all, records, rows, stream


def create(folder, files=REAL, number=1, capacity=CAPACITY) -> OpenSegment:
    return OpenSegment.create(files, str(folder), WRITER, number, NOW_NS, capacity)


def add(segment: OpenSegment, first: int, last: int, shape=MIXED) -> int:
    return segment.append(stream(1), PROCESS, 0, records(range(first, last + 1), shape=shape))


@pytest.fixture
def stage(tmp_path):
    folder = tmp_path / "stage"
    folder.mkdir()
    return folder


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def test_appended_records_are_read_while_the_segment_is_open(stage):
    """A preallocated segment is read up to its last block; the zeros behind it are no damage."""
    segment = create(stage)
    assert os.stat(segment.path).st_size == CAPACITY
    add(segment, 1, 20)
    end = add(segment, 21, 25)
    assert segment.end == end
    found = read_all(stage)
    assert found.seqs(stream(1)) == list(range(1, 26))
    assert not found.damage


def test_summary_tells_what_was_appended(stage):
    """Per stream: the seqs, how many, and the first and last step and time."""
    segment = create(stage)
    add(segment, 1, 9)
    segment.append_gap(stream(1), PROCESS, 0, 10, 14, "forgotten")
    add(segment, 15, 20)
    span = segment.summary[stream(1)]
    assert (span.first, span.last, span.records) == (1, 20, 15)
    assert (span.first_step, span.last_step) == (5, 195)
    assert span.stored.ranges() == [(1, 9), (15, 20)]
    assert span.forgotten.ranges() == [(10, 14)]
    assert not span.missing()
    assert span.missing(up_to=22).ranges() == [(21, 22)]


def test_full_is_told_and_one_more_append_still_fits(stage):
    """A block that does not fit the rest of the reserved bytes is taken; then the segment is full."""
    segment = create(stage, capacity=4096)
    seq = 1
    while not segment.is_full:
        add(segment, seq, seq + 9)
        seq += 10
    assert segment.end > 4096
    assert read_all(stage).seqs(stream(1)) == list(range(1, seq))


def test_no_room_for_a_new_segment_leaves_no_file(stage):
    """A full mount is an error at creation, and leaves nothing behind."""
    with pytest.raises(OSError, match="No space"):
        create(stage, FaultyFiles(room=CAPACITY - 1))
    assert os.listdir(stage) == []


@pytest.mark.parametrize("call", ["pwrite", "fallocate"])
def test_failed_append_leaves_nothing_and_the_next_one_works(stage, call):
    """An append that fails half way is not read, and the entries that went with it come again."""
    files = FaultyFiles(fail={call: (2, errno.EIO)})
    segment = create(stage, files, capacity=100)
    with pytest.raises(OSError):
        add(segment, 1, 50)
    assert segment.end == 44
    assert not read_all(stage).records
    segment.append_gap(stream(1), PROCESS, 0, 1, 1, "forgotten")  # shorter than what the failed write left
    scan = Scan(read_file(REAL, segment.path), name=segment.name)
    assert len(list(scan.items())) == 1
    assert not scan.torn
    add(segment, 2, 3)
    add(segment, 4, 5)
    found = read_all(stage)
    assert found.seqs(stream(1)) == [2, 3, 4, 5]
    assert not found.damage


def test_torn_tail_is_cut_at_adoption(stage):
    """What a writer had half written when it died is cut; all before is there, and appending goes on."""
    segment = create(stage, files := FaultyFiles())
    add(segment, 1, 10)
    files.crash_at = files.changes + 1
    with pytest.raises(Crash):
        add(segment, 11, 20)
    REAL.pwrite(segment.fd, b"\xff" * 50, segment.end)
    segment.close()
    taken = OpenSegment.adopt(REAL, segment.path, append=True)
    assert taken.end == segment.end
    assert taken.torn and not taken.damage
    assert taken.summary[stream(1)].stored.ranges() == [(1, 10)]
    assert not REAL.pread(taken.fd, CAPACITY, taken.end).strip(b"\0")
    add(taken, 11, 12)
    taken.append(stream(2), PROCESS, 1, records([1]))
    found = read_all(stage)
    assert found.seqs(stream(1)) == list(range(1, 13))
    assert found.seqs(stream(2)) == [1]
    assert not found.damage


def test_adopted_to_be_read_refuses_appends(stage):
    """A segment whose writer may come to itself is only read; a successor writes its own."""
    segment = create(stage)
    add(segment, 1, 3)
    taken = OpenSegment.adopt(REAL, segment.path)
    assert not taken.may_append
    with pytest.raises(ValueError, match="write to a new one"):
        add(taken, 4, 5)


def test_damage_below_what_was_synced_is_told_and_not_cut(stage):
    """A bad last block is damage where it was durable, a torn tail where it was not."""
    segment = create(stage)
    middle = add(segment, 1, 10)
    end = add(segment, 11, 20)
    REAL.pwrite(segment.fd, b"\xff", end - 30)
    durable = OpenSegment.adopt(REAL, segment.path, synced=end)
    assert [(piece.first_seq, piece.last_seq) for piece in durable.damage] == [(11, 20)]
    assert not durable.torn
    fresh = OpenSegment.adopt(REAL, segment.path, synced=middle)
    assert [(piece.first_seq, piece.last_step) for piece in fresh.torn] == [(11, 195)]
    assert fresh.end == middle


def test_adopting_an_empty_or_zeroed_file_finds_nothing(stage):
    """A writer that died while it made its file left nothing to lose."""
    for number, content in enumerate((b"", bytes(CAPACITY))):
        path = stage / f"{WRITER.hex()}-{number:06d}.wal"
        path.write_bytes(content)
        taken = OpenSegment.adopt(REAL, str(path), append=True)
        assert (taken.end, taken.summary, taken.damage, taken.torn) == (0, {}, [], [])
        assert not taken.may_append
    with pytest.raises(Corrupt):
        OpenSegment.adopt(REAL, str(stage / "foreign"))


def test_replica_is_the_same_bytes(stage, disk):
    """A copy made piece by piece is read as the staged segment is, up to where it was copied."""
    segment = create(stage)
    replica = Replica(REAL, str(disk), segment.name)
    for first in range(1, 60, 10):
        add(segment, first, first + 9)
        if first != 31:
            assert replica.copy(segment.fd, segment.end) == segment.end == replica.durable
    assert (disk / segment.name).read_bytes() == segment.bytes()
    assert read_all(disk).records == read_all(stage).records


def test_copying_again_changes_nothing(stage, disk):
    """A copier that wakes up late writes the same bytes at the same place."""
    segment = create(stage)
    replica = Replica(REAL, str(disk), segment.name)
    half = add(segment, 1, 10)
    replica.copy(segment.fd, half)
    end = add(segment, 11, 20)
    replica.copy(segment.fd, end)
    before = (disk / segment.name).read_bytes()
    replicate(REAL, segment.fd, segment.name, str(disk), 0, half)
    replicate(REAL, segment.fd, segment.name, str(disk), 44, end)
    assert (disk / segment.name).read_bytes() == before


def test_late_copier_does_not_bring_a_sealed_segment_back(stage, disk):
    """A copy that does not start at 0 never makes a file."""
    segment = create(stage)
    end = add(segment, 1, 10)
    replicate(REAL, segment.fd, segment.name, str(disk), 0, end)
    seal(REAL, segment.bytes(), segment.name, str(disk))
    with pytest.raises(FileNotFoundError):
        replicate(REAL, segment.fd, segment.name, str(disk), 44, end)
    replicate(
        REAL, segment.fd, segment.name, str(disk), 0, end - 30
    )  # started at 0: makes one that is not read
    assert read_all(disk).seqs(stream(1)) == list(range(1, 11))


@pytest.mark.parametrize(
    ("call", "code"), [("pwrite", errno.EIO), ("fsync", errno.EIO), ("fsync_folder", errno.EIO)]
)
def test_failed_copy_is_not_durable_and_is_made_again(stage, disk, call, code):
    """A copy that failed counts for nothing, and all of it is written again: fsync forgets its pages."""
    files = FaultyFiles(fail={call: (1, code)})
    segment = create(stage)
    end = add(segment, 1, 30)
    replica = Replica(files, str(disk), segment.name)
    with pytest.raises(OSError):
        replica.copy(segment.fd, end)
    assert replica.durable == 0
    writes = files.calls.get("pwrite", 0)
    assert replica.copy(segment.fd, end) == end
    assert files.calls["pwrite"] == writes + 1
    assert read_all(disk).seqs(stream(1)) == list(range(1, 31))


def test_full_disk_keeps_earlier_records(stage, disk):
    """Records copied before the disk filled are readable, and the rest follows when there is room."""
    segment = create(stage)
    durable_records = 0
    files = FaultyFiles(room=3000)
    replica = Replica(files, str(disk), segment.name)
    with pytest.raises(OSError, match="No space"):
        for first in range(1, 1000, 10):
            add(segment, first, first + 9)
            replica.copy(segment.fd, segment.end)
            durable_records = first + 9
    assert 0 < durable_records < 990
    assert read_all(disk).seqs(stream(1))[:durable_records] == list(range(1, durable_records + 1))
    files.room = None
    replica.copy(segment.fd, segment.end)
    assert read_all(disk).records == read_all(stage).records


def test_more_than_is_staged_is_never_promised(stage, disk):
    """A copy asked for bytes that are not there raises, and says which."""
    segment = create(stage, capacity=200)
    with pytest.raises(Corrupt, match="bytes up to 201"):
        Replica(REAL, str(disk), segment.name).copy(segment.fd, 201)


def test_links_are_not_followed(stage, disk):
    """A link in the place of a segment is refused: somebody else may have put it there."""
    segment = create(stage)
    os.symlink(stage / "elsewhere", disk / segment.name)
    with pytest.raises(OSError, match="symbolic link"):
        replicate(REAL, segment.fd, segment.name, str(disk), 0, 44)
    assert not (stage / "elsewhere").exists()


def test_scan_of_appended_bytes_equals_the_calls(stage):
    """The valid part of an open segment decodes to what was given, in every column."""
    segment = create(stage)
    expected = []
    for first in (1, 5, 9):
        columns = records(range(first, first + 4), shape=MIXED, rank=None)
        segment.append(stream(1), PROCESS, 0, columns)
        expected += rows(columns)
    found = Found(Scan(segment.bytes(), name=segment.name).items())
    assert list(found.records.values()) == expected
    fd = REAL.open(segment.path, READ)
    assert REAL.size(fd) == CAPACITY
    REAL.close(fd)
