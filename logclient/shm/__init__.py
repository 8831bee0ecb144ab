"""Shared memory: what client and agent both read and write. The backend may import this room as a whole.

===================  ======================================================================
`shm_dir.py`         the shm directory: the run's folder on tmpfs
`layout.py`          offsets, magic numbers and versions of a lane file
`ring.py`            the overwriting ring of one lane
`lane_file.py`       reading a lane file: headers, schemas, newest frames
`record.py`          one record as a frame
`columns.py`         many records of one shape, column by column
`documents.py`       config, summary and state, which no lap of a ring overwrites
`cells.py`           memory into which a device writes values
`calls.py`           the last calls of each thread
`alert_rules.py`     rules of alerts, as `init` takes them
`refusals.py`        counts of processes that got no lanes
`counters.py`        counters of a process, and sums over its lanes
`notices.py`         sentences for the user, one per cause; lines to standard error
`health.py`          health of agent and shipping, from the agent's status page
`stop_requests.py`   requests to stop or to save
`wake.py`            ends the pause of an agent
`owner.py` `proc.py` which process this is, and whether another one lives
`modes.py`           modes of files; publishes them whole, and removes them
`regular.py`         opens regular files only, and never waits
===================  ======================================================================

Imports nothing of the client but `guest/` and `errors.py`.
"""
