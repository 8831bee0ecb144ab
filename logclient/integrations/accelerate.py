"""Accelerate: `Accelerator(log_with=LogclientTracker(project="digits"))`.

Runs in the training process, on every rank.

Invariants:

- Accelerate hands what it is told to the tracker of the main process only; called itself, the tracker of any process
  logs, with its rank, to the same run; the configuration is noted by the main process;
- `end_training` finishes a run that the tracker started, and no other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from accelerate import PartialState
from accelerate.tracking import GeneralTracker

import logclient
from logclient import NullRun, Run
from logclient.integrations import guard

__all__ = ["LogclientTracker"]


# runs that trackers started: the user began them by his calls, so callbacks of other frameworks join them
_started: WeakSet[Run | NullRun] = WeakSet()


class LogclientTracker(guard.Guarded, GeneralTracker):  # has no types
    """Logs to `run`, else to the current run, else to one that it starts at `init_trackers`.

    ::

        accelerator = Accelerator(log_with=LogclientTracker(project="digits", name="mlp"))
        accelerator.init_trackers("digits", config={"lr": 0.1})  # Accelerate keeps this name to itself
        accelerator.log({"loss": loss}, step=step)
        accelerator.end_training()

    All other arguments are those of `logclient.init`. `accelerator.log` logs in the main process;
    `tracker.log` in whichever process calls it. Raises `BadArgument`, at `init_trackers`, for settings that make no
    sense.
    """

    name = "logclient"
    requires_logging_directory = False
    main_process_only = False  # Accelerate sees to that, where it is the caller
    _kept = ("_next_step",)
    _next_step = 0

    def __init__(
        self,
        run: Run | NullRun | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        id: str | None = None,
        config: Any = None,
        group: str | None = None,
        tags: Iterable[str] = (),
        notes: str = "",
        resume: str | None = None,
        mode: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        server: str | None = None,
        alerts: Iterable[str | dict[str, Any]] = (),
        **settings: Any,
    ) -> None:
        self._tie = guard.Tie(run, guard.given(locals()))
        super().__init__()

    @property
    def tracker(self) -> Run | NullRun:
        """The run."""
        return self._found() or NullRun("", {}, ())

    @guard.hook
    def _found(self) -> Run | NullRun:
        return self._here()

    @guard.opening
    def start(self) -> None:
        """Find the run, once it is known which rank this is."""
        before = self._tie.run
        if self._open() is not before and before is not None:
            self._next_step = 0  # another run

    def _open(self, training: object = None, other: guard.Guarded | None = None) -> Run | NullRun:
        guard.keep_apart(_started)  # a new tracker is a new run
        run = super()._open(training, other)
        if self._tie.started:
            _started.add(run)
        guard.share(_started)
        return run

    @guard.hook
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store them in the run's config."""
        if PartialState().is_main_process:
            self._here().config.update(values)

    @guard.hook
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log to the run; without a `step`, at the one after the last."""
        if not values:
            return
        if step is None:
            step = self._next_step
        self._here().log(step, values)
        self._next_step = guard.step_after(step, self._next_step)

    @guard.hook
    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log lists of images: the first of a list under its key, further ones under `<key>/1` and so on."""
        found = {
            f"{key}/{at}" if at else key: logclient.Image(image)
            for key, images in values.items()
            for at, image in enumerate(images)
        }
        self.log(found, step)

    @guard.hook
    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a table: rows under columns, or a pandas DataFrame."""
        rows = dataframe if dataframe is not None else data or ()
        self.log({table_name: logclient.Table(rows, columns)}, step)

    @guard.hook
    def finish(self) -> None:
        """End the run, if the tracker started it; waits as `Run.finish` does."""
        run = self._tie.run
        if run is not None and self._tie.started:
            run.finish()
