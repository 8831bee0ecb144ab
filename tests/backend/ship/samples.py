"""Records to ship."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import REAL
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seal import seal
from logclient_backend.wal.writer import OpenSegment

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


def write_open(folder: Path, number: int, *items: StreamColumns | Gap) -> OpenSegment:
    """An open segment with these items, to be appended to and closed by the caller."""
    folder.mkdir(parents=True, exist_ok=True)
    segment = OpenSegment.create(REAL, str(folder), b"writer-1", number, 10**18 + number, 1 << 16)
    for each in items:
        append(segment, each)
    return segment


def write(folder: Path, number: int, *items: StreamColumns | Gap) -> None:
    """A sealed segment."""
    segment = write_open(folder, number, *items)
    data = segment.bytes()
    segment.close()
    seal(REAL, data, segment.name, str(folder))


def append(segment: OpenSegment, each: StreamColumns | Gap) -> None:
    if isinstance(each, Gap):
        segment.append_gap(*each)
    else:
        segment.append(each.stream, each.process, each.lane, each.columns)


def documents(accepted: int, *, closed: bool = True, revision: int = 0, **more: Any) -> bytes:
    """A node's, that tell of one stream with so many records; revision 0: as an earlier build wrote them."""
    process = PROCESS.hex()
    content = {
        "version": 1,
        **({"revision": revision} if revision else {}),
        "run": {"run_id": "run", "name": "run", "created_ns": 10**18},
        "node": "node",
        "heard_ns": 10**18,
        "closed": closed,
        "processes": {process: {"end": None}},
        "streams": {
            stream().hex(): {
                "process": process,
                "lane": 0,
                "accepted": accepted,
                "stored": accepted,
                "damaged": 0,
            }
        },
        **more,
    }
    return json.dumps(content, separators=(",", ":")).encode()
