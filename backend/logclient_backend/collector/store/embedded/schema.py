"""Tables of the embedded engine, its version, and how one version becomes the next.

==============  =======================================================================================
meta            the store's id, and for how long it has been open, all in all
runs            one row a run: what lists sort and filter by, its description, its place in the bin
tombstones      ids of runs that were purged: late data do not bring them back
facts           config and summary, flattened, for filters; keys and values are data, never a path
documents       what a node sent, whole
edits           edits of a run after the fact, whole (`runs/edits.py`)
streams         a stream's process, lane and edges; `told` lists the nodes that reported it
ledger          ranges of seqs by stream: cause 0 is stored, the others are gaps (`ledger.py`)
names           a run's keys, with what is compacted of each: points, range of steps, first point
lasts           of each key and stream the newest value that is compacted: which one is shown depends on attempts
tables          a run's key tables: the shape of records; `places` lists where a key stands in which
tail            records as they came (`rows.py`)
block, part     compacted records: a head, and one row per column (`blocks.py`)
coarse          coarse summaries of large blocks, by key: what a chart of a long series reads, side by side
==============  =======================================================================================

Invariants:

- `user_version` in the file's header is the version; it changes in the transaction that changes the tables, in
  journal mode DELETE, so that it is read from the first 100 bytes of the file without opening it as a database;
- ids of tables, blocks and tail rows are never used twice: readers may keep what they found under one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import TypeAlias

from . import old_tail

VERSION = 5
APPLICATION = 0x6C6F6763  # "logc"
PAGE_BYTES = 8192

Migration: TypeAlias = Callable[[sqlite3.Connection], None]

TABLES = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE runs(
  run INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT UNIQUE,                       -- NULL: is being purged
  project TEXT NOT NULL DEFAULT '', name TEXT NOT NULL DEFAULT '', grp TEXT NOT NULL DEFAULT '',
  state TEXT NOT NULL DEFAULT 'running',
  created_ns INTEGER NOT NULL DEFAULT 0, last_seen_ns INTEGER NOT NULL DEFAULT 0,
  records INTEGER NOT NULL DEFAULT 0, points INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
  deleted_ns INTEGER NOT NULL DEFAULT 0, -- -1: is being purged; -2: `interface.side_id` of a run
  deleted_open_ns INTEGER NOT NULL DEFAULT 0, -- how long the store had been open then, all in all
  facts BLOB NOT NULL DEFAULT x'',      -- digest of config and summary
  brief TEXT,                           -- JSON of what lists show of the description
  attempts TEXT NOT NULL DEFAULT '{}',
  description BLOB                      -- JSON, see `catalog.py`; last, so that lists need not read it
);
CREATE INDEX runs_created ON runs(deleted_ns, created_ns, run);
CREATE INDEX runs_seen ON runs(deleted_ns, last_seen_ns, run);
CREATE TABLE tombstones(id TEXT PRIMARY KEY, deleted_ns INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE facts(run INTEGER NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL, type TEXT NOT NULL, value);
CREATE INDEX facts_value ON facts(kind, key, type, value, run);
CREATE INDEX facts_run ON facts(run, kind, key);
CREATE TABLE documents(
  run INTEGER NOT NULL, node TEXT NOT NULL, json BLOB NOT NULL, PRIMARY KEY(run, node)
) WITHOUT ROWID;

CREATE TABLE edits(run INTEGER PRIMARY KEY, json BLOB NOT NULL);

CREATE TABLE streams(
  stream INTEGER PRIMARY KEY AUTOINCREMENT,
  run INTEGER NOT NULL, id BLOB NOT NULL, process BLOB NOT NULL, lane INTEGER NOT NULL,
  first_seq INTEGER NOT NULL DEFAULT 0, first_step INTEGER NOT NULL DEFAULT 0, first_ns INTEGER NOT NULL DEFAULT 0,
  last_seq INTEGER NOT NULL DEFAULT 0, last_step INTEGER NOT NULL DEFAULT 0, last_ns INTEGER NOT NULL DEFAULT 0,
  UNIQUE(run, id)
);
CREATE TABLE told(
  run INTEGER NOT NULL, node TEXT NOT NULL, stream INTEGER NOT NULL, PRIMARY KEY(run, node, stream)
) WITHOUT ROWID;
CREATE TABLE ledger(
  stream INTEGER NOT NULL, cause INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  PRIMARY KEY(stream, cause, first)
) WITHOUT ROWID;

CREATE TABLE names(
  name_id INTEGER PRIMARY KEY AUTOINCREMENT,
  run INTEGER NOT NULL, name TEXT NOT NULL,
  points INTEGER NOT NULL DEFAULT 0, codes TEXT NOT NULL DEFAULT '',
  min_step INTEGER NOT NULL DEFAULT 9223372036854775807, max_step INTEGER NOT NULL DEFAULT -9223372036854775808,
  first_ns INTEGER NOT NULL DEFAULT 9223372036854775807, first_order INTEGER NOT NULL DEFAULT 0,
  first_place INTEGER NOT NULL DEFAULT 0,
  UNIQUE(run, name)
);
CREATE TABLE lasts(
  name_id INTEGER NOT NULL, stream INTEGER NOT NULL,
  seq INTEGER NOT NULL, place INTEGER NOT NULL, number INTEGER NOT NULL, -- of the record in its process
  ns INTEGER NOT NULL, step INTEGER NOT NULL, rank INTEGER NOT NULL, code TEXT NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY(name_id, stream)
) WITHOUT ROWID;
CREATE TABLE tables(
  tbl INTEGER PRIMARY KEY AUTOINCREMENT,
  run INTEGER NOT NULL, digest BLOB NOT NULL, definition BLOB NOT NULL,
  UNIQUE(run, digest)
);
CREATE TABLE places(
  name_id INTEGER NOT NULL, tbl INTEGER NOT NULL, place INTEGER NOT NULL, code TEXT NOT NULL,
  PRIMARY KEY(name_id, tbl, place)
) WITHOUT ROWID;

CREATE TABLE tail(
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  run INTEGER NOT NULL, stream INTEGER NOT NULL, tbl INTEGER NOT NULL, rank INTEGER NOT NULL,
  n INTEGER NOT NULL, points INTEGER NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
  min_step INTEGER NOT NULL, max_step INTEGER NOT NULL,
  first_ns INTEGER NOT NULL, first_order INTEGER NOT NULL,
  body BLOB NOT NULL
);
CREATE INDEX tail_run ON tail(run, stream, tbl, rank);
CREATE INDEX tail_table ON tail(tbl);
CREATE TABLE block(
  block INTEGER PRIMARY KEY AUTOINCREMENT,
  run INTEGER NOT NULL, stream INTEGER NOT NULL, tbl INTEGER NOT NULL, rank INTEGER NOT NULL,
  class INTEGER NOT NULL,               -- of its size; -1: full
  n INTEGER NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
  min_step INTEGER NOT NULL, max_step INTEGER NOT NULL,
  groups INTEGER NOT NULL, shift INTEGER NOT NULL, bytes INTEGER NOT NULL
);
CREATE INDEX block_stream ON block(stream, first_seq);
CREATE INDEX block_table ON block(tbl, stream, first_seq);
CREATE INDEX block_class ON block(class, stream, tbl, rank) WHERE class >= 0;
CREATE INDEX block_run ON block(run);
CREATE TABLE part(id INTEGER PRIMARY KEY, summary BLOB, data BLOB NOT NULL);
CREATE TABLE coarse(
  tbl INTEGER NOT NULL, place INTEGER NOT NULL, block INTEGER NOT NULL, groups INTEGER NOT NULL, words BLOB NOT NULL,
  PRIMARY KEY(tbl, place, block)
) WITHOUT ROWID;
"""


