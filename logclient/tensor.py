"""Tensors, without importing torch: is it one, may it be read without waiting, what is its value.

Runs in the training process. Reads only attributes that live on the host; a value on a device is never touched
(a later issue copies those without waiting).
"""

from __future__ import annotations

import sys

from . import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_tensor(value: object) -> bool:
    """A torch tensor? Whoever made one has loaded torch."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # absent while torch is being imported
    return kind is not None and (type(value) is kind or issubclass(type(value), kind))


def read(value: Any) -> tuple[str, object]:
    """("", the single value of a CPU tensor as a Python number), or (why not, None)."""
    try:
        if value.device.type != "cpu":
            return f"a tensor on device {value.device.type}: reading it would wait for the device", None
        if value.numel() != 1:
            return f"a tensor of shape {tuple(value.shape)}", None
        return "", value.item()
    except Exception as error:
        if foreign.is_users(error):
            raise
        return f"a tensor that could not be read ({type(error).__name__})", None
