"""Faults made on purpose: a frozen, full, broken or slow disk, a full tmpfs, a bad network, killed processes.

    frozen      an ext4 of its own that freezes, fills up, fails, turns read-only or loses power
    fuse        a passthrough mount whose calls hang, are slow, fail, or end at a byte limit
    tmpfs       a small tmpfs that fills up
    network     two hosts and a cable: packets vanish, links go down or are slow, names are forgotten
    proxy       a TCP proxy that is late, silent, broken or a captive portal
    slurm       a SLURM of its own on this machine, whose jobs can be queued again and preempted
    processes   signals by PID, states of processes, waits with a deadline
    sweep       cleans up after a guard that was itself killed

Each is also a command: `python -m tools.faults.frozen --help`.

All but proxy, processes and sweep need root. Each has `why_not()`, the reason why it cannot run here, or None.

How a failed test cannot leave the machine stuck: every mount is made, broken, mended and removed by a process of
its own, the guard (`guard.py`), in a session of its own. The guard ends the fault when the owner says so, when the
owner is gone in whatever way (it watches a pidfd), when the owner hangs in D state with a SIGKILL pending, and when
the fault's own hard time limit is over. What the guard may hang on is done in throw-away children of it.
"""
