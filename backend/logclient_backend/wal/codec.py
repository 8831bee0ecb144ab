"""Records of one stream, shape and rank <-> the body of one COLUMNS block.

Runs wherever a segment is written or read; a `Codec` is used by one thread at a time (zstd contexts are).

::

    u8      modes: seq, order, step, time, 2 bits each: RANGE, PLANES or DELTA
    varint  order[0] - seq[0], zigzag
    varint  time[0] - time base of the stream, zigzag
            seq, order, step, time, each by its mode; first seq and first step are in the block's head
              RANGE   zigzag varint: the step from one to the next (absent where n = 1)
              PLANES  planes of the n words
              DELTA   planes of the n - 1 differences
            planes of the words of all columns with a fixed code, column behind column (absent where there is none)
            each variable column: planes of its n lengths, then u8 RAW or ZSTD (and varint: bytes), its bytes joined

    planes of W words: byte 0 of each word, then byte 1 of each, ... byte 7
    u16     2 bits a plane: 0 CONSTANT, 1 RAW, 2 ZSTD
            CONSTANT: the byte; RAW: W bytes; ZSTD: varint length, a zstd frame

Words stay words: a float64 that holds a float32 has three planes of zeros (one byte each), so there is no
conversion that could lose a NaN's payload or the sign of a zero. Noise does not compress and is found out
at a GB/s; the planes that do compress are compressed each by itself.

Invariants: no loop over values in Python; decoding never trusts a length beyond its bounds; what does not
fit raises `ValueError` (the caller knows file and offset).
"""

from __future__ import annotations

import sys
from array import array
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

import zstandard

from logclient.shm.columns import Columns
from logclient.shm.record import VARIABLE, Shape

from .varint import Reader, get_varint, put_varint, put_zigzag

if TYPE_CHECKING:
    from logclient.shm.columns import Column

RANGE, PLANES, DELTA = 0, 1, 2
CONSTANT, RAW, ZSTD = 0, 1, 2

MAX_RECORDS = 1 << 16  # a block, when read
MAX_WORDS = 1 << 20  # the same; a single record may have more
MAX_BLOB = 1 << 28  # bytes of all texts of a block, when read: a hand-made file is not to fill the memory
LEVEL = 1  # measured on planes: level 3 is 1 % smaller at best and twice as slow
WORTH_BYTES = 48  # below this a zstd frame is no gain
RAMP = 1 << 11
MAX_STRIDES = 8

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("the WAL's words are little-endian and this machine is not")


@lru_cache(maxsize=64)
def _ramp_part(number: int) -> array[int]:
    return array("q", range(number * RAMP, (number + 1) * RAMP))


def ramp(first: int, stride: int, count: int) -> array[int]:
    """first, first + stride, ...; `OverflowError` beyond 64 bits.

    Short strides are cut from parts that are kept: seq, order and step of a run are near each other and each is
    asked for at writing, sealing and reading.
    """
    if stride == 0:
        return array("q", [first]) * count
    if 1 < stride <= MAX_STRIDES:
        return ramp(first, 1, stride * (count - 1) + 1)[::stride]
    if stride != 1:
        return array("q", range(first, first + stride * count, stride))
    number, offset = divmod(first, RAMP)
    made = _ramp_part(number)[offset : offset + count]
    while len(made) < count:
        number += 1
        made.extend(_ramp_part(number)[: count - len(made)])
    return made


class Decoded(NamedTuple):
    """The columns of one body; `words` are those of all keys with a fixed code, key behind key."""

    seq: array[int]
    order: array[int]
    step: array[int]
    time: array[int]
    words: memoryview
    texts: list[list[bytes]]  # of each key with a variable code

    def columns(self, shape: Shape, rank: int | None) -> Columns:
        """Return them as records of that shape."""
        size = 8 * len(self.seq)
        texts, at = iter(self.texts), 0
        cells: list[Column] = []
        for code in shape.codes:
            if code in VARIABLE:
                cells.append(next(texts))
                continue
            column = array("Q")
            column.frombytes(self.words[at : at + size])
            at += size
            cells.append(column)
        return Columns(shape, rank, self.seq, self.order, self.step, self.time, cells)


