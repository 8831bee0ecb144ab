"""`sync_tensorboard=True` and `wandb.tensorboard`: TensorBoard's events go to a run, at their own steps.

Runs in the training process, in whatever thread writes. They do not pass through the rows of `wandb.log`, and leave its
steps alone; the summary has their last values.
"""

from __future__ import annotations

import sys

from logclient.compat import stand_ins as inert
from logclient.compat import tensorboard_tap as tap
from logclient.compat.tensorboard_tap import Tap

from .current import here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .running import Run


class _RunTap(Tap):
    """A tap whose hyperparameters go to `wandb.config`."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.logclient_run, run.logclient_history.log_apart)
        self._wandb_run = run

    def describe(self, settings: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        named = {str(key): value for key, value in settings.items()}
        self._wandb_run.config.update(named, allow_val_change=True)


def take(run: Run) -> None:
    """Let this run have the events from now on, until it ends."""
    run.logclient_events = _RunTap(run)
    tap.every = _newest
    tap.watch()
    if "tensorflow" in sys.modules:
        inert.warn(
            run.logclient_run, "what TensorFlow's own tf.summary writes is not seen: it does not pass Python"
        )


def _newest() -> Tap | None:
    for run in reversed(here.open):
        if run.logclient_events is not None:
            return run.logclient_events
    return None


def patch(*args: Any, **kwargs: Any) -> None:
    """Do what `wandb.init(sync_tensorboard=True)` does, for the run that is open or the next one."""
    here.take_events = True
    if here.run is not None and here.run.logclient_events is None:
        take(here.run)


def unpatch() -> None:
    """No events from now on."""
    here.take_events = False
    for run in here.open:
        run.logclient_events = None
