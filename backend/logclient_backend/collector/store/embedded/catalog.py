"""Runs: their descriptions, what lists filter and sort by, and pages of them.

The writer's half (`describe`) runs in its transaction; the reader's half in any session.

Facts are a run's config and summary as (kind, key, type, value), named as in `runs/flatten.py`. A key is never part of
a query or a JSON path: it is a value that is compared. Types keep `True`, `1` and `"1"` apart. Texts are compared by
their first MAX_TEXT characters; {} and [] are the texts "{}" and "[]".

A list of 10,000 runs parses nothing: what it shows of a description (`brief`) is kept as the JSON that it was made of.

A page's cursor is what its last run sorts by: runs that come or go meanwhile neither repeat others nor hide them.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import Any

from logclient.errors import BadArgument

from ....runs.flatten import SEPARATOR, flattened
from ..interface import ANYWHERE, Description, Filter, Listed, Run, RunPage, RunQuery
from .last_seen import SeenRuns

SIDE = -2  # `deleted_ns` of the row of a side: neither among the runs nor in the bin
MAX_TEXT = 1000
MAX_FACTS = 100_000  # of a run's config, and of its summary

RUN = "run, id, description, last_seen_ns, records, points, bytes, deleted_ns"
_LISTED = "id, brief, state, last_seen_ns, records, points, bytes, deleted_ns, run"
_COLUMNS = {
    "id": "id",
    "project": "project",
    "name": "name",
    "group": "grp",
    "state": "state",
    "created_ns": "created_ns",
    "last_seen_ns": "last_seen_ns",
}
_FACTS = ("config", "summary", "tag")
_ANYWHERE = (
    " OR ".join(f"instr(lower({column}), ?1) > 0" for column in ("name", "id", "project", "grp"))
    + " OR run IN (SELECT f.run FROM facts AS f WHERE f.kind='tag' AND f.key='' AND instr(lower(f.value), ?1) > 0)"
).replace("?1", "lower(?)")
_COMPARES = {"=": "=", "!=": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "contains": "contains"}
_NUMBER, _BOOL, _TEXT, _NULL = "n", "b", "s", "z"


# ---- the writer's half --------------------------------------------------------------------------------------


def describe(connection: sqlite3.Connection, run: int, description: Description) -> None:
    """Store it in the place of what was known."""
    config, summary = dict(description.config), dict(description.summary)
    facts = json.dumps([config, summary, list(description.tags)], default=str)
    digest = blake2b(facts.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    known = connection.execute("SELECT facts FROM runs WHERE run=?", (run,)).fetchone()
    connection.execute(
        "UPDATE runs SET project=?, name=?, grp=?, state=?, created_ns=?, facts=?, attempts=?, brief=?, description=?"
        " WHERE run=?",
        (
            _clean(description.project),
            _clean(description.name),
            _clean(description.group),
            _clean(description.state),
            description.created_ns,
            digest,
            json.dumps(dict(description.attempts)),
            _brief(description),
            _pack(description),
            run,
        ),
    )
    if known is None or known[0] != digest:
        connection.execute("DELETE FROM facts WHERE run=?", (run,))
        connection.executemany(
            "INSERT INTO facts VALUES(?, ?, ?, ?, ?)",
            ((run, *fact) for fact in _facts(config, summary, description.tags)),
        )


def _facts(
    config: Mapping[str, Any], summary: Mapping[str, Any], tags: Iterable[str]
) -> Iterator[tuple[str, str, str, object]]:
    for kind, found in (("config", config), ("summary", summary)):
        for number, (key, value) in enumerate(flattened(found)):
            if number == MAX_FACTS:
                break
            yield kind, _clean(key), *_typed(value)
    for tag in tags:
        yield "tag", "", _TEXT, _clean(tag)[:MAX_TEXT]


def _typed(value: object) -> tuple[str, object]:
    if value is None:
        return _NULL, None
    if isinstance(value, bool):
        return _BOOL, int(value)
    if isinstance(value, int):
        return _NUMBER, value if -(1 << 63) <= value < 1 << 63 else _as_float(value)
    if isinstance(value, float):
        return (_NUMBER, value) if value == value else (_TEXT, "nan")  # SQLite has no NaN
    return _TEXT, _clean(str(value))[:MAX_TEXT]  # also of {} and []


def _as_float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _clean(text: str) -> str:
    """Return the text as UTF-8 can hold it."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _pack(description: Description) -> bytes:
    table = {each.name: getattr(description, each.name) for each in fields(Description)}
    for name in ("config", "summary", "counts", "attempts", "more"):
        table[name] = dict(table[name])
    return json.dumps(table, default=str).encode()


