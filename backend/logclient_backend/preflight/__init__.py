"""`logclient preflight`: checks the ranks, devices, network and folders of a job before it trains. May import torch.

================  ==============================================================================
place.py          which rank this is, of how many, and where rank 0 is found
lines.py          messages as lines of JSON over a socket
rank.py           a rank: starts the checks that it is asked for, ends with the verdict
join.py           how a rank finds the coordinator
check.py          a child process that makes one check, and its deadline
coordinator.py    a child of rank 0: messages of all ranks, which ended, which answers late
stages.py         the order of the checks, over all ranks
results.py        what the stages found out; a finding
judge.py          results of all ranks -> findings: ranks, torch, folders
judge_network.py  ... connections and collectives
judge_devices.py  ... devices
report.py         findings, ranks and settings for programs
----------------  ------------------------------------------------------------------------------
folders.py        check: write, fsync and stat in a folder
network.py        the address and interface that gloo would use
pairs.py          check: connections between each two ranks
collectives.py    check: barrier, all-reduce and exchange through torch.distributed
devices.py        check: free memory, clocks and a matmul rate
================  ==============================================================================

Invariants:

- whatever may hang (a disk, a driver, a collective, a name server) is touched by a check alone: a forked child that is
  killed at its deadline, and left alone where the kernel does not let it be killed;
- each rank holds one connection to the coordinator. The end of a rank closes it, so a dead rank is known at once;
- the coordinator is a process of its own session: it names rank 0, too, when that one is killed or stopped.
"""

from __future__ import annotations

from .place import find_place
from .rank import Plan, run
from .results import names

__all__ = ["Plan", "find_place", "names", "run"]
