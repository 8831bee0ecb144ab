"""Modules of W&B's that this layer has no file for: each can be imported, and its names are stand-ins.

Runs in the training process. One finder at the end of `sys.meta_path` makes them, for names below this package alone: a
module that exists is found by those before it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from logclient.compat import stand_ins as inert

from . import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PACKAGE = __name__.rpartition(".")[0]
_ABOVE = f"{_PACKAGE}."
# older places of what is in `integration` now
_MOVED = ("catboost", "fastai", "gym", "keras", "lightgbm", "sb3", "sklearn", "xgboost")


class StandIn(ModuleType):
    """A module whose names are stand-ins; classes that this layer has are themselves."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "A stand-in.")
        self.__path__ = []  # it may have modules below it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = inert.known(name)
        if found is not None:
            return found
        shown = f"wandb.{self.__name__.removeprefix(_ABOVE)}"
        inert.warn(current.started(), f"{shown} is not there: it does nothing")
        return inert.Inert(f"{shown}.{name}")


class Finder:
    """Makes the modules; also their loader."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        last = name.rpartition(".")[2]
        if not name.startswith(_ABOVE) or last.startswith("_") or last in ("run", "config", "summary"):
            return None
        return ModuleSpec(name, Finder, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        below = spec.name.removeprefix(_ABOVE)
        if below in _MOVED:
            return import_module(f"{_ABOVE}integration.{below}")
        return StandIn(spec.name)

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        pass


def add() -> None:
    """Let these modules be imported."""
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
