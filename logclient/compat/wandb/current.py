"""The run that this process has now, W&B's way: `wandb.run` and what belongs to it.

Runs in the training process. The package's attributes `run`, `config` and `summary` are those of `here`.
"""

from __future__ import annotations

from logclient.compat.config_and_summary import Config, Summary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .running import Run
    from .sweeping import Trial


class Current:
    """The current `wandb.run`, `wandb.config` and `wandb.summary`, and all runs that are open."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self.open: list[Run] = []  # the newest last
        self.config = Config({})  # before `init`: kept, and given to it
        self.summary = Summary({})
        self.settings: dict[str, Any] = {}  # of `wandb.setup`
        self.trial: Trial | None = None  # of the sweep whose function runs
        self.take_events: Any = None  # what `wandb.tensorboard.patch` asked for

    def become(self, run: Run) -> None:
        """Make it the current run."""
        self.run, self.config, self.summary = run, run.config, run.summary

    def forget(self, run: Run) -> None:
        """A run has ended."""
        if run in self.open:
            self.open.remove(run)
        if run is self.run:
            self.run, self.config, self.summary = None, Config({}), Summary({})


here = Current()


def started() -> Any:
    """The current run of logclient; None where there is none."""
    return None if here.run is None else here.run.logclient_run
