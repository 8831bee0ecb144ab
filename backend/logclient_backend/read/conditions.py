"""Conditions on runs: `"config.lr < 0.01"`, `config={"lr": 0.1}`, `tags="base"`. Pure.

A name in a config or summary means, in this order: the key that is called so at the top; the path with `::` between its
levels, as `log` and the HTTP API join them; the path with dots. Of `{"a": {"b": 1}, "a.b": 2, "a/b": 3}` each is found:
`a::b` is 1, `a.b` is 2, and `a/b` is 3. Items of lists go by their index.

Numbers compare with numbers, texts with texts, True and False with themselves: `True` is not 1, and 1 is not `"1"`.
What a run does not have meets no condition but `!=`.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from logclient.errors import BadArgument

from ..runs.flatten import SEPARATOR

if TYPE_CHECKING:
    from .run import Run

Condition = Callable[["Run"], bool]
MISSING = object()  # a run has no such value
FIELDS = ("id", "name", "project", "group", "state", "tags", "created")
TREES = ("config", "summary")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT = re.compile(r"\s*(.+?)\s*(==|!=|<=|>=|=|<|>|\bcontains\b)\s*(.*?)\s*", re.DOTALL)
_WORDS = {"True": True, "False": False, "None": None}


def of_text(text: str) -> Condition:
    """Return the condition of a sentence like `config.lr < 0.01`, `state != failed` or `tags contains base`."""
    if not isinstance(text, str):
        raise BadArgument(f'where: {text!r} is no text; a condition is one, as "config.lr < 0.01"')
    match = _TEXT.fullmatch(text)
    if match is None:
        raise BadArgument(
            f'where: {text!r} is no condition: expected NAME OPERATOR VALUE, as "config.lr < 0.01", with one of '
            "= != < <= > >= contains"
        )
    name, sign, given = match.groups()
    read = reader_of(name)
    wanted = _moment(given) if name == "created" else _value(given)
    if sign == "contains":
        return lambda run: _contains(read(run), wanted)
    if sign in ("=", "=="):
        return lambda run: is_same(read(run), wanted)
    if sign == "!=":
        return lambda run: not is_same(read(run), wanted)
    compare = _OPERATORS[sign]
    return lambda run: _is_comparable(read(run), wanted) and compare(read(run), wanted)


def reader_of(name: str) -> Callable[[Run], Any]:
    """Return what reads a field of a run, `config.NAME` or `summary.NAME`; it gives MISSING where a run has none."""
    tree, dot, key = name.partition(".")
    if name in FIELDS:
        return lambda run: getattr(run, name)
    if not dot:
        tree, dot, key = name.partition(SEPARATOR)
    if tree not in TREES or not key:
        known = ", ".join(FIELDS)
        raise BadArgument(
            f"{name!r} is nothing that runs have: there are {known}, config.NAME and summary.NAME"
        )
    return lambda run: find(getattr(run, tree), key)


def of_field(name: str, wanted: Any) -> Condition:
    """Return the condition that a text of a run is this one, or one of these."""
    if isinstance(wanted, str):
        return lambda run: bool(getattr(run, name) == wanted)
    if isinstance(wanted, (list, tuple, set, frozenset)) and all(isinstance(each, str) for each in wanted):
        return lambda run: getattr(run, name) in wanted
    raise BadArgument(f"{name}={wanted!r}: expected a text, or several of which one is to match")


def of_tags(wanted: Any) -> Condition:
    """Return the condition that a run has this tag, or all of these."""
    tags = (wanted,) if isinstance(wanted, str) else wanted
    if not isinstance(tags, (list, tuple, set, frozenset)) or not all(isinstance(tag, str) for tag in tags):
        raise BadArgument(f"tags={wanted!r}: expected a tag, or several that a run must all have")
    return lambda run: all(tag in run.tags for tag in tags)


def of_tree(tree: str, wanted: Any) -> list[Condition]:
    """Return the conditions of `config={"lr": 0.1, "opt": {"name": "adam"}}`: one for each value."""
    if not isinstance(wanted, Mapping):
        raise BadArgument(f'{tree}={wanted!r}: expected a dict, as {tree}={{"lr": 0.1}}')
    return [_of_entry(tree, str(key), value) for key, value in wanted.items()]


def _of_entry(tree: str, key: str, wanted: Any) -> Condition:
    return lambda run: _fits(find(getattr(run, tree), key), wanted)


def _fits(found: Any, wanted: Any) -> bool:
    if callable(wanted):
        return found is not MISSING and bool(wanted(found))
    if isinstance(wanted, (set, frozenset)):
        return any(is_same(found, each) for each in wanted)
    if isinstance(wanted, Mapping) and wanted:
        return isinstance(found, Mapping) and all(
            _fits(found.get(str(key), MISSING), value) for key, value in wanted.items()
        )
    return is_same(found, wanted)


def find(tree: Any, name: str) -> Any:
    """Return the value of that name in a config or summary, or MISSING; see the top of this module."""
    if isinstance(tree, Mapping) and name in tree:
        return tree[name]
    found = _walk(tree, name, SEPARATOR)
    return _walk(tree, name, ".") if found is MISSING else found


def _walk(tree: Any, name: str, between: str) -> Any:
    """Follow a path; of keys that hold the separator themselves the longest that is there counts."""
    if isinstance(tree, (list, tuple)):
        head, _, rest = name.partition(between)
        if not head.isdecimal() or int(head) >= len(tree):
            return MISSING
        item = tree[int(head)]
        return _walk(item, rest, between) if rest else item
    if not isinstance(tree, Mapping):
        return MISSING
    if name in tree:
        return tree[name]
    at = name.rfind(between)
    while at > 0:
        if name[:at] in tree:
            found = _walk(tree[name[:at]], name[at + len(between) :], between)
            if found is not MISSING:
                return found
        at = name.rfind(between, 0, at)
    return MISSING


def is_same(found: Any, wanted: Any) -> bool:
    """Equal, and of one kind: numbers, texts, True and False, None, lists, dicts."""
    if isinstance(found, (list, tuple)) and isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(is_same, found, wanted))
    return _kind(found) == _kind(wanted) and bool(found == wanted)


def _is_comparable(found: Any, wanted: Any) -> bool:
    return _kind(found) == _kind(wanted) in ("number", "text", "time")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, datetime):
        return "time"
    return "text" if isinstance(value, str) else type(value).__name__


def _contains(found: Any, wanted: Any) -> bool:
    """Is the text part of a text, or the value one of a list?"""
    if isinstance(found, str):
        return str(wanted) in found
    return isinstance(found, (list, tuple)) and any(is_same(each, wanted) for each in found)


def _value(text: str) -> Any:
    """Return the value as JSON or Python writes it; else the text as it stands."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip("'\""))
    except ValueError:
        raise BadArgument(
            f"where: created is compared with a date, as 2026-01-31, not with {text!r}"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
