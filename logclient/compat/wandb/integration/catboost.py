"""`wandb.integration.catboost`: a callback for CatBoost that logs each iteration's metrics to `wandb.run`."""

from __future__ import annotations

import logclient.compat.wandb as wandb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class WandbCallback:
    """Logs `data-metric` at the end of each iteration."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def after_iteration(self, info: Any) -> bool:
        """Never asks CatBoost to stop."""
        row = {
            f"{data}-{name}": values[-1]
            for data, metrics in (info.metrics or {}).items()
            for name, values in metrics.items()
        }
        wandb.log({**row, "iteration": info.iteration})
        return True


def log_summary(*args: Any, **kwargs: Any) -> None:
    """Models are not kept."""
