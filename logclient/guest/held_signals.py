"""Signals held back from this thread while something is made that must be whole or not there.

Runs in the training process, in `init`. A handler of the user's may raise between any two instructions: between the
opening of a file and the line that remembers it, too. While signals are held back none does; they are let in at the
points that say so, where all that was made is known, and at the end.

Does not: keep away handlers of signals that another thread takes, which Python runs in the main thread, or exceptions
that are injected. Code that makes something undoes it for those, too.
"""

from __future__ import annotations

from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, valid_signals  # type: ignore[import-not-found]
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_holder: HeldSignals | None = None  # of the thread that is in `init`


class HeldSignals:
    """In the `with`, signals wait; inside of `with let_in()` they come."""

    __slots__ = ("_outer", "before", "thread")

    def __enter__(self) -> None:
        global _holder
        self.before: Any = pthread_sigmask(SIG_BLOCK, ())
        self.thread = get_ident()
        self._outer = _holder
        try:
            pthread_sigmask(SIG_BLOCK, valid_signals())
        except BaseException:  # a handler of a signal that came just before
            pthread_sigmask(SIG_SETMASK, self.before)
            raise
        _holder = self

    def __exit__(self, *exc: object) -> None:
        global _holder
        _holder = self._outer
        pthread_sigmask(SIG_SETMASK, self.before)


class let_in:
    """In the `with`, what this thread holds back comes."""

    __slots__ = ("_holder",)

    def __enter__(self) -> None:
        holder = _holder
        self._holder = holder if holder is not None and holder.thread == get_ident() else None
        if self._holder is not None:
            try:
                pthread_sigmask(SIG_SETMASK, self._holder.before)
            except BaseException:
                pthread_sigmask(SIG_BLOCK, valid_signals())
                raise

    def __exit__(self, *exc: object) -> None:
        if self._holder is not None:
            pthread_sigmask(SIG_BLOCK, valid_signals())
