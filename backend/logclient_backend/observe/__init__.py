"""The observer: what some processes do, seen from outside, and why they do not get on.

==============  ================================================================================
process.py      a process as /proc shows it: state, wait channel, CPU time, children
mounts.py       the mount that a process in state D most likely waits for
stacks.py       Python stacks, by `py-spy dump --nonblocking` in a child with a deadline
ptrace.py       why stacks may not be read, and what to set
groups.py       equal stacks put together, the odd ones first
where.py        which part of a program a stack is in: a collective, a data loader, ours, the user's
verdict.py      from two looks at each process to one verdict
ranks.py        the processes of a live run, with their last steps
gpu.py          the GPUs of a node, through NVML
kernel_log.py   lines of the kernel's log that may explain a hang
elsewhere.py    the nodes of a run as a collector has them
bounded.py      a report made small enough to be sent
report.py       all that is seen on one node; reports of several nodes put together
described.py    a verdict with its evidence, for programs
saved.py        dataclasses as JSON and back
deadline.py     a question that may hang, asked in a forked child
==============  ================================================================================

Nothing here signals, stops or writes to the processes that are observed. `/proc/PID/cmdline` and `environ` are not
read: both wait for a process that hangs in its memory map.
"""
