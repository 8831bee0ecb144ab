"""What lies under a name of ours in shared memory and is no regular file makes nobody wait, and nobody fall."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.launching import parent_run as parents
from logclient.shm import layout, modes, owner, refusals
from logclient.shm import shm_dir as shm_dirs
from logclient.shm.regular import OddFile, open_regular, read_regular, read_start
from logclient.shm.shm_dir import ShmDir
from logclient.spawn import agent as spawn
from logclient.spawn import agent_for_fork as calling
from logclient.spawn import starting
from logclient_backend.agent.host.shm_dir_handle import open_regular as open_kept
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.agent.output import agent_log
from logclient_backend.collector.tokens import Tokens

DEADLINE_S = 30.0
LANES = f"{'f' * 32}.lanes"


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 42)


KINDS: dict[str, Callable[[Path], None]] = {"fifo": os.mkfifo, "huge": huge, "folder": Path.mkdir}


def _raises(function: Callable[[], Any]) -> bool:
    try:
        function()
    except OSError:
        return True
    return False


# what is asked of a shm directory in which the file of that name is odd, and what comes of it
ASKED: dict[str, tuple[str, Callable[[ShmDir], Any], Any]] = {
    "facts": ("run.json", lambda shm_dir: shm_dirs.read(shm_dir.path), None),
    "is an agent about to leave": ("agent.status", spawn._is_keeping, False),
    "map the status page": ("agent.status", spawn.map_status, None),
    "call an agent off": (
        "agent.status",
        lambda shm_dir: _raises(lambda: starting._call_off(shm_dir)),
        False,
    ),
    "note a call": (
        "agent.status",
        lambda shm_dir: calling._note_call(shm_dir, memoryview(bytearray(4096)).cast("Q"), 1.0),
        False,
    ),
    "its agent's page": (
        "agent.status",
        lambda shm_dir: _raises(lambda: StatusPage(shm_dir.file("agent.status"))),
        True,
    ),
    "who refuses": (refusals.NAME, refusals.take_slot, None),
    "what was refused": (refusals.NAME, refusals.read, 0),
    "an agent's lock": ("agent.lock", lambda shm_dir: owner.is_locked(shm_dir.file("agent.lock")), False),
    "who is in": (LANES, lambda shm_dir: list(parents._who_is_in(shm_dir)), []),
    "whose lanes": (LANES, lambda shm_dir: shm_dirs._is_of(shm_dir.file(LANES), os.getpid()), False),
    "a file to write": (
        "any.new",
        lambda shm_dir: _raises(lambda: modes.private(shm_dir.file("any.new"), os.O_WRONLY | os.O_CREAT)),
        True,
    ),
    "a log": (agent_log.NAME, lambda shm_dir: agent_log.write(shm_dir.path, [(0, "line")]), None),
    "kept by an agent": (LANES, lambda shm_dir: open_kept(shm_dir.file(LANES)), -1),
    "a lock of tokens": (
        "tokens.lock",
        lambda shm_dir: _raises(lambda: Tokens(shm_dir.path).add("name", ["read"])),
        True,
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ASKED)
def test_nobody_waits_for_what_is_no_regular_file(tmp_path: Path, what: str, kind: str) -> None:
    """It is as if the file was not there, or an error that the caller takes."""
    name, ask, expected = ASKED[what]
    if kind == "huge" and name in (
        LANES,
        "agent.status",
        "any.new",
        refusals.NAME,
        "agent.lock",
    ):
        pytest.skip("its first bytes are read, or it is cut, whatever follows")
    tmp_path.chmod(0o700)
    KINDS[kind](tmp_path / name)
    got: list[Any] = []
    asker = threading.Thread(target=lambda: got.append(ask(ShmDir(str(tmp_path), {}))), daemon=True)
    asker.start()
    asker.join(DEADLINE_S)
    assert got == [expected]


def test_the_first_bytes_of_a_large_file_can_be_read(tmp_path: Path) -> None:
    """The whole of it cannot."""
    huge(tmp_path / "large")
    (tmp_path / "small").write_bytes(b"abc")
    assert read_start(str(tmp_path / "large"), 4) == bytes(4)
    assert read_start(str(tmp_path / "small"), 2) == b"ab" and read_regular(str(tmp_path / "small")) == b"abc"
    for refused in (read_regular, open_regular):
        with pytest.raises(OddFile) as raised:
            refused(str(tmp_path / "large"))
        assert "larger" in raised.value.reason
    with pytest.raises(OddFile):
        read_regular(str(tmp_path / "small"), max_bytes=2)
    started = time.monotonic()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OddFile) as odd:
        read_start(str(tmp_path / "fifo"), 8 * (layout.STATE + 1))
    assert odd.value.reason == "it is a FIFO, no regular file" and time.monotonic() - started < DEADLINE_S
