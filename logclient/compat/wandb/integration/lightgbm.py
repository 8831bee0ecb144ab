"""`wandb.integration.lightgbm`: a callback for LightGBM that logs each iteration's metrics to `wandb.run`."""

from __future__ import annotations

import logclient.compat.wandb as wandb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def wandb_callback(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
    """A callback that logs `data_metric` at the end of each iteration."""

    def callback(env: Any) -> None:
        row = {f"{entry[0]}_{entry[1]}": entry[2] for entry in env.evaluation_result_list or ()}
        wandb.log({**row, "iteration": env.iteration})

    callback.order = 20  # type: ignore[attr-defined]  # LightGBM sorts by it
    return callback


def log_summary(*args: Any, **kwargs: Any) -> None:
    """Models are not kept."""
