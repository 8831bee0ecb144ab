"""Tensors, without importing torch: is it one, may it be read without waiting, what is its value.

Runs in the training process. Reads only attributes that live on the host; a value on a device is never touched
(a later issue copies those without waiting).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_tensor(value: object) -> bool:
    """A torch tensor? Whoever made one has loaded torch."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # absent while torch is being imported
    return kind is not None and isinstance(value, kind)


def why_not_scalar(value: Any) -> str | None:
    """None where reading the value costs no wait; otherwise a reason in words."""
    try:
        device = value.device.type
        count = value.numel()
    except Exception as error:
        return f"a tensor that could not be read ({type(error).__name__})"
    if device != "cpu":
        return f"a tensor on device {device}: reading it would wait for the device"
    if count != 1:
        return f"a tensor of shape {tuple(value.shape)}"
    return None


def scalar(value: Any) -> object:
    """The single value of a CPU tensor as a Python number."""
    return value.item()
