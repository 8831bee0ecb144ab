"""Nested settings as users have them: which objects have entries, and a bounded deep copy that JSON can hold.

Runs in the training process, whenever a config or summary changes.

Invariants:

- a type tells by protocol whether its objects have entries (see `entries_of`); any other object is kept as its text;
- an entry that cannot be had costs that entry: its place says what was raised; what a signal handler raises passes;
- limits are shared fairly: maps and lists take turns, outer levels first, so that small ones are whole and the largest
  maps, lists and texts are cut; cuts are named in notices;
- cycles end, and depth is bounded.
"""

from __future__ import annotations

import sys
from _collections_abc import Mapping

from ..guest import foreign
from . import keys, tensor, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Notice = Callable[[str, str], object]
    Entries = list[tuple[Any, Any]]

MAX_ITEMS = 20_000
MAX_BYTES = 4 << 20  # of all texts together: what does not fit a slot takes shared memory
MAX_TEXT = 64 << 10  # characters of one text
_SHORT_TEXT = 256  # characters up to which a text is kept before longer ones are cut
_MAX_NAMED = 20  # cuts that are named one by one
_TURN = 256  # entries of one map or list that are copied before others have their turn
_LISTS = (list, tuple, set, frozenset)


class Bad:
    """Stands for an entry that could not be had."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


def settings_of(value: Any) -> dict[Any, Any] | None:
    """Return the named entries of a config object, as they are; None where it has none."""
    try:
        entries = entries_of(value)
    except foreign.Failed:
        return None
    return None if entries is None or is_list(type(value)) else dict(entries)


def is_list(kind: type) -> bool:
    """Return whether the entries of such objects have places and no names."""
    lists = getattr(sys.modules.get("omegaconf"), "ListConfig", None)
    return issubclass(kind, _LISTS) or (lists is not None and issubclass(kind, lists))


def entries_of(value: Any) -> Entries | None:
    """Return (name or place, value) of each entry, `Bad` for one that raises; None for what has no entries.

    Entries have: mappings; lists, tuples and sets; dataclasses; objects of attrs and pydantic; OmegaConf's containers;
    `argparse.Namespace` and `types.SimpleNamespace`. Only the type is asked. Raises `foreign.Failed` where the
    entries cannot be listed.
    """
    kind = type(value)
    if kind is dict:
        return list(value.items())
    if is_list(kind):
        if issubclass(kind, _LISTS):
            return list(enumerate(foreign.call(tuple, value)))
        return _each(value, range(foreign.call(len, value)), _item)
    if _is_mapping(kind):
        return _each(value, foreign.call(tuple, value), _item)
    if _has(kind, "__dataclass_fields__"):
        return _each(value, tuple(kind.__dataclass_fields__), getattr)
    if _has(kind, "__attrs_attrs__"):
        return _each(value, tuple([field.name for field in kind.__attrs_attrs__]), getattr)
    if _has(kind, "model_dump"):
        return _of_model(value, kind)
    namespace = getattr(sys.modules.get("argparse"), "Namespace", None)
    if issubclass(kind, type(sys.implementation)) or (namespace is not None and issubclass(kind, namespace)):
        return list(foreign.call(vars, value).items())
    return None


def _has(kind: type, name: str) -> bool:
    """Return whether the class, or one that it comes from, defines this: nothing of the class is called."""
    return any([name in vars(base) for base in kind.__mro__])  # noqa: C419


def _is_mapping(kind: type) -> bool:
    try:
        return bool(issubclass(kind, dict) or foreign.call(issubclass, kind, Mapping))
    except foreign.Failed:
        return False


def _item(value: Any, key: Any) -> Any:
    return value[key]


def _each(value: Any, names: Iterable[Any], read: Callable[[Any, Any], Any]) -> Entries:
    entries: Entries = []
    for name in names:
        try:
            entries.append((name, foreign.call(read, value, name)))
        except foreign.Failed as error:
            entries.append((name, Bad(str(error))))
    return entries


def _of_model(value: Any, kind: Any) -> Entries | None:
    """Return the entries of a model as it writes itself; field by field where that fails."""
    for options in ({"warnings": False}, {}):  # the first is pydantic's: it would write to standard error
        try:
            written = foreign.call(lambda: kind.model_dump(value, **options))  # noqa: B023 - called at once
        except foreign.Failed:
            continue
        if type(written) is dict:
            return list(written.items())
    fields = getattr(kind, "model_fields", None)
    return _each(value, tuple(fields), getattr) if type(fields) is dict else None


class _Node:
    """A map or list that is to be copied: where from, where to, and what it lies in."""

    __slots__ = ("above", "copy", "depth", "entries", "name", "taken", "value")

    def __init__(self, value: Any, entries: Entries, name: str, above: _Node | None) -> None:
        self.value = value  # kept: its id is compared
        self.entries = entries
        self.taken = 0  # of them
        self.name = name
        self.above = above
        self.depth: int = 1 if above is None else above.depth + 1
        self.copy: Any = [] if is_list(type(value)) else {}

    def holds(self, value: object) -> bool:
        """Return whether this lies in `value`, or is it."""
        node: _Node | None = self
        while node is not None:
            if node.value is value:
                return True
            node = node.above
        return False


def plain(data: Mapping[Any, Any], notice: Notice) -> dict[str, Any]:
    """Return a deep copy that JSON can hold; what it cannot is text. What the limits cut is named in a notice."""
    return _Copier(notice).copy(data)


class _Copier:
    """One deep copy, and what is left of its limits."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self._items = MAX_ITEMS
        self._bytes = MAX_BYTES
        self._queue: list[_Node] = []  # maps and lists that are not copied whole yet
        self._long: list[tuple[Any, Any, str, str]] = []  # (copy, name or place in it, text, its whole name)

    def copy(self, data: Mapping[Any, Any]) -> dict[str, Any]:
        root = _Node(data, entries_of(data) or [], "", None)
        self._queue.append(root)
        while self._queue and self._items > 0 and self._bytes > 0:
            turns, self._queue = self._queue, []
            for node in turns:
                self._take(node)
        cuts = [
            (
                node.name,
                len(node.entries),
                f"{len(node.entries):,} entries, of which {node.taken:,} are stored",
            )
            for node in self._queue
        ]
        self._notice_cuts([*cuts, *self._put_long()])
        return root.copy  # type: ignore[no-any-return]

    def _put_long(self) -> list[tuple[str, int, str]]:
        """Copy the long texts, the shortest first; return those that are cut."""
        cuts = []
        self._long.sort(key=lambda each: len(each[2]))
        for index, (copy, name, text, whole) in enumerate(self._long):
            room = max(0, min(MAX_TEXT, self._bytes // (len(self._long) - index)))
            if len(text) > room:
                cuts.append(
                    (whole, len(text), f"a text of {len(text):,} characters, of which {room:,} are stored")
                )
                text = text[:room] + "..."
            self._bytes -= len(text)
            copy[name] = text
        return cuts

    def _take(self, node: _Node) -> None:
        """Copy the next entries of this one, with short texts; maps and lists in it get turns of their own."""
        stop = min(len(node.entries), node.taken + min(_TURN, max(0, self._items)))
        self._items -= stop - node.taken
        for name, value in node.entries[node.taken : stop]:
            if self._bytes <= 0:
                break
            node.taken += 1
            if type(node.copy) is list:
                shown: Any = len(node.copy)
                node.copy.append(None)
            else:
                try:
                    shown = (
                        name if type(name) is str and keys.is_text(name) else keys.name_of(name, node.value)
                    )
                except keys.NoName as why:
                    self._notice(f"config key {why}", f"an entry of a config or summary is left out: {why}")
                    continue
                self._bytes -= len(shown)
                node.copy[shown] = None
            self._put(node, shown, value)
        if node.taken < len(node.entries):
            self._queue.append(node)

    def _put(self, node: _Node, name: Any, value: Any) -> None:
        """Copy one entry, or leave it for the next level or for the end."""
        whole = f"{node.name}.{name}" if node.name else str(name)
        if type(value) is Bad:
            self._notice(
                f"config entry {whole}", f"{whole[:200]} of a config or summary cannot be had: {value.why}"
            )
            node.copy[name] = f"<raised {value.why}>"
            return
        try:
            entries = entries_of(value)
        except foreign.Failed as error:
            node.copy[name] = f"<{type(value).__name__} that raised {error}>"
            return
        if entries is None:
            plainly = _scalar(value)
            if type(plainly) is str and len(plainly) > _SHORT_TEXT:
                self._long.append((node.copy, name, plainly, whole))
                return
            if type(plainly) is str:
                self._bytes -= len(plainly)
            node.copy[name] = plainly
            return
        if node.depth >= values.MAX_DEPTH or node.holds(value):
            what = (
                f"config or summary nested deeper than {values.MAX_DEPTH} levels, or in itself, is cut there"
            )
            self._notice("config depth", what)
            node.copy[name] = "..."
            return
        below = _Node(value, entries, whole, node)
        node.copy[name] = below.copy
        self._queue.append(below)

    def _notice_cuts(self, cuts: list[tuple[str, int, str]]) -> None:
        """Name what was cut (name, size, how), the largest first."""
        limits = (
            f"at most {MAX_ITEMS:,} entries, {MAX_BYTES >> 20} MiB of text, {MAX_TEXT >> 10} KiB in one text"
        )
        cuts.sort(key=lambda each: -each[1])
        for name, _, how in cuts[:_MAX_NAMED]:
            where = f"{name[:200]} of a config or summary" if name else "a config or summary"
            self._notice(f"config size {name[:200]}", f"{where} is cut: {how} ({limits})")
        if len(cuts) > _MAX_NAMED:
            more = f"{len(cuts) - _MAX_NAMED:,} more entries of a config or summary are cut ({limits})"
            self._notice("config size", more)


def _scalar(value: Any) -> Any:
    """Return the value as JSON holds it; as text where JSON does not."""
    kind = type(value)  # isinstance() would ask the object itself, which may be foreign code
    if value is None or kind in (bool, float):
        return value
    if issubclass(kind, str):
        return _text(str.__str__(value))
    try:
        code, number = values.convert(value)
        return bool(number) if code == "b" else number
    except values.LeftOut as why:
        if issubclass(kind, int):
            return _text(hex(int.conjugate(value)))
        if tensor.is_tensor(value):  # its text could be a wait for the device
            return f"<{why}>"
    try:
        return _text(foreign.call(str, value))
    except foreign.Failed:
        return f"<{kind.__name__}>"


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
