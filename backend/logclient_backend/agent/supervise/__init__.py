"""Starts an agent, elects its supervisor, restarts its worker, and removes what an agent leaves.

=================  =====================================================================
`launcher.py`      first process: leaves the trainer's family, asks about the run folder
`supervisor.py`    restarts workers; opens nothing outside tmpfs and /proc once it runs
`election.py`      decides which process supervises a shm directory
`page_pinning.py`  keeps the code in memory
`inherited.py`     closes files that a promoted supervisor inherited and does not need
`stop_file.py`     keeps a process running that looks for a stop file
`shutdown.py`      ends a shm directory
`cleanup.py`       takes up shm directories that dead agents left
=================  =====================================================================
"""
