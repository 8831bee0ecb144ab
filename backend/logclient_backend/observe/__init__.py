"""The observer: what some processes do, seen from outside, and why they do not get on.

==============  ================================================================================
process.py      a process as /proc shows it: state, wait channel, CPU time, children
stacks.py       Python stacks, by `py-spy dump --nonblocking` in a child with a deadline
groups.py       equal stacks put together, the odd ones first
where.py        which part of a program a stack is in: a collective, a data loader, ours, the user's
verdict.py      from two looks at each process to one verdict
ranks.py        the processes of a live run, with their last steps
==============  ================================================================================

Nothing here signals, stops or writes to the processes that are observed. `/proc/PID/cmdline` and `environ` are not
read: both wait for a process that hangs in its memory map.
"""
