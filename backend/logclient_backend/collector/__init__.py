"""The collector: takes in what agents and `logclient sync` ship, keeps it, and answers questions.

=================  ================================================================================
serve.py           the process as a whole: start, stop, what it reports of itself
data_folder.py     its folder
ingest.py          who may ship, what is taken of it (behind `wire/server.py`); limits.py: how much
commit.py          the committing thread: one transaction for all parcels that wait
catalog.py         what a run is, from its nodes' documents; its state as of now
tokens.py          who may do what; sessions.py: browsers that have shown a token
site.py            the address by which browsers come
store/             where runs are kept: `interface.py` is all that the others know of it
upkeep.py          compaction, and deleted runs that go for good
web/               the HTTP API; http.py: its acceptor and its thread
web_processes.py   the processes that it runs in, as seen from here; web_process.py: one of them
lifeline.py        the line to each; committing.py: what they ask this process
control_socket.py  orders from the same user: backup.py, deleting
metrics.py         what it counts; eventlog.py: what it writes down
=================  ================================================================================

Nothing is acknowledged before it is committed, and everything that comes again is stored once: so a collector may be
killed at any time, and a client may send again whatever it likes.
"""
