"""The format of a segment, and `SegmentEncoder`, which makes one.

Pure bytes: touches no file. One thread uses an encoder at a time.

::

    file name   <writer, 16 hex>-<number, 6 digits>.wal     open: preallocated, zeros behind the last block
                                                   .seg     sealed: ends with the trailer
                the writer's first 4 bytes, big-endian, count the writers of the folder
                number 0: a note of what was trimmed
    all numbers little-endian; check = CRC-32 seeded with the CRC-32 of (writer, number), so that a block of
    another segment, left over on the disk or copied in, never checks here

    header, 44 bytes
    +0   8  b"LCSEG\\r\\n\\0"            (a text-mode copy shows)
    +8   u16 version   u16 bytes of the header   u32 flags: bit 0 sealed
    +16  u64 writer    u64 number    i64 created, ns since 1970
    +40  u32 CRC-32 of bytes 0 to 40

    block
    +0   u8  0xB7       u8 kind      u8 bytes of the head = B     u16 check of the head (bytes 0-2 and 5-B), low half
    +5   u32 check of the body
    +9   varints: bytes of the body, then by kind; unknown ones at the end are skipped
    +B   body

    kind        varints in the head                                   body
    1 STREAM    index                                                 id 16, process 16, i64 time base, varint lane
    2 SHAPE     index, packing (1 raw, 2 zstd)                        record.Shape.definition()
    3 COLUMNS   stream, shape, rank + 1, n, first seq, last - first,  see codec.py
                first step (zigzag), last - first step (zigzag)
    4 GAP       stream, first seq, last - first, cause                none
    5 FOOTER    packing                                               see coverage.py
    other       skipped

    trailer of a sealed segment, 16 bytes: b"LCSEALED", u32 bytes of the footer block, u32 check of these 12

Invariants:

- a segment explains itself: STREAM and SHAPE come before their first use, again every ENTRIES_EVERY bytes,
  and once more in the footer, so that no single damage makes the rest unreadable;
- the head of a block is enough to name what is lost with its body;
- a file of a newer version raises `Unsupported`; a block of an unknown kind is skipped.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from logclient.errors import Corrupt, Unsupported
from logclient.shm.columns import Columns
from logclient.shm.record import Shape

from .codec import Codec
from .encoded import parts
from .varint import put_varint, put_zigzag

MAGIC = b"LCSEG\r\n\0"
VERSION = 1
SEALED = 1
HEADER = Struct("<8sHHIQQq")
HEADER_BYTES = HEADER.size + 4

MARK = 0xB7
FRAME = Struct("<BBBHI")  # mark, kind, bytes of the head, check of the head, check of the body
FRAME_BYTES = FRAME.size
STREAM, SHAPE, COLUMNS, GAP, FOOTER = 1, 2, 3, 4, 5
STREAM_BODY = Struct("<16s16sq")

CAUSES = ("damaged", "forgotten", "trimmed")  # the number in a GAP block is the position here

TRAILER_MAGIC = b"LCSEALED"
TRAILER = Struct("<8sII")

ENTRIES_EVERY = 1 << 20

ORDER_BYTES = 4  # of a writer's id: they count the writers of a folder, the newest has the highest number

_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{6,12})(\.wal|\.seg)")
_U32 = Struct("<I")


class Name(NamedTuple):
    """The parts of a segment's file name."""

    writer: bytes
    number: int
    is_sealed: bool


class Header(NamedTuple):
    """The first bytes of a segment, parsed."""

    writer: bytes
    number: int
    created_ns: int
    is_sealed: bool


class StreamEntry(NamedTuple):
    """A STREAM block, parsed: the owner of these records, and the time from which theirs are counted."""

    stream: bytes
    process: bytes
    lane: int
    base_ns: int


class Packed(NamedTuple):
    """One encoded block of records behind the entries it needs, its body alone, and what it holds."""

    data: bytes
    body: bytes
    columns: Columns


def segment_name(writer: bytes, number: int, *, sealed: bool = False) -> str:
    """The file name; `writer` is 8 bytes."""
    return f"{writer.hex()}-{number:06d}{'.seg' if sealed else '.wal'}"


