"""Where a collector keeps runs: `interface.py` is all that ingest and API know of it."""
