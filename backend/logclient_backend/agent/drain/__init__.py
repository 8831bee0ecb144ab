"""Reads lanes: producers, frames to columns, and the node's documents.

===================  =============================================================
`producers.py`       the producers of a shm directory: who logs, who is gone
`producer.py`        one producer: lane file, lock, documents
`drain.py`           lane to columns, gaps and damage
`device_records.py`  records whose values a device writes later
`node_document.py`   the node's documents: processes, streams, and their ends
`stop_requests.py`   requests to stop or to save: the step at which they come true
`other_nodes.py`     the other nodes of the run, found in its run folder
`slurm.py`           asks SLURM whether it took the job away
`worker_pause.py`    computes how long the worker may sleep
===================  =============================================================
"""
