"""The hooks of Python 3.12 and newer: `sys.monitoring`, which calls them for recorded code alone.

Runs in the training process, in whatever thread calls a recorded function. Code that is not recorded is asked about
once, and costs nothing from then on; but an exception that leaves a function is reported for all code.
"""

from __future__ import annotations

import sys
from _thread import _local as Local
from time import monotonic
from types import FunctionType

from ..guest import dynamo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    from .recorder import Recorder, Ring

_NAME = "logclient"


def in_the_way() -> str:
    """Return what keeps the hooks away: another profiler, a debugger, coverage; empty: nothing."""
    if sys.getprofile() is not None:
        return "a profiler is installed in this process (sys.setprofile)"
    if sys.gettrace() is not None:
        return "a debugger or a coverage measurement is installed in this process (sys.settrace)"
    monitoring = _monitoring()
    for tool in (monitoring.DEBUGGER_ID, monitoring.COVERAGE_ID, monitoring.PROFILER_ID):
        name = monitoring.get_tool(tool)
        if name is not None:
            return f"{name} is installed in this process (sys.monitoring)"
    return ""


def install(recorder: Recorder) -> None:
    """Record calls of all threads of this process."""
    monitoring = _monitoring()
    tool, events = monitoring.PROFILER_ID, monitoring.events
    monitoring.use_tool_id(tool, _NAME)
    own = events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
    begin, again, leave, unwind = _hooks(recorder, own)
    for event, hook in (
        (events.PY_START, begin),
        (events.PY_RESUME, again),
        (events.PY_RETURN, leave),
        (events.PY_YIELD, leave),
        (events.PY_UNWIND, unwind),
    ):
        dynamo.keep_out(hook)
        monitoring.register_callback(tool, event, hook)
    monitoring.restart_events()  # code that an earlier recorder did not want
    monitoring.set_events(tool, events.PY_START | events.PY_UNWIND)


def remove(recorder: Recorder) -> None:
    """Take the hooks away."""
    monitoring = _monitoring()
    tool = monitoring.PROFILER_ID
    if monitoring.get_tool(tool) != _NAME:
        return
    monitoring.set_events(tool, 0)
    for code in recorder.recorded():
        monitoring.set_local_events(tool, code, 0)
    for event in ("PY_START", "PY_RESUME", "PY_RETURN", "PY_YIELD", "PY_UNWIND"):
        monitoring.register_callback(tool, getattr(monitoring.events, event), None)
    monitoring.free_tool_id(tool)


def _monitoring() -> Any:
    return sys.monitoring  # type: ignore[attr-defined,unused-ignore]  # since 3.12


class _Ring:
    __slots__ = ("after", "at", "codes", "times")

    def __init__(self, ring: Ring) -> None:
        self.codes, self.times, self.after = ring
        self.at = 0


def _hooks(recorder: Recorder, own_events: int) -> tuple[Any, Any, Any, Any]:
    disable = _monitoring().DISABLE
    values: tuple[Any, ...] = (
        *(recorder, recorder.on_call, recorder.on_return, recorder.decide, Local()),
        *(own_events, disable, monotonic, id, sys._getframe, _Ring, _monitoring),
    )
    own = dict(zip(_GLOBALS, values, strict=True)) | {"__name__": __name__}
    hooks: tuple[Any, Any, Any, Any] = FunctionType(_make.__code__, own)()
    return hooks


# Names of the hooks that are given to them as their globals: variables of a closure would be copied with each call.
_GLOBALS = (
    *("recorder", "on_call", "on_return", "decide", "of_thread"),
    *("own_events", "disable", "now", "key_of", "frame_at", "_Ring", "_monitoring"),
)
recorder: Any = None
on_call: dict[int, int] = {}
on_return: dict[int, int] = {}
decide: Any = None
of_thread: Any = None  # `ring`: that of the calling thread
own_events, disable = 0, None
now, key_of, frame_at = monotonic, id, sys._getframe


def _make() -> Any:
    """Return the hooks; to be called with the globals above."""

    def begin(code: CodeType, offset: int) -> Any:
        try:
            number = on_call[key_of(code)]
        except KeyError:
            number = decide(code, frame_at(1).f_globals)
            if number < 0:
                return None
            if number:
                monitoring = _monitoring()
                monitoring.set_local_events(monitoring.PROFILER_ID, code, own_events)
        if not number:
            return disable
        try:
            ring = of_thread.ring
        except AttributeError:  # a thread that is new
            made = recorder.ring()
            of_thread.ring = ring = None if made is None else _Ring(made)
        if ring is not None:
            at = ring.at
            ring.codes[at] = number
            ring.times[at] = now()
            ring.at = ring.after[at]
        return None

    def again(code: CodeType, offset: int) -> Any:
        if key_of(code) in on_call:
            begin(code, offset)

    def leave(code: CodeType, offset: int, value: object) -> Any:
        try:
            number = on_return[key_of(code)]
            ring = of_thread.ring
        except (KeyError, AttributeError):
            return
        if number and ring is not None:
            at = ring.at
            ring.codes[at] = number
            ring.times[at] = now()
            ring.at = ring.after[at]

    return begin, again, leave, leave