class Codec:
    """Encodes and decodes bodies; one a thread."""

    __slots__ = ("_compress", "_decompress", "dense")

    def __init__(self, *, dense: bool = False) -> None:
        """`dense` (sealed segments) differences what is no range and compresses the planes."""
        self.dense = dense
        self._compress = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    # planes

    def planes(self, data: bytes) -> bytes:
        """`data` is whole words, at least one."""
        count = len(data) // 8
        codes = 0
        parts = [b""]
        for index in range(8):
            plane = data[index::8]
            if plane[0] == plane[-1] and plane == plane[:1] * count:
                parts.append(plane[:1])
                continue
            code, plane = self.packed(plane) if self.dense else (RAW, plane)
            codes |= code << 2 * index
            parts.append(plane)
        parts[0] = codes.to_bytes(2, "little")
        return b"".join(parts)

    def packed(self, data: bytes) -> tuple[int, bytes]:
        if len(data) >= WORTH_BYTES:
            packed = self._compress(data)
            if len(packed) + 2 < len(data):
                out = bytearray()
                put_varint(out, len(packed))
                return ZSTD, bytes(out) + packed
        return RAW, data

    def unpacked(self, code: int, reader: Reader, size: int) -> bytes:
        if code == RAW:
            return reader.take(size)
        if code != ZSTD:
            raise ValueError(f"unknown packing {code}")
        packed = reader.take(reader.varint())
        try:
            if zstandard.frame_content_size(packed) != size:
                raise ValueError(f"a zstd frame of {size} bytes expected")
            data = self._decompress(packed, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if len(data) != size:
            raise ValueError(f"{size} bytes expected, {len(data)} unpacked")
        return data

    def unpack_whole(self, code: int, body: memoryview) -> bytes:
        """All of a body that `packed` made; its size is in the zstd frame."""
        data = bytes(body)
        if code == RAW:
            return data
        try:
            size = zstandard.frame_content_size(data[get_varint(data, 0)[1] :]) if code == ZSTD else -1
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if not 0 <= size <= MAX_BLOB:
            raise ValueError(f"packing {code} of {size} bytes is none of ours")
        return self.unpacked(code, Reader(data), size)

    def unplanes(self, reader: Reader, count: int) -> bytearray:
        """`count` words."""
        codes = int.from_bytes(reader.take(2), "little")
        words = bytearray(8 * count)
        for index in range(8):
            code = codes >> 2 * index & 3
            if code == CONSTANT:
                byte = reader.take(1)
                if byte != b"\0":
                    words[index::8] = byte * count
            else:
                words[index::8] = self.unpacked(code, reader, count)
        return words

    # seq, order, step, time

    def _put_numbers(self, column: array[int]) -> tuple[int, bytes]:
        count = len(column)
        if count == 1:
            return RANGE, b""
        data = column.tobytes()
        first, stride = column[0], column[1] - column[0]
        is_likely = column[-1] - first == stride * (count - 1) and first < 1 << 63 and column[-1] < 1 << 63
        if is_likely and ramp(first, stride, count).tobytes() == data:
            out = bytearray()
            put_zigzag(out, stride)
            return RANGE, bytes(out)
        plain = self.planes(data)
        if self.dense:
            try:
                differences = self.planes(array("q", map(sub, column[1:], column)).tobytes())
            except OverflowError:
                return PLANES, plain
            if len(differences) < len(plain):
                return DELTA, differences
        return PLANES, plain

    def numbers(self, reader: Reader, mode: int, code: str, first: int, count: int) -> array[int]:
        """Return the next column of seqs, orders, steps or times."""
        if mode == RANGE:
            if count == 1:
                return array(code, [first])
            column = ramp(first, reader.zigzag(), count)
            return column if code == "q" else array(code, column.tobytes())
        if mode == PLANES:
            column = array(code)
            column.frombytes(self.unplanes(reader, count))
            return column
        if mode == DELTA and count > 1:
            differences = array("q")
            differences.frombytes(self.unplanes(reader, count - 1))
            return array(code, accumulate(differences, initial=first))
        raise ValueError(f"unknown mode {mode} of a column of {count}")

    # bodies

    def encode(self, columns: Columns, base_ns: int) -> bytes:
        """The body of one block; at least one record, at most MAX_RECORDS."""
        out = bytearray(1)
        put_zigzag(out, columns.order[0] - columns.seq[0])
        put_zigzag(out, columns.time[0] - base_ns)
        parts: list[bytes] = [b""]
        for index, column in enumerate((columns.seq, columns.order, columns.step, columns.time)):
            mode, data = self._put_numbers(column)
            out[0] |= mode << 2 * index
            parts.append(data)
        parts[0] = bytes(out)
        if columns.shape.fixed:
            if columns.cells:
                parts.append(self.planes(b"".join(columns.cells)))  # type: ignore[arg-type]
            return b"".join(parts)
        fixed: list[Column] = []
        variable: list[bytes] = []
        for code, cells in zip(columns.shape.codes, columns.cells, strict=True):
            if code not in VARIABLE:
                fixed.append(cells)
                continue
            variable.append(self.planes(array("Q", map(len, cells)).tobytes()))  # type: ignore[arg-type]
            packing, data = self.packed(b"".join(cells))  # type: ignore[arg-type]
            variable += [bytes([packing]), data]
        if fixed:
            parts.append(self.planes(b"".join(fixed)))  # type: ignore[arg-type]
        return b"".join(parts + variable)

    def decode(
        self,
        body: bytes | memoryview,
        shape: Shape,
        rank: int | None,
        count: int,
        seq: int,
        step: int,
        base_ns: int,
    ) -> Columns:
        """The records of one body; `ValueError` where the bytes are none."""
        return self.decode_parts(body, shape.codes, count, seq, step, base_ns).columns(shape, rank)

    def decode_parts(
        self,
        body: bytes | memoryview,
        codes: str,
        count: int,
        seq: int,
        step: int,
        base_ns: int,
        *,
        most_text_bytes: int = MAX_BLOB,
    ) -> Decoded:
        """The columns of one body; `ValueError` where the bytes are none, or its texts take more than that."""
        width = len(codes)
        if not 0 < count <= MAX_RECORDS or (count > 1 and count * width > MAX_WORDS):
            raise ValueError(f"a block of {count} records of {width} values is none of ours")
        reader = Reader(body)
        modes = reader.take(1)[0]
        order = seq + reader.zigzag()
        time = base_ns + reader.zigzag()
        try:
            seqs = self.numbers(reader, modes & 3, "Q", seq, count)
            orders = self.numbers(reader, modes >> 2 & 3, "Q", order, count)
            steps = self.numbers(reader, modes >> 4 & 3, "q", step, count)
            times = self.numbers(reader, modes >> 6, "q", time, count)
        except OverflowError as error:
            raise ValueError(str(error)) from error
        variable = sum(map(codes.count, VARIABLE))
        fixed = width - variable
        words = memoryview(self.unplanes(reader, count * fixed) if fixed else b"")
        texts = []
        for _ in range(variable):
            texts.append(self._get_texts(reader, count, most_text_bytes))
            most_text_bytes -= sum(map(len, texts[-1]))
        if reader.at != len(body):
            raise ValueError(f"{len(body) - reader.at} bytes left over")
        return Decoded(seqs, orders, steps, times, words, texts)

    def _get_texts(self, reader: Reader, count: int, most_bytes: int) -> list[bytes]:
        lengths = array("Q")
        lengths.frombytes(self.unplanes(reader, count))
        total = sum(lengths)
        if total > most_bytes:
            raise ValueError(f"a column of at most {most_bytes} bytes expected, found {total}")
        data = self.unpacked(reader.take(1)[0], reader, total)
        ends = list(accumulate(lengths, initial=0))
        return [data[start:end] for start, end in pairwise(ends)]
