"""The capture of what the owner of a run prints: `console="tee"`.

Runs in the training process, in `init` and at the end of the run. Loaded by `init`, where it is asked for.

Invariants:

- a stream that is not there, or belongs to a notebook's kernel, is left alone, and said so once;
- at the end a stream is put back only where ours still stands: whoever replaced it meanwhile has the word. A tee that
  somebody holds on to goes on handing on.
"""

from __future__ import annotations

import sys
import time

from ..guest.tee import Tee, stream_of, without_ended
from ..shm import layout
from ..shm.console_stream import MIN_BYTES, STREAMS, ConsoleLane
from ..shm.ring import read_counts
from ..shm.side_stream import CONSOLE, suffix_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import Session

_SHARE = 4  # the files of all processes of a run take at most 1/4 of its shared memory
_NAP_S = 0.005


def begin(session: Session) -> None:
    """Put tees in the place of the standard streams of this process, for this run."""
    if not session.is_owner or session.lanes is None or session.console is not None:
        return
    streams = {which: without_ended(getattr(sys, name, None)) for which, name in enumerate(STREAMS)}
    left = [STREAMS[which] for which, stream in streams.items() if stream is None]
    if any(map(_is_of_kernel, streams.values())):
        session.warn_once(
            "console", "console='tee': the output of a notebook belongs to its kernel and is not captured"
        )
        return
    if left:
        session.warn_once(
            "console", f"console='tee': sys.{' and sys.'.join(left)} is None and is not captured"
        )
        if len(left) == len(streams):
            return
    try:
        lane = _make(session)
    except OSError as error:
        session.warn_once("console", f"console='tee': no shared memory for it, nothing is captured: {error}")
        return
    session.console = capture = Capture(lane)
    for which, stream in streams.items():
        if stream is not None:
            capture.tees.append((STREAMS[which], tee := Tee(stream, lane, which)))
            setattr(sys, STREAMS[which], tee)


def _make(session: Session) -> ConsoleLane:
    shm_dir, settings = session.shm_dir, session.settings
    size = max(MIN_BYTES, min(settings.console_bytes, 1 << 28))
    room = shm_dir.budget_bytes // _SHARE - shm_dir.taken_bytes(suffix_of(CONSOLE))
    while size > max(room, 0) and size > MIN_BYTES:
        size = max(MIN_BYTES, size // 2)
    if size > room:
        raise OSError(f"{size:,} bytes are not left of the run's share")
    lanes = session.lanes
    start = {
        "kind": CONSOLE,
        "pid": session.pid,
        "rank": session.rank,
        "process": "" if lanes is None else lanes.process.hex(),
    }
    return ConsoleLane(shm_dir.path, session.rank, start, size)


def _is_of_kernel(stream: Any) -> bool:
    return "ipykernel" in getattr(type(stream), "__module__", "")


class Capture:
    """The tees of one run in its owner."""

    __slots__ = ("_lane", "tees")

    def __init__(self, lane: ConsoleLane) -> None:
        self._lane = lane
        self.tees: list[tuple[str, Tee]] = []

    def take_rank(self, rank: int) -> None:
        """Be of another rank from now on."""
        self._lane.take_rank(rank)

    def end(self) -> None:
        """Put the streams back and end the file; once."""
        tees = self.tees
        self._lane.close()
        for name, tee in tees:
            if getattr(sys, name, None) is tee:
                setattr(sys, name, stream_of(tee))
        tees.clear()

    def wait(self, deadline: float) -> None:
        """Wait until what was captured is on disk, after `end`."""
        words, header = self._lane.words, self._lane.header
        while (
            read_counts(header)[0] < header[layout.SEQ]
            and not words[layout.SWEPT]
            and time.monotonic() < deadline
        ):
            time.sleep(_NAP_S)

    def leave(self) -> None:
        """Give up memory and lock: after `end`, or in a forked child, where they are the parent's."""
        self._lane.let_go()
        self.tees.clear()
