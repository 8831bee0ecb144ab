"""The end of a run as this process saw it: finished, failed with an exception, interrupted, exited with a code.

Runs in the training process, in `with`, and in the exit hook. Replaces no handler: an exception that ended the
program is found where the interpreter leaves it (`sys.last_value`). What cannot be seen from inside (exit code,
signal) the agent finds out from outside.

Reads no source file: the disk may be frozen.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


INTERRUPTED_S = 1.0  # after Ctrl-C the prompt is back in 2 s, whatever the disk does
_MAX_FRAMES = 20
_MAX_TEXT = 2000


def state_of(error: BaseException | None) -> dict[str, Any]:
    """The state document for a block or program that ended with this exception (None: it did not)."""
    if error is None:
        return {"state": "finished"}
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or code == 0:
            return {"state": "finished", "exit_code": 0}
        return {
            "state": "failed",
            "exit_code": code if type(code) is int else 1,
            "exception": describe(error),
        }
    if isinstance(error, KeyboardInterrupt):
        return {"state": "terminated", "signal": 2, "signal_name": "SIGINT"}
    return {"state": "failed", "exception": describe(error)}


def describe(error: BaseException) -> dict[str, Any]:
    """Type, message and last frames, without reading source files."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - foreign __str__
        text = "(its text could not be read)"
    lines = []
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        lines.append(f"{code.co_filename}:{step.tb_lineno} in {code.co_qualname}")
        step = step.tb_next
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "text": text[:_MAX_TEXT], "last_lines": lines[-_MAX_FRAMES:]}


def has_shell() -> bool:
    """Is this a kernel, or IPython in a terminal? Not a script that merely imports something of theirs."""
    module = sys.modules.get("IPython.core.interactiveshell")
    try:
        return bool(module is not None and module.InteractiveShell.initialized())
    except AttributeError:  # another IPython, or only just being imported
        return False


def at_exit() -> dict[str, Any]:
    """The state document for a program that is ending now."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    interactive = hasattr(sys, "ps1") or sys.flags.interactive or has_shell()
    if error is None or interactive:  # a prompt keeps its last error long after it mattered
        return {"state": "finished", "by": "exit"}
    return {**state_of(error), "by": "exit"}


def patience_s(state: dict[str, Any], full_s: float) -> float:
    """Return the seconds that the end of a run may wait: a user at the keyboard wants the prompt back."""
    return min(full_s, INTERRUPTED_S) if state.get("state") == "terminated" else full_s
