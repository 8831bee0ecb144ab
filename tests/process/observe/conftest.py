"""Two hosts for the tests of `logclient why`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.faults import network


@pytest.fixture
def two_hosts(run_dir: Path, needs_root: None) -> Iterator[network.Network]:
    """Two simulated hosts, each with a shm directory of its own on a tmpfs."""
    if reason := network.why_not():
        pytest.skip(reason)
    with network.Network() as net:
        for host in (net.left, net.right):
            host.run("mount", "-t", "tmpfs", "none", os.environ["LOGCLIENT_SHM_DIR"])
        yield net
