"""Writes what was drained: segments on tmpfs, then the run folder, or a local disk until that answers.

===================  ================================================================
`stage.py`           columns to segments on tmpfs, under a budget
`staged.py`          one staged segment; what lanes count once it is durable
`segment_pool.py`    files on tmpfs for those segments, reused
`copier.py`          the only thread that touches the run folder
`disk_budget.py`     decides which sealed segments are deleted, and when
`probe.py`           probes the run folder once at start
`destination.py`     the run folder that the probe chose
`spooler.py`         moves segments to a local disk while a network folder takes none
`spool.py`           those segments on the local disk, and their way home
`mounts.py`          kinds of file systems, without asking the file system
`leave_deadline.py`  how long the agent waits for a disk that takes nothing
`agent_log.py`       `agent.log`
===================  ================================================================
"""
