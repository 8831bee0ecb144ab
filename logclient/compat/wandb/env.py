"""`wandb.env`: the names of W&B's variables, `wandb.env.PROJECT` is "WANDB_PROJECT"; every other name is a stand-in."""

from __future__ import annotations

from logclient.compat.stand_ins import Inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return f"WANDB_{name}" if name.isupper() else Inert(f"wandb.env.{name}")
