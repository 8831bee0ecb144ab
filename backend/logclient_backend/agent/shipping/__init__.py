"""Ships what is stored to a collector, in a process of its own.

================  =========================================================================
`shipkeeper.py`   in the supervisor: keeps the ship process running
`shipping.py`     the ship process
`shipped.py`      in the worker: progress of the ship process
`tokens.py`       the token of the next conversation after the collector refused one
================  =========================================================================
"""
