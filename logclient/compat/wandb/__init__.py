"""`import logclient.compat.wandb as wandb`: code written for W&B logs to logclient.

Runs in the training process. docs/integrations/wandb.md lists what is there; every other name and module exists too,
says once that it does nothing, and does nothing.

Invariants:

- rows, steps and `commit` are as they are there (`logclient.compat.history`); a row that is still open is written when
  the run ends, also at the end of the program;
- nothing that is missing here ends a training; bad arguments of `init` and of `config` raise, as they do there.

===================  ==========================================================
opening.py           `init`
running.py           `Run`; what it does with files: run_files.py
current.py           what `run`, `config` and `summary` are now
sweeping.py          `sweep` and `agent`
sync_tensorboard.py  `sync_tensorboard`
missing_modules.py   modules that are not here; integration/ has those that are
===================  ==========================================================
"""

from __future__ import annotations

import sys
from enum import Enum
from types import ModuleType

from logclient.compat import stand_ins as inert
from logclient.compat.artifacts import Artifact
from logclient.compat.config_and_summary import Config, Summary, as_dict
from logclient.compat.media import (
    Audio,
    Classes,
    Graph,
    Histogram,
    Html,
    Image,
    Molecule,
    Object3D,
    Plotly,
    Table,
    Video,
)
from logclient.compat.stand_ins import Inert
from logclient.guest import dynamo
from logclient.session import current_run
from logclient.shm.notices import write_stderr

from . import env, errors, plot, tensorboard, util
from . import missing_modules as standins
from .current import here, started
from .errors import CommError, Error, UsageError
from .opening import init
from .running import Run
from .settings import Settings, plain
from .sweeping import agent, controller, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    run: Run | None
    config: Config
    summary: Summary

__version__ = "0.19.0"  # whose names and semantics these are
__all__ = [
    "AlertLevel", "Artifact", "Audio", "Classes", "CommError", "Config", "Error", "Graph", "Histogram", "Html", "Image",
    "Molecule", "Object3D", "Plotly", "Run", "Settings", "Summary", "Table", "UsageError", "Video", "agent", "alert",
    "config", "controller", "define_metric", "env", "errors", "finish", "init", "join", "log", "log_artifact", "login",
    "mark_preempting",
    "plot", "require", "restore", "run", "save", "setup", "summary", "sweep", "teardown", "tensorboard",
    "termerror", "termlog", "termwarn", "unwatch", "use_artifact", "util", "watch",
]  # fmt: skip
_SUBMODULES = ("integration", "catboost", "keras", "lightgbm", "sb3", "xgboost")  # found without an import


class AlertLevel(Enum):
    """Levels of `alert`."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


inert.classes.update(
    {kind.__name__: kind for kind in (AlertLevel, Artifact, Config, Run, Settings, Summary, Table)}
    | {kind.__name__: kind for kind in (Audio, Classes, Graph, Histogram, Html, Image, Molecule, Object3D)}
    | {kind.__name__: kind for kind in (Plotly, Video)}
)
standins.add()


class _Module(ModuleType):
    """The package: `run`, `config` and `summary` are those of now, and a config can be assigned."""

    @property
    def run(self) -> Run | None:
        return here.run

    @run.setter
    def run(self, run: Run | None) -> None:
        if isinstance(run, Run):
            here.become(run)

    @property
    def config(self) -> Config:
        return here.config

    @config.setter
    def config(self, given: Any) -> None:
        if given is not here.config:
            here.config.update(as_dict(given), allow_val_change=True)

    @property
    def summary(self) -> Summary:
        return here.summary

    @summary.setter
    def summary(self, given: Any) -> None:
        if given is not here.summary:
            here.summary.update(as_dict(given))


sys.modules[__name__].__class__ = _Module


def log(
    data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
) -> None:
    """Log to the current run, see `Run.log`; without one the call is counted, and reported once."""
    if here.run is None:
        return current_run.get_or_stand_in().log(0, data)
    here.run.log(data, step, commit, sync)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """End the run, if there is one."""
    if here.run is not None:
        here.run.finish(exit_code, quiet)


join = finish


def login(*args: Any, **kwargs: Any) -> bool:
    """Nothing to do."""
    return True


def setup(settings: Any = None, **others: Any) -> Inert:
    """Take in settings for the runs to come."""
    here.settings.update(plain(settings))
    return Inert("wandb.setup()")


def teardown(exit_code: int | None = None) -> None:
    """End all runs that are open."""
    for each in tuple(here.open):
        each.finish(exit_code)


def require(*args: Any, **kwargs: Any) -> None:
    """Nothing to do."""


def termlog(string: object = "", *args: Any, **kwargs: Any) -> None:
    """A line on standard error."""
    write_stderr(str(string))


termwarn = termerror = termlog


def _of_run(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if here.run is not None:
            return getattr(here.run, name)(*args, **kwargs)
        inert.warn(None, f"wandb.{name} does nothing before wandb.init()")
        return Inert(f"wandb.{name}()")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = getattr(Run, name).__doc__
    return call


define_metric, watch, unwatch, alert, save = map(
    _of_run, ("define_metric", "watch", "unwatch", "alert", "save")
)
restore, log_artifact, use_artifact, mark_preempting = map(
    _of_run, ("restore", "log_artifact", "use_artifact", "mark_preempting")
)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SUBMODULES:
        from importlib import import_module

        return import_module(f"{__name__}.{name}")
    found = inert.known(name)
    if found is None:
        inert.warn(started(), f"wandb.{name} is not there: it does nothing")
    return Inert(f"wandb.{name}") if found is None else found


dynamo.keep_out(init, log, finish, Run)
