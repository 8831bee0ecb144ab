"""`wandb.util`: new ids; every other name is a stand-in."""

from __future__ import annotations

import os

from logclient.compat import stand_ins as inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def generate_id(length: int = 8) -> str:
    """A new id for a run."""
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(length))


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return inert.known(name) or inert.Inert(f"wandb.util.{name}")
