"""`wandb.tensorboard`: `patch` and `unpatch`; every other name is a stand-in."""

from __future__ import annotations

from logclient.compat import stand_ins as inert

from .sync_tensorboard import patch, unpatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["patch", "unpatch"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return inert.known(name) or inert.Inert(f"wandb.tensorboard.{name}")
