"""A run in this process: begun, held, waited for, ended.

================  ==================================================================================
`start.py`        begins or joins a run
`session.py`      this process's part in a run: lanes, live lock, documents; forks
`recorder.py`     what `log` uses for records of one rank, and all that it does beside the fast path
`status.py`       what `Run.status` returns
`handles.py`      open runs of this process
`waiting.py`      `flush`
`closing.py`      `finish`
`ending.py`       how the run ended
`alerting.py`     `alert`
`final_line.py`   the line at its end
`page.py`         the address of its page
`dropped.py`      runs whose handle was dropped
`phases.py`       declared phases
`sections.py`     named parts of a step
`ptracer.py`      the right to read stacks, under Yama
`tracing.py`      the call recorder of a run
`current_run.py`  the current run of a process, and calls of a process that has none
================  ==================================================================================
"""
