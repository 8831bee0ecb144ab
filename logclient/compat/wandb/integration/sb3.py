"""`wandb.integration.sb3`: a callback for Stable-Baselines3. Its logger's values come with `sync_tensorboard=True`."""

from __future__ import annotations

from logclient.compat import stand_ins as inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from stable_baselines3.common.callbacks import BaseCallback
except ImportError:
    BaseCallback = inert.Subclassed


class WandbCallback(BaseCallback):
    """Lets a training go on; models are not kept."""

    def __init__(self, verbose: int = 0, *args: Any, **kwargs: Any) -> None:
        super().__init__(verbose)

    def _on_step(self) -> bool:
        return True
