"""Reads one segment: blocks that check become items, what does not check is named.

Pure bytes; used by readers, by repair, and by the agent when it takes over a segment.

Invariants:

- damage in the middle costs the blocks it touched and nothing else: reading goes on at the next block that checks;
- in an open segment a bad end is a torn tail (`Scan.torn`): it was never past an fsync, unless the caller
  states with `synced` how far the file was;
- in a sealed segment the footer knows every seq, so damage is named exactly even where a block's head is gone.

Does not: open files, compare segments, or decide what to do about damage.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from logclient.errors import Corrupt
from logclient.shm.record import Shape

from .blocks import Block, parse_head, walk
from .codec import Codec
from .coverage import Footer, cause_of, parse_footer, parse_stream
from .encoded import Body, StreamColumns
from .segment import (
    COLUMNS,
    FOOTER,
    GAP,
    HEADER_BYTES,
    SHAPE,
    STREAM,
    TRAILER,
    Header,
    Name,
    StreamEntry,
    parse_header,
    parse_name,
    parse_trailer,
    salt_of,
)
from .seqs import SeqSet
from .varint import zigzag


class Gap(NamedTuple):
    """Seqs that the writer reports as not there; cause is damaged, forgotten or trimmed."""

    stream: bytes
    process: bytes
    lane: int
    first: int
    last: int
    cause: str


class Damage(NamedTuple):
    """Bytes that do not check, and the records lost with them as far as that is known."""

    name: str
    offset: int
    length: int
    stream: bytes | None
    first_seq: int | None
    last_seq: int | None
    first_step: int | None
    last_step: int | None
    reason: str

    def __str__(self) -> str:
        text = f"{self.name}: {self.length} bytes at byte {self.offset} do not check: {self.reason}"
        if self.first_seq is None:
            return text
        whose = f"stream {self.stream.hex()}" if self.stream else "a stream whose entry is lost"
        steps = "" if self.first_step is None else f" (steps {self.first_step}..{self.last_step})"
        return f"{text}; records {self.first_seq}..{self.last_seq}{steps} of {whose} are lost"


Item: TypeAlias = StreamColumns | Gap | Damage


class Scan:
    """One pass over the bytes of a segment: `items()` once, then what it found.

    `end` is the offset where the valid part ends, `torn` the bad pieces behind it that may be cut, `header` what
    the header contains (None: damaged), `footer` a sealed segment's (None: open or damaged).
    """

    def __init__(
        self,
        data: bytes,
        *,
        name: str,
        codec: Codec | None = None,
        synced: int = 0,
        after: Scan | None = None,
        decodes: bool = True,
    ) -> None:
        """`name` is the file's. With `after`, an earlier scan of the same open segment, `data` starts where that ended.
        Without `decodes` records stay encoded where their seqs and their size are known from the block's head.

        `Unsupported` where a newer version wrote the segment, `Corrupt` where the name is none of a segment.
        """
        parsed = parse_name(name)
        if parsed is None:
            raise Corrupt(name, 0, "a name <writer>-<number>.wal or .seg", name)
        self.name = name
        self.is_sealed = parsed.is_sealed
        self.salt = salt_of(parsed.writer, parsed.number)
        self.header: Header | None = None
        self.footer: Footer | None = None
        self.streams: dict[int, StreamEntry] = {}
        self.shapes: dict[int, Shape] = {}
        self.torn: list[Damage] = []
        self._codec = codec or Codec()
        self._synced = synced
        self._decodes = decodes
        self._data = data
        self._view = memoryview(data)
        self._limit = len(data)
        self._base = 0  # offset in the file of the first byte of `data`
        self.end = 0
        self._early: list[Damage] = []
        self._looked_ahead = False
        if after is not None and after.end:
            self.header, self.streams, self.shapes = after.header, after.streams, after.shapes
            self._base = self.end = after.end
        else:
            self._start(parsed)
        self._first = self.end - self._base

    @property
    def torn_bytes(self) -> int:
        return sum(piece.length for piece in self.torn)

    @property
    def created_ns(self) -> int:
        """From the header; where that is damaged from a stream's entry, which repeats it; else 0."""
        if self.header is not None:
            return self.header.created_ns
        self._look_ahead()
        return min((entry.base_ns for entry in self.streams.values()), default=0)

    def _start(self, parsed: Name) -> None:
        if not self.is_sealed and not self._data.strip(b"\0"):
            return  # made a moment ago: nothing was promised yet
        self.end = min(HEADER_BYTES, len(self._data))
        try:
            header = parse_header(self._view, self.name)
            if (header.writer, header.number) != (parsed.writer, parsed.number):
                raise Corrupt(self.name, 16, "the header of this file", "that of another segment")
            self.header = header
        except Corrupt as error:
            reason = f"a header expected ({error.expected}), found {error.found}"
            self._early.append(self._piece(0, self.end, reason))
        if self.is_sealed:
            self._read_footer()

    def _read_footer(self) -> None:
        size = len(self._data)
        length = parse_trailer(self.salt, self._view[-TRAILER.size :])
        if length is not None and length <= size - TRAILER.size:
            self._limit = size - TRAILER.size
            self.footer = footer_at(self._view[self._limit - length : self._limit], self.salt, self._codec)
        if self.footer is None:
            self._early.append(
                self._piece(size, 0, "no footer checks: the end of the file is damaged or cut off")
            )
        else:
            self.streams.update(enumerate(self.footer.streams))
            self.shapes.update(enumerate(self.footer.shapes))

    def items(self) -> Iterator[Item]:
        """Records, gaps and damage, in the order of the file."""
        yield from self._early
        if self.footer is None:
            yield from self._items()
            return
        seen: dict[bytes, SeqSet] = {}
        unnamed = []
        for item in self._items():
            if isinstance(item, StreamColumns):
                seen.setdefault(item.stream, SeqSet()).add_seqs(item.seqs)
            elif isinstance(item, Damage):
                if item.stream is None or item.first_seq is None or item.last_seq is None:
                    unnamed.append(item)
                    continue
                seen.setdefault(item.stream, SeqSet()).add(item.first_seq, item.last_seq)
            yield item
        yield from self._name(unnamed, seen, self.footer)

    def _name(self, unnamed: list[Damage], seen: dict[bytes, SeqSet], footer: Footer) -> Iterator[Damage]:
        """Name the records that went with pieces that have no head left: those of the footer that did not come."""
        lost = [
            (span.stream, first, last)
            for span in footer.spans.values()
            for first, last in span.stored.minus(seen.get(span.stream, SeqSet())).ranges()
        ]
        if lost and not unnamed:
            unnamed = [self._piece(self._limit, 0, "the footer names records that no block holds")]
        for number, damage in enumerate(unnamed):
            mine = lost if number == len(unnamed) - 1 else lost[:1]
            lost = lost[len(mine) :]
            if not mine:
                yield damage
            for stream, first, last in mine:
                yield damage._replace(stream=stream, first_seq=first, last_seq=last)

    def forget_bytes(self) -> None:
        """Keep what was found and let go of the data; `after` needs no more."""
        self._data, self._view = b"", memoryview(b"")

    def blocks(self) -> Iterator[Block]:
        """The pieces as they lie; offsets are within `data`."""
        view = self._view[: self._limit]
        return walk(view, self.salt, self._first, self._solid())

    def _solid(self) -> int:
        return self._limit if self.is_sealed else len(self._data.rstrip(b"\0"))

    def _items(self) -> Iterator[Item]:
        pending: list[Block] = []  # bad pieces: damage if a block that checks follows
        for block in self.blocks():
            if block.reason:
                pending.append(block)
                continue
            for bad in pending:
                yield self._named(bad)
            pending.clear()
            yield from self._good(block)
        for bad in pending:
            damage = self._named(bad)
            if self.is_sealed or damage.offset < self._synced:
                yield damage
            else:
                self.torn.append(damage)

    def _good(self, block: Block) -> Iterator[Item]:
        numbers = block.numbers
        assert numbers is not None
        try:
            if block.kind == COLUMNS:
                yield self._columns(block, numbers)
            elif block.kind == GAP:
                _, index, first, span, cause = numbers[:5]
                stream, process, lane, _ = self._stream(index)
                yield Gap(stream, process, lane, first, first + span, cause_of(cause))
            else:
                self._entry(block, numbers)
        except (ValueError, IndexError, Corrupt) as error:
            yield self._named(block._replace(reason=str(error)))
        self.end = self._base + block.end

    def _entry(self, block: Block, numbers: list[int]) -> None:
        if block.kind == STREAM:
            self.streams[numbers[1]] = parse_stream(block.body)
        elif block.kind == SHAPE:
            definition = self._codec.unpack_whole(numbers[2], block.body)
            self.shapes[numbers[1]] = Shape.from_definition(definition)

    def _columns(self, block: Block, numbers: list[int]) -> StreamColumns:
        _, index, number, rank, count, seq, span, step, _ = numbers[:9]
        stream, process, lane, base_ns = self._stream(index)
        if number not in self.shapes:
            self._look_ahead()
        if number not in self.shapes:
            raise ValueError(f"the entry of shape {number} is lost")
        shape, rank_or_none = self.shapes[number], rank - 1 if rank else None
        bodies: tuple[Body, ...] = ()
        if not self._decodes:
            bodies = (Body(count, seq, seq + span, zigzag(step), base_ns, bytes(block.body)),)
            if shape.fixed and count == span + 1:
                return StreamColumns(stream, process, lane, shape=shape, rank=rank_or_none, bodies=bodies)
        columns = self._codec.decode(block.body, shape, rank_or_none, count, seq, zigzag(step), base_ns)
        return StreamColumns(stream, process, lane, columns, bodies=bodies)

    def _stream(self, index: int) -> StreamEntry:
        if index not in self.streams:
            self._look_ahead()
        if index not in self.streams:
            raise ValueError(f"the entry of stream {index} is lost")
        return self.streams[index]

    def _look_ahead(self) -> None:
        """An entry is gone: entries are repeated, so read those that come later."""
        if self._looked_ahead:
            return
        self._looked_ahead = True
        for block in self.blocks():
            if not block.reason and block.numbers is not None:
                try:
                    self._entry(block, block.numbers)
                except (ValueError, IndexError, Corrupt):
                    pass  # named when the block's turn comes

    def _named(self, block: Block) -> Damage:
        """The damage, with what the block's head states of the records in it."""
        damage = self._piece(block.offset, block.end - block.offset, block.reason)
        if block.kind != COLUMNS or block.numbers is None or len(block.numbers) < 9:
            return damage
        _, index, _, _, _, first, span, step, steps = block.numbers[:9]
        entry = self.streams.get(index)
        first_step = zigzag(step)
        return damage._replace(
            stream=entry.stream if entry else None,
            first_seq=first,
            last_seq=first + span,
            first_step=first_step,
            last_step=first_step + zigzag(steps),
        )

    def _piece(self, offset: int, length: int, reason: str) -> Damage:
        return Damage(self.name, self._base + offset, length, None, None, None, None, None, reason)


def footer_at(data: memoryview, salt: int, codec: Codec) -> Footer | None:
    """The footer whose block is `data`; None where it does not check."""
    head = parse_head(data, 0, salt)
    if head is None or head.kind != FOOTER or head.end != len(data):
        return None
    body = data[head.start :]
    if zlib.crc32(body, salt) != head.check:
        return None
    try:
        return parse_footer(codec.unpack_whole(head.numbers[1], body))
    except (ValueError, IndexError, Corrupt):
        return None
