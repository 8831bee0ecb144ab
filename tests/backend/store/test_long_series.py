"""Charts of long series, which are made from coarse summaries: as from each value, in few reads, gone with the run."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logclient.shm.record import Shape
from logclient_backend.collector.store.embedded import EmbeddedStore, blocks, open_store
from logclient_backend.collector.store.embedded.buckets import Summaries
from logclient_backend.collector.store.embedded.database import FILE
from logclient_backend.wal.encoded import StreamColumns

from .model import BUCKET_COLUMNS, Model, buckets
from .samples import NOW_NS, columns, noise, parcel

NAN = bytes.fromhex("efbeadde0000f47f")  # a signalling one
VALUES = (0.0, 1.5, -3.25, float("inf"), float("-inf"), float("nan"), NAN, 1e300, 5e-324)
PACES: dict[str, Callable[[int, random.Random], int]] = {
    "each": lambda at, choose: at,
    "from below zero": lambda at, choose: at - 700,
    "with gaps": lambda at, choose: 3 * at + 5000 * (at // 300),
    "repeated": lambda at, choose: at // 7,
    "in no order": lambda at, choose: choose.randrange(2000),
    "with strays": lambda at, choose: at if at % 400 else choose.choice([10_000_000, -(2**63), 2**63 - 1]),
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_RECORDS", 256)
    monkeypatch.setattr(blocks, "GROUP_RECORDS", 8)
    monkeypatch.setattr(blocks, "COARSER", 2)


@pytest.fixture
def coarse_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Blocks whose coarse summaries were used."""
    found: list[int] = []
    real = Summaries.coarse

    def coarse(self: Summaries, session: object, source: object) -> object:
        found.append(source.head.block)  # type: ignore[attr-defined]
        return real(self, session, source)  # type: ignore[arg-type]

    monkeypatch.setattr(Summaries, "coarse", coarse)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = open_store(str(tmp_path / "store"))
    yield store
    store.close()


def all_upkeep(store: EmbeddedStore) -> None:
    while store.compact(deadline_s=60, now=True):
        pass


@pytest.mark.first_is_quick
@pytest.mark.parametrize("pace", PACES)
def test_a_chart_is_as_from_each_value(
    pace: str, store: EmbeddedStore, small_blocks: None, coarse_reads: list[int]
) -> None:
    """Whatever the steps, the width and the range; of two streams, with the rest still in the tail."""
    choose = random.Random(pace)
    model = Model()
    for stream in (b"1" * 16, b"2" * 16):
        for first in range(1, 1401, 200):
            seqs = range(first, first + 200)
            steps = [PACES[pace](seq, choose) for seq in seqs]
            rows = [[NAN if 500 < seq < 560 else choose.choice(VALUES)] for seq in seqs]
            made = columns(Shape(("x",), "d"), seqs, rows, steps=steps, times=[NOW_NS] * len(seqs))
            sent = parcel(StreamColumns(stream, stream, 0, made))
            store.writer.write([sent])
            model.write([sent])
            if first == 1001:
                all_upkeep(store)
    for low, high in ((None, None), (200, None), (-100, 1000), (513, 514)):
        points = model.runs["run"].shown("x", low, high, all_attempts=False)
        for most in (1, 5, 20, 60, 150, 5000):
            width, expected = buckets(points, most)
            found = store.reader.buckets("run", "x", most=most, first_step=low, last_step=high)
            assert (found.width, found.points) == (width, len(points))
            got = tuple(getattr(found, name) for name in BUCKET_COLUMNS)
            for row, want in zip(zip(*got, strict=True), expected, strict=True):
                assert all(a == b or (a != a and b != b) for a, b in zip(row, want, strict=True)), (row, want)
    assert len(set(coarse_reads)) >= 6


def test_a_chart_of_all_reads_no_block(store: EmbeddedStore, tmp_path: Path, small_blocks: None) -> None:
    """Of several keys each has all that its chart takes in rows of its own."""
    store.writer.write([parcel(noise(1, 4096, ["a", "b", "c"]))])
    all_upkeep(store)
    expected = {key: store.reader.buckets("run", key, most=50) for key in "abc"}
    store.close()
    with sqlite3.connect(tmp_path / "store" / FILE) as connection:
        assert connection.execute("DELETE FROM part").rowcount > 16 * 3
    connection.close()
    again = open_store(str(tmp_path / "store"))
    try:
        for key in "abc":
            found = again.reader.buckets("run", key, most=50)
            assert found.points == 4096 and found.width == 128
            assert found.max.tolist() == expected[key].max.tolist()
    finally:
        again.close()


def test_a_purge_leaves_nothing(store: EmbeddedStore, tmp_path: Path, small_blocks: None) -> None:
    """Nor does it take anything of another run."""
    for run in ("run", "other"):
        store.writer.write([parcel(noise(1, 2048, ["a", "b"]), run=run)])
    all_upkeep(store)
    connection = sqlite3.connect(tmp_path / "store" / FILE)
    try:
        assert connection.execute("SELECT count(*) FROM coarse").fetchone() == (2 * 2 * 8,)
        store.writer.delete("run", 1)
        assert store.writer.purge(0) == 1
        assert connection.execute("SELECT count(*) FROM coarse").fetchone() == (2 * 8,)
    finally:
        connection.close()
    assert store.reader.buckets("other", "a", most=20).points == 2048
