"""Items become parcels of a size, and nothing is lost or put out of order on the way."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from logclient_backend.ship.backoff import Backoff
from logclient_backend.ship.parcels import MAX_RECORDS, Packer, bytes_of, points_of
from logclient_backend.wal.encoded import StreamColumns, unpack
from logclient_backend.wal.reader import Follower
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seal import is_same
from logclient_backend.wire.batch import BatchReader, BatchWriter

from .samples import PROCESS, item, stream, write_open


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 9), st.integers(1, 3), st.booleans()), max_size=20
    ),
    st.integers(1, 2000),
    st.integers(200, 100_000),
)
def test_all_that_goes_in_comes_out_in_order(items, most_points, most_bytes) -> None:
    """Each record once, per stream in the order of its seqs; a parcel is too large by one record at most."""
    packer = Packer(most_points, most_bytes)
    firsts = dict.fromkeys(range(4), 1)
    for count, width, of, is_gap in items:
        first = firsts[of]
        if is_gap:
            packer.add(Gap(stream(of), PROCESS, 0, first, first + count - 1, "forgotten"))
        else:
            packer.add(item(count, first, width=width, of=stream(of)))
        firsts[of] = first + count
    found: dict[bytes, list[int]] = {}
    gaps = 0
    while (parcel := packer.next()) is not None:
        batches = parcel.batches
        largest = max((bytes_of(each) // len(each) for each in batches), default=0)
        assert sum(map(bytes_of, batches)) <= most_bytes + largest
        assert sum(map(points_of, batches)) <= most_points + 9
        for each in parcel.batches:
            assert len(each.columns) <= MAX_RECORDS
            assert list(each.columns.seq) == sorted(set(each.columns.seq))
            found.setdefault(each.stream, []).extend(each.columns.seq)
        gaps += sum(gap.last - gap.first + 1 for gap in parcel.holes)
    assert not packer
    assert sum(map(len, found.values())) + gaps == sum(first - 1 for first in firsts.values())
    assert all(len(set(seqs)) == len(seqs) for seqs in found.values())


def test_neighbours_become_one_batch() -> None:
    """Small blocks of two streams in turn; what comes out of order stays apart."""
    packer = Packer(10_000, 1 << 20)
    for first in (1, 11, 21):
        packer.add(item(10, first))
        packer.add(item(10, first, of=stream(2)))
    packer.add(item(5, 3))
    parcel = packer.next()
    assert parcel is not None
    assert [len(each.columns) for each in parcel.batches] == [30, 30, 5]


def test_bodies_go_on_as_the_segment_has_them(tmp_path: Path) -> None:
    """Large ones byte by byte; small ones, and those between which seqs are missing, become one."""
    large = [item(1000, 1 + 1000 * number) for number in range(3)]
    small = [item(10, 1 + 10 * number, of=stream(2)) for number in range(50)]
    apart = [item(1000, 1 + 1001 * number, of=stream(3)) for number in range(3)]
    segment = write_open(tmp_path, 1, *large, *small, *apart)
    data = segment.bytes()
    segment.close()
    packer = Packer(1 << 20, 1 << 20)
    for each in Follower(str(tmp_path), decodes=False).items():
        assert isinstance(each, StreamColumns)
        packer.add(each)
    parcel = packer.next()
    assert parcel is not None and not packer
    writer, reader = BatchWriter(), BatchReader()
    first, second, third = (reader.batch(writer.batch(each)) for each in parcel.batches)
    found = list(unpack(first.packed))
    assert len(found) == 3 and all(body.data in data for body in found)
    assert [len(list(unpack(each.packed))) for each in (second, third)] == [1, 1]
    for got, sent in ((first, large), (second, small), (third, apart)):
        joined = sent[0].columns
        for each in sent[1:]:
            joined.extend(each.columns)
        assert is_same(got.columns, joined)


def test_pauses_grow_and_differ() -> None:
    """To a limit, from the start again after a success, and never below what was asked for."""
    backoff = Backoff(0.2, 30.0, chance=random.Random(7))
    pauses = [backoff.next() for _ in range(12)]
    assert 0.1 <= pauses[0] <= 0.2
    assert all(15.0 <= pause <= 30.0 for pause in pauses[9:])
    assert len(set(pauses)) == 12
    backoff.reset()
    assert backoff.next() <= 0.2
    assert 60.0 <= backoff.next(60.0) <= 75.0
