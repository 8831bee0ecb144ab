"""The agent: the processes that are spawned on the training host. See ARCHITECTURE.md.

================  =========================================================================
`supervise/`      starts an agent, elects and runs its supervisor, restarts its worker
`worker.py`       reads the lanes at intervals, decides what is due, leaves the disk to the copier
`drain/`          reads lanes: producers, columns, gaps, documents
`output/`         stages columns on tmpfs and copies them to the run folder
`observer/`       watches whether the run gets on, and keeps the verdict while it does not
`shipping/`       ships what is stored to a collector
`host/`           shm directory, processes, pages and limits, for all of them
`settings.py`     the settings that `init` wrote
================  =========================================================================

Imports point downwards in this list: nothing in `host/` imports a room above it.
"""
