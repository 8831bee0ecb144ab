"""Any document as strict JSON, and back: what JSON has no number for becomes ``{"$float": "nan"}`` (or inf, -inf).

So that no user's own dict is taken for one, a key of theirs that starts with ``$`` gets one more ``$``.
"""

from __future__ import annotations

import json
import math
from typing import Any

_FLOAT = "$float"
ODD_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def dumps(value: Any, *, levels: int = 0) -> str:
    """ASCII, the same text for the same value; the first `levels` of nesting one item a line."""
    if levels and isinstance(value, dict) and value:
        items = [f"{json.dumps(str(key))}: {dumps(item, levels=levels - 1)}" for key, item in value.items()]
        return "{\n" + _indented(items) + "\n}"
    if levels and isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + _indented([dumps(item, levels=0) for item in value]) + "\n]"
    return json.dumps(value, allow_nan=False, separators=(", ", ": "))


def _indented(items: list[str]) -> str:
    return ",\n".join(items).replace("\n", "\n ").join((" ", ""))


def loads(data: str | bytes) -> Any:
    """`ValueError` for what is no strict JSON, nested too deep included."""
    try:
        return _decode(data if isinstance(data, str) else data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_decode = json.JSONDecoder(parse_constant=_refuse).decode  # `json.loads` would make one for every call


def wrap(value: Any) -> Any:
    """A copy that `dumps` takes and `unwrap` turns into the same again."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if isinstance(value, dict):
        return {f"${key}" if key.startswith("$") else key: wrap(item) for key, item in value.items()}
    return [wrap(item) for item in value] if isinstance(value, list) else value


def unwrap(value: Any) -> Any:
    """`ValueError` where `wrap` did not make it."""
    if isinstance(value, list):
        return [unwrap(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_FLOAT}:
        try:
            return ODD_FLOATS[value[_FLOAT]]
        except (KeyError, TypeError):
            raise ValueError(f"{_FLOAT} is nan, inf or -inf, not {value[_FLOAT]!r}") from None
    return {key[1:] if key.startswith("$") else key: unwrap(item) for key, item in value.items()}


def plain(value: Any) -> Any:
    """For people and programs that only read: NaN and infinities as the strings nan, inf, -inf."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
