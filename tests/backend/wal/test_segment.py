"""A segment explains itself: what was encoded is what a scan finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import Corrupt, Unsupported
from logclient.shm.record import Shape
from logclient_backend.wal import segment
from logclient_backend.wal.scan import Gap, Scan
from logclient_backend.wal.segment import SegmentEncoder, parse_name, segment_name

from .samples import MIXED, NOW_NS, PROCESS, SHAPES, WRITER, Found, records, rows, stream

NAME = segment_name(WRITER, 1)


def encoder() -> SegmentEncoder:
    return SegmentEncoder(WRITER, 1, NOW_NS)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SHAPES), st.integers(1, 5)), max_size=12))
def test_what_is_encoded_is_read(calls):
    """Records of several streams and shapes, in blocks of any size, are read as they were."""
    made = encoder()
    data = made.header()
    expected = {}
    position = 1
    for number, shape, count in calls:
        columns = records(range(position, position + count), shape=shape, rank=number or None)
        position += count
        data += made.columns(stream(number), PROCESS, number, columns)
        expected.update({(stream(number), row[0]): row for row in rows(columns)})
    scan = Scan(data + bytes(100), name=NAME)
    found = Found(scan.items())
    assert found.records == expected
    assert not found.damage and not scan.torn
    assert scan.end == len(data)


def test_gaps_are_read():
    """A gap keeps its stream, range and cause."""
    made = encoder()
    data = made.header() + made.gap(stream(1), PROCESS, 3, 5, 2**40, "forgotten")
    assert list(Scan(data, name=NAME).items()) == [Gap(stream(1), PROCESS, 3, 5, 2**40, "forgotten")]


def test_one_stream_id_of_two_lanes_stays_two():
    """Process and lane belong to the entry: they are never mixed up."""
    made = encoder()
    data = made.header()
    for lane in (0, 1):
        data += made.columns(stream(lane), bytes([lane]) * 16, lane, records([1]))
    items = list(Scan(data, name=NAME).items())
    assert [(item.process, item.lane) for item in items] == [(bytes([lane]) * 16, lane) for lane in (0, 1)]


def test_unknown_kinds_are_skipped():
    """A block of a kind that a later version adds does not hide those behind it."""
    made = encoder()
    data = made.header() + segment.pack_block(made.salt, 99, b"\x01\x02", b"from the future")
    data += made.columns(stream(1), PROCESS, 0, records([1, 2]))
    found = Found(Scan(data, name=NAME).items())
    assert found.seqs(stream(1)) == [1, 2]
    assert not found.damage


def test_more_numbers_in_a_head_are_skipped():
    """A later version may add numbers at the end of a head."""
    made = encoder()
    entry = made.gap(stream(1), PROCESS, 0, 1, 1, "damaged")
    longer = segment.pack_block(made.salt, segment.GAP, bytes([0, 7, 2, 1, 42, 43]))
    items = list(Scan(made.header() + entry + longer, name=NAME).items())
    assert items[1] == Gap(stream(1), PROCESS, 0, 7, 9, "forgotten")


def test_newer_version_is_unsupported(monkeypatch):
    """A segment of a newer version raises, and says what to do with it."""
    monkeypatch.setattr(segment, "VERSION", 2)
    data = encoder().header()
    monkeypatch.undo()
    with pytest.raises(Unsupported, match="written in version 2"):
        Scan(data, name=NAME)


def test_block_of_another_segment_does_not_check():
    """Blocks that another writer left on the same disk blocks are never taken for ours."""
    other = SegmentEncoder(bytes(8), 1, NOW_NS)
    stale = other.columns(stream(1), PROCESS, 0, records(range(1, 50)))
    made = encoder()
    data = made.header() + made.columns(stream(1), PROCESS, 0, records([1]))
    scan = Scan(data + stale, name=NAME)
    assert Found(scan.items()).seqs(stream(1)) == [1]
    assert scan.end == len(data)
    assert scan.torn_bytes == len(stale)


def test_only_a_whole_block_ends_a_damaged_piece():
    """Bytes in a damaged block that look like a block's head are not taken for one."""
    made = encoder()
    start = made.header() + made.columns(stream(1), PROCESS, 0, records([1]))
    inner = made.columns(stream(1), PROCESS, 0, records(range(10, 40)))
    inner = inner[:-9] + bytes([inner[-9] ^ 1]) + inner[-8:]
    outer = segment.pack_block(made.salt, 99, b"", inner)
    rest = made.columns(stream(1), PROCESS, 0, records([3, 4]))
    data = start + b"\0" + outer[1:] + rest
    found = Found(Scan(data, name=NAME).items())
    assert found.seqs(stream(1)) == [1, 3, 4]
    (piece,) = found.damage
    assert (piece.offset, piece.length) == (len(start), len(outer))


def test_entries_come_again(monkeypatch):
    """Entries are repeated, so that the loss of the first ones does not make a whole segment unreadable."""
    monkeypatch.setattr(segment, "ENTRIES_EVERY", 500)
    made = encoder()
    data = made.header()
    for at in range(100):
        data += made.columns(stream(1), PROCESS, 0, records(range(10 * at + 1, 10 * at + 11)))
    damaged = data[:44] + bytes(60) + data[104:]
    found = Found(Scan(damaged, name=NAME).items())
    assert found.seqs(stream(1)) == list(range(1, 1001))
    assert [(piece.offset, piece.length) for piece in found.damage] == [(44, found.damage[0].length)]


def test_large_calls_are_cut_into_blocks():
    """A call with more than one block may hold makes several, none of which decoding refuses."""
    shape = Shape(tuple(f"k{at}" for at in range(300)), "d" * 300)
    columns = records(range(1, 8001), shape=Shape((), ""))
    columns.shape = shape
    columns.cells = [columns.seq] * 300
    made = encoder()
    data = made.header() + made.columns(stream(1), PROCESS, 0, columns)
    items = list(Scan(data, name=NAME).items())
    assert len(items) > 1
    assert sum(len(item.columns) for item in items) == 8000
    texts = records(range(1, 41), shape=MIXED)
    texts.cells[3] = [bytes([seq]) * 300_000 for seq in range(40)]
    found = Found(Scan(made.header() + made.columns(stream(2), PROCESS, 0, texts), name=NAME).items())
    assert len(found.records) == 40


def test_records_out_of_order_are_refused():
    """Records must come in the order of their seqs."""
    with pytest.raises(ValueError, match="order of their seqs"):
        encoder().columns(stream(1), PROCESS, 0, records([2, 1]))


@pytest.mark.parametrize(
    "name",
    ["x", "0123456789abcdef-1.wal", "0123456789abcdef-000001.wal.tmp", "../0123456789abcdef-000001.wal"],
)
def test_foreign_names_are_not_segments(name):
    """Only a name that we gave is one of a segment."""
    assert parse_name(name) is None
    with pytest.raises(Corrupt, match="a name"):
        Scan(b"", name=name)


def test_names_come_back():
    """A name says writer, number and form."""
    assert parse_name(segment_name(WRITER, 12, sealed=True)) == (WRITER, 12, True)
    assert parse_name(segment_name(WRITER, 10_000_000)) == (WRITER, 10_000_000, False)
