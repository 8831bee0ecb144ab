"""A small integration of a framework that is none, for the tests of the guard."""

from __future__ import annotations

import threading
from typing import Any

from logclient.integrations import guard


class Theirs:
    """A framework's base class."""


class Stop(Exception):
    """A framework's control exception."""


class Callback(guard.Guarded, Theirs):
    """A small integration."""

    _passes = (Stop,)
    _kept = ("every",)

    def __init__(self, run: Any = None, **settings: Any) -> None:
        self._tie = guard.Tie(run, settings)
        self.every = 3
        self.lock = threading.Lock()  # cannot be pickled

    @guard.opening
    def begin(self) -> None:
        self._open()

    @guard.hook
    def step(self, number: int, what: Any = None) -> int:
        """What the framework sees."""
        if what is not None:
            what()
        run: Any = self._tie.run
        run.log(number, {"loss": 0.5})
        return number

    @guard.hook
    def broken(self) -> None:
        self._nowhere.missing()  # type: ignore[attr-defined]