def _brief(description: Description) -> str:
    return json.dumps(description.brief(), allow_nan=False, separators=(",", ":"))


_UNKNOWN = _brief(Description())  # nothing was described yet


def unpack(data: bytes | None) -> Description:
    if data is None:
        return Description()
    table = json.loads(data)
    table["tags"], table["ranks"] = tuple(table["tags"]), tuple(table["ranks"])
    return Description(**table)


def make_side(connection: sqlite3.Connection, id: str) -> int:
    """Make the row for a side of a run (`interface.side_id`)."""
    made = connection.execute("INSERT INTO runs(id, deleted_ns) VALUES(?, ?)", (id, SIDE)).lastrowid
    assert made is not None
    return made


# ---- the reader's half --------------------------------------------------------------------------------------


def number_of(connection: sqlite3.Connection, run: str) -> int | None:
    """The run's number; None where there is none of that id."""
    row = connection.execute("SELECT run FROM runs WHERE id=?", (_clean(run),)).fetchone()
    return None if row is None else row[0]


def run_of(row: Sequence[Any], seen: SeenRuns, edits: bytes | None) -> Run:
    """The run of a row of the columns RUN."""
    _, id, description, seen_ns, records, points, size, deleted_ns = row
    return Run(id, unpack(description), seen.last_ns(id, seen_ns), records, points, size, deleted_ns, edits)


def page(connection: sqlite3.Connection, query: RunQuery, seen: SeenRuns) -> RunPage:
    """Runs as they were asked for; `BadArgument` for a question that has no meaning."""
    where = ["deleted_ns>0" if query.deleted else "deleted_ns=0"]
    if any(each.field in _FACTS and each.op == "=" for each in query.filters):
        where[0] = f"+{where[0]}"  # not by an index over all runs: those with that value are found by theirs
    bound: list[object] = []
    for each in query.filters:
        condition, values = _condition(each)
        where.append(condition)
        bound += values
    (total,) = connection.execute(f"SELECT count(*) FROM runs WHERE {' AND '.join(where)}", bound).fetchone()
    value, value_bound = _sorted_by(query.sort)
    way, beyond = ("DESC", "<") if query.descending else ("ASC", ">")
    source = f"SELECT {_LISTED}, {value} AS v FROM runs WHERE {' AND '.join(where)}"
    bound = [*value_bound, *bound]
    if query.after:
        has_value, last, number = _cursor(query.after)
        if has_value:
            after = f"(v {beyond} ? OR v IS NULL OR (v = ? AND run {beyond} ?))"
            bound += [last, last, number]
        else:
            after = f"(v IS NULL AND run {beyond} ?)"
            bound.append(number)
        source = f"SELECT * FROM ({source}) WHERE {after}"
    # v IS NULL: those without such a key come last, whichever way; plain columns have none and keep their index
    nulls = "" if query.sort in _COLUMNS else "v IS NULL, "
    most = max(1, query.limit)
    rows = connection.execute(
        f"{source} ORDER BY {nulls}v {way}, run {way} LIMIT ?", [*bound, most + 1]
    ).fetchall()
    more = len(rows) > most
    del rows[most:]
    following = _packed_cursor(rows[-1][-1], rows[-1][-2]) if more else ""
    return RunPage([_listed(connection, row, seen, query.columns) for row in rows], following, total)


