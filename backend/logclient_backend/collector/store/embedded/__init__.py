"""The embedded engine: one SQLite file, holding columns. `open_store(folder)` gives it.

===============  =====================================================================================================
`store.py`       the engine as a whole, `open_store`
`database.py`    the file: version, lock, connections, errors as sentences
`schema.py`      its tables; migrations; `migration_estimate.py` estimates what they will take
`writer.py`      what arrives: tail rows, in one transaction with the ledger
`ledger.py`      which seqs of each stream are stored or gone
`compact.py`     upkeep: tail rows to blocks, small blocks to large ones
`remove.py`      bin and purge
`reader.py`      questions; `sources.py` finds the rows, `series.py` points, `buckets.py` charts, `records.py` records
`catalog.py`     runs: descriptions, filters, pages
`live_reader.py` questions of pages that follow runs; `news.py` what is new since a position
`run_keys.py`    keys of a run, last values
`last_seen.py`   when runs were seen last, though clocks are set
`key_tables.py`  key tables and their numbers
`rows.py`        records as numpy columns, body of a tail row
`blocks.py`      blocks and their summaries
`pack.py`        columns as bytes
`backup.py`      backup and restore
===============  =====================================================================================================

An LSM of columns: what arrives is committed nearly as it came (`tail`), later packed into blocks of many records with a
summary per group of steps. Readers see both as one.
"""

from .backup import backup, restore
from .migration_estimate import outlook
from .store import EmbeddedStore, ReadOnlyStore, open_store

__all__ = ["EmbeddedStore", "ReadOnlyStore", "backup", "open_store", "outlook", "restore"]
