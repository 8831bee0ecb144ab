"""Sealing: nothing lost, nothing twice, at no moment nothing."""

from __future__ import annotations

import errno
import os

import pytest

from logclient.errors import Corrupt
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal import codec
from logclient_backend.wal import seal as sealing
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import REAL
from logclient_backend.wal.reader import WalReader
from logclient_backend.wal.repair import sweep
from logclient_backend.wal.scan import Scan
from logclient_backend.wal.seal import seal
from logclient_backend.wal.segment import SegmentEncoder, segment_name
from tests.fakes import Crash, FaultyFiles

from .samples import FLOATS, MIXED, NOW_NS, PROCESS, WRITER, Found, read_all, records, rows, stream

NAME = segment_name(WRITER, 1)


def open_bytes(*calls, gaps=()) -> bytes:
    """An open segment with these (stream number, records)."""
    encoder = SegmentEncoder(WRITER, 1, NOW_NS)
    data = encoder.header()
    for number, columns in calls:
        data += encoder.columns(stream(number), PROCESS, number, columns)
    for number, first, last, cause in gaps:
        data += encoder.gap(stream(number), PROCESS, number, first, last, cause)
    return data


def small_blocks(count: int, size: int = 7) -> list[tuple[int, Columns]]:
    return [
        (number, records(range(first, min(first + size, count + 1)), shape=shape, rank=number))
        for first in range(1, count + 1, size)
        for number, shape in ((1, FLOATS), (2, MIXED))
    ]


def test_small_blocks_become_large_ones(tmp_path):
    """Thousands of records in small blocks are the same records in a few large ones, and smaller."""
    calls = small_blocks(9000)
    data = open_bytes(*calls)
    path = seal(REAL, data, NAME, str(tmp_path))
    assert os.path.getsize(path) < len(data) * 0.7
    items = [item for item in WalReader(str(tmp_path)).items() if isinstance(item, StreamColumns)]
    assert len(items) == 2 * 3
    expected = {(stream(number), row[0]): row for number, columns in calls for row in rows(columns)}
    assert read_all(tmp_path).records == expected


def test_no_sealed_block_holds_more_than_a_bad_sector_may_cost(tmp_path):
    """Blocks end at 4,096 records, or earlier where the records are large."""
    shape = Shape(tuple(f"k{at}" for at in range(400)), "d" * 400)
    seal(REAL, open_bytes((1, records(range(1, 1001), shape=shape))), NAME, str(tmp_path))
    items = [item for item in WalReader(str(tmp_path)).items() if isinstance(item, StreamColumns)]
    assert sum(len(item.columns) for item in items) == 1000
    # one staging call is not cut below what it is, but merging stops at a mebibyte
    calls = [(1, records(range(first, first + 50), shape=shape)) for first in range(1, 1001, 50)]
    seal(REAL, open_bytes(*calls), NAME, str(tmp_path))
    items = [item for item in WalReader(str(tmp_path)).items() if isinstance(item, StreamColumns)]
    assert all(len(item.columns) * 404 * 8 <= sealing.BLOCK_BYTES for item in items)


def test_repeats_are_written_once(tmp_path):
    """A record staged twice, in part or whole, is in the sealed segment once."""
    calls = [
        (1, records(range(1, 11))),
        (1, records(range(5, 16))),
        (1, records([2, 3, 20])),
        (1, records(range(1, 6))),
    ]
    seal(REAL, open_bytes(*calls), NAME, str(tmp_path))
    sealed = segment_name(WRITER, 1, sealed=True)
    items = Scan(
        (tmp_path / sealed).read_bytes(), name=sealed
    ).items()  # a reader would drop repeats by itself
    assert Found(items).seqs(stream(1)) == [*range(1, 16), 20]
    assert WalReader(str(tmp_path)).spans()[stream(1)].records == 16


def test_gaps_are_kept(tmp_path):
    """Gaps of the open segment are in the sealed one, in its blocks and in its footer."""
    data = open_bytes(
        (1, records([1, 2, 9])), gaps=[(1, 3, 6, "forgotten"), (1, 7, 8, "damaged"), (3, 1, 4, "forgotten")]
    )
    seal(REAL, data, NAME, str(tmp_path))
    assert [(gap.first, gap.last, gap.cause) for gap in read_all(tmp_path).gaps] == [
        (3, 6, "forgotten"), (7, 8, "damaged"), (1, 4, "forgotten"),
    ]  # fmt: skip
    spans = WalReader(str(tmp_path)).spans()
    assert spans[stream(1)].forgotten.ranges() == [(3, 6)]
    assert spans[stream(1)].damaged.ranges() == [(7, 8)]
    assert not spans[stream(1)].missing()
    assert spans[stream(3)].forgotten.ranges() == [(1, 4)]


