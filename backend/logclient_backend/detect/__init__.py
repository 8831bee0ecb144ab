"""Detectors: what is odd in a series of values, found while it grows. Pure: no files, no clocks, no threads.

==============  ================================================================================
window.py       the last values of a series, their median and their spread
spike.py        a rise that goes away again: onset, peak, recovery (loss, gradient norm)
shift.py        a lasting change of the level (throughput, time of a step)
nonfinite.py    NaN and infinities
straggler.py    the rank that is slower than its peers
replicas.py     the rank whose copy of a tensor is not that of its peers
==============  ================================================================================

A detector belongs to one series, takes (step, value) in the order in which they were logged, and returns an event when
one begins or ends. Memory is constant. Each states its statistics, and how often it is wrong on noise alone.
"""
