"""What the supervisor does with the process that ships."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.agent.host.pauses import Pipes
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.agent.settings import Settings
from logclient_backend.agent.shipping import ship_process
from logclient_backend.agent.shipping import ship_supervisor as module
from logclient_backend.agent.shipping.ship_supervisor import ShipKeeper


@pytest.mark.parametrize(
    ("code", "pause_s", "is_again"),
    [
        (ship_process.REFUSED, 0.0, True),
        (ship_process.REFUSED, 600.0, False),
        (ship_process.NOWHERE, 0.0, False),
    ],
)
def test_what_was_refused_is_asked_again_much_later(
    handle: ShmDirHandle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    pause_s: float,
    is_again: bool,
) -> None:
    """A run that was deleted and brought back while it goes on; without a server nobody is asked ever again."""
    lives = tmp_path / "lives"

    def run(*_: object) -> int:
        with lives.open("a") as file:
            file.write("x")
        return code

    monkeypatch.setattr(ship_process, "run", run)
    monkeypatch.setattr(module, "_REFUSED_PAUSE_S", pause_s)
    page = StatusPage(str(tmp_path / "agent.status"))
    keeper = ShipKeeper(handle, page, Settings({}), Pipes(handle), None)
    try:
        keeper.look()
        pid = page.words[layout.AGENT_SHIPPER]
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        deadline = time.monotonic() + (60.0 if is_again else 0.5)
        while len(lives.read_text()) < 2 and time.monotonic() < deadline:
            keeper.look()
            time.sleep(0.005)
        assert (len(lives.read_text()) > 1) == is_again
        assert page.words[layout.AGENT_SHIP_RESTARTS] == 0
    finally:
        keeper.end()
