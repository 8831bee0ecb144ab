"""Config and summary as code written for W&B uses them: entries and attributes alike.

Runs in the training process. What is stored is the run's own config and summary (`logclient.facts`).
"""

from __future__ import annotations

from _collections_abc import Mapping, MutableMapping

from logclient.errors import BadArgument
from logclient.guest import foreign

from .stand_ins import Inert

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
        self.__dict__["_data"] = self.__dict__["_items"] = {}  # the second name is W&B's own

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
        if name in ("_store", "_data", "_items", "_locked"):
            raise AttributeError(name)  # one that is only just being unpickled
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no entry {name!r}") from None

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (type(self), dict(self._data))

    def __repr__(self) -> str:
        return repr(self._data)

    def as_dict(self) -> dict[str, Any]:
        """A dict with the same entries."""
        return dict(self._data)

    def bind(self, store: Any) -> None:
        """Store changes there from now on; what is there already comes first."""
        early = self.as_dict()
        self.__dict__["_store"] = store
        self._data.clear()
        self._data.update({key: store[key] for key in store})
        if early:
            self._data.update(early)
            store.update(early)


def _copy(kind: type[_Entries], data: dict[str, Any]) -> _Entries:
    made = kind({})
    made._data.update(data)
    return made


class Config(_Entries):
    """`wandb.config`: an entry keeps its first value, unless `allow_val_change` says otherwise.

    Entries that a sweep sets (`lock`) keep its values, whatever the program gives afterwards.
    """

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.__dict__["_locked"] = frozenset()

    def __setitem__(self, key: str, value: object) -> None:
        self.update({key: value})

    def update(self, d: Any = None, allow_val_change: bool | None = None, **more: Any) -> None:  # type: ignore[override]
        """Take in a dict, or an object with attributes (argparse, absl). Raises `ConfigError` for other values."""
        given = {**as_dict(d), **more}
        given = {key: value for key, value in given.items() if key not in self._locked}
        for key, value in given.items():
            if not allow_val_change and key in self._data and not _is_same(self._data[key], value):
                raise ConfigError(
                    f"config key {key!r} has another value already; "
                    "if that is meant, pass allow_val_change=True to config.update()"
                )
        self._data.update(given)
        self._store.update(given)

    def lock(self, given: Mapping[str, Any]) -> None:
        """Take in what a sweep has chosen, and keep it."""
        self.update(given, allow_val_change=True)
        self.__dict__["_locked"] = frozenset(given)

    def setdefaults(self, d: Any) -> None:
        """Take in what is not there yet."""
        self.update({key: value for key, value in as_dict(d).items() if key not in self._data})

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


def entries_of(facts: Config | Summary) -> dict[str, Any]:
    """Return the dict that holds the entries. A function, since attributes of `facts` are the user's entries."""
    return facts._data  # type: ignore[no-any-return]


def as_dict(given: Any) -> dict[str, Any]:
    """The entries of a mapping, of absl's flags, or of an object with attributes; of None and stand-ins, nothing."""
    if given is None or isinstance(given, Inert):
        return {}
    if isinstance(given, Mapping):
        return {key: _item(given, key) for key in given}
    if hasattr(given, "flag_values_dict"):
        return dict(given.flag_values_dict())
    if hasattr(given, "_asdict"):
        return dict(given._asdict())
    try:
        return dict(vars(given))
    except TypeError:
        pass
    names = [field.name for field in getattr(given, "__attrs_attrs__", ())]
    names += getattr(given, "__dataclass_fields__", ())
    if names:
        return {name: getattr(given, name) for name in names if hasattr(given, name)}
    raise BadArgument(f"a config is a dict or an object with attributes, not a {type(given).__name__}")


def _item(given: Any, key: Any) -> Any:
    """An entry; a text where the mapping cannot give it, such as a value of OmegaConf's that is missing."""
    try:
        return foreign.call(given.__getitem__, key)
    except foreign.Failed as error:
        return f"<{error}>"


def of_file(path: str) -> tuple[dict[str, Any], str]:
    """The entries of a YAML file, each a value or a dict with `value`; or why there are none."""
    try:
        import yaml  # optional: a program that has such a file has it
    except ImportError:
        return {}, f"config file {path} is left out: it needs PyYAML (pip install pyyaml)"
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        return {}, f"config file {path} is left out: {' '.join(str(error).split())[:200]}"
    if not isinstance(found, dict):
        return {}, f"config file {path} is left out: it holds no entries"
    return {str(key): _value(entry) for key, entry in found.items() if key != "wandb_version"}, ""


def _value(entry: Any) -> Any:
    is_wrapped = isinstance(entry, dict) and "value" in entry and not entry.keys() - {"value", "desc"}
    return entry["value"] if is_wrapped else entry


def _is_same(one: Any, other: Any) -> bool:
    """Compare plain values only: arrays and tensors are never the same, since comparing could wait for a device."""
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
