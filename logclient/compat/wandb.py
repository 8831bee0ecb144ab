"""`import logclient.compat.wandb as wandb`: code written for W&B logs to logclient.

Runs in the training process. docs/integrations/wandb.md lists what is there; every other name exists too, says once
that it does nothing, and does nothing.

Invariants:

- rows, steps and `commit` are as they are there (`history.py`); a row that is still open is written when the run ends,
  also at the end of the program;
- nothing that is missing here ends a training; bad arguments of `init` and of `config` raise, as they do there.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import threading
import time

import logclient
from logclient.config import environment
from logclient.ending import has_shell
from logclient.errors import BadArgument, LogclientError
from logclient.null import NullRun

from . import inert
from .facts import Config, ConfigError, Summary, as_dict
from .history import History, Rule
from .inert import Inert, Media

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Any

__version__ = "0.19.0"  # whose names and semantics these are
Error = LogclientError
UsageError = BadArgument
_MODES = {"dryrun": "offline", "shared": "online"}
_RESUMES = {"allow": "allow", "auto": "allow", "true": "allow", "must": "must", "never": "never"}
_LEVELS = {"INFO": "info", "WARN": "warn", "ERROR": "error"}
_ALERT_S = 60.0
_LOOK_S = 30.0  # at most, at an earlier attempt of a run
_SUMMARIES = frozenset({"min", "max", "mean", "last", "first", "best", "none", "copy"})

run: Run | None = None
config: Config = Config({})  # before `init`: kept, and given to it
summary: Summary = Summary({})


class Image(Media): ...


class Video(Media): ...


class Audio(Media): ...


class Histogram(Media): ...


class Table(Media): ...


class Html(Media): ...


class Object3D(Media): ...


class Molecule(Media): ...


class Plotly(Media): ...


class AlertLevel:
    """Levels of `alert`."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class Settings:
    """Holds whatever it is given; `mode`, `project` and `run_name` count, as arguments of `init` do."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


class errors:
    """`wandb.errors`."""

    Error = LogclientError
    UsageError = BadArgument
    ConfigError = ConfigError
    CommError = type(
        "CommError", (LogclientError,), {"__doc__": "Never raised: nothing here talks to a server."}
    )


class util:
    """`wandb.util`."""

    @staticmethod
    def generate_id(length: int = 8) -> str:
        """A new id for a run."""
        alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"
        return "".join(alphabet[byte % len(alphabet)] for byte in os.urandom(length))


class Run:
    """`wandb.run`, around a run of logclient (`.logclient_run`)."""

    def __init__(self, made: logclient.Run | NullRun, entity: str, job_type: str, first_step: int) -> None:
        self.logclient_run = made
        self.config = Config(made.config)
        self.summary = Summary(made.summary)
        self.entity = entity
        self.job_type = job_type
        self.sweep_id = None
        self.url = None
        self.start_time = time.time()
        self._history = History(made, self.summary, first_step)
        self._alerted: dict[str, float] = {}
        self._resumed = first_step > 0
        self._over = False
        self._other_dir = ""

    @property
    def id(self) -> str:
        return self.logclient_run.id

    @property
    def project(self) -> str:
        return self.logclient_run.project

    @property
    def name(self) -> str:
        return self.logclient_run.name

    @name.setter
    def name(self, name: str) -> None:
        made = self.logclient_run
        if isinstance(made, NullRun):
            made.name = str(name)
        else:
            made._about["name"] = str(name)
            made._write("about", made._about)

    @property
    def tags(self) -> tuple[str, ...]:
        return self.logclient_run.tags

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        self.logclient_run.tags = tuple(map(str, tags))

    @property
    def path(self) -> str:
        return "/".join(filter(None, (self.entity, self.project, self.id)))

    @property
    def dir(self) -> str:
        """A folder for files of the user's, beside the run folder; nothing looks at it."""
        made = self.logclient_run
        runs = os.path.abspath(made.dir or "logclient-runs")
        folder = os.path.join(os.path.dirname(runs), "wandb-files", made.id or "none")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            folder = self._other_dir = self._other_dir or tempfile.mkdtemp(prefix="wandb-files-")
            inert.say(made, f"wandb.run.dir is {folder}, since there is no other place ({error.strerror})")
        return folder

    @property
    def step(self) -> int:
        """Of the row that is logged next."""
        return self._history.step

    @property
    def disabled(self) -> bool:
        return isinstance(self.logclient_run, NullRun)

    @property
    def resumed(self) -> bool:
        return self._resumed

    def get_url(self) -> None:
        """There is none."""

    def log(
        self,
        data: Mapping[str, Any],
        step: int | None = None,
        commit: bool | None = None,
        sync: bool | None = None,
    ) -> None:
        """Add to the row of this step; see the module's docs for when it is written. Never waits."""
        self._history.log(data, step, commit)

    def define_metric(
        self,
        name: str,
        step_metric: Any = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> Inert:
        """What the summary has of a key (min, max, mean, first, last, none), and which key its rows must have."""
        kinds = {kind.strip() for kind in (summary or "").split(",") if kind.strip()}
        if "best" in kinds:
            kinds = kinds - {"best"} | {"max" if str(goal).startswith("max") else "min"}
        unknown = kinds - _SUMMARIES
        if unknown:
            inert.say(
                self.logclient_run, f"define_metric: summary {', '.join(sorted(unknown))} is not known here"
            )
        metric = str(step_metric) if step_metric is not None and step_sync is not False else None
        self._history.define(str(name), Rule(frozenset(kinds - unknown), metric))
        return Inert("define_metric()")

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """`logclient.watch` of each model, with histograms, at this run's steps."""
        for model in models if isinstance(models, (list, tuple)) else (models,):
            logclient.watch(
                model,
                max(1, int(log_freq)),
                gradients=log in ("gradients", "all"),
                parameters=log in ("parameters", "all"),
                histograms=True,
                step=lambda: self._history.step,
                run=self.logclient_run,
            )

    def unwatch(self, models: Any = None) -> None:
        """Of these models, or of all."""
        for model in models if isinstance(models, (list, tuple)) else (models,):
            logclient.unwatch(model)

    def alert(self, title: str, text: str = "", level: Any = None, wait_duration: Any = None) -> None:
        """`Run.alert`; the same title again only after `wait_duration` (seconds or a timedelta; default 60)."""
        seconds = getattr(wait_duration, "total_seconds", lambda: wait_duration)()
        now = time.monotonic()
        if now - self._alerted.get(title, -1e9) < (_ALERT_S if seconds is None else float(seconds)):
            return
        self._alerted[title] = now
        name = str(getattr(level, "value", level) or "INFO").upper()
        self.logclient_run.alert(title, text, level=_LEVELS.get(name, "info"))

    def save(self, *args: Any, **kwargs: Any) -> list[str]:
        """Files are not kept: said once."""
        inert.say(self.logclient_run, "wandb.save: files are not kept, the call does nothing")
        return []

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Write the open row and the summary, and end the run."""
        self._store()
        if not self._over:
            self._over = True
            self.logclient_run.finish(state="failed" if exit_code else "finished")
        _forget(self)

    def _store(self) -> None:
        if not self._over:
            self._history.flush()
            self.summary.store()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store()
        self._over = True
        self.logclient_run.__exit__(kind, error, trace)
        _forget(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        inert.say(self.__dict__.get("logclient_run"), f"wandb.run.{name} is not there: it does nothing")
        return Inert(f"wandb.run.{name}")

    def __repr__(self) -> str:
        return f"<logclient.compat.wandb.Run {self.name!r} ({self.id})>"


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    id: str | None = None,
    name: str | None = None,
    notes: str | None = None,
    tags: Iterable[str] | str | None = None,
    config: Any = None,
    config_exclude_keys: Iterable[str] | None = None,
    config_include_keys: Iterable[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: bool | str | None = None,
    resume: bool | str | None = None,
    settings: Any = None,
    **others: Any,
) -> Run:
    """Start a run and make it `wandb.run`; where there is one already, that one, unless `reinit` says to end it.

    `entity` is kept with the process only, `job_type` becomes a tag. What is not given here is taken from
    WANDB_PROJECT, WANDB_NAME, WANDB_RUN_ID, WANDB_NOTES, WANDB_TAGS, WANDB_RUN_GROUP, WANDB_JOB_TYPE, WANDB_MODE,
    WANDB_DIR, WANDB_RESUME and WANDB_ENTITY. Raises `BadArgument` for arguments that make no sense.
    """
    global run
    if run is not None:
        if reinit is None and has_shell():
            reinit = True  # a cell that is run again
        if not reinit or reinit in ("return_previous", "default"):
            if project or name or id or config:
                inert.say(
                    run.logclient_run,
                    "wandb.init while a run is open gives that run and takes no arguments: "
                    "call wandb.finish() before, or pass reinit=True",
                )
            return run
        run.finish()
    chosen = _settings(settings)
    mode = _given(mode, "WANDB_MODE", chosen.get("mode"))
    if environment().get("WANDB_DISABLED", "").lower() in ("true", "1"):
        mode = "disabled"
    tags = _given(tags, "WANDB_TAGS")
    tags = tags.split(",") if isinstance(tags, str) else list(tags or ())
    job_type = _given(job_type, "WANDB_JOB_TYPE")
    folder = _given(dir, "WANDB_DIR")
    run_id = _given(id, "WANDB_RUN_ID", chosen.get("run_id"))
    resume = _RESUMES.get(str(_given(resume, "WANDB_RESUME") or "").lower())
    made = logclient.init(
        _given(project, "WANDB_PROJECT", chosen.get("project")),
        name=_given(name, "WANDB_NAME", chosen.get("run_name")),
        id=run_id,
        group=_given(group, "WANDB_RUN_GROUP", chosen.get("run_group")),
        tags=[*map(str, tags), *([str(job_type)] if job_type else ())],
        notes=str(_given(notes, "WANDB_NOTES") or ""),
        mode=_MODES.get(str(mode), mode),
        resume=resume if run_id else None,
        dir=os.path.join(folder, "logclient-runs") if folder else None,
    )
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)  # behind the run's own, hence called before it
    first = _next_step(made) if run_id and resume in ("allow", "must") else 0
    run = Run(made, str(_given(entity, "WANDB_ENTITY") or ""), str(job_type or ""), first)
    early = globals()["config"].as_dict()
    globals().update(config=run.config, summary=run.summary)
    _adopt(run.config, made.config)
    run.config.update(
        {**early, **_chosen(config, config_include_keys, config_exclude_keys)}, allow_val_change=True
    )
    for name_ in others:
        if others[name_]:
            inert.say(made, f"wandb.init({name_}=...) is not there: it does nothing")
    return run


def log(
    data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, sync: bool | None = None
) -> None:
    """As `Run.log`; without a run counted, and said once."""
    if run is None:
        return logclient._current().log(0, data)
    run.log(data, step, commit, sync)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    """End the run, if there is one."""
    if run is not None:
        run.finish(exit_code, quiet)


def login(*args: Any, **kwargs: Any) -> bool:
    """Nothing to do."""
    return True


def _of_run(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if run is not None:
            return getattr(run, name)(*args, **kwargs)
        inert.say(None, f"wandb.{name} does nothing before wandb.init()")
        return Inert(f"wandb.{name}()")

    call.__name__ = call.__qualname__ = name
    call.__doc__ = getattr(Run, name).__doc__
    return call


define_metric, watch, unwatch, alert, save = map(
    _of_run, ("define_metric", "watch", "unwatch", "alert", "save")
)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    inert.say(None if run is None else run.logclient_run, f"wandb.{name} is not there: it does nothing")
    return Inert(f"wandb.{name}")


def _given(argument: Any, variable: str, setting: Any = None) -> Any:
    if argument is not None:
        return argument
    return setting if setting is not None else environment().get(variable) or None


def _settings(settings: Any) -> dict[str, Any]:
    if settings is None or isinstance(settings, Inert):
        return {}
    return as_dict(settings)


def _chosen(config: Any, include: Iterable[str] | None, exclude: Iterable[str] | None) -> dict[str, Any]:
    given = as_dict(config)
    if include:
        return {key: given[key] for key in given if key in set(include)}
    return {key: given[key] for key in given if key not in set(exclude or ())}


def _adopt(config: Config, stored: Mapping[str, Any]) -> None:
    """What the run has already: another process of it, or an earlier attempt."""
    config._data.update({key: stored[key] for key in stored})


def _next_step(made: logclient.Run | NullRun) -> int:
    """Behind what an earlier attempt of the run has stored; 0 where that cannot be read, or not in time."""
    found: list[int | str] = []

    def look() -> None:
        try:
            earlier = logclient.read(made.dir)[made.id]
            steps = earlier.series(earlier.keys()).step
            found.append(int(steps[-1]) + 1 if len(steps) else 0)
        except logclient.NoRun:
            found.append(0)
        except Exception as error:  # noqa: BLE001 - no numpy, a damaged folder: said below
            found.append(f"{type(error).__name__}: {error}")

    if isinstance(made, NullRun):
        return 0
    thread = threading.Thread(target=look, daemon=True)  # the disk may be frozen
    thread.start()
    thread.join(_LOOK_S)
    first = found[0] if found else "its folder does not answer"
    if isinstance(first, int):
        return first
    inert.say(made, f"steps begin at 0 again, those of the run's earlier attempts cannot be read ({first})")
    return 0


def _forget(ended: Run) -> None:
    global run, config, summary
    if run is ended:
        run, config, summary = None, Config({}), Summary({})


def _at_exit() -> None:
    if run is not None:
        run._store()


def _after_fork() -> None:
    if run is not None:
        run._history.forget_row()


os.register_at_fork(after_in_child=_after_fork)
