"""`logclient.read`: runs as numpy arrays, from a folder or from a server. For a user's program; needs numpy.

==========  =================================================================
runs.py     `Runs` and `Run`: what the user holds
gather.py   the points of some keys out of records, complete and in one order
series.py   `Series`, `Reduced`, `Table`: what a question gives
reduce.py   points -> buckets, by the rule of the collector's store
==========  =================================================================
"""

from __future__ import annotations

from ..runs.extremes import Extreme
from .runs import Run, Runs, read
from .series import Reduced, Series, Table

__all__ = ["Extreme", "Reduced", "Run", "Runs", "Series", "Table", "read"]
