"""Reads lanes: producers, frames to columns, and the node's documents.

================  =========================================================================
`roster.py`       the producers of a meeting place: who logs, who is gone
`attach.py`       one producer: lane file, lock, documents
`drain.py`        lane to columns, gaps and damage
`device.py`       records whose values a device writes later
`ledger.py`       the node's documents: processes, streams, and their ends
`beside.py`       the other nodes of the run, found in its run folder
`scheduler.py`    asks SLURM whether it took the job away
`pace.py`         computes how long the worker may sleep
================  =========================================================================
"""
