"""The hook of Python 3.11: `sys.setprofile`, which calls it for each call and each return of a thread.

Runs in the training process, in whatever thread calls a function, before and after each function. A thread that was
there when recording began is recorded only where it began it: before Python 3.12 no thread can profile another.

Invariants:

- the hook does next to nothing for code that is not recorded: where the globals are those of the last such call it
  returns at once;
- an exception in it (a signal handler that raises) reaches the user, and ends recording in that thread: the
  interpreter takes the hook away.
"""

from __future__ import annotations

import sys
from time import monotonic
from types import FunctionType

from ..guest import dynamo, stdlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from .recorder import Recorder


def in_the_way() -> str:
    """Return what keeps the hook away: another profiler, a debugger, coverage; empty: nothing."""
    if sys.getprofile() is not None:
        return "a profiler is installed in this process (sys.setprofile)"
    if sys.gettrace() is not None:
        return "a debugger or a coverage measurement is installed in this process (sys.settrace)"
    return ""


def install(recorder: Recorder) -> None:
    """Record calls of this thread, and of threads that begin from now on."""
    threading = stdlib.load("threading")
    hook = _hook(recorder)

    def begin(frame: FrameType, event: str, arg: Any) -> None:
        """In a new thread: the first event."""
        made = None if recorder.is_over else _hook(recorder)
        sys.setprofile(made)
        if made is not None:
            made(frame, event, arg)

    recorder.installed = (hook, begin)
    threading.setprofile(begin)
    sys.setprofile(hook)


def remove(recorder: Recorder) -> None:
    """Take the hook of this thread away; those of other threads take themselves away."""
    threading = stdlib.load("threading")
    hook, begin = recorder.installed
    if hook is not None and sys.getprofile() is hook:
        sys.setprofile(None)
    if threading.getprofile() is begin:
        threading.setprofile(None)
    recorder.installed = (None, None)


def _hook(recorder: Recorder) -> Any:
    """Return the hook for the calling thread; None where no ring is free."""
    ring = recorder.ring()
    if ring is None:
        return None
    values = (recorder, recorder.on_call, recorder.on_return, recorder.decide, *ring, monotonic, id, sys)
    hook = FunctionType(_make.__code__, dict(zip(_GLOBALS, values, strict=True)) | {"__name__": __name__})()
    dynamo.keep_out(hook)
    return hook


# Names of a hook that are given to it as its globals: as variables of a closure they would be copied with each call.
_GLOBALS = (
    *("recorder", "on_call", "on_return", "decide", "codes", "times", "after"),
    *("now", "key_of", "sys"),
)
recorder: Any = None
on_call: dict[int, int] = {}
on_return: dict[int, int] = {}
decide: Any = None
codes: Any = None
times: Any = None
after: list[int] = []
now, key_of = monotonic, id


def _make() -> Any:
    """Return the hook of one thread; to be called with the globals above."""
    at = 0
    other: Any = None  # the globals of the last call that is not recorded
    newest: Any = None  # the frame of the newest record, if that is a call

    def hook(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal at, other, newest
        if frame.f_globals is other:
            return
        if event == "call":
            try:
                code = on_call[key_of(frame.f_code)]
            except KeyError:
                code = decide(frame.f_code, frame.f_globals)
                if code < 0:
                    return
                if recorder.is_over:
                    sys.setprofile(None)
            if code:
                codes[at] = code
                times[at] = now()
                at = after[at]
                newest = frame
            else:
                other = frame.f_globals
        elif event == "return":
            if frame is newest:
                newest = None
                codes[at] = 1
                times[at] = now()
                at = after[at]
                return
            try:
                code = on_return[key_of(frame.f_code)]
            except KeyError:
                code = decide(frame.f_code, frame.f_globals)
                if code < 0:
                    return
                code += code > 0
            if code:
                newest = None
                codes[at] = code
                times[at] = now()
                at = after[at]

    return hook