def parse_name(name: str) -> Name | None:
    """None where the name is none of a segment."""
    match = _NAME.fullmatch(name)
    return Name(bytes.fromhex(match[1]), int(match[2]), match[3] == ".seg") if match else None


def order_of(name: str) -> tuple[bool, bytes, int]:
    """Return what orders the segments of one folder, oldest first; notes about trimmed ones (number 0) come first."""
    parsed = parse_name(name)
    return (parsed.number > 0, parsed.writer, parsed.number) if parsed else (False, b"", 0)


def salt_of(writer: bytes, number: int) -> int:
    """The seed of every check in that segment."""
    return zlib.crc32(writer + number.to_bytes(8, "little"))


def pack_header(writer: bytes, number: int, created_ns: int, *, sealed: bool) -> bytes:
    word = int.from_bytes(writer, "little")
    head = HEADER.pack(MAGIC, VERSION, HEADER_BYTES, SEALED if sealed else 0, word, number, created_ns)
    return head + _U32.pack(zlib.crc32(head))


def parse_header(data: bytes | memoryview, name: str) -> Header:
    """`Corrupt` where it does not check, `Unsupported` where it does and is of a newer version."""
    if len(data) < HEADER_BYTES:
        raise Corrupt(name, 0, f"a header of {HEADER_BYTES} bytes", f"{len(data)} bytes")
    magic, version, _, flags, word, number, created_ns = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Corrupt(name, 0, MAGIC, magic)
    (found,) = _U32.unpack_from(data, HEADER.size)
    expected = zlib.crc32(data[: HEADER.size])
    if found != expected:
        raise Corrupt(name, HEADER.size, f"check {expected:#010x}", f"{found:#010x}")
    if version > VERSION:
        raise Unsupported(
            f"{name}: written in version {version} of the format, this logclient reads up to {VERSION}"
        )
    return Header(word.to_bytes(8, "little"), number, created_ns, bool(flags & SEALED))


def pack_block(salt: int, kind: int, numbers: bytes | bytearray, body: bytes = b"") -> bytes:
    """`numbers` are the varints of the head behind the length of the body."""
    head = bytearray(FRAME_BYTES)
    put_varint(head, len(body))
    head += numbers
    size = len(head)
    check = zlib.crc32(head[FRAME_BYTES:], zlib.crc32(bytes((MARK, kind, size)), salt)) & 0xFFFF
    body_check = zlib.crc32(body, salt)
    FRAME.pack_into(head, 0, MARK, kind, size, check, body_check)
    return bytes(head) + body


def pack_trailer(salt: int, footer_bytes: int) -> bytes:
    check = zlib.crc32(TRAILER_MAGIC + _U32.pack(footer_bytes), salt)
    return TRAILER.pack(TRAILER_MAGIC, footer_bytes, check)


def parse_trailer(salt: int, data: bytes | memoryview) -> int | None:
    """Bytes of the footer block that ends where `data`, the last 16 bytes, begins."""
    if len(data) != TRAILER.size:
        return None
    magic, size, check = TRAILER.unpack(data)
    is_ours = magic == TRAILER_MAGIC and check == zlib.crc32(data[:12], salt)
    return int(size) if is_ours else None


def pack_stream(stream: bytes, process: bytes, lane: int, base_ns: int) -> bytes:
    out = bytearray(STREAM_BODY.pack(stream, process, base_ns))
    put_varint(out, lane)
    return bytes(out)


