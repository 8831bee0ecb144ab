"""Tail rows of store versions 1 to 3, which `schema.py` writes anew as those of version 4.

::

    u16 number of pieces, then u32 length of each
    numbers seq, order, step, time               (`pack.py`)
    words   of all keys with a fixed code, key behind key (absent where there is none)
    texts   of each key with a variable code
"""

from __future__ import annotations

import sqlite3
from struct import unpack_from

from logclient.shm.record import VARIABLE, Shape

from ....wal.encoded import encode, pack
from .pack import Packer
from .rows import Cells, Rows, to_columns


def convert(connection: sqlite3.Connection) -> None:
    """Write each tail row anew; `ValueError` where one is damaged."""
    packer = Packer()
    for (id,) in connection.execute("SELECT id FROM tail").fetchall():
        count, body, definition = connection.execute(
            "SELECT n, body, definition FROM tail JOIN tables USING(tbl) WHERE id=?", (id,)
        ).fetchone()
        shape = Shape.from_definition(packer.read_plain(definition))
        rows = _read(packer, body, count, shape.codes)
        packed = pack(encode(to_columns(rows, shape, None)))
        connection.execute("UPDATE tail SET body=? WHERE id=?", (packed, id))


def _read(packer: Packer, body: bytes, count: int, codes: str) -> Rows:
    view = memoryview(body)
    (number,) = unpack_from("<H", view)
    at, pieces = 2 + 4 * number, []
    for size in unpack_from(f"<{number}I", view, 2):
        pieces.append(view[at : at + size])
        at += size
    fixed = [place for place, code in enumerate(codes) if code not in VARIABLE]
    variable = [place for place, code in enumerate(codes) if code in VARIABLE]
    if at != len(body) or number != 4 + bool(fixed) + len(variable):
        raise ValueError(f"{len(codes)} columns in {len(body)} bytes expected, found {number} pieces")
    cells: dict[int, Cells] = {
        place: packer.read_texts(piece, count)
        for place, piece in zip(variable, pieces[4 + bool(fixed) :], strict=True)
    }
    if fixed:
        words = packer.read_words(pieces[4], count * len(fixed)).reshape(len(fixed), count)
        cells.update(zip(fixed, words, strict=True))
    seq, order, step, time = (packer.read_numbers(piece, count) for piece in pieces[:4])
    return Rows(seq.view("uint64"), order.view("uint64"), step, time, cells)
