"""`wandb.integration.xgboost`: a callback for XGBoost that logs each round's metrics to `wandb.run`."""

from __future__ import annotations

import logclient.compat.wandb as wandb
from logclient.compat import stand_ins as inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from xgboost.callback import TrainingCallback
except ImportError:
    TrainingCallback = inert.Subclassed


class WandbCallback(TrainingCallback):
    """Logs `data-metric` at the end of each round."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Never asks XGBoost to stop."""
        row = {
            f"{data}-{name}": values[-1]
            for data, metrics in (evals_log or {}).items()
            for name, values in metrics.items()
        }
        wandb.log({**row, "epoch": epoch})
        return False


def wandb_callback(*args: Any, **kwargs: Any) -> WandbCallback:
    """An older name of the class."""
    return WandbCallback()
