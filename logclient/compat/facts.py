"""Config and summary as code written for W&B uses them: entries and attributes alike.

Runs in the training process. What is stored is the run's own config and summary (`logclient.facts`).
"""

from __future__ import annotations

from _collections_abc import Mapping, MutableMapping

from logclient.errors import BadArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class ConfigError(BadArgument):
    """An entry of the config has another value already."""


class _Entries(MutableMapping):  # type: ignore[type-arg]
    """A dict whose entries are attributes, too; `_store` is where changes go."""

    def __init__(self, store: Any) -> None:
        self.__dict__["_store"] = store
        self.__dict__["_data"] = {}

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __delitem__(self, key: str) -> None:
        del self._data[key]
        self._store.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._data))

    def __len__(self) -> int:
        return len(self._data)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no entry {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __repr__(self) -> str:
        return repr(self._data)


class Config(_Entries):
    """`wandb.config`: an entry keeps its first value, unless `allow_val_change` says otherwise."""

    def __setitem__(self, key: str, value: object) -> None:
        self.update({key: value})

    def update(self, d: Any = None, allow_val_change: bool | None = None, **more: Any) -> None:  # type: ignore[override]
        """Take in a dict, or an object with attributes (argparse, absl). Raises `ConfigError` for other values."""
        given = {**as_dict(d), **more}
        for key, value in given.items():
            if not allow_val_change and key in self._data and not _is_same(self._data[key], value):
                raise ConfigError(
                    f"config key {key!r} has another value already; "
                    "if that is meant, pass allow_val_change=True to config.update()"
                )
        self._data.update(given)
        self._store.update(given)

    def setdefaults(self, d: Any) -> None:
        """Take in what is not there yet."""
        self.update({key: value for key, value in as_dict(d).items() if key not in self._data})

    def as_dict(self) -> dict[str, Any]:
        return dict(self._data)

    def persist(self) -> None:
        """Nothing to do: changes are stored when they are made."""


class Summary(_Entries):
    """`wandb.summary`: what is set is stored at once; the last values of what was logged, when the run ends."""

    def __getitem__(self, key: str) -> Any:
        data = self._data
        if key in data:
            return data[key]
        inside = {name[len(key) + 1 :]: value for name, value in data.items() if name.startswith(f"{key}.")}
        if not inside:
            raise KeyError(key)
        return inside

    def __setitem__(self, key: str, value: object) -> None:
        self._data[key] = value
        self._store[key] = value

    def update(self, d: Any = None, **more: Any) -> None:  # type: ignore[override]
        given = {**as_dict(d), **more}
        self._data.update(given)
        self._store.update(given)

    def store(self) -> None:
        """All of it, with what has come from `log`."""
        if self._data:
            self._store.update(self._data)


def as_dict(given: Any) -> dict[str, Any]:
    """Of a dict, of an object's attributes, of absl's flags; nothing of None."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if hasattr(given, "flag_values_dict"):
        return dict(given.flag_values_dict())
    try:
        return dict(vars(given))
    except TypeError:
        raise BadArgument(
            f"a config is a dict or an object with attributes, not a {type(given).__name__}"
        ) from None


def _is_same(one: Any, other: Any) -> bool:
    """As far as plain values can tell; arrays and tensors are not compared, which could wait for a device."""
    if one is other:
        return True
    kinds = (bool, int, float, str, type(None), list, tuple, dict)
    if not isinstance(one, kinds) or not isinstance(other, kinds):
        return False
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return bool(one == other)
