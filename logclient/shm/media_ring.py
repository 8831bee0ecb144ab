"""The file of one process with its media values: a ring of raw values, and a lane of references to them.

`MediaWriter` runs in the training process, `MediaReader` and `ReferenceWriter` in the media process of the agent.

::

    <lcmedia_ and 8 random bytes, as hex>.media    laid out as a lane file (`layout.py`) with one lane
        lane 0            references: what the media process stored, one record a value. The worker takes them as
                          it takes all records
        lane header 1     words of the raw ring, which no reader of lanes counts; the words of a lane, and
                          IN_HAND ... LOST below. LANE_STREAM: the id of the process that logs, which names its lane
                          file
        behind lane 0     the raw ring

    frame of the raw ring (multiple of 8 bytes, never wraps; padding fills the end of a lap)
    +0   u32 length (bit 31: padding)     u32 CRC-32 of +8 to the end of the description
    +8   seq, order, step, time, head     as in any frame; order is the seq, of head only the rank counts
    +48  u32 bytes of the description     u32 CRC-32 of the first and last 4 KiB of the payload
    +56  u64 bytes of the payload
    +64  description, JSON in ASCII; then from the next multiple of 8 on the payload, as it was given

Invariants:

- the rules of `ring.py`: one store to TAIL makes a frame visible, FORGOT is stored before bytes are overwritten, the
  fork mark is looked at right before the stores;
- what a payload of megabytes is summed up over is its ends alone: a CRC of 8 MiB would take longer in the call than the
  copy. That none of it was overwritten is shown by FORGOT, which the reader reads again after it has copied;
- the reference of a value has the seq of its frame, so each seq is a reference or a gap, and none comes twice: the
  media process releases a frame after it has committed the reference, and one that starts goes on behind the last
  reference that is there;
- references overwrite none that the worker has not taken: without room the media process waits, and the raw ring
  forgets its oldest.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct
from time import time_ns
from zlib import crc32

from ..guest.descriptors import Mapped
from . import lane_file, layout, modes
from .documents import DocumentWriter
from .layout import FORGOT, LENGTH_MASK, PADDING, RELEASED, SEQ, STAGED_SEQ, TAIL
from .record import BODY, PREFIX, Shape, pack_payload
from .ring import Blocks, Forked, RingReader, RingWriter, TooLarge, read_counts
from .side_stream import MARKS, MEDIA, suffix_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..typed import MediaStatus
    from .counters import Counter
    from .ring import Mark

RAW_HEADER = 1  # index of its lane header
IN_HAND = 16  # by the media process: seq of the value that is being encoded; 0: none is
DIED_OF = 17  # seq of the value that the last process died of, which had it in hand
DIED_TIMES = 18  # so many processes in a row died of it
OVER_BUDGET = 19  # by the producer: values, images in cells and frames left out, since they did not fit
REFUSED = 20  # by the producer: the same for any other reason
LOST = (
    21  # by the media process: references without bytes, since a file was gone, an encoder failed or the like
)
MIN_BYTES = 1 << 20
_KEYS, _SLOT, _REFERENCES = 16 << 10, 1 << 10, 128 << 10
_META = Struct("<IIQ")
TABLE_SIZES = Struct("<QQ")  # in front of a table with images: `encode/media_table.py` draws what follows
_END = 4096
MAX_DESCRIPTION = 16 << 10
_LOOKS = 3  # at a frame that does not check


def ends_check(payload: bytes | memoryview) -> int:
    """Return the CRC-32 of the first and last 4 KiB of a payload."""
    return crc32(payload[-_END:], crc32(payload[:_END]))


def media_counts(words: memoryview) -> MediaStatus:
    """Return what became of the values of a media file, from all its words."""
    durable, stored, damaged = read_counts(words[layout.lane_header(0) :])
    raw = words[layout.lane_header(RAW_HEADER) :]
    return {
        "accepted": raw[SEQ],
        "stored": stored,
        "lost": raw[LOST],
        "forgotten": max(0, durable - stored - damaged),
        "damaged": damaged,
        "over_budget": raw[OVER_BUDGET],
        "refused": raw[REFUSED],
    }


class MediaWriter:
    """The media file of this process; made, reserved and populated at once."""

    __slots__ = ("_ring", "map", "mem", "path", "words")

    def __init__(
        self,
        folder: str,
        total_bytes: int,
        owner: bytes,
        rank: int | None,
        about: Mapping[str, Any],
        fork: Mark,
    ) -> None:
        """Make the file. `owner`: process id of the lane file; `about`: the start document. Raises OSError.

        `fork[0]` reads 0 in a process that was forked since (`owner.ForkMark`).
        """
        mark = MARKS[MEDIA]
        process, stream = mark + os.urandom(8), mark + os.urandom(8)
        self.path = os.path.join(folder, process.hex() + suffix_of(MEDIA))
        documents, blocks = (_SLOT, _SLOT), (layout.BLOCK_HEADER, 0)
        lane = lane_file.start_of_lanes(_KEYS, documents, blocks)
        raw = lane + _REFERENCES
        size = total_bytes - raw & ~7
        making, fd = self.path + modes.MAKING, -1
        try:
            fd = modes.new_file(making, os.O_RDWR)
            modes.reserve(fd, total_bytes)
            self.map = Mapped(fd, total_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self.mem = memoryview(self.map)
            self.words = words = self.mem.cast("Q")
            lane_file.lay_out(words, process, rank, _KEYS, documents, blocks, [(_REFERENCES, stream)])
            header = layout.lane_header(RAW_HEADER)
            words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES] = raw, size
            halves = memoryview(owner).cast("Q")
            words[header + layout.LANE_STREAM], words[header + layout.LANE_STREAM + 1] = halves
            DocumentWriter(self.mem, self.path).write("start", about)
            self._ring = _RawRing(self.mem, header, [], Blocks(self.mem), fork, ahead=0)
            os.rename(making, self.path)
        except BaseException:
            modes.remove(making)
            raise
        finally:
            if fd >= 0:
                os.close(fd)

    @property
    def raw_words(self) -> memoryview:
        """Words of the raw ring."""
        at = layout.lane_header(RAW_HEADER)
        return self.words[at : at + layout.LANE_HEADER_WORDS]

    @property
    def largest(self) -> int:
        """Bytes of the largest payload that surely fits."""
        return self._ring.largest - _META.size - MAX_DESCRIPTION

    def counts(self) -> MediaStatus:
        """Return what became of the values so far."""
        return media_counts(self.words)

    def count_with(self, over_budget: Counter, refused: Counter, mark: Mark) -> None:
        """Publish these counters here."""
        words = self.raw_words
        over_budget.attach(words, mark, OVER_BUDGET)
        refused.attach(words, mark, REFUSED)

    def offer(self, head: int, step: int, description: bytes, payload: bytes | memoryview) -> None:
        """Commit one value. Raises TooLarge and Forked, with nothing written."""
        if len(description) > MAX_DESCRIPTION:
            raise TooLarge
        try:
            self._ring.offer_value(head, step, description, payload)
        except BaseException:
            self._ring.resync()
            raise

    def progress(self) -> tuple[memoryview, int]:
        """Return the header of the references' lane, and the seq of the newest value."""
        at = layout.lane_header(0)
        return self.words[at : at + layout.LANE_HEADER_WORDS], self._ring.seq

    def detach(self) -> None:
        """Write nothing more: in a forked child, or after the run."""
        self._ring.detach()


