"""Writes the golden files of the WAL: `.venv/bin/python -m tests.golden.make_wal` from the repository root.

Run once for each version of the format, into a folder of its own; the files of a version are never written again.
"""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.documents import pack_slot
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap, Item, Scan
from logclient_backend.wal.seal import sealed_pieces
from logclient_backend.wal.segment import SegmentEncoder, segment_name

FOLDER = Path(__file__).parent / "wal-1"
WRITER = bytes.fromhex("0123456789abcdef")
CREATED_NS = 1_700_000_000_123_456_789
OPEN = segment_name(WRITER, 1)
SEALED = segment_name(WRITER, 2, sealed=True)
PROCESS = bytes(range(16))
STREAMS = [bytes([lane]) * 16 for lane in (0xA0, 0xA1)]

FLOATS = Shape(("loss", "lr"), "dd")
ALL_CODES = Shape(("d", "r", "q", "b", "i", "s"), "drqbis")
NO_KEYS = Shape((), "")


def columns(shape: Shape, rank: int | None, seqs: list[int]) -> Columns:
    """Records that follow from their seqs, by arithmetic that no library changes."""
    cells: list[Any] = []
    for code in shape.codes:
        if code == "s":
            cells.append([f"n°{seq}".encode() for seq in seqs])
        elif code == "i":
            cells.append([(2**64 + seq).to_bytes(9, "little", signed=True) for seq in seqs])
        elif code in "dr":
            cells.append(
                array("Q", array("d", [seq / 8 if code == "d" else seq / 3 for seq in seqs]).tobytes())
            )
        else:
            cells.append(array("Q", array("q", [seq % 2 if code == "b" else -seq for seq in seqs]).tobytes()))
    times = [CREATED_NS + seq * 20_000_000 + seq * seq % 1009 for seq in seqs]
    return Columns(
        shape,
        rank,
        array("Q", seqs),
        array("Q", [3 * seq for seq in seqs]),
        array("q", [10 * seq for seq in seqs]),
        array("q", times),
        cells,
    )


def calls() -> list[tuple[int, Columns]]:
    """(lane, records) in the order they are written."""
    special = columns(FLOATS, None, [4, 5, 6, 9])
    special.cells[0] = array("Q", [0x8000 << 48, 0x7FF0 << 48, 0xFFF0 << 48, 0x7FF8_0000_DEAD_BEEF])
    return [
        (0, columns(FLOATS, 3, [1])),
        (1, columns(ALL_CODES, 0, [1, 2, 3])),
        (0, columns(NO_KEYS, None, [2, 3])),
        (0, special),
        (1, columns(FLOATS, 0, list(range(4, 40)))),
    ]


def open_segment() -> bytes:
    """Small and without a single zstd frame, so that its bytes are pinned."""
    encoder = SegmentEncoder(WRITER, 1, CREATED_NS)
    data = encoder.header()
    for lane, records in calls():
        data += encoder.columns(STREAMS[lane], PROCESS, lane, records)
    for cause, first in (("forgotten", 7), ("damaged", 10), ("trimmed", 20)):
        data += encoder.gap(STREAMS[0], PROCESS, 0, first, first + 1, cause)
    return data + bytes(64)


def sealed_segment() -> bytes:
    """The same and a block of some thousand records, compressed."""
    more = SegmentEncoder(WRITER, 1, CREATED_NS)
    more.columns(STREAMS[1], PROCESS, 1, columns(ALL_CODES, 0, [1]))
    items: list[Item] = list(Scan(open_segment(), name=OPEN).items())
    items.append(StreamColumns(STREAMS[1], PROCESS, 1, columns(FLOATS, 0, list(range(40, 3000)))))
    return b"".join(sealed_pieces(items, WRITER, 2, CREATED_NS))


def told(items: list[Item]) -> list[list[Any]]:
    """Items as JSON has them; words in hex, so that no float is printed."""
    lines: list[list[Any]] = []
    for item in items:
        if not isinstance(item, StreamColumns):
            lines.append(
                ["gap", item.stream.hex(), *item[3:]]
                if isinstance(item, Gap)
                else ["damage", *map(str, item)]
            )
            continue
        found = item.columns
        lines.append(
            ["shape", item.stream.hex(), item.process.hex(), item.lane, found.rank, *found.shape.names]
        )
        for at in range(len(found)):
            numbers = [column[at] for column in (found.seq, found.order, found.step, found.time)]
            cells = [
                cell.hex() if isinstance(cell := column[at], bytes) else f"{cell:016x}"
                for column in found.cells
            ]
            lines.append([*numbers, found.shape.codes, *cells])
    return lines


def main() -> None:
    FOLDER.mkdir(exist_ok=False)
    (FOLDER / OPEN).write_bytes(open_segment())
    (FOLDER / SEALED).write_bytes(sealed_segment())
    (FOLDER / "documents.0").write_bytes(pack_slot(7, b'{"lr": 0.001}'))
    for name in (OPEN, SEALED):
        lines = told(list(Scan((FOLDER / name).read_bytes(), name=name).items()))
        short = lines if len(lines) < 100 else [*lines[:60], ["..."], *lines[-3:]]
        text = "\n".join(json.dumps(line) for line in short)
        (FOLDER / f"{name}.jsonl").write_text(text + "\n")


if __name__ == "__main__":
    main()
