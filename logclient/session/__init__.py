"""A run in this process: begun, held, waited for, ended.

===============  ================================================================
`start.py`       begins or joins a run
`member.py`      this process's part in a run: lanes, live lock, documents; forks
`handles.py`     open runs of this process
`waiting.py`     `flush`
`closing.py`     `finish`
`ending.py`      how the run ended
`dropped.py`     runs whose handle was dropped
`unattached.py`  calls of a process that has no run
===============  ================================================================
"""
