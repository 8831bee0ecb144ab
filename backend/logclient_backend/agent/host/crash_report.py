"""The crash report of a worker to its supervisor: a shared page without a name, inherited by fork.

The worker writes; the supervisor reads once the worker is dead. Nothing here needs a file or a lock.

Invariant: a lane file in whose handling a worker crashed twice at the same position is set aside. A crash is what the
file's content can cause: an exception, SIGSEGV and its like, or no end. A SIGKILL from outside is none.
"""

from __future__ import annotations

import mmap
import signal
from collections import Counter

from .process_handle import Cause

_IN_HAND = slice(0, 24)  # id of the process whose lane file is worked on, and where; zeros: none is
_PROCESS = slice(0, 16)
_WRITTEN = 24  # how many lines of news are in the agent's log by now
_MADE = 25  # 1: the run folder was made
_WORDS_AT = 64
_MAX_NEWS = 100  # one byte on the page
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))
_MAX_CRASHES = 2
_MAX_FRAMES = 8


class Handover:
    """One page; also what the supervisor concludes from it, and hands on to the next worker by fork."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self._crashes: Counter[bytes] = Counter()  # by what was in hand
        self.news: list[str] = []  # lines for the agent's log, which only a worker can write
        self.set_aside: set[bytes] = set()  # process ids
        self.has_made = False  # the run folder, by an earlier worker

    # ---- the worker's side -----------------------------------------------------------------------------

    def take(self, process: bytes, position: int = 0) -> None:
        """From now on whatever happens is because of this position in this process's lane file."""
        self._page[_IN_HAND] = process + position.to_bytes(8, "little")

    def put_down(self) -> None:
        self._page[_IN_HAND] = bytes(24)

    def note_written(self, lines: int, *, has_made: bool) -> None:
        """Note how many of the news are written: the next worker leaves those out. `has_made`: the run folder."""
        self._page[_WRITTEN] = min(lines, len(self.news))
        self._page[_MADE] = has_made

    def last_words(self, error: BaseException) -> None:
        """Leave the error that we die of: names and numbers only, since source files may lie on a frozen disk."""
        text = describe(error).encode("utf-8", "backslashreplace")
        room = mmap.PAGESIZE - _WORDS_AT
        self._page[_WORDS_AT:] = text[: room - 1].ljust(room, b"\0")

    # ---- the supervisor's side -------------------------------------------------------------------------

    def conclude(self, worker: int, cause: Cause | None, *, was_stuck: bool) -> None:
        """Judge a dead worker."""
        words = self._page[_WORDS_AT:].rstrip(b"\0").decode("utf-8", "replace")
        in_hand = self._page[_IN_HAND]
        del self.news[: self._page[_WRITTEN]]
        self.has_made = self.has_made or bool(self._page[_MADE])
        self._page[:] = bytes(mmap.PAGESIZE)
        how = "made no progress and was killed" if was_stuck else f"ended with {cause or 'a cause unknown'}"
        self.news.append(f"worker {worker} {how}{': ' if words else ''}{words}; another one goes on")
        del self.news[:-_MAX_NEWS]
        is_crash = was_stuck or cause is None or cause.signal in _CRASHES or cause.exit_code is not None
        if any(in_hand) and is_crash and cause is not None:
            self._crashes[in_hand] += 1
            if self._crashes[in_hand] >= _MAX_CRASHES:
                self.set_aside.add(in_hand[_PROCESS])


def describe(error: BaseException) -> str:
    """One line: kind, text and where, without reading a source file as `traceback` would."""
    where = []
    step = error.__traceback__
    while step is not None:
        where.append(f"{step.tb_frame.f_code.co_filename.rpartition('/')[2]}:{step.tb_lineno}")
        step = step.tb_next
    return f"{type(error).__name__}: {error} ({', '.join(where[-_MAX_FRAMES:])})"
