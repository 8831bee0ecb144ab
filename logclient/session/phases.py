"""Declared phases: a program says that its next record may take long (a checkpoint, an evaluation, a compilation).

Runs in the training process; reads a clock and stores a few words of the lane file, where `logclient why` finds them.
Waits for nothing, raises nothing.

Invariant: PHASE_UNTIL is stored last and cleared first: a reader that finds it set finds the other words of that phase.
"""

from __future__ import annotations

from time import monotonic_ns

from ..encode.about import short
from ..guest import foreign
from ..shm import lane_file, layout
from .waiting import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .session import Session

_NOTHING = (0,) * layout.PHASE_WORDS


class Phase:
    """Handle of a declared phase. As a context manager it ends with the block, and the phase around it goes on."""

    __slots__ = ("_before", "_session")

    def __init__(self, session: Session | None, before: tuple[int, ...] = _NOTHING) -> None:
        self._session = session
        self._before = before

    def __enter__(self) -> Phase:
        if self._session is not None:
            _hold(self._session)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            _store(self._session, self._before)


def declare(session: Session, expect_next_s: object, what: object) -> Phase:
    """Begin a phase of at most that many seconds; a value that is no number is reported once, and declares nothing."""
    limit_s = seconds(expect_next_s)
    if limit_s is None:
        session.warn_once(
            "progress", f"progress(expect_next_s={short(expect_next_s)}) takes a number of seconds"
        )
        return Phase(None)
    text = what if type(what) is str else short(what)
    name = text.encode("utf-8", "replace")[: 8 * layout.PHASE_NAME_WORDS].ljust(
        8 * layout.PHASE_NAME_WORDS, b"\0"
    )
    names = [int.from_bytes(name[at : at + 8], "little") for at in range(0, len(name), 8)]
    now = monotonic_ns()
    words = _words(session)
    if words is None:
        return Phase(None)
    before = tuple(words[layout.PHASE_UNTIL : layout.PHASE_UNTIL + layout.PHASE_WORDS])
    accepted = sum(header[layout.SEQ] for header in lane_file.headers(words))
    _store(session, (now + int(limit_s * 1e9), now, accepted << 1, *names))
    return Phase(session, before)


def _hold(session: Session) -> None:
    """From now on records do not end the phase."""
    words = _words(session)
    if words is not None and session.mark[0]:
        words[layout.PHASE_RECORDS] |= 1


def _store(session: Session, phase: tuple[int, ...]) -> None:
    words = _words(session)
    if words is None or not session.mark[0]:  # forked in between: the words are the parent's
        return
    words[layout.PHASE_UNTIL] = 0
    for at, word in enumerate(phase[1:], layout.PHASE_UNTIL + 1):
        words[at] = word
    words[layout.PHASE_UNTIL] = phase[0]


def _words(session: Session) -> memoryview | None:
    """Return the words of this process's own lane file; None where it has none (any more)."""
    try:
        if not session.mark[0]:
            session.after_fork()
        lanes = session.lanes
        if lanes is None or session.closed or lanes.words[layout.FILE_MAGIC] != layout.MAGIC:
            return None
        return lanes.words
    except Exception as error:
        if not foreign.is_own(error):
            raise
        return None  # released: the run is over