class SegmentEncoder:
    """Makes the blocks of one segment, in order; what it returns must be written before the next call's."""

    def __init__(self, writer: bytes, number: int, created_ns: int, *, sealed: bool = False) -> None:
        if len(writer) != 8:
            raise ValueError(f"a writer has 8 bytes, not {len(writer)}")
        self.writer = writer
        self.number = number
        self.created_ns = created_ns
        self.is_sealed = sealed
        self.salt = salt_of(writer, number)
        self.codec = Codec(dense=sealed)
        self.streams: dict[tuple[bytes, bytes, int], int] = {}
        self.shapes: dict[Shape, int] = {}
        self._next_stream = 0
        self._next_shape = 0
        self._written_streams: set[int] = set()
        self._written_shapes: set[int] = set()
        self._since_entries = 0

    def header(self) -> bytes:
        return pack_header(self.writer, self.number, self.created_ns, sealed=self.is_sealed)

    def columns(self, stream: bytes, process: bytes, lane: int, columns: Columns) -> bytes:
        """Blocks with all these records, and the entries that they need."""
        return b"".join([block.data for block in self.blocks(stream, process, lane, columns)])

    def blocks(self, stream: bytes, process: bytes, lane: int, columns: Columns) -> Iterator[Packed]:
        """Yield the encoded records block by block."""
        for part in parts(columns):
            out = bytearray()
            index = self._stream(out, stream, process, lane)
            shape = self._shape(out, part.shape)
            body = self.codec.encode(part, self.created_ns)
            seq, step = part.seq, part.step
            if seq[-1] < seq[0]:
                raise ValueError(f"records come in the order of their seqs, not {seq[0]} before {seq[-1]}")
            numbers = bytearray()
            put_varint(numbers, index)
            put_varint(numbers, shape)
            put_varint(numbers, 0 if part.rank is None else part.rank + 1)
            put_varint(numbers, len(part))
            put_varint(numbers, seq[0])
            put_varint(numbers, seq[-1] - seq[0])
            put_zigzag(numbers, step[0])
            put_zigzag(numbers, step[-1] - step[0])
            out += pack_block(self.salt, COLUMNS, numbers, body)
            self._wrote(len(out))
            yield Packed(bytes(out), body, part)

    def gap(self, stream: bytes, process: bytes, lane: int, first: int, last: int, cause: str) -> bytes:
        """A note that seqs `first` to `last` are not here, and why: one of CAUSES."""
        out = bytearray()
        numbers = bytearray()
        put_varint(numbers, self._stream(out, stream, process, lane))
        put_varint(numbers, first)
        put_varint(numbers, last - first)
        put_varint(numbers, CAUSES.index(cause))
        out += pack_block(self.salt, GAP, numbers)
        self._wrote(len(out))
        return bytes(out)

    def go_on(self, streams: dict[tuple[bytes, bytes, int], int], shapes: dict[int, Shape]) -> None:
        """Continue a segment that has these indexes; their entries are written again before their next use."""
        self.streams = dict(streams)
        self.shapes = {shape: index for index, shape in shapes.items()}
        self._next_stream = max(streams.values(), default=-1) + 1
        self._next_shape = max(shapes, default=-1) + 1
        self.repeat_entries()

    def repeat_entries(self) -> None:
        """Repeat entries before their next use: what was returned last may not have been written."""
        self._written_streams.clear()
        self._written_shapes.clear()
        self._since_entries = 0

    def _wrote(self, size: int) -> None:
        self._since_entries += size
        if self._since_entries > ENTRIES_EVERY:
            self.repeat_entries()

    def _stream(self, out: bytearray, stream: bytes, process: bytes, lane: int) -> int:
        index = self.streams.setdefault((stream, process, lane), self._next_stream)
        if index == self._next_stream:
            self._next_stream += 1
        if index not in self._written_streams:
            self._written_streams.add(index)
            numbers = bytearray()
            put_varint(numbers, index)
            out += pack_block(self.salt, STREAM, numbers, pack_stream(stream, process, lane, self.created_ns))
        return index

    def _shape(self, out: bytearray, shape: Shape) -> int:
        index = self.shapes.setdefault(shape, self._next_shape)
        if index == self._next_shape:
            self._next_shape += 1
        if index not in self._written_shapes:
            self._written_shapes.add(index)
            packing, body = self.codec.packed(shape.definition())
            numbers = bytearray()
            put_varint(numbers, index)
            numbers.append(packing)
            out += pack_block(self.salt, SHAPE, numbers, body)
        return index
