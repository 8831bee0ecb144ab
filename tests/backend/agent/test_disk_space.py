"""Room on the run folder's disk, as a child of the observer asks for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient.shm.shm_dir import ShmDir
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle
from logclient_backend.agent.observer.disk_space import DiskSpace
from tools.faults import fuse


def asked(space: DiskSpace, now: float) -> bool:
    """Look until there is no question under way."""
    deadline = time.monotonic() + 30
    space.look(now)
    while space._child is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        space.look(now)
    return space.free is not None


def test_disk_is_asked_while_something_is_written_to_it(tmp_path: Path) -> None:
    """The disk is asked once a minute at most, and not while the run is at rest."""
    words = memoryview(bytearray(layout.STATUS_BYTES)).cast("Q")
    space = DiskSpace(ShmDirHandle(ShmDir(str(tmp_path), {"dir": str(tmp_path)})), words)
    assert not asked(space, 100.0)
    words[layout.AGENT_WRITTEN] = 1
    assert asked(space, 101.0)
    found = os.statvfs(tmp_path)
    assert space.free is not None and abs(space.free - found.f_bavail / found.f_blocks) < 0.2
    space.free = None
    words[layout.AGENT_WRITTEN] = 2
    assert not asked(space, 150.0) and asked(space, 161.5)


@pytest.mark.root
@pytest.mark.timeout(120)
def test_disk_that_hangs_is_waited_for_by_nobody(tmp_path: Path) -> None:
    """One child at most is left behind."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    with fuse.Fuse() as mount:
        (tmp_path / "shm").mkdir()
        words = memoryview(bytearray(layout.STATUS_BYTES)).cast("Q")
        space = DiskSpace(ShmDirHandle(ShmDir(str(tmp_path / "shm"), {"dir": str(mount.path)})), words)
        children: set[int] = set()
        mount.hang("statfs", "getattr")
        try:
            for number in range(1, 5):
                words[layout.AGENT_WRITTEN] = number
                begun = time.monotonic()
                space.look(1000.0 * number)
                assert time.monotonic() - begun < 5 and space.free is None
                children.add(space._child.pid if space._child is not None else 0)
            assert len(children) == 1, children
        finally:
            mount.release()
        words[layout.AGENT_WRITTEN] = 9
        asked(space, 9000.0)
        assert asked(space, 9100.0)
