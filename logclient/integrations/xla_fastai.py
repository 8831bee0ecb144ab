"""fastai on XLA devices: what `LogclientXLACallback` is in a `Learner`.

Runs in the training process, in the thread of a device: each has its own learner. Records go through the step
closures of `xla.py`; config, model file and predictions are those of the first device.
"""

from __future__ import annotations

import torch_xla
import torch_xla.runtime as xr

from logclient.integrations import guard
from logclient.integrations.fastai import LogclientCallback, _Counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from logclient.integrations.xla import LogclientXLACallback


class LearnerCallback(LogclientCallback):
    """Logs as fastai's callback of ours does, by the `log` of the XLA callback."""

    def __init__(self, xla: LogclientXLACallback) -> None:
        super().__init__()
        self._tie = xla._tie
        self._xla = xla

    def __call__(self, event_name: str) -> None:
        super().__call__(event_name)
        if event_name == "after_batch" and self._xla.does_sync:
            torch_xla.sync()

    def _run(self) -> Any:
        run = self._tie.run
        return run and _InClosures(run, self._xla)

    def _counts(self, run: Any) -> _Counts:
        return guard.of_run(run, _Counts, xr.global_ordinal())  # each device has trainings of its own

    def _save_asked(self, step: int) -> None:
        """Save nothing: one device alone would run a part of a step that all take together."""

    def _describe(self) -> None:
        if _is_first():
            super()._describe()

    @guard.hook
    def _save_model(self) -> None:
        if _is_first():
            super()._save_model()

    @guard.hook
    def _log_predictions(self) -> None:
        if _is_first():
            super()._log_predictions()


class _InClosures:
    """A run whose `log` is the XLA callback's."""

    def __init__(self, run: Any, xla: LogclientXLACallback) -> None:
        self._run = run
        self.log = xla.log
        self._xla = xla

    def should_stop(self, step: int | None = None) -> bool:
        return self._xla.should_stop()

    def should_save(self, step: int | None = None) -> bool:
        return self._xla.should_save()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


def _is_first() -> bool:
    return bool(xr.global_ordinal() == 0)