def _to_2(connection: sqlite3.Connection) -> None:
    """Summaries count infinities; those of version 1 are known by an infinite extreme."""


_GONE = {
    "names": "last_ns last_order last_stream last_seq last_place last_step last_rank last_code last_value",
    "tail": "last_ns last_order last_newest",
}


def _to_3(connection: sqlite3.Connection) -> None:
    """The newest values are those of each stream; of earlier ones the one that was newest by the clock is known."""
    start = TABLES.index("CREATE TABLE lasts(")
    connection.execute(TABLES[start : TABLES.index(";\n", start)])
    connection.execute(
        "INSERT INTO lasts SELECT name_id, last_stream, last_seq, last_place, last_order, last_ns, last_step,"
        " last_rank, last_code, last_value FROM names WHERE points>0"
    )
    for table, columns in _GONE.items():
        for column in columns.split():
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    connection.execute("ALTER TABLE runs ADD COLUMN deleted_open_ns INTEGER NOT NULL DEFAULT 0")


def _to_5(connection: sqlite3.Connection) -> None:
    """Runs may be edited; none was."""
    start = TABLES.index("CREATE TABLE edits(")
    connection.execute(TABLES[start : TABLES.index(";\n", start)])


# version: what makes it of the one before; no commit inside
MIGRATIONS: Mapping[int, Migration] = {2: _to_2, 3: _to_3, 4: old_tail.convert, 5: _to_5}
WRITTEN_ANEW: Mapping[int, tuple[str, ...]] = {
    3: ("names", "tail"),
    4: ("tail",),
}  # tables, of which all rows are


def create(connection: sqlite3.Connection, store_id: str) -> None:
    """All tables, inside a transaction that the caller began."""
    for statement in TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    connection.execute("INSERT INTO meta VALUES('id', ?)", (store_id,))
    connection.execute(f"PRAGMA application_id={APPLICATION}")
    connection.execute(f"PRAGMA user_version={VERSION}")


def migrate(
    connection: sqlite3.Connection, found: int, wanted: int, migrations: Mapping[int, Migration]
) -> None:
    """All steps from one version to another in one transaction; killed anywhere, nothing was done."""
    connection.execute("PRAGMA journal_mode=DELETE")  # so that the header has the version as soon as it holds
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for version in range(found + 1, wanted + 1):
            migrations[version](connection)
            connection.execute(f"PRAGMA user_version={version:d}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
