"""Encoded records: the bodies of COLUMNS blocks, which segments, the wire and the collector's tail rows share.

Pure bytes. A body (`codec.py`) travels from the segment to the collector's store as it was written; the collector
decodes it once, to check it. `pack` puts some bodies of one schema and rank end to end::

    u8      0: as follows, 1: in one zstd frame
            then each body
    varint  records
    varint  first seq, last seq - first
    varint  first step (zigzag)
    varint  time base - that of the body before, of the first: - 0 (zigzag)
    varint  bytes of the body, and the body

Invariants: no size in the bytes is believed before it is compared with a limit; what does not fit raises `ValueError`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import zstandard

from logclient.shm.columns import Columns
from logclient.shm.record import VARIABLE, Shape

from .codec import MAX_BLOB, MAX_RECORDS, MAX_WORDS, WORTH_BYTES, Codec
from .varint import Reader, put_varint, put_zigzag

if TYPE_CHECKING:
    from .codec import Decoded

BLOB_BYTES = 1 << 23  # of texts in one body, if it has more than one record
RAW, ZSTD = b"\0", b"\1"


class _Codecs(threading.local):
    """A codec for each thread."""

    def __init__(self) -> None:
        self.plain = Codec()


_codecs = _Codecs()


class Body(NamedTuple):
    """One encoded body, and what its block's head contains."""

    records: int
    first_seq: int
    last_seq: int
    first_step: int
    base_ns: int  # from which its times are counted
    data: bytes

    def decode(self, codes: str, *, most_text_bytes: int = MAX_BLOB, codec: Codec | None = None) -> Decoded:
        """Return its columns; `ValueError` where the bytes are none, or its texts take more than that.

        `codec`: of this thread alone; None: one that is kept for it.
        """
        seq, step = self.first_seq, self.first_step
        found = (codec or _codecs.plain).decode_parts(
            self.data, codes, self.records, seq, step, self.base_ns, most_text_bytes=most_text_bytes
        )
        if found.seq[-1] != self.last_seq:
            raise ValueError(f"a body up to seq {self.last_seq} expected, found {found.seq[-1]}")
        return found


class StreamColumns:
    """Records of one stream, schema and rank: decoded (`columns`), encoded (`bodies`), or both.

    The form that is missing is made when it is asked for. Where no `columns` are given, the bodies hold each seq from
    the first to the last, and no texts. `packed`: the bodies as they were received.
    """

    __slots__ = ("_bodies", "_columns", "lane", "packed", "process", "rank", "shape", "stream")

    def __init__(
        self,
        stream: bytes,
        process: bytes,
        lane: int,
        columns: Columns | None = None,
        *,
        shape: Shape | None = None,
        rank: int | None = None,
        bodies: Sequence[Body] = (),
        packed: bytes = b"",
    ) -> None:
        """`shape` and `rank` where there are no columns."""
        self.stream = stream
        self.process = process
        self.lane = lane
        self.shape: Shape = columns.shape if columns is not None else shape  # type: ignore[assignment]
        self.rank = columns.rank if columns is not None else rank
        self.packed = packed
        self._columns = columns
        self._bodies = bodies

    def __len__(self) -> int:
        return len(self._columns) if self._columns is not None else sum(body.records for body in self._bodies)

    @property
    def seqs(self) -> Sequence[int]:
        """Rising."""
        if self._columns is not None:
            return self._columns.seq
        return range(self._bodies[0].first_seq, self._bodies[-1].last_seq + 1)

    @property
    def columns(self) -> Columns:
        """Decoded, by any thread; `ValueError` where the bytes are none."""
        if self._columns is None:
            self._columns = decode(self._bodies, self.shape, self.rank)
        return self._columns

    def decoded(self) -> Columns | None:
        """Return the columns; None where the bytes are none: whoever receives them sent on refuses them."""
        try:
            return self.columns
        except ValueError:
            return None

    @property
    def bodies(self) -> Sequence[Body]:
        """Encoded, by any thread."""
        if not self._bodies:
            assert self._columns is not None
            self._bodies = encode(self._columns)
        return self._bodies

    @property
    def text_bytes(self) -> int:
        """Bytes of all values with a variable code."""
        return 0 if self.shape.fixed else text_bytes(self.columns)

    def halves(self) -> list[StreamColumns]:
        """Return it in two, without decoding it; one where that cannot be."""
        middle = len(self._bodies) // 2
        if not middle or self._columns is not None:
            return [self]
        whose = self.stream, self.process, self.lane
        return [
            StreamColumns(*whose, shape=self.shape, rank=self.rank, bodies=bodies)
            for bodies in (self._bodies[:middle], self._bodies[middle:])
        ]

    def with_columns(self, columns: Columns) -> StreamColumns:
        """Return other records of the same stream."""
        return StreamColumns(self.stream, self.process, self.lane, columns)


