"""Limits that the agent inherits from the program that started it: raised as far as they may be, else kept to.

Runs in the supervisor; workers inherit what it set.

A user's soft limits are meant for the training, and low ones (`ulimit -n 64`, `ulimit -f 2048`) would stop its agent.
"""

from __future__ import annotations

import resource


def raise_soft() -> None:
    """Raise the soft limits of open files and of file sizes to the hard ones."""
    for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
        try:
            resource.setrlimit(which, (resource.getrlimit(which)[1],) * 2)
        except (OSError, ValueError):
            continue  # the kernel takes less than its own hard limit


def most_files() -> int:
    """Return how many descriptors this process may have."""
    return _limit(resource.RLIMIT_NOFILE)


def most_bytes() -> int:
    """Return how large a file of this process may be."""
    return _limit(resource.RLIMIT_FSIZE)


def _limit(which: int) -> int:
    soft = resource.getrlimit(which)[0]
    return 1 << 62 if soft == resource.RLIM_INFINITY else soft
