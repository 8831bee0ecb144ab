"""Records of one stream (`StreamColumns`) <-> the messages that carry them. Pure; no grpc.

Runs in the agent's shipper, in the collector, and in whoever reads from one. A `BatchWriter` or `BatchReader` belongs
to one conversation or page and one thread: it remembers which key tables were said.

Invariants:

- what comes out of a reader is what went into the writer, bit by bit: NaN payloads, signed zeros, wrapped numbers;
- a reader believes nothing: sizes are bounded before anything is unpacked, and what does not fit raises `Corrupt`
  with a sentence, nothing else;
- no loop over values; one over records where steps or times do not come at an even pace.

Does not: decide how much goes into a parcel, or whether a record was seen before.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from operator import sub
from typing import TYPE_CHECKING

import zstandard

from logclient.errors import Corrupt
from logclient.shm.columns import Columns
from logclient.shm.record import CODES, VARIABLE, Shape
from logclient_proto.v1 import ingest_pb2 as pb

from ..wal.scan import Gap, StreamColumns
from ..wal.seqs import SeqSet

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_RECORDS = 1 << 16  # of a batch
MAX_KEYS = 1 << 17
MAX_NAME_BYTES = 512  # the client's own limit, `logclient.encode.keys`, and what a reader can ask for
MAX_INT_BYTES = 8192 // 8 + 1  # the client's own limit; digits of a much larger one cannot be written out
MAX_SEQ = (1 << 63) - 1  # a client counts from 1 and never gets there; stores have signed words
MAX_BYTES = 1 << 26  # of one column group, unpacked

_WORTH_BYTES = 512  # below this, packing is no gain
_LEVEL = 1  # see wal/codec.py
_MASK = (1 << 64) - 1
_CAUSES = {"damaged": pb.CAUSE_DAMAGED, "forgotten": pb.CAUSE_FORGOTTEN, "trimmed": pb.CAUSE_TRIMMED}
_CAUSE_NAMES = {int(number): name for name, number in _CAUSES.items()}


class BatchWriter:
    """Makes the messages of one conversation."""

    def __init__(self, *, packs: bool = True) -> None:
        """`packs`: compress; not worth its time where the other side is on the same machine."""
        self._tables: dict[Shape, int] = {}
        self._compress = zstandard.ZstdCompressor(level=_LEVEL).compress if packs else None

    @property
    def tables(self) -> int:
        """Key tables that were said."""
        return len(self._tables)

    def forget(self) -> None:
        """A new conversation begins: say every table again."""
        self._tables.clear()

    def batch(self, item: StreamColumns) -> pb.RecordBatch:
        """At most MAX_RECORDS records."""
        columns = item.columns
        shape = columns.shape
        made = pb.RecordBatch(
            stream=item.stream,
            process=item.process,
            lane=item.lane,
            rank=0 if columns.rank is None else columns.rank + 1,
            records=len(columns),
            seq=numbers(columns.seq),
            order=numbers(columns.order),
            step=numbers(columns.step),
            time_ns=numbers(columns.time),
        )
        number = self._tables.get(shape)
        if number is None:
            number = self._tables[shape] = len(self._tables) + 1
            made.table.names.extend(shape.names)
            made.table.codes = shape.codes
        made.keys = number
        fixed = [column for column in columns.cells if isinstance(column, array)]
        if fixed:
            self._pack(made.words, b"".join([column.tobytes() for column in fixed]), words=True)
        for column in columns.cells:
            if not isinstance(column, array):
                texts = made.texts.add()
                texts.sizes.extend(map(len, column))
                self._pack(texts.data, b"".join(column), words=False)
        return made

    def packed(self, data: bytes) -> pb.Packed:
        """Bytes of any kind."""
        made = pb.Packed()
        self._pack(made, data, words=False)
        return made

    def _pack(self, out: pb.Packed, data: bytes, *, words: bool) -> None:
        out.size = len(data)
        if self._compress is not None and len(data) >= _WORTH_BYTES:
            packed = self._compress(b"".join([data[at::8] for at in range(8)]) if words else data)
            if len(packed) < len(data):
                out.packing = pb.PACKING_SHUFFLED if words else pb.PACKING_ZSTD
                out.data = packed
                return
        out.data = data


class BatchReader:
    """Reads the messages of one conversation."""

    def __init__(self) -> None:
        self._shapes: dict[int, Shape] = {}

    def batch(self, message: pb.RecordBatch) -> StreamColumns:
        """Raises `Corrupt` where it is none."""
        count = message.records
        if not 0 < count <= MAX_RECORDS:
            raise _wrong("records", f"1 to {MAX_RECORDS}", count)
        if len(message.stream) != 16 or len(message.process) != 16:
            raise _wrong(
                "stream and process", "16 bytes each", f"{len(message.stream)} and {len(message.process)}"
            )
        if message.lane > 0xFFFF or message.rank > 1 << 30:
            raise _wrong("lane and rank", "small numbers", f"{message.lane} and {message.rank}")
        shape = self._shape(message)
        seq = read_numbers(message.seq, count, "Q")
        if seq[0] < 1 or seq[-1] > MAX_SEQ or any(b <= a for a, b in pairwise(seq)):
            raise _wrong("seq", "numbers from 1 to 2**63 - 1, rising", "others")
        columns = Columns(
            shape,
            message.rank - 1 if message.rank else None,
            seq,
            read_numbers(message.order, count, "Q"),
            read_numbers(message.step, count, "q"),
            read_numbers(message.time_ns, count, "q"),
            self._cells(message, shape, count),
        )
        return StreamColumns(message.stream, message.process, message.lane, columns)

    def _shape(self, message: pb.RecordBatch) -> Shape:
        if message.HasField("table"):
            names, codes = tuple(message.table.names), message.table.codes
            if len(names) != len(codes) or len(names) > MAX_KEYS or not CODES.issuperset(codes):
                raise _wrong(
                    "key table", "a known code for each key", f"{len(names)} keys, {len(codes)} codes"
                )
            _check_names(names)
            if len(self._shapes) >= MAX_KEYS and message.keys not in self._shapes:
                raise _wrong("key tables", f"at most {MAX_KEYS}", "one more")
            self._shapes[message.keys] = Shape(names, codes)
        try:
            return self._shapes[message.keys]
        except KeyError:
            raise _wrong("key table", "one that was sent", message.keys) from None

    def _cells(self, message: pb.RecordBatch, shape: Shape, count: int) -> list[array[int] | list[bytes]]:
        fixed = sum(code not in VARIABLE for code in shape.codes)
        if len(message.texts) != len(shape.codes) - fixed:
            raise _wrong("texts", f"{len(shape.codes) - fixed} columns", len(message.texts))
        size = 8 * count * fixed
        words = memoryview(unpack(message.words, most=MAX_BYTES)) if fixed else memoryview(b"")
        if len(words) != size:
            raise _wrong("words", f"{size} bytes", len(words))
        texts = iter(message.texts)
        cells: list[array[int] | list[bytes]] = []
        at = 0
        for code in shape.codes:
            if code in VARIABLE:
                cells.append(_read_texts(next(texts), count, MAX_INT_BYTES if code == "i" else MAX_BYTES))
            else:
                cells.append(array("Q", bytes(words[at : at + 8 * count])))
                at += 8 * count
        return cells


def _check_names(names: tuple[str, ...]) -> None:
    """Check that each name can be stored, and asked for, as the name of a series."""
    if len(set(names)) < len(names):
        raise _wrong("key table", "each key once", "one that comes again")
    for name in names:
        if not 1 <= len(name) <= MAX_NAME_BYTES or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            raise _wrong(
                "key table", f"names of 1 to {MAX_NAME_BYTES} bytes", f"one of {len(name)} characters"
            )
        if "\0" in name:
            raise _wrong("key table", "names without NUL", "one that holds it")


def numbers(column: array[int]) -> pb.Numbers:
    """A column of whole numbers as differences."""
    first = column[0]
    made = pb.Numbers(first=_signed(first))
    count = len(column)
    if count == 1:
        return made
    stride = column[1] - first
    last = first + stride * (count - 1)
    is_even = column[-1] == last and -(1 << 63) <= stride < 1 << 63  # cheap; only then are all compared
    if is_even and column == _even(column.typecode, first, stride, count):
        made.stride = stride
        return made
    deltas = list(map(sub, column[1:], column))
    if min(deltas) < -(1 << 63) or max(deltas) >= 1 << 63:  # a word each, whatever they wrap to
        deltas = [_signed(delta) for delta in deltas]
    made.deltas.extend(deltas)
    return made


def read_numbers(message: pb.Numbers, count: int, typecode: str) -> array[int]:
    """The column; 64-bit words that wrap."""
    first, stride = message.first, message.stride
    if not message.deltas:
        last = first + stride * (count - 1)
        low, high = (0, _MASK) if typecode == "Q" else (-(1 << 63), (1 << 63) - 1)
        if low <= first <= high and low <= last <= high:
            return _even(typecode, first, stride, count)
        deltas: Sequence[int] = [stride] * (count - 1)
    elif len(message.deltas) != count - 1:
        raise _wrong("numbers", f"{count - 1} differences", len(message.deltas))
    else:
        deltas = message.deltas
    try:
        return array(typecode, accumulate(deltas, initial=first))
    except OverflowError:  # they wrap
        values = accumulate(deltas, initial=first)
    if typecode == "Q":
        return array("Q", [value & _MASK for value in values])
    return array("q", [_signed(value) for value in values])


def _even(typecode: str, first: int, stride: int, count: int) -> array[int]:
    """first, first + stride, ...; all within 64 bits."""
    if stride == 0:
        return array(typecode, [first]) * count
    return array(typecode, range(first, first + stride * count, stride))


def _signed(value: int) -> int:
    """Return the 64-bit word as a signed number."""
    return (value + (1 << 63) & _MASK) - (1 << 63)


def unpack(message: pb.Packed, *, most: int = MAX_BYTES) -> bytes | bytearray:
    """Its bytes; `Corrupt` where they are not what it says, or more than `most`."""
    size, data = message.size, message.data
    if size > most:
        raise _wrong("a packed field", f"at most {most} bytes", size)
    if message.packing != pb.PACKING_RAW:
        try:
            if zstandard.frame_content_size(data) != size:
                raise _wrong("a packed field", f"a zstd frame of {size} bytes", "another one")
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise _wrong("a packed field", "a zstd frame", error) from error
    if len(data) != size:
        raise _wrong("a packed field", f"{size} bytes", len(data))
    if message.packing == pb.PACKING_SHUFFLED:
        if size % 8:
            raise _wrong("a shuffled field", "whole words", f"{size} bytes")
        words, count = bytearray(size), size // 8
        for at in range(8):
            words[at::8] = data[at * count : (at + 1) * count]
        return words
    if message.packing not in (pb.PACKING_RAW, pb.PACKING_ZSTD):
        raise _wrong("a packed field", "a known packing", message.packing)
    return data


def _read_texts(message: pb.Texts, count: int, most: int) -> list[bytes]:
    """`most` bytes of each."""
    sizes = list(message.sizes)
    if sizes and max(sizes) > most:
        raise _wrong("texts", f"at most {most} bytes each", max(sizes))
    data = bytes(unpack(message.data))
    if len(sizes) != count or sum(sizes) != len(data):
        raise _wrong("texts", f"{count} of them, {len(data)} bytes", f"{len(sizes)} of {sum(sizes)} bytes")
    ends = list(accumulate(sizes))
    return [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def hole(gap: Gap) -> pb.StreamHole:
    """A gap as a message."""
    made = pb.StreamHole(stream=gap.stream, process=gap.process, lane=gap.lane)
    made.hole.cause = _CAUSES[gap.cause]
    made.hole.range.first, made.hole.range.last = gap.first, gap.last
    return made


def read_hole(message: pb.StreamHole) -> Gap:
    """Raises `Corrupt` where it is none."""
    first, last = message.hole.range.first, message.hole.range.last
    if (
        len(message.stream) != 16
        or len(message.process) != 16
        or not 1 <= first <= last <= MAX_SEQ
        or message.lane > 0xFFFF
    ):
        raise _wrong("hole", "a stream and a range from 1 to 2**63 - 1", f"{first} to {last}")
    return Gap(message.stream, message.process, message.lane, first, last, cause_name(message.hole.cause))


def cause_name(cause: int) -> str:
    """A cause that a newer version made up counts as damage."""
    return _CAUSE_NAMES.get(cause, "damaged")


def ranges(seqs: SeqSet) -> list[pb.Range]:
    return [pb.Range(first=first, last=last) for first, last in seqs.ranges()]


def read_ranges(found: Sequence[pb.Range]) -> SeqSet:
    """Raises `Corrupt` for what is no range."""
    seqs = SeqSet()
    for each in found:
        if not 1 <= each.first <= each.last:
            raise _wrong("range", "a first seq and a last", f"{each.first} to {each.last}")
        seqs.add(each.first, each.last)
    return seqs


def held(stream: bytes, stored: SeqSet, gaps: dict[str, SeqSet]) -> pb.Held:
    """Return the coverage of a stream as a message."""
    made = pb.Held(stream=stream, stored=ranges(stored))
    for cause, seqs in gaps.items():
        for each in ranges(seqs):
            made.holes.add(cause=_CAUSES[cause], range=each)
    return made


def read_held(message: pb.Held) -> tuple[bytes, SeqSet, dict[str, SeqSet]]:
    """(stream, stored, gaps by cause)."""
    gaps: dict[str, SeqSet] = {}
    for each in message.holes:
        gaps.setdefault(cause_name(each.cause), SeqSet()).update(read_ranges([each.range]))
    return message.stream, read_ranges(message.stored), gaps


def _wrong(what: str, expected: object, found: object) -> Corrupt:
    return Corrupt(f"record batch: {what}", 0, expected, found)
