"""Records, parcels and stores to test with."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from logclient.shm.columns import Columns
from logclient.shm.record import VARIABLE, Shape
from logclient_backend.collector.store.interface import Description, Parcel
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap

NODE = "node-1"
STREAM, PROCESS = b"s" * 16, b"p" * 16
NOW_NS = 1_700_000_000_000_000_000


def cell(code: str, value: Any) -> int | bytes:
    """A value as a column holds it: a word, or bytes."""
    if code == "s":
        return str(value).encode()
    if code == "i":
        return int(value).to_bytes(int(value).bit_length() // 8 + 1, "little", signed=True)
    if code in "dr":
        return int.from_bytes(value if isinstance(value, bytes) else struct.pack("<d", value), "little")
    return int(value) & (1 << 64) - 1


def columns(
    shape: Shape,
    seqs: Iterable[int],
    values: Sequence[Sequence[Any]],
    *,
    steps: Sequence[int] | None = None,
    times: Sequence[int] | None = None,
    orders: Sequence[int] | None = None,
    rank: int | None = 0,
) -> Columns:
    """`values` has one row a record. Steps are the seqs, and times a millisecond apart, if not said otherwise."""
    seq = array("Q", seqs)
    cells: list[array[int] | list[bytes]] = []
    for place, code in enumerate(shape.codes):
        column: list[Any] = [cell(code, row[place]) for row in values]
        cells.append(column if code in VARIABLE else array("Q", column))
    return Columns(
        shape,
        rank,
        seq,
        array("Q", seq if orders is None else orders),
        array("q", seq if steps is None else steps),
        array("q", [NOW_NS + 1_000_000 * number for number in seq] if times is None else times),
        cells,
    )


def ramp(
    first: int,
    count: int,
    *,
    names: Sequence[str] = ("loss", "lr"),
    stream: bytes = STREAM,
    process: bytes = PROCESS,
    rank: int | None = 0,
    step: int = 0,
) -> StreamColumns:
    """Records whose values are their seqs; steps are seqs plus `step`."""
    seqs = range(first, first + count)
    shape = Shape(tuple(names), "d" * len(names))
    rows = [[float(seq)] * len(names) for seq in seqs]
    return StreamColumns(
        stream, process, 0, columns(shape, seqs, rows, steps=[seq + step for seq in seqs], rank=rank)
    )


def noise(first: int, count: int, names: Sequence[str]) -> StreamColumns:
    """Records that do not compress, quickly made."""
    seqs = array("Q", range(first, first + count))
    times = array("q", [NOW_NS + 1_000_000 * seq for seq in seqs])
    cells: list[array[int] | list[bytes]] = [array("Q", os.urandom(8 * count)) for _ in names]
    shape = Shape(tuple(names), "q" * len(names))
    return StreamColumns(
        STREAM, PROCESS, 0, Columns(shape, 0, seqs, seqs, array("q", seqs.tobytes()), times, cells)
    )


def parcel(
    *batches: StreamColumns,
    run: str = "run",
    node: str = NODE,
    holes: Sequence[Gap] = (),
    documents: bytes | None = None,
    description: Description | None = None,
    received_ns: int = NOW_NS,
) -> Parcel:
    return Parcel(run, node, received_ns, batches, holes, documents, description)


def described(run: str = "run", node: str = NODE, **about: Any) -> Parcel:
    """A parcel that brings documents alone."""
    return parcel(run=run, node=node, documents=b"{}", description=Description(**about))
