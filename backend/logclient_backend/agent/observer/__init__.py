"""Watches whether the run gets on, in a process of its own, and keeps the verdict while it does not.

=====================  ==================================================================
`observer_keeper.py`   in the supervisor: keeps the observer running
`observer_process.py`  the observer
`observations.py`      in the worker: what the observer found, for the documents
`alerting.py`          what the observer sees, for the rules of alerts; deliveries
`lane_records.py`      new records, read beside the worker
`node_state.py`        the state of the run, from the node's documents
`disk_space.py`        room on the run folder's disk
`processes.py`         the processes of the run: how many records, since when, who has ended
`sampler.py`           samples of the processes while one of them is late
`why_files.py`         `why.txt` and `why.json`, which hold the verdict
=====================  ==================================================================

What the looks mean, and the state machine (`stall.py`), is in `logclient_backend/observe/`.
"""
