"""Contents and pages of records: what a collector gives back comes out bit by bit, and nonsense is refused."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient.errors import Corrupt
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.coverage import Spans
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.seal import is_same
from logclient_backend.wire import batch, pages
from logclient_proto.v1 import query_pb2 as pb

RANGES = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 50)), max_size=5)


def records(count: int, first: int = 1) -> StreamColumns:
    seq = array("Q", range(first, first + count))
    step = array("q", range(count))
    cells: list[array[int] | list[bytes]] = [array("Q", range(count)), [b"text"] * count]
    columns = Columns(Shape(("loss", "note"), "ds"), 3, seq, seq[:], step, step[:], cells)
    return StreamColumns(b"s" * 16, b"p" * 16, 2, columns)


@settings(max_examples=50)
@given(st.dictionaries(st.binary(min_size=16, max_size=16), st.tuples(RANGES, RANGES, RANGES), max_size=4))
def test_contents_come_out_as_they_went_in(streams) -> None:
    """Ranges, gaps by cause, steps and times of the first and last record."""
    spans = Spans()
    for stream, (stored, forgotten, damaged) in streams.items():
        span = spans.of(stream, b"p" * 16, 7)
        span.fill([(first, first + more) for first, more in stored], (-5, 10**18), (2**60, 10**18 + 1))
        for cause, ranges in (("forgotten", forgotten), ("damaged", damaged)):
            for first, more in ranges:
                span.add_gap(first, first + more, cause)
    assert pages.read_contents(pages.pack_contents(spans)) == spans


def test_a_page_comes_out_as_it_went_in() -> None:
    """Packed or not; more records than a message may hold become several."""
    small, large = records(5), records(batch.MAX_RECORDS + 10, first=6)
    for packs in (True, False):
        found, after = pages.read_page(pages.pack_page([small, large], 77, packs=packs))
        assert after == 77
        assert {(item.stream, item.process, item.lane) for item in found} == {(b"s" * 16, b"p" * 16, 2)}
        assert [len(item.columns) for item in found] == [5, batch.MAX_RECORDS, 10]
        assert is_same(found[0].columns, small.columns)
        joined = found[1].columns
        joined.extend(found[2].columns)
        assert is_same(joined, large.columns)
    assert pages.read_page(pages.pack_page([], 0)) == ([], 0)


@pytest.mark.parametrize("read", [pages.read_contents, pages.read_page])
@pytest.mark.parametrize("data", [b"\xff" * 40, b"<html>", b"\x0a\x05ab"])
def test_what_is_none_is_refused(read, data: bytes) -> None:
    """Corrupt, with a sentence."""
    with pytest.raises(Corrupt):
        read(data)


def test_ids_and_ranges_are_checked() -> None:
    """Before anything is made of them."""
    for stream in (
        pb.StoredStream(stream=b"short", process=b"p" * 16),
        pb.StoredStream(stream=b"s" * 16, process=b"p" * 16, lane=1 << 20),
    ):
        with pytest.raises(Corrupt):
            pages.read_contents(pb.Contents(streams=[stream]).SerializeToString())
    endless = pb.StoredStream(stream=b"s" * 16, process=b"p" * 16)
    endless.stored.add(first=1, last=2**64 - 1)
    with pytest.raises(Corrupt):
        pages.read_contents(pb.Contents(streams=[endless]).SerializeToString())
    falling = pb.StoredStream(stream=b"s" * 16, process=b"p" * 16)
    falling.stored.add(first=5, last=4)
    with pytest.raises(Corrupt):
        pages.read_contents(pb.Contents(streams=[falling]).SerializeToString())


@settings(max_examples=150)
@given(st.data())
def test_flipped_bytes_raise_corrupt_or_give_something(data) -> None:
    """Any bytes at all."""
    spans = Spans()
    spans.of(b"s" * 16, b"p" * 16, 1).fill([(1, 5), (8, 9)], (1, 2), (3, 4))
    for packed, read in (
        (pages.pack_contents(spans), pages.read_contents),
        (pages.pack_page([records(20)], 3), pages.read_page),
    ):
        raw = bytearray(packed)
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        try:
            read(bytes(raw))
        except Corrupt:
            pass
