"""The host as every process of an agent uses it: shm directory, processes, pages, limits.

===================  =================================================================
`shm_dir_handle.py`  the shm directory by descriptor, and the files kept open in it
`process_handle.py`  another process, by a pidfd: its end and the cause
`kept_process.py`    a process that a supervisor keeps running beside the worker
`pauses.py`          how a process sleeps, and what wakes it
`crash_report.py`    crash report of a worker: a shared page that its supervisor reads
`status.py`          the status page that trainers and the command line read
`json_file.py`       small JSON files, replaced as a whole
`mapping.py`         mapped files that keep no descriptor open
`rlimits.py`         resource limits
===================  =================================================================
"""
