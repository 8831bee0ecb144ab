"""Several series as one picture: pure functions over arrays, for the collector and for `logclient.read`. Needs numpy.

===========  ========================================================================
part.py      one series in buckets of steps
band.py      series of several runs -> mean, range and quantiles over the runs
pairing.py   a series over the values of another key, instead of over steps
===========  ========================================================================
"""
