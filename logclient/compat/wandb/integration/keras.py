"""`wandb.integration.keras`: callbacks for Keras 3 that log to `wandb.run`.

Runs in the training process, in the hooks that Keras calls. `logclient.integrations.keras` is the callback that is
built for logclient: it never makes Keras wait for a batch's values.
"""

from __future__ import annotations

import logclient.compat.wandb as wandb
from logclient.compat import stand_ins as inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from keras.callbacks import Callback, ModelCheckpoint
except ImportError:
    Callback = ModelCheckpoint = inert.Subclassed


class WandbMetricsLogger(Callback):
    """Logs each epoch under `epoch/`, and with `log_freq` ("batch", or a number of batches) batches under `batch/`."""

    def __init__(
        self, log_freq: Any = "epoch", initial_global_step: int = 0, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__()
        self._every = 1 if log_freq == "batch" else log_freq if isinstance(log_freq, int) else 0
        self._batch = initial_global_step
        wandb.define_metric("epoch/epoch")
        wandb.define_metric("epoch/*", step_metric="epoch/epoch")
        if self._every:
            wandb.define_metric("batch/batch_step")
            wandb.define_metric("batch/*", step_metric="batch/batch_step")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        row = {f"epoch/{name}": value for name, value in (logs or {}).items()}
        rate = _learning_rate(self.model)
        wandb.log({**row, "epoch/epoch": epoch, **({} if rate is None else {"epoch/learning_rate": rate})})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batch += 1
        if self._every and batch % self._every == 0:
            row = {f"batch/{name}": value for name, value in (logs or {}).items()}
            wandb.log({**row, "batch/batch_step": self._batch - 1})


class WandbCallback(Callback):
    """Logs what an epoch gives, and its number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        wandb.log({**(logs or {}), "epoch": epoch})


class WandbModelCheckpoint(ModelCheckpoint):
    """Keras's own `ModelCheckpoint`: the file is written where it names it, and kept nowhere else."""


class WandbEvalCallback(Callback):
    """Tables of predictions, which a subclass fills: they are not kept."""

    def __init__(self, data_table_columns: Any = None, pred_table_columns: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self.data_table = wandb.Table(columns=data_table_columns or [])
        self.pred_table = wandb.Table(columns=pred_table_columns or [])
        self.data_table_ref = self.data_table

    def on_train_begin(self, logs: Any = None) -> None:
        self.add_ground_truth(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.add_model_predictions(epoch, logs)

    def add_ground_truth(self, logs: Any = None) -> None:
        """For the subclass."""

    def add_model_predictions(self, epoch: int, logs: Any = None) -> None:
        """For the subclass."""

    def init_data_table(self, column_names: Any) -> None:
        self.data_table = wandb.Table(columns=column_names)

    def init_pred_table(self, column_names: Any) -> None:
        self.pred_table = wandb.Table(columns=column_names)

    def log_data_table(self, *args: Any, **kwargs: Any) -> None:
        """Tables are not kept."""

    def log_pred_table(self, *args: Any, **kwargs: Any) -> None:
        """Tables are not kept."""


def _learning_rate(model: Any) -> Any:
    """A rate that the host knows; None where it is a schedule."""
    rate = getattr(getattr(model, "optimizer", None), "_learning_rate", None)
    return getattr(rate, "value", None)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return inert.known(name) or inert.Inert(f"wandb.integration.keras.{name}")
