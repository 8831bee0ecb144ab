"""Records page by page: the order of the folder's reader, whatever the pages and windows are."""

from __future__ import annotations

import random
from bisect import bisect_left
from pathlib import Path

import pytest

from logclient_backend.runs import paged
from logclient_backend.runs.paged import PagedReader
from logclient_backend.runs.points import RunReader
from logclient_backend.wal.coverage import Spans
from logclient_backend.wal.encoded import StreamColumns

from .build import NOW_NS, SECOND, NodeMaker, Rec, raw


@pytest.mark.parametrize("seed", range(6))
def test_order_is_that_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Several processes and lanes, two shapes, holes, pages and windows of a few records."""
    chance = random.Random(seed)
    monkeypatch.setattr(paged, "WINDOW_RECORDS", 5)
    maker = NodeMaker(tmp_path, "run")
    streams = {}
    for number, process in ((1, 1), (2, 1), (3, 2), (4, 3)):
        seqs = sorted(chance.sample(range(1, 90), 40))
        streams[number, process, number % 2] = [
            Rec(
                seq,
                3 * seq + number,
                chance.randrange(50),
                NOW_NS + chance.randrange(20) * SECOND,
                (("a" if seq % 3 else "b", "d", seq / 7),),
            )
            for seq in seqs
        ]
        maker.process(process)
    maker.segment(streams)
    maker.save()
    local = RunReader([str(maker.path)])
    kept: dict[bytes, list[StreamColumns]] = {}
    spans = Spans()
    spans.merge(local.spans)
    for item in local.blocks():
        kept.setdefault(item.stream, []).append(item)
    assert set(kept) == {raw(key)[0] for key in streams}

    def fetch(stream: bytes, first: int, most: int) -> tuple[list[StreamColumns], int]:
        """The next one to three records, as a store gives them: by seq, in columns of one shape."""
        found = []
        for item in kept[stream]:
            for at in range(bisect_left(item.columns.seq, first), len(item.columns)):
                found.append(item.with_columns(item.columns.part(at, at + 1)))
        found.sort(key=lambda item: item.columns.seq[0])
        page = found[: min(most, chance.randint(1, 3))]
        return page, found[len(page)].columns.seq[0] if len(found) > len(page) else 0

    reader = PagedReader(spans, fetch)
    assert reader.records == local.records == 160
    assert list(reader.points()) == list(RunReader([str(maker.path)]).points())
    assert sum(len(item.columns) for item in reader.blocks()) == 160
