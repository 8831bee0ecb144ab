"""`logclient.read`: runs as numpy arrays, from a folder or from a server. For a user's program; needs numpy.

==========  =================================================================
runs.py     `Runs` and `Run`: what the user holds
sources.py  where a run lies: in a folder, or behind an HTTP API
gather.py   the points of some keys out of records, complete and in one order
series.py   `Series`, `Reduced`, `Table`: what a question gives
reduce.py   points -> buckets, by the rule of the collector's store
==========  =================================================================
"""

from __future__ import annotations

from .runs import Run, Runs, read
from .series import Reduced, Series, Table
from .sources import Extreme

__all__ = ["Extreme", "Reduced", "Run", "Runs", "Series", "Table", "read"]
