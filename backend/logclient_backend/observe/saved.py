"""Dataclasses as JSON and back, without loss. JSON is untrusted: each value is checked against the field's type.

Types that a field may have: int, float, str, bool, another such dataclass, `X | None`, `tuple[X, ...]` and `list[X]`.
A missing field takes its default; one without a default is an error that names the way to it, such as
`processes[3].second.stacks`. Fields that are not known are passed over: a newer version wrote them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_DEPTH = 24


class Damaged(ValueError):
    """The JSON is not what it should be; a sentence that names the place."""


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as what JSON can hold."""
    made: dict[str, Any] = dataclasses.asdict(value)
    return made


def from_json(kind: type[T], data: Any, where: str = "") -> T:
    """Return a dataclass of this kind; `Damaged` where the data is none."""
    made: T = _dataclass(kind, data, where, 0)
    return made


def _dataclass(kind: Any, data: Any, where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Damaged(f"{where}: nested too deeply")
    if not isinstance(data, dict):
        raise Damaged(f"{where or 'it'} is {_name(data)}, not an object")
    given = {}
    for name, expected, has_default in _fields(kind):
        path = f"{where}.{name}" if where else name
        if name in data:
            given[name] = _value(expected, data[name], path, depth + 1)
        elif not has_default:
            raise Damaged(f"{path} is missing")
    return kind(**given)


@functools.cache
def _fields(kind: Any) -> list[tuple[str, Any, bool]]:
    types_of = typing.get_type_hints(kind)
    absent = dataclasses.MISSING
    return [
        (field.name, types_of[field.name], field.default is not absent or field.default_factory is not absent)
        for field in dataclasses.fields(kind)
    ]


def _value(expected: Any, data: Any, where: str, depth: int) -> Any:
    if dataclasses.is_dataclass(expected):
        return _dataclass(expected, data, where, depth)
    origin = typing.get_origin(expected)
    if origin is types.UnionType:
        inner, _ = typing.get_args(expected)  # `X | None`
        return None if data is None else _value(inner, data, where, depth)
    if origin in (tuple, list):
        inner = typing.get_args(expected)[0]
        if not isinstance(data, list | tuple):
            raise Damaged(f"{where} is {_name(data)}, not a list")
        return origin(_value(inner, each, f"{where}[{at}]", depth + 1) for at, each in enumerate(data))
    if expected is float and type(data) is int and abs(data) < 1 << 63:
        return float(data)
    if type(data) is not expected:
        raise Damaged(f"{where} is {_name(data)}, not {_NAMES[expected]}")
    if expected is float and not math.isfinite(data):
        raise Damaged(f"{where} is no finite number")
    if expected is int and not -(1 << 63) <= data < 1 << 64:
        raise Damaged(f"{where} is a number of more than 64 bits")
    return data


_NAMES: dict[Any, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def _name(data: Any) -> str:
    return (
        "null"
        if data is None
        else _NAMES.get(type(data), "an object" if isinstance(data, dict) else "a list")
    )
