"""Conversion of values: turns whatever a user passes into (code, value) pairs, or says why not.

Runs in the training process, inside `log()`, only for values that the fast path does not know.

Invariants:

- a value's type is looked at before anything of it is called: `__float__` of a device tensor is a hidden wait;
- foreign code (conversions of NumPy and torch scalars) is called in one way, `foreign.call`, and guarded there;
- one bad value costs one point: every other value of the call arrives;
- what one call may cost is bounded: `MAX_POINTS` entries of dicts are looked at, those beyond are only counted.
"""

from __future__ import annotations

import sys
from itertools import islice

from ..guest import foreign
from . import keys, tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_POINTS = 10_000  # of one record, dicts that hold others included; about 30 ms of `log()` at 3 us each
MAX_DEPTH = 20
MAX_TEXT = 4096  # bytes of UTF-8
_MAX_INT_BITS = 8192
_numpy_scalars: set[type] = set()  # those met whose `item` is a Python number, whatever the value
_MEDIA_VALUES = f"{__package__}.media_values"  # loaded by whoever makes one
INT64 = 1 << 63  # what an int of code q is below


MEDIA = "M"  # code of a point that is a media value, until it is taken out of its record


class LeftOut(Exception):
    """The value cannot be a point; the message says why."""


class NoRoom(LeftOut):
    """It does not fit into the memory for media values."""


class Points:
    """The points of one record, and what was left out of it."""

    __slots__ = ("codes", "left_out", "looks", "media", "names", "reasons", "values")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.codes: list[str] = []
        self.values: list[Any] = []
        self.media: list[tuple[str, Any]] = []  # (key, value) of those that are no part of the record itself
        self.left_out = 0
        self.looks = 0  # entries of dicts
        self.reasons: list[tuple[str, str]] = []  # (key, why), the first few

    def skip(self, name: str, reason: str, count: int = 1) -> None:
        """Count points that are left out."""
        self.left_out += count
        if len(self.reasons) < 20:
            self.reasons.append((name, reason))

    def leave_device_values_out(self, reason: str) -> None:
        """Skip the points whose values lie on a device; all others stay."""
        for index in reversed(range(len(self.codes))):
            if self.codes[index] == tensor.CODE:
                self.skip(self.names[index], reason)
                del self.names[index], self.codes[index], self.values[index]


def collect(metrics: Mapping[Any, Any]) -> Points:
    """All points of one call, nested dicts flattened by the rule in `keys.py`."""
    points = Points()
    _walk(metrics, None, 1, {id(metrics)}, points)
    return points


def _walk(level: Mapping[Any, Any], parent: str | None, depth: int, path: set[int], points: Points) -> None:
    entries = tuple(islice(level.items(), max(0, MAX_POINTS - points.looks)))
    points.looks += len(entries)
    if len(entries) < len(level):
        beyond = len(level) - len(entries)
        points.skip("(all further keys)", f"more than {MAX_POINTS:,} values in one call", beyond)
    for key, value in entries:
        if type(key) is str and parent is None and keys.is_legal(key):
            name = key
        else:
            try:
                name = keys.name_of(key, level) if parent is None else keys.path(parent, key, level)
            except keys.NoName as why:
                points.skip(f"{parent or ''}{keys.SEPARATOR if parent else ''}?", str(why))
                continue
        if issubclass(type(value), dict):
            if id(value) in path:
                points.skip(name, "a dict that holds itself")
            elif depth >= MAX_DEPTH:
                points.skip(name, f"nested deeper than {MAX_DEPTH} levels")
            else:
                path.add(id(value))
                _walk(value, name, depth + 1, path, points)
                path.discard(id(value))
            continue
        try:
            code, converted = convert(value)
        except LeftOut as why:
            points.skip(name, str(why))
            continue
        if code == MEDIA:
            points.media.append((name, converted))
            continue
        points.names.append(name)
        points.codes.append(code)
        points.values.append(converted)


