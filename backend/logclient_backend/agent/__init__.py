"""The agent: what is spawned on the training host. Supervisor and worker; see ARCHITECTURE.md for who does what.

========================  =========================================================================
`launcher.py`             first process: leaves the trainer's family, asks about the run folder
`supervisor.py`           election, restarts; opens nothing outside tmpfs once it runs
`worker.py`               one look at the lanes after the other; decides what is due
`attach.py`               one producer: its lane file, lock, documents
`drain.py`                lane -> columns, gaps, damage
`stage.py`                columns -> segments on tmpfs, under a budget
`copier.py`               the only thread that touches the run folder
`ledger.py`               the node's documents: what is known of processes, streams and their ends
`exits.py`                why a process ended, asked from outside
`status.py`               the status page that trainers and the command line read
========================  =========================================================================
"""
