"""The call recorder: the last calls of each thread into named packages, for whoever asks why a process is stuck.

================ ===============================================================
`recorder.py`    begins and ends it; which code is recorded; rings of threads
`profiled.py`    the hook of Python 3.11, called for each call and return
`monitored.py`   the hooks of Python 3.12 and newer, for the code that is recorded
================ ===============================================================

Loaded by `init`. Does nothing until `run.trace`, or `LOGCLIENT_TRACE`, begins it.
"""
