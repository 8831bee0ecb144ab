"""The stream of what a program prints, and the lane file that it is written to: the side "console".

`ConsoleLane` runs in the training process, in whatever thread or handler prints. A record is a *piece*: one text under
the key "stdout" or "stderr", as it was handed to `write`. Its step is the number of the line in which it begins,
counted over both streams from 1. Separators of `print` ("\\n", " ") are joined with the piece that follows.

Invariants:

- a piece that a call has handed over is in shared memory when the call returns, or is written by the call of another
  thread that is under way; separators at the end are written with the next piece, or by `close`;
- no lock, no system call but the clock, no waiting; what is too much for the ring forgets its oldest pieces, counted;
- whoever has its token (see `ring.py`) in `_claims` writes; pieces of others wait in a list, in order;
- a forked child writes nothing: its mark reads 0.

Does not: split into lines, fold progress bars, look at what the texts mean (`runs/console_fold.py` does, in readers).
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from struct import Struct
from time import time_ns
from zlib import crc32

from ..guest.descriptors import Mapped
from . import lane_file, layout, modes
from .documents import DocumentWriter
from .layout import SEQ, TAIL
from .owner import ForkMark, LiveLock
from .record import Shape
from .ring import Blocks, Forked, RingWriter
from .side_stream import CONSOLE, MARKS, suffix_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .ring import Mark

STREAMS = ("stdout", "stderr")
MIN_BYTES = 64 << 10  # of a ring
MAX_PIECE = 64 << 10  # characters of a piece; in a ring of less than 1 MiB 1/16 of its bytes
_KEYS, _SLOT = 4 << 10, 1 << 10
_SEPARATORS = frozenset(("\n", " ", ""))
_FEW = 64  # separators that may wait for a piece
_MAX_WAITING = 16384  # pieces that wait for the thread that writes; beyond that they are refused, counted
_AHEAD = 32  # frames that are forgotten at once beyond what a new one needs
_PACK = Struct("<QQqqQQ").pack  # seq, order, step, time, head; then offset and length of the text
_PAD = tuple(bytes(-size % 8) for size in range(8))


class _TextWriter(RingWriter):
    """A ring of records that are one text each."""

    __slots__ = ("line",)
    line: int  # in which the next piece begins

    def offer_text(self, head: int, text: str) -> None:
        """Commit one piece. Raises `Forked` in a child."""
        seq = self.seq + 1
        try:
            data = text.encode()
        except UnicodeEncodeError:  # halves of surrogate pairs: bytes of a name that are no UTF-8
            data = text.encode("utf-8", "backslashreplace")
        line = self.line
        count = len(data)
        body = _PACK(seq, seq, line, time_ns(), head, 8 | count << 32) + data + _PAD[count & 7]
        size = len(body) + 8  # layout.FRAME_HEADER
        off = self._off
        stop = off + size
        end = self._tail + size
        if end > self._limit or stop > self._size:
            off, end = self._make_room(size)
            stop = off + size
        check = crc32(body) << 32 | size
        lines = text.count("\n")
        if not self._mark[0]:
            raise Forked
        # no call between this look and the last store, see `RingWriter.offer`
        words = self._words
        self._mem[off + 8 : stop] = body
        self._cells[off >> 3] = check
        words[SEQ] = seq
        words[TAIL] = end
        self.seq = seq
        self._off = stop
        self._tail = end
        self.line = line + lines


class ConsoleLane:
    """The file of one process. `mark[0]` is 0 once nothing more is to be kept: in a child, and after `close`."""

    __slots__ = (
        "_claims",
        "_lane",
        "_live",
        "_map",
        "_most",
        "_pieces",
        "header",
        "heads",
        "mark",
        "path",
        "words",
    )

    def __init__(self, folder: str, rank: int | None, start: Mapping[str, Any], lane_bytes: int) -> None:
        """Make the file. `rank`: of its records. `start`: its start document. Raises OSError."""
        self.mark: Mark = ForkMark().page
        lane = lane_bytes & ~7
        process, stream = MARKS[CONSOLE] + os.urandom(8), MARKS[CONSOLE] + os.urandom(8)
        stem = os.path.join(folder, process.hex())
        self.path = stem + suffix_of(CONSOLE)
        documents, blocks = (_SLOT, _SLOT), (layout.BLOCK_HEADER, 0)
        total = lane_file.start_of_lanes(_KEYS, documents, blocks) + lane
        making = self.path + modes.MAKING
        fd = modes.new_file(making, os.O_RDWR)
        try:
            modes.reserve(fd, total)
            self._map: Mapped | None = Mapped(fd, total, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            mem = memoryview(self._map)
            self.words = mem.cast("Q")
            lane_file.lay_out(self.words, process, rank, _KEYS, documents, blocks, [(lane, stream)])
            _define(mem, self.words)
            header = layout.lane_header(0)
            self.header = self.words[header : header + layout.LANE_HEADER_WORDS]
            self._lane = _TextWriter(mem, header, [], Blocks(mem), self.mark, ahead=_AHEAD)
            self._lane.line = 1
            self._live = LiveLock(stem + ".live")
            DocumentWriter(mem, self.path).write("start", start)
            os.rename(making, self.path)
        except BaseException:
            modes.remove(making)
            raise
        finally:
            os.close(fd)
        self._most = min(MAX_PIECE, lane // 16)
        self._pieces: deque[tuple[int, str]] = deque()
        self._claims: dict[str, object] = {}
        self.heads: list[int] = []
        self.take_rank(rank)

    def take_rank(self, rank: int | None) -> None:
        """Be of this rank from now on. `heads` has the head words of STREAMS."""
        shifted = (0 if rank is None else rank + 1) << layout.RANK_SHIFT
        self.words[layout.FILE_RANK] = shifted >> layout.RANK_SHIFT
        self.heads[:] = [number | shifted for number in range(1, len(STREAMS) + 1)]

    def keep(self, which: int, text: str) -> None:
        """Append a piece to the stream with this index in STREAMS. Raises only what a handler or tracer raises."""
        pieces, size = self._pieces, len(text)
        if size < 2 and text in _SEPARATORS and len(pieces) < _FEW:
            if size:
                pieces.append((self.heads[which], text))
            return
        if size > self._most:
            text = self._cut(text)
        if len(pieces) >= _MAX_WAITING:
            self.words[layout.REFUSED] += 1
            return
        pieces.append((self.heads[which], text))
        while self._write(_FEW):  # again: somebody may have come between the last look and the end
            pass

    def _write(self, few: int) -> int:
        """Write what waits; answers how much there is by then, 0 where others or the next call see to it.

        Fewer than `few` separators wait for what comes next.
        """
        pieces, claims, lane, seq = self._pieces, self._claims, self._lane, -1
        me = object()
        try:
            if claims.setdefault("write", me) is not me:
                return 0
            while pieces:
                head, text = pieces[0]
                if (
                    len(pieces) == 2
                    and text == "\n"
                    and (after := pieces[1])[0] == head
                    and len(after[1]) > 1
                ):
                    pieces.popleft()  # as `print` comes
                    text += after[1]
                elif len(text) < 2 and text in _SEPARATORS:
                    text, count = self._joined(head, text)
                    if count == len(pieces) < few and text.isspace():
                        return 0
                    while count > 1:
                        pieces.popleft()
                        count -= 1
                seq = lane.seq
                pieces.popleft()
                lane.offer_text(head, text)
        except BaseException:  # a handler's, or this is a child
            lane.resync()
            if lane.seq == seq and self.mark[0]:
                self.words[layout.REFUSED] += 1
            raise
        finally:  # no call here, see "the token" in `ring.py`
            if "write" in claims and claims["write"] is me:
                del claims["write"]
        return len(pieces)

    def _joined(self, head: int, text: str) -> tuple[str, int]:
        """Return the separators that wait first with what follows them on the same stream, and how many these are."""
        pieces, count = self._pieces, 1
        while count < len(pieces):
            follows, more = pieces[count]
            if follows != head:
                break
            text += more
            count += 1
            if len(more) > 1 or more not in _SEPARATORS:
                break
        return text, count

    def _cut(self, text: str) -> str:
        """Return the beginning of a piece that is too long, with the number of characters that it lacks."""
        self.words[layout.LEFT_OUT] += 1
        return f"{text[: self._most]}...[{len(text) - self._most:,} characters cut]\n"

    def close(self) -> None:
        """Nothing more comes: the agent stores what is there, and removes the file."""
        if self.mark[0]:
            while self._write(0):
                pass
            self.mark = b"\0"
            self._lane.detach()
            self.words[layout.STATE] = layout.STATE_FINISHED

    def let_go(self) -> None:
        """Give up memory and lock, in a forked child too; who comes late finds no lane. The last counts stay known."""
        if self._map is None:
            return
        self.mark = b"\0"
        first = layout.lane_header(0)
        self.words = memoryview(bytes(self.words[: first + layout.LANE_HEADER_WORDS])).cast("Q")
        self.header = self.words[first:]
        del self._lane
        self._map.let_go()
        self._map = None
        self._live.release()


def _define(mem: memoryview, words: memoryview) -> None:
    """Define the two shapes in the key area."""
    at = layout.KEYS_OFFSET
    for number, name in enumerate(STREAMS, 1):
        body = number.to_bytes(8, "little") + Shape((name,), "s", number).definition()
        mem[at + 8 : at + 8 + len(body)] = body
        words[at >> 3] = crc32(body) << 32 | len(body)
        at += 8 + len(body)
    words[layout.KEYS_USED] = at - layout.KEYS_OFFSET
