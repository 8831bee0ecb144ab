"""Keys under which runs of a list have values: what a table of runs can show. Runs in any reader's session.

Only the newest runs are looked at, so what it costs does not depend on how many there are.
"""

from __future__ import annotations

import sqlite3

from ..interface import ColumnKey, ColumnKeys

_NEWEST = "SELECT run FROM runs WHERE deleted_ns=0 ORDER BY created_ns DESC, run DESC LIMIT ?"
_FACTS = f"""
SELECT f.kind, f.key, count(*), min(f.type)=max(f.type) AND min(f.value) IS max(f.value)
FROM ({_NEWEST}) AS r CROSS JOIN facts AS f INDEXED BY facts_run ON f.run=r.run
WHERE f.kind IN ('config', 'summary') GROUP BY f.kind, f.key ORDER BY f.key
"""
_METRICS = f"""
SELECT n.name, count(*) FROM ({_NEWEST}) AS r CROSS JOIN names AS n ON n.run=r.run GROUP BY n.name ORDER BY n.name
"""


def of_newest(connection: sqlite3.Connection, newest: int) -> ColumnKeys:
    """Return the keys of so many runs, those that were created last."""
    (looked_at,) = connection.execute(f"SELECT count(*) FROM ({_NEWEST})", (newest,)).fetchone()
    facts: dict[str, list[ColumnKey]] = {"config": [], "summary": []}
    for kind, key, runs, is_same in connection.execute(_FACTS, (newest,)):
        facts[kind].append(ColumnKey(key, runs, bool(is_same)))
    metrics = [ColumnKey(key, runs, False) for key, runs in connection.execute(_METRICS, (newest,))]
    return ColumnKeys(facts["config"], facts["summary"], metrics, looked_at)
