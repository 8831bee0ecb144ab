"""How an agent leaves without whoever comes at the last moment being left alone."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest

from logclient.encode import lanes
from logclient.shm import layout
from logclient.shm.owner import LiveLock
from logclient.shm.shm_dir import ShmDir
from logclient.spawn import agent as spawn
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.agent.supervise import shutdown


@pytest.fixture
def page(handle: ShmDirHandle) -> StatusPage:
    return StatusPage(handle.file("agent.status"))


def come(folder: Path) -> lanes.Lanes:
    """A process shows its lanes."""
    made = lanes.Lanes(str(folder), 256 << 10, 2, None)
    LiveLock(made.path.replace(".lanes", ".live"))
    made.show()
    return made


def test_what_is_kept_is_left_only_if_nobody_logs(
    handle: ShmDirHandle, page: StatusPage, tmp_path: Path
) -> None:
    """A process that came before the word was said is served; one that has given up its lanes needs nobody."""
    assert shutdown.keep(handle, page)
    made = come(tmp_path / "shm_dir")
    assert not shutdown.keep(handle, page)
    assert page.words[layout.AGENT_CLOSING] == 0
    made.words[layout.STATE] = layout.STATE_FINISHED
    assert shutdown.keep(handle, page)


def test_who_comes_after_the_word_calls_for_another_agent(handle: ShmDirHandle, page: StatusPage) -> None:
    """The lock is held until the process is gone, but by nobody who would look at new lanes."""
    shm_dir = ShmDir(handle.public, {})
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        lock = os.open(handle.file("agent.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(lock, fcntl.LOCK_EX)
        os.write(writer, b"1")
        signal.pause()
    try:
        os.read(reader, 1)
        assert spawn.agent_lives(shm_dir)
        assert shutdown.keep(handle, page)
        assert not spawn.agent_lives(shm_dir)
        page.words[layout.AGENT_CLOSING] = layout.CLOSING_STORED
        assert spawn.agent_lives(shm_dir), "who is in by then is served"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
