"""The store of a collector: `interface.py` is all that ingest and API know of it."""
