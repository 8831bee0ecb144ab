"""Tensors and arrays of frameworks, without importing any: is it one, what is its value, may it be had without waiting.

Runs in the training process. Reads only attributes that live on the host. A value on a device is never touched here:
`convert` in `values.py` passes it on as it is, and `device.py` has it copied.
"""

from __future__ import annotations

import sys

from ..guest import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
BUILTIN: dict[type, str] = {float: "d", int: "q", bool: "b"}  # Python's own numbers -> code in the record
_TYPES = {code: kind for kind, code in BUILTIN.items()}
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


def read(value: Any) -> tuple[str, Any]:
    """("", the single value of a CPU tensor as a Python number), (ON_DEVICE, the tensor to copy), or (why not, None).

    Only storage that holds the value itself is read: that of a plain, dense tensor. A subclass may keep something
    else there (a DTensor keeps this rank's part), and asking it may start a collective.
    """
    try:
        torch: Any = sys.modules["torch"]
        if not is_plain(type(value)):
            reason, value = _replica(value)
            if reason:
                return reason, None
        core = torch._C
        if core._len_torch_dispatch_stack() or core._len_torch_function_stack():
            with core._DisableTorchDispatch(), core.DisableTorchFunction():  # modes are foreign code
                return _read_plain(value, torch)
        return _read_plain(value, torch)
    except Exception as error:
        if foreign.is_users(error):
            raise
        return f"a tensor that could not be read ({type(error).__name__})", None


def is_plain(kind: type) -> bool:
    """Return whether this type keeps the value in its storage: no subclass does (a `torch.nn.Buffer` is none)."""
    if kind.__module__ not in ("torch", "torch.nn.parameter"):
        return False
    torch: Any = sys.modules["torch"]
    return kind is torch.Tensor or kind is torch.nn.Parameter


def _replica(value: Any) -> tuple[str, Any]:
    """("", the local copy of a DTensor that every rank has whole), or (why not, None) for any other subclass."""
    kind = type(value)
    if not any(base.__name__ == "DTensor" for base in kind.__mro__):
        name = f"{kind.__module__}.{kind.__qualname__}"
        return f"a {name}: a subclass of torch.Tensor is not read; log a plain tensor or a float", None
    if all([type(placement).__name__ == "Replicate" for placement in value.placements]):  # noqa: C419
        local = value._local_tensor
        if is_plain(type(local)):
            return "", local
    where = str(value.placements)[:80]
    return (
        f"a DTensor placed {where}: this rank has a part only; log value.full_tensor(), called on all ranks",
        None,
    )


def _read_plain(value: Any, torch: Any) -> tuple[str, Any]:
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return "a tensor inside a torch.func transform: log it outside of the transform", None
    if value.is_nested:
        return "a nested tensor", None
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}: log value.to_dense()", None
    if value.is_quantized:
        return "a quantized tensor: log value.dequantize()", None
    if value.numel() != 1:
        return f"a tensor of shape {tuple(value.shape)}", None
    if value.is_cpu:
        return "", value.item()
    where = value.device.type
    if where != "cuda":
        hint = _HINTS.get(where, "reading it would wait for the device")
        return f"a tensor on device {where}: {hint}", None
    return _on_device(value.dtype), value


def reader(codes: str) -> Callable[[Any], float] | None:
    """Return what turns each value of a usual record with these codes into a Python number, at little cost.

    It takes Python's own numbers and single values of plain CPU tensors. It raises for any other value, which then
    goes the long way (`read`). None where some code is of neither.
    """
    wanted = set(codes)
    if not wanted.issubset(_TYPES):
        return None
    torch: Any = sys.modules["torch"]
    plain, parameter, strided = torch.Tensor, torch.nn.Parameter, torch.strided
    own = {kind for kind, code in BUILTIN.items() if code in wanted}
    dtypes = {
        getattr(torch, name) for name, (_, code) in KINDS.items() if code in wanted and hasattr(torch, name)
    }

    def number_of(value: Any) -> Any:
        kind = type(value)
        if kind in own:
            return value
        if (
            (kind is plain or kind is parameter)
            and value.dtype in dtypes
            and value.is_cpu
            and value.layout is strided
        ):
            try:
                return value.item()
            except Exception as error:
                if foreign.is_users(error):
                    raise
        raise TypeError("neither a number nor a plain tensor on the CPU")

    return number_of


def checked(codes: str, pack: Callable[..., bytes]) -> Callable[..., bytes]:
    """Return `pack` for the body of a record whose values `reader` read.

    It raises TypeError where one is not of its code's type, or where modes of the user took part in the reading.
    """
    types = tuple([_TYPES[code] for code in codes])
    core: Any = sys.modules["torch"]._C
    modes, more_modes = core._len_torch_function_stack, core._len_torch_dispatch_stack

    def strict(seq: int, order: int, step: int, time: int, head: int, *found: Any) -> bytes:
        if (*map(type, found),) != types or modes() or more_modes():
            raise TypeError("another type than in the records before, or read inside a mode of torch")
        return pack(seq, order, step, time, head, *found)

    return strict


def read_jax(value: Any) -> tuple[str, Any]:
    """Read an array of JAX; one that is computed and lies in the host's memory is read at once."""
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
        return reason, value
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