def test_the_open_form_goes_when_the_sealed_one_is_there(tmp_path):
    """After sealing, the folder holds the sealed segment and nothing else."""
    data = open_bytes((1, records(range(1, 5))))
    (tmp_path / NAME).write_bytes(data)
    path = seal(REAL, data, NAME, str(tmp_path))
    assert os.listdir(tmp_path) == [os.path.basename(path)] == [segment_name(WRITER, 1, sealed=True)]


def test_each_step_is_durable_before_the_next(tmp_path):
    """The bytes are past an fsync before they get their name, and the name is before the open form goes."""
    data = open_bytes((1, records(range(1, 5))))
    (tmp_path / NAME).write_bytes(data)
    files = FaultyFiles()
    seal(files, data, NAME, str(tmp_path))
    assert files.log[-4:] == ["fsync", "rename", "fsync_folder", "unlink"]
    assert set(files.log[:-4]) == {"pwrite"}


@pytest.mark.parametrize("at", range(1, 12))
def test_crash_in_the_middle_of_sealing_loses_nothing(tmp_path, at):
    """Wherever a sealer dies, a reader finds every record once, and the next sealer ends the work."""
    calls = small_blocks(20)
    data = open_bytes(*calls)
    (tmp_path / NAME).write_bytes(data)
    expected = read_all(tmp_path).records
    try:
        seal(FaultyFiles(crash_at=at), data, NAME, str(tmp_path))
    except Crash:
        pass
    assert read_all(tmp_path).records == expected
    seal(REAL, data, NAME, str(tmp_path))
    sweep(str(tmp_path))
    assert os.listdir(tmp_path) == [segment_name(WRITER, 1, sealed=True)]
    found = read_all(tmp_path)
    assert found.records == expected
    assert not found.damage


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename", "pread"])
def test_failed_sealing_leaves_the_open_form(tmp_path, call):
    """EIO while sealing raises, removes what was half made and keeps the open segment."""
    data = open_bytes((1, records(range(1, 5))))
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(OSError):
        seal(FaultyFiles(fail={call: (1, errno.EIO)}), data, NAME, str(tmp_path))
    assert os.listdir(tmp_path) == [NAME]
    with pytest.raises(OSError, match="No space"):
        seal(FaultyFiles(room=100), data, NAME, str(tmp_path))
    assert os.listdir(tmp_path) == [NAME]


def test_a_block_that_decodes_differently_is_never_written(tmp_path, monkeypatch):
    """Each block is decoded and compared before it is written: a fault of ours shows here, not in a year."""
    monkeypatch.setattr(codec.Codec, "planes", _forgets_a_byte(codec.Codec.planes))
    data = open_bytes((1, records(range(1, 50))))
    with pytest.raises(Corrupt, match="when decoded again"):
        seal(REAL, data, NAME, str(tmp_path))
    assert os.listdir(tmp_path) == []


def _forgets_a_byte(planes):
    def planes_but_one(self, data):
        return planes(self, bytes(8) + data[8:] if self.dense else data)

    return planes_but_one


def test_damaged_open_segment_is_sealed_without_what_is_lost(tmp_path):
    """Records of a bad block become a 'damaged' gap with exactly their seqs."""
    encoder = SegmentEncoder(WRITER, 1, NOW_NS)
    parts = [encoder.header()] + [
        encoder.columns(stream(1), PROCESS, 0, records(range(first, first + 10))) for first in (1, 11, 21)
    ]
    at = len(parts[0] + parts[1])
    for offset in (at + 30, at):  # in the body, then in the head
        data = bytearray(b"".join(parts))
        data[offset] ^= 1
        path = seal(REAL, bytes(data), NAME, str(tmp_path))
        span = WalReader(str(tmp_path)).spans()[stream(1)]
        assert span.stored.ranges() == [(1, 10), (21, 30)]
        assert span.damaged.ranges() == [(11, 20)]
        assert not read_all(tmp_path).damage
        os.unlink(path)


def test_sealing_takes_segments_whose_header_is_gone(tmp_path):
    """Writer and number are in the name and the time base in the entries: a lost header costs no record."""
    columns = records(range(1, 5))
    data = bytes(44) + open_bytes((1, columns))[44:]
    seal(REAL, data, NAME, str(tmp_path))
    assert list(read_all(tmp_path).records.values()) == rows(columns)


def test_two_that_seal_the_same_segment_do_not_meet(tmp_path):
    """A sealer that hung and comes to itself after its successor has sealed changes nothing."""
    data = open_bytes(*small_blocks(20))
    expected = None
    for _ in range(2):
        seal(REAL, data, NAME, str(tmp_path))
        found = read_all(tmp_path).records
        assert expected in (None, found)
        expected = found
