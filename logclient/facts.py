"""What the user attaches to a run: config and summary, and how any value becomes JSON.

Runs in the training process; each change writes a document (memory only, no system call).

Nested values are copies and read-only: `run.config["a"]["b"] = 1` raises where the user wrote it, since such a
change could not be seen.
"""

from __future__ import annotations

from _collections_abc import MutableMapping
from types import MappingProxyType

from . import values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

MOST_ITEMS = 20_000
_MOST_TEXT = 64 << 10


class Facts(MutableMapping):  # type: ignore[type-arg]
    """A dict whose changes are stored with the run."""

    __slots__ = ("_data", "_notice", "_write")

    def __init__(
        self, write: Callable[[dict[str, Any]], None], notice: Callable[[str, str], object], data: Mapping[Any, Any]
    ) -> None:
        self._write = write
        self._notice = notice
        self._data: dict[str, Any] = plain(data, notice)

    def __getitem__(self, key: str) -> Any:
        return _frozen(self._data[key])

    def __setitem__(self, key: object, value: object) -> None:
        self.update({key: value})

    def __delitem__(self, key: str) -> None:
        del self._data[key]
        self._write(self._data)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._data))

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return repr(self._data)

    def update(self, *others: Any, **more: Any) -> None:  # type: ignore[override]
        """Like `dict.update`; one document for all of it."""
        merged: dict[Any, Any] = {}
        for other in others:
            merged.update(other)
        merged.update(more)
        self._data = {**self._data, **plain(merged, self._notice)}
        self._write(self._data)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(item) for key, item in value.items()})
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def plain(data: Mapping[Any, Any], notice: Callable[[str, str], object]) -> dict[str, Any]:
    """A deep copy that JSON can hold; what it cannot is written as text, cut at stated limits, and said once."""
    budget = [MOST_ITEMS]
    copy = _plain(data, 1, set(), budget, notice)
    return copy if isinstance(copy, dict) else {}


def _plain(value: Any, depth: int, path: set[int], budget: list[int], notice: Callable[[str, str], object]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        notice("config size", f"config or summary of more than {MOST_ITEMS:,} items: the rest is left out")
        return None
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, (dict, MutableMapping, MappingProxyType, list, tuple, set, frozenset)):
        if id(value) in path or depth > values.MOST_DEPTH:
            notice("config depth", f"config or summary nested deeper than {values.MOST_DEPTH} levels is cut there")
            return "..."
        path.add(id(value))
        try:
            if isinstance(value, (dict, MutableMapping, MappingProxyType)):
                copy: dict[str, Any] = {}
                for key, item in tuple(value.items()):
                    if budget[0] <= 0:
                        _plain(None, depth, path, budget, notice)
                        break
                    name = key if type(key) is str else str(key)
                    copy[_text(name)] = _plain(item, depth + 1, path, budget, notice)
                return copy
            return [_plain(item, depth + 1, path, budget, notice) for item in tuple(value)[:MOST_ITEMS]]
        finally:
            path.discard(id(value))
    if isinstance(value, str):
        return _text(str.__str__(value))
    try:
        code, number = values.convert(value)
        return bool(number) if code == "b" else number
    except values.LeftOut:
        pass
    try:
        return _text(str(value))
    except Exception as error:  # noqa: BLE001 - foreign __str__
        if values.is_users(error):
            raise
        return f"<{type(value).__name__}>"


def _text(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _MOST_TEXT else text[:_MOST_TEXT] + "..."
