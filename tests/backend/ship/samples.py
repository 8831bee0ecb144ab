"""Records to ship."""

from __future__ import annotations

from array import array

from logclient.record import Columns, Shape
from logclient_backend.wal.scan import StreamColumns

PROCESS = b"process-process-"


def stream(number: int = 1) -> bytes:
    return bytes([number]) * 16


def item(count: int, first: int = 1, *, width: int = 2, of: bytes | None = None) -> StreamColumns:
    """Records with seqs from `first` on; the step is the seq, and every value follows from it."""
    seqs = range(first, first + count)
    shape = Shape(tuple(f"key{at}" for at in range(width)), "d" * width)
    columns = Columns(
        shape,
        0,
        array("Q", seqs),
        array("Q", seqs),
        array("q", seqs),
        array("q", [10**18 + seq for seq in seqs]),
        [array("Q", array("d", [seq + at / 8 for seq in seqs]).tobytes()) for at in range(width)],
    )
    return StreamColumns(of or stream(), PROCESS, 0, columns)
