"""What may be a value: turns whatever a user passes into (code, value) pairs, or says why not.

Runs in the training process, inside `log()`, only for values that the fast path does not know.

Invariants:

- a value's type is looked at before anything of it is called: `__float__` of a device tensor is a hidden wait;
- foreign code (conversions of NumPy and torch scalars) is called in one place, `_foreign`, and guarded there;
- one bad value costs one point: every other value of the call arrives.
"""

from __future__ import annotations

import sys
from _signal import getsignal, valid_signals  # `signal` wraps these in enums: 2 ms of import

from . import keys, tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MOST_POINTS = 10_000  # of one record; about 30 ms of `log()` at 3 us a value
MOST_DEPTH = 20
MOST_TEXT = 4096  # bytes of UTF-8
_MOST_INT_BITS = 8192
_INT64 = 1 << 63


class LeftOut(Exception):
    """The value cannot be a point; the message says why."""


class Points:
    """The points of one record, and what was left out of it."""

    __slots__ = ("codes", "left_out", "names", "reasons", "values")

    def __init__(self) -> None:
        self.names: list[str] = []
        self.codes: list[str] = []
        self.values: list[Any] = []
        self.left_out = 0
        self.reasons: list[tuple[str, str]] = []  # (key, why), the first few

    def skip(self, name: str, reason: str, count: int = 1) -> None:
        """Count points that are left out."""
        self.left_out += count
        if len(self.reasons) < 20:
            self.reasons.append((name, reason))


def collect(metrics: Mapping[Any, Any]) -> Points:
    """All points of one call, nested dicts flattened by the rule in `keys.py`."""
    points = Points()
    _walk(metrics, None, 1, {id(metrics)}, points)
    return points


def _walk(level: Mapping[Any, Any], parent: str | None, depth: int, path: set[int], points: Points) -> None:
    for key, value in tuple(level.items()):
        if type(key) is str and parent is None and keys.is_legal(key):
            name = key
        else:
            name = keys.name_of(key, level) if parent is None else keys.path(parent, key, level)
        if isinstance(value, dict):
            if id(value) in path:
                points.skip(name, "a dict that holds itself")
            elif depth >= MOST_DEPTH:
                points.skip(name, f"nested deeper than {MOST_DEPTH} levels")
            else:
                path.add(id(value))
                _walk(value, name, depth + 1, path, points)
                path.discard(id(value))
            continue
        if len(points.names) >= MOST_POINTS:
            points.skip("(all further keys)", f"more than {MOST_POINTS:,} values in one call")
            continue
        try:
            code, converted = convert(value)
        except LeftOut as why:
            points.skip(name, str(why))
            continue
        points.names.append(name)
        points.codes.append(code)
        points.values.append(converted)


def convert(value: object) -> tuple[str, Any]:
    """(code, value) as in `record.py`; raises LeftOut."""
    kind = type(value)
    if kind is float:
        return "d", value
    if kind is bool:
        return "b", int(value)  # type: ignore[call-overload]
    if isinstance(value, int):
        return _int(int.conjugate(value))
    if isinstance(value, float):
        return "d", float.conjugate(value)  # NumPy's float64 is one
    if isinstance(value, str):
        return "s", _text(value)
    if value is None:
        raise LeftOut("None")
    numpy = sys.modules.get("numpy")  # whoever made such a value has loaded it
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
        return _numpy(value)
    if tensor.is_tensor(value):
        reason = tensor.why_not_scalar(value)
        if reason:
            raise LeftOut(reason)
        return _number(_foreign(tensor.scalar, value), value)
    if kind.__module__ in ("decimal", "fractions"):
        return _wide(value)
    raise LeftOut(f"a value of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", ""))


def _int(value: int) -> tuple[str, int]:
    if -_INT64 <= value < _INT64:
        return "q", value
    if value.bit_length() > _MOST_INT_BITS:
        raise LeftOut(f"an int of more than {_MOST_INT_BITS} bits")
    return "i", value


def _text(value: str) -> str:
    text = str.__str__(value)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise LeftOut("text that is no valid Unicode") from None
    if size > MOST_TEXT:
        raise LeftOut(f"text of {size:,} bytes; at most {MOST_TEXT:,}")
    return text


def _numpy(value: Any) -> tuple[str, Any]:
    kind = value.dtype.kind
    if value.size != 1:
        raise LeftOut(f"a numpy array of shape {tuple(value.shape)}")
    if kind in "biuf" and value.dtype.itemsize <= 8:
        return _number(_foreign(type(value).item, value), value)
    if kind == "f":
        return _wide(_foreign(type(value).item, value))
    if kind == "V" and type(value).__module__.startswith("ml_dtypes"):
        return _number(_foreign(float, value), value)
    raise LeftOut(f"a numpy value of type {value.dtype}")


def _wide(value: Any) -> tuple[str, float]:
    """A number that may hold more than a float does: flagged as rounded where it does."""
    near = _foreign(float, value)
    exact = near != near or near == value
    return ("d" if exact else "r"), near


def _number(value: object, source: object) -> tuple[str, Any]:
    if type(value) in (float, bool, int):
        return convert(value)
    raise LeftOut(f"a {type(source).__name__} that holds {type(value).__name__}")


def _foreign(function: Any, value: object) -> Any:
    try:
        return function(value)
    except Exception as error:
        if is_users(error):
            raise
        raise LeftOut(f"{type(value).__name__}: its conversion raised {type(error).__name__}") from None


def is_users(error: BaseException) -> bool:
    """Was this raised by a signal handler of the user's that ran inside our frames?"""
    codes = set()
    for number in valid_signals():
        handler = getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if code is not None:
            codes.add(code)
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in codes:
            return True
        step = step.tb_next
    return False
