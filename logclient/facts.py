"""Config and summary of a run, as the user sets them. `nested_config.py` turns any value into JSON.

Runs in the training process; each change writes a document (memory only, no system call, unless it is large).

Nested values are copies and read-only: `run.config["a"]["b"] = 1` raises where the user wrote it, since such a
change could not be seen.
"""

from __future__ import annotations

from _collections_abc import MutableMapping

from .encode.nested_config import plain, settings_of
from .guest import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

    Notice = Callable[[str, str], object]


class Facts(MutableMapping):  # type: ignore[type-arg]
    """A dict whose changes are stored with the run."""

    __slots__ = ("_data", "_notice", "_write")

    def __init__(
        self, write: Callable[[dict[str, Any]], object], notice: Notice, data: dict[str, Any]
    ) -> None:
        """Wrap the plain entries in `data`, which is changed in place."""
        self._write = write
        self._notice = notice
        self._data = data

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
        """Like `dict.update`, in one document, with any object that has settings (`nested.entries_of`).

        What has none is left out and said, and nothing raises.
        """
        self._change(self._merged(others, more))

    def replace(self, data: Any) -> None:
        """Hold these entries and no others; what is no mapping changes nothing."""
        if not isinstance(data, Facts) or data._data is not self._data:
            merged = self._merged((data,), {})
            if merged or type(data) is dict:
                self._change(merged, dropped=tuple(self._data))

    def __ior__(self, other: Any) -> Facts:
        self.update(other)
        return self

    def _merged(self, others: tuple[Any, ...], more: dict[str, Any]) -> dict[Any, Any]:
        merged: dict[Any, Any] = {}
        for other in others:
            found = settings_of(other)
            try:
                foreign.call(merged.update, other if found is None else found)
            except foreign.Failed:
                what = f"a config or summary takes settings with names, not a {type(other).__name__}: it is left out"
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
