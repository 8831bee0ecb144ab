"""Raises inside a function at a chosen point, as a signal handler that raises would: between two instructions."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Interrupt(Exception):
    """Raised at the chosen point."""


def interrupted(
    function: Callable[..., Any],
    *arguments: Any,
    at: int,
    module: str = "logclient.",
    anywhere: bool = False,
    action: Callable[[], None] | None = None,
) -> bool:
    """Call it and raise `Interrupt` at its `at`-th point, or do `action`; False if it came to its end before.

    Points are those of frames in modules whose names start with `module`: where the interpreter looks for signals
    (on entry, and after calls), with `anywhere` before each instruction.
    """
    left = at

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not str(frame.f_globals.get("__name__", "")).startswith(module):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and (anywhere or frame.f_lasti in signal_points(frame.f_code)):
            left -= 1
            if left == 0:
                if action is None:
                    raise Interrupt
                action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0


_points: dict[CodeType, frozenset[int]] = {}


def signal_points(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which a signal handler may run."""
    if code not in _points:
        found = set()
        may = False
        for instruction in dis.get_instructions(code):
            if may:
                found.add(instruction.offset)
            may = instruction.opname == "RESUME" or instruction.opname.startswith(("CALL", "JUMP_BACKWARD"))
        _points[code] = frozenset(found)
    return _points[code]