class _RawRing(RingWriter):
    """The ring of raw values."""

    __slots__ = ()

    def offer_value(self, head: int, step: int, description: bytes, payload: bytes | memoryview) -> None:
        """Commit a frame."""
        seq, length = self.seq + 1, len(payload)
        body = BODY.pack(seq, seq, step, time_ns(), head)
        body += _META.pack(len(description), ends_check(payload), length) + description
        front = layout.FRAME_HEADER + len(body) + 7 & ~7
        size = front + length + 7 & ~7
        off, end = self._off, self._tail + size
        if end > self._limit or off + size > self._size:
            off, end = self._make_room(size)
        check = crc32(body) << 32 | size
        if not self._mark[0]:
            raise Forked
        words = self._words
        self._mem[off + layout.FRAME_HEADER : off + layout.FRAME_HEADER + len(body)] = body
        self._mem[off + front : off + front + length] = payload
        self._cells[off >> 3] = check
        words[SEQ] = seq
        words[TAIL] = end
        self.seq = seq
        self._off = off + size
        self._tail = end


class RawValue:
    """A value as it was logged, copied out of the ring."""

    __slots__ = ("damage", "description", "end", "payload", "rank", "seq", "step", "time")

    def __init__(self, seq: int, end: int) -> None:
        self.seq = seq
        self.end = end  # position behind its frame
        self.step = self.time = 0
        self.rank: int | None = None
        self.description = b""
        self.payload: bytes = b""
        self.damage = ""  # why nothing of it can be read


