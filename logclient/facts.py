"""What the user attaches to a run: config and summary, and how any value becomes JSON.

Runs in the training process; each change writes a document (memory only, no system call, unless it is large).

Nested values are copies and read-only: `run.config["a"]["b"] = 1` raises where the user wrote it, since such a
change could not be seen.
"""

from __future__ import annotations

from _collections_abc import Mapping, MutableMapping

from . import foreign, keys, tensor, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    Notice = Callable[[str, str], object]

MOST_ITEMS = 20_000
MOST_BYTES = 4 << 20  # of all texts together: what does not fit a slot takes shared memory
_MOST_TEXT = 64 << 10


class Facts(MutableMapping):  # type: ignore[type-arg]
    """A dict whose changes are stored with the run."""

    __slots__ = ("_data", "_notice", "_write")

    def __init__(
        self, write: Callable[[dict[str, Any]], object], notice: Notice, data: Mapping[Any, Any]
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

    def update(self, *others: Any, **more: Any) -> None:
        """Like `dict.update`, in one document; what is no mapping is left out and said, and nothing raises."""
        self._change(self._merged(others, more))

    def replace(self, data: Any) -> None:
        """Hold these entries and no others; what is no mapping changes nothing."""
        if data is not self:
            merged = self._merged((data,), {})
            if merged or type(data) is dict:
                self._change(merged, dropped=tuple(self._data))

    def __ior__(self, other: Any) -> Facts:
        self.update(other)
        return self

    def _merged(self, others: tuple[Any, ...], more: dict[str, Any]) -> dict[Any, Any]:
        merged: dict[Any, Any] = {}
        for other in others:
            try:
                foreign.call(merged.update, other)
            except foreign.Failed:
                what = f"a config or summary takes a dict, not a {type(other).__name__}: it is left out"
                self._notice("config update", what)
        merged.update(more)
        return merged

    def _change(self, merged: dict[Any, Any], dropped: tuple[str, ...] = ()) -> None:
        """Store the change; where the whole would be larger than a document may be, the change is taken back."""
        before = dict(self._data)
        for name in dropped:
            self._data.pop(name, None)
        self._data.update(plain(merged, self._notice))  # in place: a writer that was interrupted sees it too
        if self._write(self._data) is False:
            for name in tuple(self._data):
                if name not in before:
                    del self._data[name]
            self._data.update(before)
            self._write(self._data)


class Frozen(dict):  # type: ignore[type-arg]
    """A nested dict of a config or summary, as read back: a copy that refuses changes."""

    __slots__ = ()

    def _refuse(self, *args: object, **more: object) -> NoReturn:
        raise TypeError(
            "a nested config or summary cannot be changed in place; assign its whole top-level key"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _frozen(value: Any) -> Any:
    if type(value) is dict:
        return Frozen((key, _frozen(item)) for key, item in tuple(value.items()))
    return tuple(map(_frozen, value)) if type(value) is list else value


def plain(data: Mapping[Any, Any], notice: Notice) -> dict[str, Any]:
    """A deep copy that JSON can hold; what it cannot is written as text, cut at stated limits, and said once."""
    copy = _Copier(notice).copy(data, 1)
    return copy if type(copy) is dict else {}


class _Copier:
    """One deep copy and what is left of its limits."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._items = MOST_ITEMS
        self._bytes = MOST_BYTES
        self._path: set[int] = set()

    def copy(self, value: Any, depth: int) -> Any:
        kind = type(value)  # isinstance() would ask the object itself, which may be foreign code
        self._items -= 1
        if value is None or kind in (bool, float):
            return value
        if issubclass(kind, str):
            return self._text(str.__str__(value))
        is_mapping = _is_mapping(kind)
        if is_mapping or issubclass(kind, (list, tuple, set, frozenset)):
            if id(value) in self._path or depth > values.MOST_DEPTH:
                what = f"config or summary nested deeper than {values.MOST_DEPTH} levels, or in itself, is cut there"
                self._notice("config depth", what)
                return "..."
            self._path.add(id(value))
            try:
                return self._mapping(value, depth) if is_mapping else self._sequence(value, depth)
            except foreign.Failed as error:
                return f"<{kind.__name__} that raised {error}>"
            finally:
                self._path.discard(id(value))
        return self._scalar(value)

    def _is_full(self) -> bool:
        if self._items > 0 and self._bytes > 0:
            return False
        limits = f"{MOST_ITEMS:,} items or {MOST_BYTES >> 20} MiB of text"
        self._notice("config size", f"config or summary of more than {limits}: the rest is left out")
        return True

    def _mapping(self, value: Any, depth: int) -> dict[str, Any]:
        copy: dict[str, Any] = {}
        for key, item in foreign.call(_entries, value):
            if self._is_full():
                break
            try:
                name = key if type(key) is str and keys.is_text(key) else keys.name_of(key, value)
            except keys.NoName as why:
                self._notice(f"config key {why}", f"an entry of a config or summary is left out: {why}")
                continue
            self._bytes -= len(name)
            copy[name] = self.copy(item, depth + 1)
        return copy

    def _sequence(self, value: Any, depth: int) -> list[Any]:
        copy = []
        for item in foreign.call(tuple, value):
            if self._is_full():
                break
            copy.append(self.copy(item, depth + 1))
        return copy

    def _scalar(self, value: Any) -> Any:
        try:
            code, number = values.convert(value)
            return bool(number) if code == "b" else number
        except values.LeftOut as why:
            if issubclass(type(value), int):
                return self._text(hex(int.conjugate(value)))
            if tensor.is_tensor(value):  # its text could be a wait for the device
                return f"<{why}>"
        try:
            return self._text(foreign.call(str, value))
        except foreign.Failed:
            return f"<{type(value).__name__}>"

    def _text(self, text: str) -> str:
        text = text.encode("utf-8", "backslashreplace").decode()
        if len(text) > _MOST_TEXT:
            text = text[:_MOST_TEXT] + "..."
        self._bytes -= len(text)
        return text


def _is_mapping(kind: type) -> bool:
    try:
        return bool(issubclass(kind, dict) or foreign.call(issubclass, kind, Mapping))
    except foreign.Failed:
        return False


def _entries(value: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple(value.items())
