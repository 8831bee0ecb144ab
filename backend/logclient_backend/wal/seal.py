"""Open segment -> sealed segment: small blocks become large ones, compressed, with a footer.

Runs in a thread that may hang on the disk (the agent's) or in a command (`logclient wal repair`).

Invariants:

- every block is decoded again and compared before it is written, and the file is read back before it gets its name;
- a record that comes twice is written once;
- damage in the open segment becomes GAP notes, as exact as it can be named;
- at each moment the folder holds the open segment, or the sealed one, or both (then the sealed one counts);
- the new bytes have a name of their own until they are whole, so two that seal the same segment do not meet.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator

from logclient.errors import Corrupt
from logclient.shm.columns import Columns
from logclient.shm.record import Shape

from .codec import Codec
from .coverage import Spans, pack_footer
from .encoded import StreamColumns
from .files import NEW, Files, discard
from .scan import Damage, Gap, Item, Scan
from .segment import FOOTER, SegmentEncoder, StreamEntry, pack_block, pack_trailer, parse_name, segment_name
from .seqs import SeqSet

BLOCK_RECORDS = 4096  # a bad sector costs at most this many records of one stream
BLOCK_BYTES = 1 << 20
PENDING_BYTES = 4 << 20  # of all columns that wait for their block to fill
TEMPORARY = ".tmp"


class Sealer:
    """Collects records and gives the bytes of a sealed segment, piece by piece."""

    def __init__(self, writer: bytes, number: int, created_ns: int) -> None:
        self.spans = Spans()
        self._encoder = SegmentEncoder(writer, number, created_ns, sealed=True)
        self._codec = Codec()
        self._pending: dict[tuple[bytes, Shape, int | None], StreamColumns] = {}
        self._bytes = 0

    def header(self) -> bytes:
        return self._encoder.header()

    def add(self, item: StreamColumns | Gap) -> Iterator[bytes]:
        """Take records (those that came before are left out) or a gap; yields what became full."""
        stream, process, lane = item.stream, item.process, item.lane
        span = self.spans.of(stream, process, lane)
        if isinstance(item, Gap):
            span.add_gap(item.first, item.last, item.cause)
            yield self._encoder.gap(*item)
            return
        columns = unseen_part(item.columns, span.stored)
        if columns is None:
            return
        span.add(columns)
        key = (stream, columns.shape, columns.rank)
        waiting = self._pending.get(key)
        if waiting is not None:
            is_behind = waiting.columns.seq[-1] < columns.seq[0]
            if not is_behind or len(waiting.columns) + len(columns) > _block_records(columns):
                yield from self._flush(key)
                waiting = None
        self._bytes += _size(columns)
        if waiting is None:
            self._pending[key] = StreamColumns(stream, process, lane, columns.part(0, len(columns)))
        else:
            waiting.columns.extend(columns)
        if self._bytes > PENDING_BYTES:
            for other in list(self._pending):
                yield from self._flush(other)

    def finish(self) -> Iterator[bytes]:
        """The rest, the footer and the trailer."""
        for key in list(self._pending):
            yield from self._flush(key)
        encoder = self._encoder
        body = pack_footer(self.spans, list(encoder.streams), list(encoder.shapes), encoder.created_ns)
        packing, body = encoder.codec.packed(body)
        numbers = bytearray((packing,))
        footer = pack_block(encoder.salt, FOOTER, numbers, body)
        yield footer
        yield pack_trailer(encoder.salt, len(footer))

    def _flush(self, key: tuple[bytes, Shape, int | None]) -> Iterator[bytes]:
        item = self._pending.pop(key)
        stream, process, lane, columns = item.stream, item.process, item.lane, item.columns
        self._bytes -= _size(columns)
        for start in range(0, len(columns), BLOCK_RECORDS):
            part = columns if len(columns) <= BLOCK_RECORDS else columns.part(start, start + BLOCK_RECORDS)
            for data, body, sent in self._encoder.blocks(stream, process, lane, part):
                back = self._codec.decode(
                    body,
                    sent.shape,
                    sent.rank,
                    len(sent),
                    sent.seq[0],
                    sent.step[0],
                    self._encoder.created_ns,
                )
                if not is_same(sent, back):
                    raise Corrupt(
                        "a sealed block", 0, f"{len(sent)} records as they were", "others when decoded again"
                    )
                yield data


def unseen_part(columns: Columns, seen: SeqSet) -> Columns | None:
    """The records whose seq is not in `seen`; the same object if that is all, None if that is none."""
    positions = seen.unseen(columns.seq)
    if positions is None:
        return columns
    if not positions:
        return None
    made = columns.part(0, 0)
    start = positions[0]
    for at, after in zip(positions, [*positions[1:], -1], strict=True):
        if after != at + 1:
            made.extend(columns.part(start, at + 1))
            start = after
    return made


def is_same(a: Columns, b: Columns) -> bool:
    """Equal bit by bit."""
    return (
        a.shape == b.shape
        and a.rank == b.rank
        and a.seq == b.seq
        and a.order == b.order
        and a.step == b.step
        and a.time == b.time
        and a.cells == b.cells
    )


def _size(columns: Columns) -> int:
    size = len(columns) * 8 * (4 + len(columns.cells))
    if not columns.shape.fixed:
        size += sum(sum(map(len, cells)) for cells in columns.cells if isinstance(cells, list))
    return size


def _block_records(columns: Columns) -> int:
    return max(1, min(BLOCK_RECORDS, BLOCK_BYTES * len(columns) // _size(columns)))


def sealed_pieces(
    items: Iterable[Item], writer: bytes, number: int, created_ns: int, streams: Iterable[StreamEntry] = ()
) -> Iterator[bytes]:
    """The bytes of a sealed segment with what these items hold; what they lost is noted in it.

    `streams` are entries that the items come from (`Scan.streams`): one may have lost all its records.
    """
    sealer = Sealer(writer, number, created_ns)
    lost: list[Damage] = []
    yield sealer.header()
    for item in items:
        if isinstance(item, Damage):
            lost.append(item)
        else:
            yield from sealer.add(item)
    if lost:
        for stream, process, lane, _ in streams:
            sealer.spans.of(stream, process, lane)
        for gap in _notes(sealer.spans, lost):
            yield from sealer.add(gap)
    yield from sealer.finish()


def _notes(spans: Spans, lost: list[Damage]) -> Iterator[Gap]:
    """Damage as gaps: what a head still names, and the holes between the records that are left."""
    for span in list(spans.values()):
        gone = SeqSet()
        for damage in lost:
            if damage.stream == span.stream and damage.first_seq is not None and damage.last_seq is not None:
                gone.add(damage.first_seq, damage.last_seq)
        known = span.stored.copy()
        for seqs in span.gaps.values():
            known.update(seqs)
        if span.first is not None and span.last is not None:
            gone.update(SeqSet([(span.first, span.last)]).minus(known))
        for first, last in gone.minus(known).ranges():
            yield Gap(span.stream, span.process, span.lane, first, last, "damaged")


def write_sealed(files: Files, folder: str, writer: bytes, number: int, pieces: Iterable[bytes]) -> str:
    """Write the pieces as a sealed segment: whole, past an fsync and under its name, or not at all."""
    path = os.path.join(folder, segment_name(writer, number, sealed=True))
    temporary = f"{path}.{os.urandom(4).hex()}{TEMPORARY}"
    fd = files.open(temporary, NEW)
    try:
        try:
            end = check = 0
            for piece in pieces:
                files.pwrite(fd, piece, end)
                end += len(piece)
                check = zlib.crc32(piece, check)
            files.fsync(fd)
            found = files.pread(fd, end + 1, 0)
            if len(found) != end or zlib.crc32(found) != check:
                raise Corrupt(temporary, 0, f"the {end} bytes that were written", "others when read back")
        finally:
            files.close(fd)
        files.rename(temporary, path)
    except BaseException:
        discard(files, temporary)  # where it stays, `sweep` takes it later
        raise
    files.fsync_folder(folder)
    return path


def seal(files: Files, data: bytes, name: str, folder: str) -> str:
    """Write the sealed form of the open segment `name`, whose valid part is `data`, to `folder`; returns its path.

    The folder's own copy of the open segment, if it has one, is removed last. `OSError` leaves all as it was.
    """
    parsed = parse_name(name)
    if parsed is None or parsed.is_sealed:
        raise Corrupt(name, 0, "a name <writer>-<number>.wal", name)
    scan = Scan(data, name=name)
    streams = scan.streams.values()
    pieces = sealed_pieces(scan.items(), parsed.writer, parsed.number, scan.created_ns, streams)
    path = write_sealed(files, folder, parsed.writer, parsed.number, pieces)
    try:
        files.unlink(os.path.join(folder, segment_name(parsed.writer, parsed.number)))
    except FileNotFoundError:
        pass
    return path
