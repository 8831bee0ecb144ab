"""Writes the golden store of a version, with the code of that version:

    git archive COMMIT | tar x -C FOLDER && cd FOLDER && PYTHONPATH=.:backend python -P make_store.py STORE

`store-1` was written at commit e8fe3de, the last one whose store had version 1, and `store-4`
at f3f97dd, the last one with version 4. Files of a version are never
written again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path

from logclient.shm.record import Shape
from logclient_backend.collector.store.embedded import open_store
from logclient_backend.collector.store.interface import Description
from logclient_backend.wal.encoded import StreamColumns
from tests.backend.store.samples import NOW_NS, columns, parcel

FOLDER = Path(__file__).parent
FIRST, SECOND = b"a" * 16, b"b" * 16  # streams, and their processes
SHAPE = Shape(("loss", "note"), "ds")
ODD = {7: math.inf, 9: -math.inf, 11: math.nan}
HOUR_NS = 3600 * 10**9


def rows(
    stream: bytes, first: int, count: int, *, back_ns: int = 0, odd: Mapping[int, float] | None = None
) -> StreamColumns:
    """Records whose values are their seqs, but for the odd ones, a second apart."""
    seqs = range(first, first + count)
    values = [[(odd or {}).get(seq, float(seq)), f"text {seq}"] for seq in seqs]
    times = [NOW_NS + 10**9 * seq - back_ns for seq in seqs]
    return StreamColumns(stream, stream, 0, columns(SHAPE, seqs, values, times=times))


def make(folder: str) -> None:
    """Two attempts of a run, compacted; ten records after the clock was set back, which are not; a run in the bin."""
    store = open_store(folder)
    told = Description(
        name="old", project="p", config={"lr": 0.1}, attempts={FIRST.hex(): 1, SECOND.hex(): 2}
    )
    batches = rows(FIRST, 1, 40, odd=ODD), rows(SECOND, 1, 20)
    store.writer.write([parcel(*batches, documents=b'{"version": 1}', description=told)])
    binned = Description(name="binned")
    store.writer.write([parcel(rows(FIRST, 1, 5), run="binned", documents=b"{}", description=binned)])
    while store.compact(deadline_s=60, now=True):
        pass
    store.writer.write([parcel(rows(FIRST, 41, 10, back_ns=HOUR_NS))])
    store.writer.delete("binned", NOW_NS)
    store.close()


if __name__ == "__main__":
    make(sys.argv[1])