def parts(columns: Columns) -> Iterator[Columns]:
    """Cut what is more than one body may hold."""
    count = len(columns)
    most = min(MAX_RECORDS, max(1, MAX_WORDS // max(1, len(columns.shape.codes))))
    if not columns.shape.fixed and count > 1:
        variable = [
            cells for code, cells in zip(columns.shape.codes, columns.cells, strict=True) if code in VARIABLE
        ]
        size = max(sum(map(len, cells)) for cells in variable)  # type: ignore[arg-type]
        if size > BLOB_BYTES:
            most = min(most, max(1, count * BLOB_BYTES // size // 2))
    if count <= most:
        if count:
            yield columns
        return
    for start in range(0, count, most):
        yield columns.part(start, start + most)


def encode(columns: Columns) -> list[Body]:
    """Return the bodies of at least one record."""
    made = []
    for part in parts(columns):
        seq, base_ns = part.seq, part.time[0]
        data = _codecs.plain.encode(part, base_ns)
        made.append(Body(len(part), seq[0], seq[-1], part.step[0], base_ns, data))
    return made


def decode(
    bodies: Sequence[Body], shape: Shape, rank: int | None, *, most_text_bytes: int = MAX_BLOB
) -> Columns:
    """Return the records of some bodies; `ValueError` where the bytes are none."""
    made: Columns | None = None
    for body in bodies:
        found = body.decode(shape.codes, most_text_bytes=most_text_bytes).columns(shape, rank)
        most_text_bytes -= 0 if shape.fixed else text_bytes(found)
        if made is None:
            made = found
        else:
            made.extend(found)
    if made is None:
        raise ValueError("a body expected, found none")
    return made


def text_bytes(columns: Columns) -> int:
    """Return the bytes of all values with a variable code."""
    return sum(sum(map(len, column)) for column in columns.cells if isinstance(column, list))


def pack(bodies: Sequence[Body], compress: Callable[[bytes], bytes] | None = None) -> bytes:
    """Put them end to end; with `compress` in a zstd frame, where that is smaller."""
    out, base_ns = bytearray(), 0
    for body in bodies:
        put_varint(out, body.records)
        put_varint(out, body.first_seq)
        put_varint(out, body.last_seq - body.first_seq)
        put_zigzag(out, body.first_step)
        put_zigzag(out, body.base_ns - base_ns)
        put_varint(out, len(body.data))
        out += body.data
        base_ns = body.base_ns
    data = bytes(out)
    if compress is not None and len(data) >= WORTH_BYTES:
        packed = compress(data)
        if len(packed) < len(data):
            return ZSTD + packed
    return RAW + data


def unpacked_bytes(packed: bytes) -> int:
    """Return how many bytes `unpack` would make of it; `ValueError` where that cannot be known."""
    if packed[:1] == RAW:
        return len(packed)
    if packed[:1] != ZSTD:
        raise ValueError(f"unknown packing {packed[:1].hex() or 'of nothing'}")
    try:
        size = zstandard.frame_content_size(memoryview(packed)[1:])
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if size < 0:
        raise ValueError("a zstd frame without its size")
    return size


def unpack(packed: bytes, *, most_bytes: int = MAX_BLOB) -> Iterator[Body]:
    """Yield the bodies; `ValueError` where the bytes are none, or become more than that."""
    size = unpacked_bytes(packed)
    if size > most_bytes:
        raise ValueError(f"at most {most_bytes} bytes expected, found {size}")
    data = packed[1:]
    if packed[:1] == ZSTD:
        try:
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
    reader, base_ns = Reader(data), 0
    while reader.at < len(data):
        records, first, span = reader.varint(), reader.varint(), reader.varint()
        step = reader.zigzag()
        base_ns += reader.zigzag()
        yield Body(records, first, first + span, step, base_ns, reader.take(reader.varint()))
