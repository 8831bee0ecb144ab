"""Names of series: which strings are kept as they are, and what becomes of the others.

One rule, collision-free:

- a string of 1 to 512 UTF-8 bytes without NUL and without ``::`` is kept verbatim, whatever else it holds;
- nested dicts are flattened: the path ``{"a": {"b": 1}}`` becomes ``a::b``;
- an int key is its digits; True, False and None are their names; a float is its repr. Where the same dict
  holds that string too, it is escaped; so are bytes, enum members, and tuples of all these;
- what is refused (empty, NUL, too long, holding ``::``, no valid Unicode, or looking like an escaped name) is
  escaped: ``~`` + its first printable characters + ``~`` + 16 hex digits of a hash of the whole. So is a path that
  gets too long or whose colons could be read in two ways;
- a key of any other type has no name (`NoName`): its text would be an address, or a hidden wait for a device.

Does not: touch values, call anything of a key that is not plain. Runs in the training process; pure functions.
"""

from __future__ import annotations

import sys

from ..guest import foreign
from ..guest.digest import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SEPARATOR = "::"
MAX_BYTES = 512
_SHOWN = 48
_HEX = frozenset("0123456789abcdef")
_MAX_PARTS = 32  # of a tuple


class NoName(Exception):
    """The key cannot name a series; the message says why."""


def is_legal(name: str) -> bool:
    """Kept verbatim?"""
    if not name or "\0" in name or SEPARATOR in name or _looks_escaped(name):
        return False
    return _fits(name)


def escape(name: str, kind: bytes = b"text") -> str:
    """A legal-looking stand-in, distinct for each name and kind."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=kind).hexdigest()
    shown = "".join(c if c.isprintable() and c not in "~:" else "_" for c in name[:_SHOWN])
    return f"~{shown}~{digest}"


def name_of(key: object, siblings: object = ()) -> str:
    """The series name of a top-level key; `siblings` is the dict it stands in. Raises NoName."""
    if type(key) is str:
        return key if is_legal(key) else escape(key)
    if issubclass(type(key), str):
        return name_of(str.__str__(key))
    shown = _shown(key)
    is_number = key is None or type(key) in (int, float, bool) or _is_numpy(key)
    if is_number and _fits(shown) and not _holds(siblings, shown):
        return shown
    return escape(f"{type(key).__name__} {shown}", b"key")


def path(parent: str, key: object, siblings: object = ()) -> str:
    """The series name of a key inside the nested dict that has the name `parent`. Raises NoName."""
    name = name_of(key, siblings)
    joined = parent + SEPARATOR + name
    # `a:` + `b` and `a` + `:b` must not meet
    if name[0] == ":" or name[-1] == ":" or parent[-1] == ":" or not _fits(joined):
        return escape(f"{parent}\0{name}", b"path")
    return joined


def _shown(key: Any) -> str:
    """The text of a plain key; raises NoName for all others, before anything of them is called."""
    kind = type(key)
    if key is None or kind in (bool, complex, bytes):
        return repr(key)
    if kind is float:
        if key != key:
            raise NoName("a key that is not a number (NaN)")
        return repr(key)
    if kind is int:
        return repr(key) if key.bit_length() <= 4096 else hex(key)
    if kind is str:
        return repr(key)
    if kind is tuple and len(key) <= _MAX_PARTS:
        return f"({', '.join(map(_shown, key))})"
    enum = sys.modules.get("enum")
    if enum is not None and issubclass(kind, enum.Enum):
        try:
            return f"{foreign.call(getattr, key, '_name_')} of {kind.__module__}.{kind.__qualname__}"
        except foreign.Failed:
            pass
    if _is_numpy(key):
        try:
            item = foreign.call(kind.item, key)
        except foreign.Failed:
            item = key
        if type(item) in (bool, int, float):
            return _shown(item)
    raise NoName(f"a key of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", ""))


def _is_numpy(key: object) -> bool:
    numpy = sys.modules.get("numpy")
    generic = getattr(numpy, "generic", None)  # absent while numpy is being imported
    return generic is not None and issubclass(type(key), generic)


def _holds(siblings: object, name: str) -> bool:
    try:
        return bool(foreign.call(_contains, siblings, name))
    except foreign.Failed:  # other keys' __eq__ is not ours to trust
        return True


def _contains(siblings: object, name: str) -> bool:
    return name in siblings  # type: ignore[operator]


def is_text(name: str, most_bytes: int = 4096) -> bool:
    """Valid Unicode of at most so many bytes?"""
    if name.isascii():
        return len(name) <= most_bytes
    try:
        return len(name.encode()) <= most_bytes
    except UnicodeEncodeError as error:
        if foreign.is_users(error):
            raise
        return False


def _fits(name: str) -> bool:
    return is_text(name, MAX_BYTES)


def _looks_escaped(name: str) -> bool:
    return name[0] == "~" and len(name) > 17 and name[-17] == "~" and _HEX.issuperset(name[-16:])