class MediaReader:
    """The raw ring as the media process sees it. Raises ValueError where the file is none."""

    __slots__ = ("_mem", "_size", "_suspect", "position", "words")

    def __init__(self, mem: memoryview) -> None:
        """Begin with the oldest value that was not released."""
        words = mem.cast("Q")
        header = layout.lane_header(RAW_HEADER)
        base, size = words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES]
        if words[layout.FILE_MAGIC] != layout.MAGIC or words[layout.FILE_VERSION] != layout.VERSION:
            raise ValueError("no media file of this version")
        if (
            words[layout.FILE_BYTES] != len(mem)
            or size <= 0
            or size % 8
            or base % 8
            or base + size > len(mem)
        ):
            raise ValueError(f"a ring of {size} bytes at {base} in a file of {len(mem)}")
        self.words = words[header : header + layout.LANE_HEADER_WORDS]
        self._mem = mem[base : base + size]
        self._size = size
        self._suspect = (-1, 0)
        self.position = self.words[RELEASED]

    @property
    def owner(self) -> bytes:
        """The id of the process that logs, as its lane file is named."""
        return lane_file.stream_id(self.words)

    @property
    def has_some(self) -> bool:
        """Is there a value that was not taken?"""
        return bool(self.words[TAIL] > self.position)

    @property
    def fill(self) -> float:
        """Share of the ring that waits."""
        return (self.words[TAIL] - max(self.words[RELEASED], self.words[FORGOT])) / self._size

    def take(self) -> RawValue | None:
        """Copy the oldest value that is there and not taken; None where there is none, or it may check later."""
        words = self.words
        while True:
            tail, start = words[TAIL], max(self.position, words[FORGOT])
            if start >= tail or tail - start > self._size:
                return None
            off = start % self._size
            word = self._mem[off : off + 8].cast("Q")[0]
            size = word & LENGTH_MASK
            is_odd = size < 8 or size & 7 or off + size > self._size or start + size > tail
            if not is_odd and word & PADDING and off + size == self._size:
                self.position = start + size
                continue
            found = None if is_odd else self._copy(start, off, size, word)
            if words[FORGOT] > start:
                continue  # it was overwritten meanwhile
            if found is not None:
                self.position = found.end
                return found
            where, looks = self._suspect
            self._suspect = start, looks + 1 if where == start else 1
            if looks + 1 <= _LOOKS or where != start:
                return None
            lost = RawValue(words[SEQ], tail)  # where the next frame begins is unknown
            self.position = tail
            lost.damage = "its bytes in shared memory do not check"
            return lost

    def _copy(self, start: int, off: int, size: int, word: int) -> RawValue | None:
        fixed = layout.FRAME_PREFIX + _META.size
        if size < fixed:
            return None
        data = self._mem[off : off + size]
        _, seq, _, step, time, head = PREFIX.unpack_from(data)
        described, ends, length = _META.unpack_from(data, layout.FRAME_PREFIX)
        front = fixed + described + 7 & ~7
        if described > MAX_DESCRIPTION or front + length + 7 & ~7 != size:
            return None
        top = bytes(data[layout.FRAME_HEADER : fixed + described])
        if crc32(top) != word >> 32:
            return None
        found = RawValue(seq, start + size)
        found.step, found.time = step, time
        found.rank = (head >> layout.RANK_SHIFT) - 1
        found.rank = None if found.rank < 0 else found.rank
        found.description = top[fixed - layout.FRAME_HEADER :]
        found.payload = bytes(data[front : front + length])
        return found if ends_check(found.payload) == ends else None

    def release(self, value: RawValue) -> None:
        """Let the producer overwrite a value: its reference is committed."""
        self.words[STAGED_SEQ] = value.seq
        self.words[RELEASED] = value.end

    def conclude(self) -> None:
        """Note what the last process died of, if it had a value in hand. To be called once, by the next one."""
        words = self.words
        seq = words[IN_HAND]
        if seq:
            times = words[DIED_TIMES] + 1 if words[DIED_OF] == seq else 1
            words[DIED_TIMES] = times
            words[DIED_OF] = seq
            words[IN_HAND] = 0

    @property
    def has_suspect(self) -> bool:
        """Is there a value ahead that a process died of? Then each one before it is to be released by itself."""
        return bool(self.words[DIED_OF] > self.words[STAGED_SEQ])

    def deaths(self, value: RawValue) -> int:
        """Return how many processes in a row died of this value."""
        return self.words[DIED_TIMES] if self.words[DIED_OF] == value.seq else 0

    def begin(self, value: RawValue) -> None:
        """Note that this value is being encoded."""
        self.words[IN_HAND] = value.seq

    def end(self) -> None:
        """Note that it was encoded: what kills this process from now on is not the value."""
        self.words[IN_HAND] = 0

    def note_lost(self) -> None:
        """Count a value whose reference has no bytes."""
        self.words[LOST] += 1

    def go_back(self) -> None:
        """Take again what was taken and not released."""
        self.position = self.words[RELEASED]


