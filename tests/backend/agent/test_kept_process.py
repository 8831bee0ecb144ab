"""A process that a supervisor keeps running: how many that cannot be killed are left behind."""

from __future__ import annotations

import signal
from pathlib import Path

from logclient.shm import layout
from logclient_backend.agent.host.kept_process import KeptProcess
from logclient_backend.agent.host.status import StatusPage
from tools.faults import processes


def wait_for_signal() -> int:
    signal.pause()
    return 0


def test_no_more_is_started_while_three_are_left_behind(tmp_path: Path) -> None:
    """Each would hang where the last one did; the end of one makes room."""
    path = tmp_path / "agent.status"
    path.write_bytes(bytes(layout.STATUS_BYTES))
    kept = KeptProcess(StatusPage(str(path)), layout.AGENT_OBSERVER, layout.AGENT_OBSERVER_TICKS)
    pids: list[int] = []
    try:
        for _ in range(3):
            assert kept.start(wait_for_signal)
            (watch,) = kept.watches()
            pids.append(watch.pid)
            kept.let_go()
        assert not kept.start(wait_for_signal) and not kept.is_there
        processes.send(pids[1], signal.SIGKILL)
        processes.wait_until(lambda: not processes.is_alive(pids[1]), 30)
        kept.reap()
        assert kept.start(wait_for_signal)
    finally:
        kept.kill()
        kept.let_go()
        for pid in pids:
            processes.send(pid, signal.SIGKILL)
        processes.wait_until(lambda: not any(map(processes.is_alive, pids)), 30)
        kept.reap()
