"""`Run`: `wandb.run`, around a run of logclient.

Runs in the training process, in whatever thread logs. Rows and steps are `History`'s.
"""

from __future__ import annotations

import os
import time

import logclient
from logclient.compat import stand_ins as inert
from logclient.compat.config_and_summary import Summary, as_dict
from logclient.compat.history import History, Rule
from logclient.compat.stand_ins import Inert
from logclient.errors import BadArgument
from logclient.null import NullRun
from logclient.run import session_of
from logclient.session.page import address_of

from .current import here
from .run_files import RunFiles
from .settings import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

    from logclient.compat.config_and_summary import Config
    from logclient.compat.tensorboard_tap import Tap

_LEVELS = {"INFO": "info", "WARN": "warn", "WARNING": "warn", "ERROR": "error"}
_ALERT_S = 60.0
_SUMMARIES = frozenset({"min", "max", "mean", "last", "first", "best", "none", "copy"})


class Metric:
    """The result of `define_metric`: `name` can be another metric's `step_metric`."""

    def __init__(self, name: str, step_metric: str | None, summary: str | None) -> None:
        self.name = name
        self.step_metric = step_metric
        self.summary = summary

    def __str__(self) -> str:
        return self.name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return None


class _Described(RunFiles):
    """Names and addresses of a run."""

    logclient_run: logclient.Run | NullRun
    entity: str
    _config: Config
    _summary: Summary
    logclient_history: History
    logclient_resumed = False
    logclient_sweep = ""
    logclient_settings: Settings

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
    def name(self, name: object) -> None:
        if isinstance(self.logclient_run, NullRun):
            self.logclient_run.name = str(name)
        self._set("name", str(name))

    @property
    def notes(self) -> str:
        return str(self._about("notes") or "")

    @notes.setter
    def notes(self, notes: object) -> None:
        self._set("notes", "" if notes is None else str(notes))

    @property
    def group(self) -> str:
        return str(self._about("group") or "")

    @group.setter
    def group(self, group: object) -> None:
        self._set("group", "" if group is None else str(group))

    @property
    def tags(self) -> tuple[str, ...]:
        return self.logclient_run.tags

    @tags.setter
    def tags(self, tags: Any) -> None:
        given = (tags,) if isinstance(tags, str) else tags or ()
        self.logclient_run.tags = tuple(map(str, given))

    @property
    def config(self) -> Config:
        return self._config

    @config.setter
    def config(self, given: Any) -> None:
        self._config.update(as_dict(given), allow_val_change=True)

    @property
    def summary(self) -> Summary:
        return self._summary

    @summary.setter
    def summary(self, given: Any) -> None:
        self._summary.update(as_dict(given))

    @property
    def config_static(self) -> Config:
        return self._config

    @property
    def path(self) -> str:
        return "/".join(filter(None, (self.entity, self.project, self.id)))

    @property
    def url(self) -> str:
        """The address of the run's page, or of its folder where no page is known. Empty for a disabled run."""
        made = self.logclient_run
        if isinstance(made, NullRun):
            return ""
        return address_of(session_of(made)) or _address(os.path.join(made.dir, made.id))

    @property
    def project_url(self) -> str:
        return "" if isinstance(self.logclient_run, NullRun) else _address(self.logclient_run.dir)

    @property
    def sweep_id(self) -> str | None:
        return self.logclient_sweep or None

    @property
    def sweep_url(self) -> str | None:
        return self.project_url if self.logclient_sweep else None

    @property
    def settings(self) -> Settings:
        return self.logclient_settings

    @property
    def step(self) -> int:
        """The step of the row that is logged next."""
        return self.logclient_history.step

    @property
    def starting_step(self) -> int:
        return self.logclient_history.first_step

    @property
    def disabled(self) -> bool:
        return isinstance(self.logclient_run, NullRun)

    @property
    def offline(self) -> bool:
        """Is no collector named?"""
        return not getattr(self.logclient_run, "_server", "")

    @property
    def resumed(self) -> bool:
        return self.logclient_resumed

    def project_name(self) -> str:
        return self.project

    def get_url(self) -> str:
        return self.url

    def get_project_url(self) -> str:
        return self.project_url

    def get_sweep_url(self) -> str | None:
        return self.sweep_url

    def _about(self, name: str) -> Any:
        if isinstance(self.logclient_run, NullRun):
            return self.__dict__.get(f"_{name}")
        return session_of(self.logclient_run).about.get(name)

    def _set(self, name: str, value: str) -> None:
        made = self.logclient_run
        if isinstance(made, NullRun):
            self.__dict__[f"_{name}"] = value
            return
        session = session_of(made)
        session.about[name] = value
        session.write("about", session.about)


def _address(path: str) -> str:
    from urllib.parse import quote  # not before somebody asks

    return "file://" + quote(os.path.abspath(path))


