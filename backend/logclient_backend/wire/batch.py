"""Records of one stream (`StreamColumns`) <-> the messages that carry them. Pure; no grpc.

Runs in the agent's shipper, in the collector, and in whoever reads from one. A `BatchWriter` or `BatchReader` belongs
to one conversation or page and one thread: it remembers which key tables were sent.

Invariants:

- what comes out of a reader is what went into the writer, bit by bit: NaN payloads, signed zeros, wrapped numbers;
- a reader believes nothing: sizes are bounded before anything is unpacked, and what does not fit raises `Corrupt`
  with a sentence, nothing else;
- no loop over values or records.

Does not: decide how much goes into a parcel, or whether a record was seen before.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import zstandard

from logclient.errors import Corrupt
from logclient.shm.record import CODES, Shape
from logclient_proto.v1 import ingest_pb2 as pb

from ..wal import encoded
from ..wal.codec import ramp
from ..wal.encoded import StreamColumns
from ..wal.scan import Gap
from ..wal.seqs import SeqSet

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

MAX_RECORDS = 1 << 16  # of a batch
MAX_KEYS = 1 << 17
MAX_NAME_BYTES = 512  # the client's own limit, `logclient.encode.keys`, and what a reader can ask for
MAX_INT_BYTES = 8192 // 8 + 1  # the client's own limit; digits of a much larger one cannot be written out
MAX_SEQ = (1 << 63) - 1  # a client counts from 1 and never gets there; stores have signed words
MAX_BYTES = 1 << 26  # of one packed field, unpacked, and of all texts of a batch

_WORTH_BYTES = 512  # below this, packing is no gain
_LEVEL = 2  # level 1 packs planes of float32 values 10 % larger
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
        """Key tables that were sent."""
        return len(self._tables)

    def forget(self) -> None:
        """A new conversation begins: send every table again."""
        self._tables.clear()

    def batch(self, item: StreamColumns) -> pb.RecordBatch:
        """At most MAX_RECORDS records."""
        shape = item.shape
        made = pb.RecordBatch(
            stream=item.stream,
            process=item.process,
            lane=item.lane,
            rank=0 if item.rank is None else item.rank + 1,
            records=len(item),
            text_bytes=item.text_bytes,
            bodies=encoded.pack(item.bodies, self._compress),
        )
        number = self._tables.get(shape)
        if number is None:
            number = self._tables[shape] = len(self._tables) + 1
            made.table.names.extend(shape.names)
            made.table.codes = shape.codes
        made.keys = number
        return made

    def packed(self, data: bytes) -> pb.Packed:
        """Bytes of any kind."""
        if self._compress is not None and len(data) >= _WORTH_BYTES:
            packed = self._compress(data)
            if len(packed) < len(data):
                return pb.Packed(packing=pb.PACKING_ZSTD, size=len(data), data=packed)
        return pb.Packed(size=len(data), data=data)


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
        if message.text_bytes > MAX_BYTES:
            raise _wrong("texts", f"at most {MAX_BYTES} bytes", message.text_bytes)
        try:
            bodies = list(encoded.unpack(message.bodies, most_bytes=MAX_BYTES))
            if sum(body.records for body in bodies) != count:
                raise _wrong("bodies", f"{count} records", sum(body.records for body in bodies))
            rank = message.rank - 1 if message.rank else None
            columns = encoded.decode(bodies, shape, rank, most_text_bytes=message.text_bytes)
        except ValueError as error:
            raise _wrong("bodies", "those of a segment", error) from error
        _check_seqs(columns.seq)
        for code, cells in zip(shape.codes, columns.cells, strict=True):
            if code == "i" and max(map(len, cells)) > MAX_INT_BYTES:  # type: ignore[arg-type]
                raise _wrong("an int", f"at most {MAX_INT_BYTES} bytes", max(map(len, cells)))  # type: ignore[arg-type]
        return StreamColumns(message.stream, message.process, message.lane, columns, packed=message.bodies)

    def codes(self, message: pb.RecordBatch) -> str:
        """Return the codes of its keys, as far as they are known before it is read."""
        if message.HasField("table"):
            return message.table.codes
        shape = self._shapes.get(message.keys)
        return "" if shape is None else shape.codes

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


def _check_seqs(seq: array[int]) -> None:
    """Check that they rise, and are none that no store has room for."""
    first, last = seq[0], seq[-1]
    if 1 <= first <= last <= MAX_SEQ:
        is_gapless = last - first == len(seq) - 1 and ramp(first, 1, len(seq)).tobytes() == seq.tobytes()
        if is_gapless or all(a < b for a, b in pairwise(seq)):
            return
    raise _wrong("seq", "numbers from 1 to 2**63 - 1, rising", "others")


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


def unpack(message: pb.Packed) -> bytes:
    """Its bytes; `Corrupt` where they are not what it declares, or more than MAX_BYTES."""
    size, data = message.size, message.data
    if size > MAX_BYTES:
        raise _wrong("a packed field", f"at most {MAX_BYTES} bytes", size)
    if message.packing not in (pb.PACKING_RAW, pb.PACKING_ZSTD):
        raise _wrong("a packed field", "a known packing", message.packing)
    if message.packing == pb.PACKING_ZSTD:
        try:
            if zstandard.frame_content_size(data) != size:
                raise _wrong("a packed field", f"a zstd frame of {size} bytes", "another one")
            data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise _wrong("a packed field", "a zstd frame", error) from error
    if len(data) != size:
        raise _wrong("a packed field", f"{size} bytes", len(data))
    return data


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
