"""Who serves a shm directory that processes of several PID namespaces reach."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from logclient.shm import layout, proc
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.agent.supervise import election

ELSEWHERE = 1  # no PID namespace has this number


@pytest.fixture
def page(tmp_path: Path) -> StatusPage:
    """As an agent left it."""
    page = StatusPage(str(tmp_path / "agent.status"))
    page.words[layout.AGENT_PID_NAMESPACE] = proc.pid_namespace()
    page.words[layout.AGENT_WORKER_TICKS] = page.words[layout.AGENT_SHIPPER_TICKS] = 5
    return page


@pytest.mark.parametrize("namespace", [0, proc.pid_namespace()], ids=["unknown", "ours"])
def test_worker_of_our_namespace_is_never_foreign(page: StatusPage, namespace: int) -> None:
    """It is known by its PID, and taken over."""
    page.words[layout.AGENT_PID_NAMESPACE] = namespace
    assert not election.has_foreign_worker(page)
    assert page.words[layout.AGENT_WORKER_TICKS] == page.words[layout.AGENT_SHIPPER_TICKS] == 5


def test_foreign_worker_is_told_by_its_beat(page: StatusPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that works keeps its place; one that is silent does not, and its PIDs are forgotten."""
    page.words[layout.AGENT_PID_NAMESPACE] = ELSEWHERE
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            page.beat(layout.AGENT_WORKER_BEAT)
            time.sleep(0.01)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        monkeypatch.setattr(election, "_SILENT_S", 60.0)
        assert election.has_foreign_worker(page)
        assert page.words[layout.AGENT_WORKER_TICKS] == 5
    finally:
        done.set()
        worker.join()
    monkeypatch.setattr(election, "_SILENT_S", 0.1)
    assert not election.has_foreign_worker(page)
    assert page.words[layout.AGENT_WORKER_TICKS] == page.words[layout.AGENT_SHIPPER_TICKS] == 0