class Run(_Described):
    """`wandb.run`; `.logclient_run` is the run of logclient."""

    def __init__(
        self,
        made: logclient.Run | NullRun,
        config: Config,
        entity: str = "",
        job_type: str = "",
        first_step: int = 0,
    ) -> None:
        self.logclient_run = made
        self._config = config
        self._summary = Summary(made.summary)
        self.entity = entity
        self.job_type = job_type
        self.start_time = time.time()
        self.logclient_history = History(made, self._summary, first_step)
        self._alerted: dict[str, float] = {}
        self._over = False
        self.logclient_events: Tap | None = None  # of TensorBoard's writers
        self.logclient_settings = Settings()

    def log(
        self,
        data: Mapping[str, Any],
        step: int | None = None,
        commit: bool | None = None,
        sync: bool | None = None,
    ) -> None:
        """Add to the row of this step; see `logclient.compat.history` for when it is written. Never waits."""
        self.logclient_history.log(data, step, commit)

    def define_metric(
        self,
        name: Any,
        step_metric: Any = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
        **others: Any,
    ) -> Metric:
        """Define the summary of a key (min, max, mean, first, last, none), and the key that its rows must have."""
        name, words = _metric_name(name), summary if isinstance(summary, str) else ""
        kinds = {kind.strip() for kind in words.split(",") if kind.strip()}
        if "best" in kinds:
            kinds = kinds - {"best"} | {"max" if str(goal).startswith("max") else "min"}
        unknown = kinds - _SUMMARIES
        if unknown:
            inert.warn(
                self.logclient_run, f"define_metric: summary {', '.join(sorted(unknown))} is not known here"
            )
        metric = _metric_name(step_metric) if step_metric is not None and step_sync is not False else None
        self.logclient_history.define(name, Rule(frozenset(kinds - unknown), metric))
        return Metric(name, metric, summary)

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """`logclient.watch` of each model, with histograms, at this run's steps; what is no module is said once."""
        for model in models if isinstance(models, (list, tuple)) else (models,):
            if self.disabled:
                return
            try:
                logclient.watch(
                    model,
                    max(1, int(log_freq or 1)),
                    gradients=log in ("gradients", "all"),
                    parameters=log in ("parameters", "all"),
                    histograms=True,
                    step=lambda: self.logclient_history.step,
                    run=self.logclient_run,
                )
            except (BadArgument, TypeError, ValueError) as error:
                inert.warn(self.logclient_run, f"wandb.watch does nothing here: {error}")

    def unwatch(self, models: Any = None) -> None:
        """End what `watch` began, for these models or for all."""
        for model in models if isinstance(models, (list, tuple)) else (models,):
            logclient.unwatch(model)

    def alert(self, title: Any, text: Any = "", level: Any = None, wait_duration: Any = None) -> None:
        """`Run.alert`; the same title again only after `wait_duration` (seconds or a timedelta; default 60)."""
        seconds = getattr(wait_duration, "total_seconds", lambda: wait_duration)()
        now, title = time.monotonic(), str(title)
        pause_s = seconds if isinstance(seconds, (int, float)) else _ALERT_S
        if now - self._alerted.get(title, -1e9) < pause_s:
            return
        self._alerted[title] = now
        name = str(getattr(level, "value", level) or "INFO").upper()
        self.logclient_run.alert(title, str(text), level=_LEVELS.get(name, "info"))

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        """Write the open row and the summary, and end the run."""
        self.logclient_store()
        if not self._over:
            self._over = True
            self.logclient_run.finish(state="failed" if exit_code else "finished")
        here.forget(self)

    join = finish

    def status(self) -> Any:
        """`logclient.status()` of this run."""
        return self.logclient_run.status()

    def mark_preempting(self) -> None:
        """Say that the run is about to be preempted, as an alert."""
        self.logclient_run.alert("preempting", "the program says that it is about to be preempted", "warn")

    def display(self, *args: Any, **kwargs: Any) -> bool:
        """There is no page to be shown."""
        return False

    def logclient_store(self) -> None:
        if not self._over:
            self.logclient_history.flush()
            self._summary.store()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.logclient_store()
        self._over = True
        self.logclient_run.__exit__(kind, error, trace)
        here.forget(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process: the same run, with lanes of its own."""
        given = (self.logclient_run, dict(self._config), self.entity, self.job_type, self.step)
        return _again, given

    def __deepcopy__(self, memo: Any) -> Run:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        inert.warn(self.__dict__.get("logclient_run"), f"wandb.run.{name} is not there: it does nothing")
        return Inert(f"wandb.run.{name}")

    def __repr__(self) -> str:
        return f"<logclient.compat.wandb.Run {self.name!r} ({self.id})>"


def _again(made: Any, config: dict[str, Any], entity: str, job_type: str, step: int) -> Run:
    from .opening import adopt

    return adopt(made, config, entity, job_type, step)


def _metric_name(given: Any) -> str:
    return str(getattr(given, "name", given))
