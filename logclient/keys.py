"""Names of series: which strings are kept as they are, and what becomes of the others.

One rule, collision-free:

- a string of 1 to 512 UTF-8 bytes without NUL and without ``::`` is kept verbatim, whatever else it holds;
- nested dicts are flattened: the path ``{"a": {"b": 1}}`` becomes ``a::b``;
- an int key is its digits; True, False and None are their names; a float is its repr. Where the same dict
  holds that string too, or the key is anything else, it is escaped;
- what is refused (empty, NUL, too long, holding ``::``, no valid Unicode, or looking like an escaped name) is
  escaped: ``~`` + its first printable characters + ``~`` + 16 hex digits of a hash of the whole.

Does not: touch values. Runs in the training process; pure functions.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL: 3 ms of import
except ImportError:  # another interpreter
    from hashlib import blake2b

SEPARATOR = "::"
MOST_BYTES = 512
_SHOWN = 48
_HEX = frozenset("0123456789abcdef")


def is_legal(name: str) -> bool:
    """Kept verbatim?"""
    if not name or "\0" in name or SEPARATOR in name or _looks_escaped(name):
        return False
    if name.isascii():
        return len(name) <= MOST_BYTES
    try:
        return len(name.encode()) <= MOST_BYTES
    except UnicodeEncodeError:
        return False


def escape(name: str) -> str:
    """A legal-looking, distinct stand-in for a string that is refused."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    shown = "".join(c if c.isprintable() and c not in "~:" else "_" for c in name[:_SHOWN])
    return f"~{shown}~{digest}"


def name_of(key: object, siblings: object = ()) -> str:
    """The series name of a top-level key; `siblings` is the dict it stands in."""
    if type(key) is str:
        return key if is_legal(key) else escape(key)
    if isinstance(key, str):
        return name_of(str.__str__(key))
    if key is None or type(key) in (int, float, bool):
        name = repr(key)
        try:
            taken = name in siblings  # type: ignore[operator]
        except Exception:  # a foreign mapping; its __contains__ is not ours to trust
            taken = True
        return escape(f"{type(key).__name__} {name}") if taken else name
    try:
        shown = repr(key)
    except Exception:  # foreign code
        shown = f"<{type(key).__name__}>"
    return escape(f"{type(key).__name__} {shown}")


def path(parent: str, key: object, siblings: object = ()) -> str:
    """The series name of a key inside the nested dict that has the name `parent`."""
    name = name_of(key, siblings)
    if name[0] == ":" or name[-1] == ":" or parent[-1] == ":":
        name = escape(f"{parent}\0{name}")  # `a:` + `b` and `a` + `:b` must not meet
        return name
    joined = parent + SEPARATOR + name
    return joined if len(joined.encode()) <= MOST_BYTES else escape(joined)


def _looks_escaped(name: str) -> bool:
    return name[0] == "~" and len(name) > 17 and name[-17] == "~" and _HEX.issuperset(name[-16:])
