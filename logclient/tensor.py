"""Tensors and arrays of frameworks, without importing any: is it one, what is its value, may it be had without waiting.

Runs in the training process. Reads only attributes that live on the host. A value on a device is never touched here:
`convert` in `values.py` passes it on as it is, and `device.py` has it copied.
"""

from __future__ import annotations

import sys

from . import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CODE = "D"  # of a point whose value lies on a device, until a record with it is made
ON_DEVICE = "on a device"  # the reason that is none: its value comes later
FLOAT, DOUBLE, INT = 1, 2, 3  # types in a cell: see `cells.TYPES`
# dtype -> (type in the cell, code in the record); each holds the value exactly
KINDS = {
    **dict.fromkeys(("float32", "float16", "bfloat16"), (FLOAT, "d")),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), (FLOAT, "d")),
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32"), (INT, "q")),
    "float64": (DOUBLE, "d"),
    "bool": (INT, "b"),
}
_HINTS = {
    "xla": "log it inside a step closure, as logclient.integrations.xla does",
    "meta": "it holds no value",
}
_known: dict[object, tuple[int, str]] = {}


def is_tensor(value: object) -> bool:
    """A torch tensor? Whoever made one has loaded torch."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)  # absent while torch is being imported
    return kind is not None and (type(value) is kind or issubclass(type(value), kind))


def is_jax(value: object) -> bool:
    """An array of JAX (no tracer: that stands for a value inside a function that is being compiled)?"""
    kind = type(value)
    return kind.__name__ == "ArrayImpl" and kind.__module__.partition(".")[0] in ("jaxlib", "jax")


def read(value: Any) -> tuple[str, object]:
    """("", the single value of a CPU tensor as a Python number), (ON_DEVICE, None), or (why not, None)."""
    try:
        where = value.device.type
        if value.numel() != 1:
            return f"a tensor of shape {tuple(value.shape)}", None
        if where == "cpu":
            return "", value.item()
        if where != "cuda":
            hint = _HINTS.get(where, "reading it would wait for the device")
            return f"a tensor on device {where}: {hint}", None
        torch: Any = sys.modules["torch"]
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return f"a {type(value).__name__} on device {where}: reading it may be more than a copy", None
        return _on_device(value.dtype), None
    except Exception as error:
        if foreign.is_users(error):
            raise
        return f"a tensor that could not be read ({type(error).__name__})", None


def read_jax(value: Any) -> tuple[str, object]:
    """The same for an array of JAX; one that is computed and lies in the host's memory is read at once."""
    try:
        if value.size != 1:
            return f"a JAX array of shape {tuple(value.shape)}", None
        if value.is_deleted():
            return "a JAX array that was given away (donated)", None
        if not value.is_fully_addressable:
            return "a JAX array that other hosts hold parts of", None
        reason = _on_device(value.dtype)
        if reason == ON_DEVICE and value.is_ready() and next(iter(value.devices())).platform == "cpu":
            return "", sys.modules["numpy"].asarray(value).reshape(()).item()
        return reason, None
    except Exception as error:
        if foreign.is_users(error):
            raise
        return f"a JAX array that could not be read ({type(error).__name__})", None


def _on_device(dtype: object) -> str:
    return ON_DEVICE if kind_of(dtype)[0] else f"a device value of type {dtype}"


def kind_of(dtype: object) -> tuple[int, str]:
    """(type in a cell, code in the record) of a dtype of torch or JAX; (0, "") where none holds it."""
    found = _known.get(dtype)
    if found is None:
        found = KINDS.get(str(dtype).removeprefix("torch."), (0, ""))
        if len(_known) < 128:
            _known[dtype] = found
    return found
