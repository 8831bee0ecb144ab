"""A run folder on a network file system: known by its mount, asked rarely, and slow or silent without harm.

A FUSE mount stands in for NFS: its calls are slow, hang, fail or are refused when told to. Issue B, part 4; field
case C6-4.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient import layout
from tools.faults import fuse
from tools.faults.crash import account, training

from .agents import kill
from .disturbed import wait_until

pytestmark = [pytest.mark.root]

GONE_S = 60.0


@pytest.fixture
def mount(run_dir: Path, needs_root: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[fuse.Fuse]:
    """The network file system, and the run folder on it."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    with fuse.Fuse() as mount:
        monkeypatch.setenv("LOGCLIENT_DIR", str(mount.path / "runs"))
        yield mount


def all_stored(mount: fuse.Fuse, logged: int) -> None:
    """Every record, once."""
    found = account(mount.backing / "runs", logged)
    assert not found.problems
    assert (found.stored, found.forgotten, found.damaged) == (logged, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_slow_network_folder_is_asked_every_few_seconds_and_delays_nobody(mount, tmp_path, pace):
    """fsync takes 80 ms, write 20 ms: few fsyncs, a killed worker, a prompt finish, and every record."""
    mount.delay("fsync", 0.08)
    mount.delay("write", 0.02)
    every_s = max(1.0, pace.seconds(20))
    with training(
        tmp_path, {"LOGCLIENT_NETWORK_SYNC_S": str(every_s)}, rate=1_000, seconds=8 * every_s
    ) as trainer:
        folder = json.loads(Path(trainer.meeting, "folder.json").read_text())
        assert folder["network"].startswith("fuse")
        page = trainer.status_page()
        wait_until(lambda: page.words[layout.AGENT_WRITTEN] > 0, 30, "something is durable")
        time.sleep(every_s / 2)
        before, begun = mount.counts()["fsync"], time.monotonic()
        time.sleep(3 * every_s)
        took_s = time.monotonic() - begun
        in_between = mount.counts()["fsync"] - before
        # a look: the open segment, and the documents, perhaps at two looks
        assert in_between <= 4 * (took_s / every_s + 1), f"{in_between} in {took_s:.1f} s"
        assert page.words[layout.AGENT_WRITTEN] > 0
        kill(page.words[layout.AGENT_WORKER])
        status = trainer.end()
        assert status["durable"] == status["accepted"] == trainer.logged
        trainer.wait_gone(GONE_S)
    assert trainer.longest_ms < 1_000
    all_stored(mount, trainer.logged)
