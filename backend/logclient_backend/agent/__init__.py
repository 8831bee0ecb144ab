"""The agent: what is spawned on the training host. Supervisor, worker and what ships; see ARCHITECTURE.md.

========================  =========================================================================
`launcher.py`             first process: leaves the trainer's family, asks about the run folder
`supervisor.py`           restarts workers; opens nothing outside tmpfs and /proc once it runs
`election.py`             who is the supervisor of a place
`place.py`                the meeting place by descriptor, and what is kept open of it
`handover.py`             what a worker leaves to its supervisor when it dies
`resident.py`             keeps the code in memory
`patience.py`             when to leave a place that ends with the trainer
`leaving.py` `sweep.py`   the end of a place; places that dead agents left
`worker.py`               one look at the lanes after the other; decides what is due
`pace.py` `pauses.py`     how long it sleeps; how a process sleeps, and what wakes it
`roster.py`               who logs, who is gone, and what becomes of their files
`attach.py` `exits.py`    one producer: lane file, documents; why its process ended
`scheduler.py`            did a scheduler take its job away?
`drain.py`                lane -> columns, gaps, damage
`stage.py` `memory.py`    columns -> segments on tmpfs, under a budget; their memory, used again
`destination.py`          where the run goes
`spooler.py` `spool.py`   what a network folder does not take goes to a local disk, and home later
`mounts.py`               which kind of file system a path is on, without asking it
`copier.py`               the only thread that touches the run folder
`budget.py`               which sealed segments go, and when
`shipkeeper.py`           in the supervisor: keeps the process that ships running
`shipping.py`             that process: what is stored goes to a collector
`shipped.py`              in the worker: what it has told, and whether that holds the worker up
`agentlog.py`             what went wrong, for people
`ledger.py`               the node's documents: what is known of processes, streams and their ends
`status.py`               the status page that trainers and the command line read
`settings.py`             what `init` asked for
`folder.py`               the run folder, looked at once at start
`terminal.py`             the trainer's standard error, where that is a file
========================  =========================================================================
"""