def _listed(
    connection: sqlite3.Connection,
    row: Sequence[Any],
    seen: SeenRuns,
    columns: Sequence[tuple[str, str]],
) -> Listed:
    id, brief, state, seen_ns, records, points, size, deleted_ns, run, _ = row
    shown = _shown(connection, run, columns) if columns else {}
    seen_ns = seen.last_ns(id, seen_ns)
    return Listed(id, brief or _UNKNOWN, state, seen_ns, records, points, size, deleted_ns, shown)


def _shown(
    connection: sqlite3.Connection, run: int, columns: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Any]:
    """One description in memory at a time."""
    (packed,) = connection.execute("SELECT description FROM runs WHERE run=?", (run,)).fetchone()
    described = unpack(packed)
    flat = {"config": dict(flattened(described.config)), "summary": dict(flattened(described.summary))}
    return {(kind, key): flat[kind][key] for kind, key in columns if key in flat[kind]}


def _sorted_by(sort: str) -> tuple[str, list[object]]:
    if sort in _COLUMNS:
        return _COLUMNS[sort], []
    kind, separator, key = sort.partition(SEPARATOR)
    if not separator or kind not in ("config", "summary"):
        kind, separator, key = sort.partition("/")
    if not separator or kind not in ("config", "summary"):
        raise BadArgument(
            f"Runs cannot be sorted by {sort!r}: take one of {', '.join(_COLUMNS)}, config::KEY or summary::KEY."
        )
    # the index is named: the planner, which has no figures, takes that of the values
    found = "SELECT f.value FROM facts AS f INDEXED BY facts_run WHERE f.run=runs.run AND f.kind=? AND f.key=? LIMIT 1"
    return f"({found})", [kind, _clean(key)]


def _condition(each: Filter) -> tuple[str, list[object]]:
    """SQL of known words, and what is bound to it."""
    compare = _COMPARES.get(each.op)
    if compare is None:
        raise BadArgument(f"Filter: {each.op!r} is no comparison; take one of {', '.join(_COMPARES)}.")
    negated = "NOT " if each.op == "!=" else ""
    if each.field in _COLUMNS:
        column = _COLUMNS[each.field]
        value = _clean(each.value) if isinstance(each.value, str) else each.value
        if compare == "contains":
            return f"instr({column}, ?) > 0", [str(value)]
        return f"{negated}({column} {compare} ?)", [value]
    if each.field == ANYWHERE and compare == "contains":
        return f"({_ANYWHERE})", [_clean(str(each.value))] * _ANYWHERE.count("?")
    if each.field not in _FACTS:
        known = ", ".join([*_COLUMNS, *_FACTS])
        raise BadArgument(f"Filter: {each.field!r} is no field of a run; take one of {known}.")
    found = "run IN (SELECT f.run FROM facts AS f WHERE f.kind=? AND f.key=? AND "
    key = "" if each.field == "tag" else _clean(each.key)
    type, plain = _typed(each.value)
    if compare == "contains":
        return found + "f.type='s' AND instr(f.value, ?) > 0)", [each.field, key, str(each.value)]
    if type == _NULL:
        return f"{negated}{found}f.type='z')", [each.field, key]
    return f"{negated}{found}f.type=? AND f.value {compare} ?)", [each.field, key, type, plain]


def _packed_cursor(value: object, run: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([value is not None, value, run]).encode()).decode()


def _cursor(text: str) -> tuple[bool, str | float | int | None, int]:
    try:
        has_value, value, run = json.loads(base64.urlsafe_b64decode(text.encode("ascii")))
        if isinstance(value, dict | list) or type(run) is not int or type(has_value) is not bool:
            raise ValueError(text)
        return has_value, value, run
    except (ValueError, TypeError) as error:
        raise BadArgument("Runs: `after` is no cursor that a page before gave as `next`.") from error