def convert(value: object) -> tuple[str, Any]:
    """(code, value) as in `record.py`; raises LeftOut.

    Or (`tensor.CODE`, value) of one on a device, (`MEDIA`, value) of an image and the like.
    """
    kind = type(value)  # isinstance() would ask the object itself, which may be foreign code
    if kind is float:
        return "d", value
    if kind is bool:
        return "b", int(value)  # type: ignore[call-overload]
    if kind in _numpy_scalars:
        return convert(kind.item(value))  # type: ignore[attr-defined]
    if issubclass(kind, int):
        return _int(int.conjugate(value))  # type: ignore[arg-type]
    if issubclass(kind, float):
        return "d", float.conjugate(value)  # type: ignore[arg-type]  # NumPy's float64 is one
    if issubclass(kind, str):
        return "s", _text(value)  # type: ignore[arg-type]
    if value is None:
        raise LeftOut("None")
    if tensor.is_tensor(value) or tensor.is_jax(value):
        reason, number = (tensor.read if tensor.is_tensor(value) else tensor.read_jax)(value)
        if reason == tensor.ON_DEVICE:
            return tensor.CODE, number
        if reason:
            raise LeftOut(reason)
        return _number(number, value)
    numpy = sys.modules.get("numpy")  # whoever made such a value has loaded it
    generic = getattr(numpy, "generic", None)  # absent while it is being imported
    if generic is not None and issubclass(kind, (generic, numpy.ndarray)):  # type: ignore[union-attr]
        return _numpy(value)
    media = sys.modules.get(_MEDIA_VALUES)
    if media is not None and issubclass(kind, media.Value):
        return MEDIA, value
    for module, name in (("decimal", "Decimal"), ("fractions", "Fraction")):
        exact = getattr(sys.modules.get(module), name, None)
        if exact is not None and issubclass(kind, exact):
            return _wide(value)
    raise LeftOut(f"a value of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", ""))


def _int(value: int) -> tuple[str, int]:
    if -INT64 <= value < INT64:
        return "q", value
    if value.bit_length() > _MAX_INT_BITS:
        raise LeftOut(f"an int of more than {_MAX_INT_BITS} bits")
    return "i", value


def _text(value: str) -> str:
    text = str.__str__(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        if foreign.is_users(error):
            raise
        raise LeftOut("text that is no valid Unicode") from None
    if size > MAX_TEXT:
        raise LeftOut(f"text of {size:,} bytes; at most {MAX_TEXT:,}")
    return text


def _numpy(value: Any) -> tuple[str, Any]:
    try:
        reason, number = foreign.call(_read_numpy, value)
    except foreign.Failed as error:
        raise LeftOut(f"{type(value).__name__}: its conversion raised {error}") from None
    if reason:
        raise LeftOut(reason)
    return _number(number, value)


def _read_numpy(value: Any) -> tuple[str, Any]:
    if value.size != 1:
        return f"a numpy array of shape {tuple(value.shape)}", None
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and issubclass(type(value), masked) and value.mask.any():
        return "a masked value", None
    kind, scalar = value.dtype.kind, value.dtype.type
    if kind in "biuf" or (kind == "V" and scalar.__module__.startswith("ml_dtypes")):
        number = type(value).item(value)
        if scalar is type(value) and type(number) in (float, int, bool):
            _numpy_scalars.add(scalar)
        return "", number
    return f"a numpy value of type {value.dtype}", None


def _wide(value: Any) -> tuple[str, float]:
    """A number that may hold more than a float does: flagged as rounded where it does."""
    try:
        near, is_exact = foreign.call(_round, value)
    except foreign.Failed as error:
        raise LeftOut(f"{type(value).__name__}: its conversion raised {error}") from None
    return ("d" if is_exact else "r"), near


def _round(value: Any) -> tuple[float, bool]:
    near = float(value)
    return near, bool(near != near or near == value)


def _number(value: object, source: object) -> tuple[str, Any]:
    if type(value) in (float, bool, int):
        return convert(value)
    if type(value) is getattr(sys.modules.get("numpy"), "longdouble", None):  # no Python number holds it
        return _wide(value)
    raise LeftOut(f"a {type(source).__name__} that holds {type(value).__name__}")
