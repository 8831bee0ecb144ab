"""Arrays of NumPy, torch and others as bytes, without importing any: element type, shape, and a view of the elements.

Runs in the training process, inside `log()`, for media values. Nothing waits for a device: what lies on one is refused
with a sentence. A view refers to the user's memory, and is copied once, into shared memory.
"""

from __future__ import annotations

import sys

from . import tensor
from .values import LeftOut, NoRoom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KINDS = {"B": "u", "H": "u", "I": "u", "L": "u", "Q": "u", "b": "i", "h": "i", "i": "i", "l": "i", "q": "i"}
_KINDS.update({"e": "f", "f": "f", "d": "f", "?": "b"})
_OF_NUMPY = frozenset(("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "b1"))


class Array:
    """Elements of one type: `dtype` is a letter and the bytes of an element, as in `u1` or `f4`."""

    __slots__ = ("data", "dtype", "every", "is_tensor", "shape")

    def __init__(
        self, dtype: str, shape: tuple[int, ...], data: memoryview | bytes, *, is_tensor: bool
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data
        self.is_tensor = is_tensor  # of torch: channels come first
        self.every = 1  # each so many-th element is in `data`


def array_of(value: Any, most_bytes: int, *, sample_bytes: int = 0) -> Array:
    """Return an array as bytes in the order of rows. Raises LeftOut where it is none, or lies on a device.

    One with more than `most_bytes` is left out, or each n-th of its elements is taken: at most `sample_bytes` of them.
    """
    is_tensor = tensor.is_tensor(value)
    if is_tensor:
        value = _tensor(value)
    elif tensor.is_jax(value):
        raise LeftOut("an array of JAX: log numpy.asarray(value)")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _numpy(numpy, value, most_bytes, sample_bytes=sample_bytes, is_tensor=is_tensor)
    if type(value) in (list, tuple):
        return _numbers(value, most_bytes, sample_bytes=sample_bytes)
    try:
        view = memoryview(value)
    except TypeError:
        kind = type(value)
        raise LeftOut(f"a {kind.__module__}.{kind.__qualname__} is no array") from None
    letter = view.format[-1:]
    if letter not in _KINDS or view.format[:1] in ">!":
        raise LeftOut(f"an array with elements of format {view.format!r}")
    every = _every(view.nbytes, most_bytes, sample_bytes=sample_bytes)
    if every > 1:
        flat = view if view.ndim == 1 else memoryview(view.tobytes()).cast(letter)  # type: ignore[call-overload]
        view = flat[::every]
    data: memoryview | bytes = view.cast("B") if view.c_contiguous else view.tobytes()
    made = Array(f"{_KINDS[letter]}{view.itemsize}", tuple(view.shape or (1,)), data, is_tensor=False)
    made.every = every
    return made


def _every(size: int, most_bytes: int, *, sample_bytes: int) -> int:
    if size <= most_bytes:
        return 1
    if not sample_bytes:
        raise NoRoom(f"{size:,} bytes; at most {most_bytes:,} fit (LOGCLIENT_MEDIA_BYTES)")
    return -(-size // min(sample_bytes, most_bytes))


def _tensor(value: Any) -> Any:
    """Return a torch tensor as an array of NumPy that shares its memory."""
    torch: Any = sys.modules["torch"]
    if not tensor.is_plain(type(value)):
        raise LeftOut("a subclass of torch.Tensor is not read; log a plain tensor")
    if not value.is_cpu:
        raise LeftOut(f"a tensor on device {value.device.type}: reading it would wait; log value.cpu()")
    if value.layout is not torch.strided or value.is_quantized:
        raise LeftOut(f"a tensor of layout {value.layout}")
    value = value.detach()
    if value.is_conj() or value.is_neg():
        raise LeftOut("a tensor that is a conjugated or negated view: log value.resolve_conj()")
    if value.dtype is torch.bfloat16 or str(value.dtype).startswith("torch.float8"):
        value = value.float()
    try:
        return value.numpy()
    except RuntimeError:
        raise LeftOut("a tensor is read by way of NumPy, which is not installed") from None


def _numpy(numpy: Any, value: Any, most_bytes: int, *, sample_bytes: int, is_tensor: bool) -> Array:
    dtype = value.dtype
    if dtype.kind == "f" and dtype.itemsize > 8:
        value = value.astype("f8")
    elif dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
        value = value.astype(dtype.newbyteorder("<"))
    name = value.dtype.str[1:]
    if name not in _OF_NUMPY:
        raise LeftOut(f"an array of type {dtype}")
    every = _every(value.nbytes, most_bytes, sample_bytes=sample_bytes)
    if every > 1:
        # without a copy of what is not taken
        value = value.reshape(-1)[::every] if value.flags.c_contiguous else value.flat[::every]
    if not value.flags.c_contiguous:
        value = numpy.ascontiguousarray(value)
    data = memoryview(value.reshape(-1).view("u1")) if value.size else b""
    made = Array(name, tuple(map(int, value.shape)) or (1,), data, is_tensor=is_tensor)
    made.every = every
    return made


def _numbers(value: Any, most_bytes: int, *, sample_bytes: int) -> Array:
    from array import array  # part of the interpreter

    if value and isinstance(value[0], (list, tuple)):
        raise LeftOut("a nested list; make it an array of NumPy: numpy.array(...)")
    every = _every(8 * len(value), most_bytes, sample_bytes=sample_bytes)
    try:
        packed = array("d", value[::every])
    except (TypeError, OverflowError):
        raise LeftOut("a list with values that are no numbers; make it an array of NumPy") from None
    made = Array("f8", (len(packed),), memoryview(packed).cast("B"), is_tensor=False)
    made.every = every
    return made
