"""`logclient.read`: runs as numpy arrays, from a folder or from a server. For a user's program; needs numpy.

==============  =================================================================
runs.py         `Runs`: choosing, listing and comparing runs
run.py          `Run`: one run
conditions.py   conditions on runs, as texts and as values
table.py        many runs as rows and columns
curves.py       one key of many runs: all points, or a band over the runs
many.py         questions about many runs, to a folder or in few requests to a server
gather.py       the points of some keys out of records, complete and in one order
pages.py        the same points out of a server's pages
series.py       `Series`, `Reduced`, `Table`: what a question gives
reduce.py       points -> buckets, by the rule of the collector's store
==============  =================================================================
"""

from __future__ import annotations

from ..runs.extremes import Extreme
from .curves import Band, Curves
from .run import Run
from .runs import Runs, read
from .series import Reduced, Series, Table

__all__ = ["Band", "Curves", "Extreme", "Reduced", "Run", "Runs", "Series", "Table", "read"]
