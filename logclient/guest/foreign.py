"""Code that is not ours, and exceptions that are not ours.

Runs in the training process. Inside `log()` two kinds of foreign code may raise in our frames: what we call
ourselves (conversions, hashes and texts of the user's objects), whose failures are ours to swallow and count, and
what the interpreter calls (signal handlers, trace functions, exceptions injected into a thread), which must reach
the user.

Invariants:

- an exception is the user's unless there is evidence that it came from a call of ours: no `except` of a type that a
  handler may raise, too, without asking `is_users`, in whatever `log()` calls;
- nothing here calls anything of the object an exception carries.
"""

from __future__ import annotations

from _signal import getsignal, valid_signals  # type: ignore[import-not-found]  # `signal` is 2 ms of import
from struct import error as StructError
from types import FunctionType, MethodType

from ..errors import LogclientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, TracebackType
    from typing import Any

_MAX_LINKS = 20  # of a chain of exceptions
# what our own code can raise; anything else that comes up in our frames was injected there by the user
OWN_KINDS = frozenset(
    {TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError, RuntimeError, RecursionError}
    | {BufferError, UnicodeEncodeError, OSError, MemoryError, StructError}
)
_PACKAGE = __name__.partition(".")[0] + "."


class Failed(Exception):
    """Foreign code that we called raised; the message is the type it raised."""


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call foreign code; `Failed` if it raises. What a signal handler raises meanwhile passes through."""
    try:
        return function(*arguments)
    except Exception as error:
        if is_users(error):
            raise
        raise Failed(type(error).__name__) from None


def is_ours(frame: FrameType) -> bool:
    """Does this frame run code of this package?"""
    name = frame.f_globals.get("__name__")
    return type(name) is str and f"{name}.".startswith(_PACKAGE)


def is_own(error: BaseException) -> bool:
    """Ours to swallow: raised by our own code, or by foreign code that we called?"""
    kind = type(error)
    if kind.__module__.startswith(_PACKAGE):
        return not issubclass(kind, LogclientError)  # those are meant for the user
    innermost = _innermost(error)
    if innermost is not None and is_ours(innermost.tb_frame) and kind not in OWN_KINDS:
        return False
    return not is_users(error)


def is_users(error: BaseException) -> bool:
    """Was this raised by something that the interpreter called inside our frames: a signal handler, a tracer?

    Such a function is handed the frame that it interrupts, which stands right above its own in the traceback. What is
    injected into a thread has no arguments, and comes up where no `raise` stands.
    """
    if not isinstance(error, Exception):
        return True
    codes: set[CodeType] | None = None
    above: FrameType | None = None
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        if not is_ours(frame):
            codes = _handlers() if codes is None else codes
            if frame.f_code in codes or (above is not None and _was_handed(frame, above)):
                return True
        above = frame
        step = step.tb_next
    return not error.args and type(error) is not MemoryError and not _was_raised(error)


def forget_frames(error: BaseException) -> None:
    """Empty our frames that it went through: whoever keeps the exception shall not keep what we had in hand."""
    link: BaseException | None = error
    for _ in range(_MAX_LINKS):
        if link is None:
            return
        step = link.__traceback__
        while step is not None:
            if is_ours(step.tb_frame):
                try:
                    step.tb_frame.clear()
                except RuntimeError as late:  # still running
                    if is_users(late):
                        raise
            step = step.tb_next
        link = link.__context__


def _was_raised(error: BaseException) -> bool:
    """By a `raise` statement?"""
    innermost = _innermost(error)
    if innermost is None:
        return True
    code = innermost.tb_frame.f_code.co_code
    return not innermost.tb_lasti < len(code) or code[innermost.tb_lasti] == _RAISE


def _innermost(error: BaseException) -> TracebackType | None:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step


def _raises() -> None:
    raise Failed


_RAISE = _raises.__code__.co_code[-2]  # the instruction; the modules that know its name are slow to import


def _was_handed(frame: FrameType, above: FrameType) -> bool:
    for value in frame.f_locals.values():
        if value is above or (type(value) is tuple and any(item is above for item in value)):
            return True
    return False


def _handlers() -> set[CodeType]:
    codes = set()
    for number in valid_signals():
        handler = getsignal(number)
        if type(handler) is MethodType:
            handler = handler.__func__
        if type(handler) is FunctionType:
            codes.add(handler.__code__)
    return codes
