"""Pages of the output of one process: lines by a cursor, from either end, without reading all of it.

Pure but for `fetch`. A line belongs to the piece that changed it last (`console_fold.py`), so a range of seqs has its
lines, whoever asks: a page is all lines of a range, folded from `MARGIN` pieces before it to as many behind. A cursor
is a seq: the lines up to it, or those behind it.

Invariants:

- pages that follow each other have each line once. Open lines are no part of them: those are in each answer that comes
  to the end, and a reader that goes on forgets the ones that it had;
- a line of more than `MARGIN` pieces may lack its beginning in a page;
- a page reads `MAX_PIECES` pieces at most and has about `MAX_CHARACTERS`, whatever is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..wal.seqs import SeqSet
from .console_fold import HOLD, STALE, Fold, Line

MARGIN = STALE + HOLD  # pieces
MAX_PIECES = 40_000
MAX_CHARACTERS = 2 << 20
_AT_ONCE = 4_000  # pieces
_FIRST = 512  # pieces that are looked at from the end
_END = 1 << 62

Row = tuple[int, int, int, str, str]  # seq, time, line, stream, text
# (first seq, most pieces) -> pieces from there on by seq, and the seq to ask for next; 0: that was all
Fetch = Callable[[int, int], tuple[list[Row], int]]
Filter = Callable[[Line], bool]


class Page(NamedTuple):
    """Lines in order, and the cursors before and behind them."""

    lines: list[Line]
    previous: int  # the lines up to it come before these; 0: none do
    next: int  # the lines behind it come after these
    is_all: bool  # nothing more is stored behind these


class Pages:
    """The output of one process, as it is stored."""

    def __init__(self, stored: SeqSet, fetch: Fetch, *, is_over: bool) -> None:
        """`is_over`: nothing more comes."""
        self._ranges = stored.ranges()
        self._fetch = fetch
        self._is_over = is_over

    @property
    def last(self) -> int:
        """The highest seq that is stored; 0: there is none."""
        return self._ranges[-1][1] if self._ranges else 0

    def after(self, cursor: int, limit: int, keep: Filter) -> Page:
        """Return the first lines behind the cursor that are to be kept."""
        fold, found = Fold(), list[Line]()
        for read, row in enumerate(self._rows(fold, self._back(cursor, MARGIN) + 1, _END), 1):
            found += (line for line in fold.settled() if line.seq > cursor)
            if read % _AT_ONCE == 0:
                upto = self._back(row[0], MARGIN)
                page = self._page(found + fold.still_open(), cursor, upto, keep)
                if len(page) >= limit or read >= MAX_PIECES:
                    lines, upto = _first(page, limit, upto)
                    return Page(lines, cursor, max(cursor, upto), is_all=False)
        still_open = fold.still_open(is_over=self._is_over)
        page = self._page(found + still_open, cursor, self.last, keep)
        lines, upto = _first(page, limit, self.last)
        if upto < self.last:
            return Page(lines, cursor, upto, is_all=False)
        return Page(lines, cursor, max(cursor, self._live(still_open)), is_all=True)

    def before(self, cursor: int | None, limit: int, keep: Filter) -> Page:
        """Return the last lines up to the cursor that are to be kept; None: up to the end."""
        upto = self.last if cursor is None else min(cursor, self.last)
        wide = _FIRST
        while True:
            start = self._back(upto, wide)
            fold, found = Fold(), list[Line]()
            end = self._on(upto, MARGIN)
            for _ in self._rows(fold, self._back(start, MARGIN) + 1, end):
                found += (line for line in fold.settled() if start < line.seq <= upto)
            still_open = fold.still_open(is_over=self._is_over and end == self.last)
            page = self._page(found + still_open, start, upto, keep)
            if len(page) >= limit or not start or wide >= MAX_PIECES:
                break
            wide = min(MAX_PIECES, 4 * wide)
        lines, start = _last(page, limit, start)
        is_end = upto == self.last
        return Page(lines, start, max(start, self._live(still_open)) if is_end else upto, is_all=is_end)

    def _live(self, still_open: list[Line]) -> int:
        """Return the cursor from which a reader goes on: open lines come again."""
        seqs = [line.seq for line in still_open if line.is_open]
        return max(min(seqs) - 1, self._back(self.last, MARGIN)) if seqs else self.last

    def _rows(self, fold: Fold, first: int, last: int) -> Iterator[Row]:
        """Feed pieces to the fold, one after the other."""
        before = self._back(first - 1, 0)
        while 0 < first <= last:
            rows, following = self._fetch(first, _AT_ONCE)
            for row in rows:
                seq, time_ns, number, stream, text = row
                if seq > last:
                    return
                if seq > before + 1:
                    fold.lose(seq - before - 1)
                before = seq
                fold.feed(stream, seq, time_ns, number, text)
                yield row
            first = following if following > first else 0

    def _page(self, lines: list[Line], after: int, upto: int, keep: Filter) -> list[Line]:
        return sorted((line for line in lines if after < line.seq <= upto and keep(line)), key=_seq_of)

    def _back(self, seq: int, count: int) -> int:
        """Return the stored seq that is `count` stored ones before the last one up to `seq`; 0: there is none."""
        for first, last in reversed(self._ranges):
            last = min(last, seq)
            if first <= last:
                if count <= last - first:
                    return last - count
                count -= last - first + 1
        return 0

    def _on(self, seq: int, count: int) -> int:
        """Return the stored seq that is `count` stored ones behind `seq`, or the last one."""
        for first, last in self._ranges:
            first = max(first, seq + 1)
            if first <= last:
                if count <= last - first + 1:
                    return first + count - 1
                count -= last - first + 1
        return self.last


def _seq_of(line: Line) -> int:
    return line.seq


def _first(lines: list[Line], limit: int, upto: int) -> tuple[list[Line], int]:
    """Return the first lines, those of one piece together, and the seq up to which they are all."""
    size = 0
    for at, line in enumerate(lines):
        if (at >= limit or size > MAX_CHARACTERS) and line.seq != lines[at - 1].seq:
            return lines[:at], lines[at - 1].seq
        size += len(line.text)
    return lines, upto


def _last(lines: list[Line], limit: int, start: int) -> tuple[list[Line], int]:
    """Return the last lines, those of one piece together, and the seq behind which they are all."""
    size = 0
    for at in range(len(lines) - 1, -1, -1):
        left = len(lines) - 1 - at
        if left and (left >= limit or size > MAX_CHARACTERS) and lines[at].seq != lines[at + 1].seq:
            return lines[at + 1 :], lines[at].seq
        size += len(lines[at].text)
    return lines, start
