"""Folding of captured output: from pieces, as they were written, to lines as they stand in the end.

Pure; runs in any reader. What a terminal would show is followed as far as it takes to read a log: carriage returns
overwrite a line (the newest state of a progress bar is kept), cursor movements lead back to the lines above (nested
bars), erasing erases. Colours and all other escape sequences are taken away; they are in the raw pieces. Standard
output and standard error have cursors of their own, so that a bar on one does not run into the lines of the other.

Invariants:

- a line belongs to the piece that changed it last; lines come in the order of those pieces;
- a line is *settled* once the cursor has left it by more lines than it was ever moved up, and `HOLD` pieces have come
  since: a program that goes up for the first time does so soon. The others are open. One that nothing has changed for
  `STALE` pieces is not continued: what comes is another line. So what a range of pieces folds to depends on few before;
- whatever is fed, nothing is raised, and what is kept is bounded: `MAX_LINE` characters of a line (the rest is counted
  in `cut`), `_MAX_ROWS` lines that are open.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE = 64 << 10  # characters
HOLD = 16  # pieces
STALE = 128
_MAX_ROWS = 256
_MAX_REACH = 32  # lines that the cursor may go up
_MAX_ESCAPE = 256  # characters of a sequence that continues in the next piece
_TOKEN = re.compile(
    r"[^\x00-\x08\x0a-\x1f\x7f-\x9f]+"  # text
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # texts for the terminal: titles, links
    r"|\x1b[ -/]*[0-Z\\^-~]"  # other escapes
    r"|[\x00-\x1f\x7f-\x9f]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")


class Line(NamedTuple):
    """A line as it stands."""

    seq: int  # of the piece that changed it last
    time_ns: int  # when that was written
    number: int  # lines that the process had begun by then, over both streams
    stream: str  # stdout or stderr
    text: str
    lost: int = 0  # pieces that are missing before it
    cut: int = 0  # characters that it lacks at its end
    is_open: bool = False  # it may change


def _seq_of(line: Line) -> int:
    return line.seq


class _Row:
    """A line that may change."""

    __slots__ = ("cut", "is_redrawn", "lost", "number", "seq", "text", "time_ns")

    def __init__(self, lost: int) -> None:
        self.text = ""
        self.seq = self.time_ns = self.number = 0
        self.lost = lost
        self.cut = 0
        self.is_redrawn = False

    def line(self, stream: str, *, is_open: bool) -> Line:
        text = self.text.rstrip(" ") if self.is_redrawn else self.text
        return Line(self.seq, self.time_ns, self.number, stream, text, self.lost, self.cut, is_open)


class _Screen:
    """The lines of one stream."""

    __slots__ = ("at", "column", "pending", "reach", "rows")

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.at = 0  # the row of the cursor; one that is not there yet comes with the first character
        self.column = 0
        self.pending = ""  # the beginning of an escape sequence
        self.reach = 0  # lines that the cursor was moved up at most

    def start_anew(self) -> None:
        """Go to a new line, below all others."""
        self.at, self.column, self.pending = len(self.rows), 0, ""


class Fold:
    """The output of one process. `feed` its pieces in order, `settled` and `still_open` give the lines."""

    def __init__(self) -> None:
        self._screens: dict[str, _Screen] = {}
        self._lost = 0
        self._done: list[Line] = []
        self._seq = self._time_ns = self._number = 0  # of the piece in hand

    def lose(self, count: int) -> None:
        """Note that so many pieces are missing here: nothing that follows is a part of the lines before."""
        self._lost += count
        for screen in self._screens.values():
            screen.start_anew()

    def feed(self, stream: str, seq: int, time_ns: int, number: int, text: str) -> None:
        """Take the next piece; `number`: of the line in which it begins."""
        screen = self._screens.get(stream)
        if screen is None:
            screen = self._screens[stream] = _Screen()
        self._seq, self._time_ns, self._number = seq, time_ns, number
        if screen.pending:
            text, screen.pending = screen.pending + text, ""
        unfinished = _UNFINISHED.search(text, max(0, len(text) - _MAX_ESCAPE)) if "\x1b" in text else None
        if unfinished is not None:
            screen.pending = unfinished[0]
            text = text[: unfinished.start()]
        for token in _TOKEN.findall(text):
            if token[0] == "\t" or " " <= token[0] < "\x7f" or token[0] > "\x9f":
                self._write(screen, token)
            elif token == "\n":
                self._end_line(screen)
            elif token == "\r":
                screen.column = 0
            elif token == "\b":
                screen.column = max(0, screen.column - 1)
            elif token.startswith("\x1b["):
                self._control(screen, token)
        if len(screen.rows) > _MAX_ROWS:
            self._settle(stream, screen, max(screen.at - screen.reach, len(screen.rows) - _MAX_ROWS // 2))

    def settled(self, hold: int = HOLD) -> list[Line]:
        """Take the lines that do not change any more, if no program goes up for the first time after `hold` pieces."""
        for stream, screen in self._screens.items():
            count, most, newest = 0, screen.at - screen.reach, self._seq - hold
            for row in screen.rows:
                if count >= most or row.seq > newest:
                    break
                count += 1
            self._settle(stream, screen, count)
        done, self._done = self._done, []
        done.sort(key=_seq_of)
        return done

    def still_open(self, *, is_over: bool = False) -> list[Line]:
        """Return the other lines, without taking them. `is_over`: nothing follows, so they do not change either."""
        newest = self._seq - STALE
        lines = [
            row.line(stream, is_open=not is_over and row.seq > newest)
            for stream, screen in self._screens.items()
            for row in screen.rows
        ]
        lines.sort(key=_seq_of)
        return lines

    def _settle(self, stream: str, screen: _Screen, count: int) -> None:
        count = min(count, len(screen.rows))
        if count > 0:
            self._done += [row.line(stream, is_open=False) for row in screen.rows[:count]]
            del screen.rows[:count]
            screen.at = max(0, screen.at - count)

    def _row(self, screen: _Screen) -> _Row:
        """Return the row of the cursor, changed by the piece in hand."""
        if screen.at < len(screen.rows) and screen.rows[screen.at].seq < self._seq - STALE:
            screen.start_anew()
        if screen.at == len(screen.rows):
            screen.rows.append(_Row(self._lost))
            self._lost = 0
        row = screen.rows[screen.at]
        self._touch(row)
        return row

    def _touch(self, row: _Row) -> None:
        row.seq, row.time_ns, row.number = self._seq, self._time_ns, self._number

    def _write(self, screen: _Screen, text: str) -> None:
        row, column = self._row(screen), screen.column
        screen.column = end = column + len(text)
        before = row.text
        if column == len(before):
            row.text = before + text
        elif column > len(before):
            row.text = before.ljust(min(column, MAX_LINE)) + text
        else:
            row.text = before[:column] + text + before[end:]
            row.is_redrawn = True
        if len(row.text) > MAX_LINE or end > MAX_LINE:
            row.text, row.cut = row.text[:MAX_LINE], max(row.cut, end - MAX_LINE)

    def _end_line(self, screen: _Screen) -> None:
        if screen.at >= len(screen.rows):
            self._row(screen)  # an empty line
        screen.at += 1
        screen.column = 0
        self._number += 1

    def _control(self, screen: _Screen, token: str) -> None:
        """Follow the sequences that move the cursor or erase."""
        kind, arguments = token[-1], token[2:-1].split(";")[0]
        given = int(arguments) if arguments.isdecimal() and len(arguments) < 7 else 0
        count = max(1, given)
        if kind in "AF":
            up = min(count, screen.at, _MAX_REACH)
            screen.reach = max(screen.reach, up)
            screen.at -= up
        elif kind in "BE":
            screen.at = min(len(screen.rows), screen.at + count)
        elif kind == "C":
            screen.column = min(MAX_LINE, screen.column + count)
        elif kind == "D":
            screen.column = max(0, screen.column - count)
        elif kind == "G":
            screen.column = min(MAX_LINE, count - 1)
        elif kind in "HJ" and (kind == "H" or given in (2, 3)):
            screen.start_anew()  # the whole screen is drawn again: what was there stays as it is
        elif kind in "JK" and screen.at < len(screen.rows):
            self._erase(screen, given)
            if kind == "J":
                for row in screen.rows[screen.at + 1 :]:
                    row.text = ""
                    self._touch(row)
        if kind in "EF":
            screen.column = 0

    def _erase(self, screen: _Screen, which: int) -> None:
        row, column = self._row(screen), screen.column
        row.is_redrawn = True
        if which == 0:
            row.text = row.text[:column]
        elif which == 1:
            row.text = " " * min(column, len(row.text)) + row.text[column:]
        else:
            row.text = ""