class ReferenceWriter:
    """The lane of references; one writer at a time, which may go on after another that was killed."""

    __slots__ = ("_keys_at", "_lane", "_mem", "_shapes", "_words", "seq")

    def __init__(self, mem: memoryview) -> None:
        self._mem = mem
        self._words = mem.cast("Q")
        header = layout.lane_header(0)
        self.seq = self._committed(header)
        self._words[header + SEQ] = (
            self.seq
        )  # one that was killed may have stored the seq of a frame it did not commit
        self._lane = RingWriter(mem, header, [], Blocks(mem), ahead=0)
        self._shapes: dict[str, Shape] = {}
        self._keys_at = self._words[layout.KEYS_USED]
        self._read_shapes()

    def _committed(self, header: int) -> int:
        reader = RingReader(self._mem, header)
        last = reader.seq
        while (taken := reader.take()) is not None:
            last = max(last, taken.last_seq)
        return last

    def _read_shapes(self) -> None:
        schemas, number = lane_file.Schemas(self._mem, self._words), 1
        while (shape := schemas.get(number)) is not None:
            self._shapes[shape.names[0]] = Shape(shape.names, shape.codes, number)
            number += 1

    def offer(self, value: RawValue, key: str, text: str) -> bool:
        """Commit a reference with the value's seq; False, with nothing done, where there is no room for it yet."""
        rank = (0 if value.rank is None else value.rank + 1) << layout.RANK_SHIFT
        shape = self._shape(key)
        number = layout.INLINE_SHAPE if shape is None else shape.head
        payload = pack_payload("s", (text,))
        if shape is None:
            definition = Shape((key,), "s").definition()
            payload = len(definition).to_bytes(8, "little") + definition + payload
        size = layout.FRAME_PREFIX + len(payload)
        if next(self._lane.in_the_way(size), None) is not None:
            return False
        prefix = BODY.pack(value.seq, value.seq, value.step, value.time, number | rank)
        self._lane.offer_body(prefix, payload, value.seq)
        self.seq = value.seq
        return True

    def _shape(self, key: str) -> Shape | None:
        """Return the shape of this key, defined in the key area; None where that is full."""
        found = self._shapes.get(key)
        if found is not None:
            return found
        number = len(self._shapes) + 1
        shape = Shape((key,), "s", number)
        body = number.to_bytes(8, "little") + shape.definition()
        used = self._keys_at + 8 + len(body)
        if used > _KEYS:
            return None
        at = layout.KEYS_OFFSET + self._keys_at
        self._mem[at + 8 : layout.KEYS_OFFSET + used] = body
        self._words[at >> 3] = crc32(body) << 32 | len(body)
        self._words[layout.KEYS_USED] = self._keys_at = used
        self._shapes[key] = shape
        return shape
