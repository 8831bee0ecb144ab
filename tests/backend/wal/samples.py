"""Records to write and the form in which tests compare them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.reader import WalReader
from logclient_backend.wal.scan import Damage, Gap, Item

WRITER = b"\x01\x23\x45\x67\x89\xab\xcd\xef"
PROCESS = b"process-process-"
NOW_NS = 1_700_000_000_000_000_000
CAPACITY = 1 << 16

FLOATS = Shape(("loss", "lr"), "dd")
MIXED = Shape(("loss", "epoch", "ok", "note", "huge"), "rqbsi")
SHAPES = (FLOATS, MIXED, Shape((), ""))


def stream(number: int) -> bytes:
    return bytes([number]) * 16


def column(code: str, items: Iterable[Any]) -> Any:
    """One column of cells from Python values."""
    if code == "s":
        return [text.encode() for text in items]
    if code == "i":
        return [number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True) for number in items]
    return array("Q", array("d" if code in "dr" else "q", items).tobytes())


def value(code: str, seq: int, place: int) -> Any:
    """A value that tells where it belongs."""
    return {
        "d": seq + place / 7,
        "r": seq / 3,
        "q": -seq,
        "b": seq % 2,
        "s": f"note {seq}" * (seq % 3),
        "i": (-1) ** seq * 2 ** (64 + seq % 40),
    }[code]


def records(seqs: Iterable[int], *, shape: Shape = FLOATS, rank: int | None = 0) -> Columns:
    """Records with these seqs, whose other columns follow from the seq."""
    seqs = list(seqs)
    return Columns(
        shape,
        rank,
        array("Q", seqs),
        array("Q", [2 * seq for seq in seqs]),
        array("q", [10 * seq - 5 for seq in seqs]),
        array("q", [NOW_NS + seq * 1_000_003 + seq * seq % 977 for seq in seqs]),
        [column(code, [value(code, seq, at) for seq in seqs]) for at, code in enumerate(shape.codes)],
    )


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    """One comparable tuple a record, the seq first."""
    head = zip(columns.seq, columns.order, columns.step, columns.time, strict=True)
    cells = zip(*columns.cells, strict=True) if columns.cells else [()] * len(columns)
    return [
        (*numbers, columns.shape, columns.rank, *values) for numbers, values in zip(head, cells, strict=True)
    ]


class Found:
    """Items sorted by what they are; a record that comes twice fails the test."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.records: dict[tuple[bytes, int], tuple[Any, ...]] = {}
        self.gaps: list[Gap] = []
        self.damage: list[Damage] = []
        for item in items:
            if isinstance(item, StreamColumns):
                for row in rows(item.columns):
                    key = (item.stream, row[0])
                    assert key not in self.records, f"seq {row[0]} came twice"
                    self.records[key] = row
            elif isinstance(item, Gap):
                self.gaps.append(item)
            else:
                self.damage.append(item)

    def seqs(self, stream: bytes) -> list[int]:
        return sorted(seq for of, seq in self.records if of == stream)


def read_all(folder: Any) -> Found:
    return Found(WalReader(str(folder)).items())
