"""While a network folder takes nothing, segments go to a local disk once memory gets short, and come home later.

A FUSE mount that hangs stands in for the network file system.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import layout
from tests.listing import contents, listed

from .. import scripts
from ..agents import WORKER, both_killed, checked, kill, log_of, nothing_left, successor
from ..disturbed import ROOMY, Trainer, stored, wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow]

GONE_S = 60.0
RATE = 3_000
SPOOLED = "logclient-spool-*/*/*.wal"
STUCK = ("write", "fsync", "create", "open", "getattr")
SMALL = ROOMY | {  # lanes hold what comes while there is no agent
    "LOGCLIENT_SEGMENT_BYTES": str(128 << 10),
    "LOGCLIENT_SPILL_BYTES": str(1 << 20),
    "LOGCLIENT_NETWORK_SYNC_S": "1",
}

UNMOUNTED = """
umount "$0"
"$@" || code=$?
test -z "$(ls "$0")"
exit ${code:-0}
"""


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a disk of this machine."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setenv("LOGCLIENT_SPOOL_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def spooled(spool: Path) -> list[Path]:
    return listed(spool, SPOOLED)


def begun(tmp_path: Path, **plan: Any) -> Trainer:
    """A trainer of whose records some are durable."""
    trainer = Trainer(tmp_path, SMALL, rate=RATE, **plan)
    wait_until(lambda: trainer.word(layout.AGENT_WRITTEN), 30, "something is durable")
    return trainer


@pytest.mark.timeout(180)
def test_more_than_memory_holds_is_kept_on_a_local_disk_while_the_network_hangs(mount, spool, tmp_path, pace):
    """Twice what memory may hold, workers killed and stopped meanwhile: nothing lost, nothing left behind."""
    records = pace.count(1_000_000, least=40_000)
    trainer = begun(tmp_path, records=records, finish_timeout_s=1.0)
    mount.hang(*STUCK)
    wait_until(lambda: len(spooled(spool)) > 2, 60, "segments go to the disk")
    worker = trainer.agent_pid()
    kill(worker)
    successor(trainer, WORKER, worker)
    before = len(spooled(spool))
    wait_until(lambda: len(spooled(spool)) > before + 2, 60, "the successor goes on")
    both_killed(trainer)
    other = Trainer(tmp_path / "other", {"LOGCLIENT_RUN_ID": trainer.run_id}, records=10)
    status = trainer.end()
    assert status["forgotten"] == status["refused"] == 0
    assert status["durable"] < records
    memory = int(SMALL["LOGCLIENT_SPILL_BYTES"])
    wait_until(
        lambda: sum(len(content) for _, content in contents(spool, SPOOLED)) > memory,
        60,
        "the rest goes there",
    )
    assert trainer.word(layout.AGENT_SPILL_BYTES) <= memory
    mount.release()
    other.end()
    nothing_left(GONE_S)
    assert trainer.longest_ms < 1_000
    checked(mount.backing / "runs", records + 10)
    assert not list(spool.iterdir())


def rebooted(trainer: Trainer) -> None:
    """Everybody is gone, and so is all that was on tmpfs."""
    both_killed(trainer)
    trainer.end_by()
    shutil.rmtree(trainer.shm_dir)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("who", ["recover", "the next init", "nobody: it is not mounted"])
def test_spooled_segments_come_home_after_a_reboot(mount, spool, tmp_path, who):
    """tmpfs is empty, the spool is not: `logclient recover`, or the next run of this user, stores what is in it."""
    trainer = begun(tmp_path, until_told=True, finish=False)
    mount.hang(*STUCK)
    wait_until(lambda: len(spooled(spool)) > 3, 60, "segments go to the disk")
    rebooted(trainer)
    left = {path.name: path.stat().st_size for path in spooled(spool)}
    mount.release()
    words = [sys.executable, "-m", "logclient_backend", "recover", trainer.run_id, "--json"]
    if who.startswith("nobody"):
        ended = scripts.run_words(
            tmp_path, ["unshare", "-m", "sh", "-ec", UNMOUNTED, str(mount.path), *words]
        )
        assert ended.code == 1, ended
        assert "is not mounted" in json.loads(ended.out)["spooled"][0]["trouble"]
        assert {path.name for path in spooled(spool)} == set(left)
        return
    if who == "recover":
        ended = scripts.run_words(tmp_path, words)
        assert ended.code == 0, ended
        (told,) = json.loads(ended.out)["spooled"]
        assert (told["id"], told["segments"], told["trouble"]) == (trainer.run_id, len(left), "")
    else:
        scripts.run_well(
            tmp_path, scripts.LOG_TEN, env=scripts.environment(LOGCLIENT_DIR=str(tmp_path / "x"))
        )
    wait_until(lambda: not list(spool.iterdir()), 30, "the spool is empty")
    sealed = {path.stem for path in (mount.backing / "runs").glob("*/*/*.seg")}
    assert sealed >= {Path(name).stem for name in left}
    found = stored(mount.backing / "runs")
    assert found.wrong == found.forgotten == found.damaged == 0
    assert found.records > sum(left.values()) / 200


@pytest.mark.timeout(120)
def test_spool_that_somebody_clears_costs_what_was_in_it_counted(mount, spool, tmp_path):
    """The worker is killed and its spooled segments are removed: these records count as damaged, the rest is stored."""
    trainer = begun(tmp_path, records=30_000)
    trainer.status_page()  # mapped before it goes
    mount.hang(*STUCK)
    wait_until(lambda: len(spooled(spool)) > 3, 60, "segments go to the disk")
    worker = trainer.agent_pid()
    kill(worker, signal.SIGSTOP)
    for path in spooled(spool):
        path.unlink()
    kill(worker)
    successor(trainer, WORKER, worker)
    mount.release()
    status = trainer.end()
    trainer.wait_agent_gone(GONE_S)
    found = checked(mount.backing / "runs", 30_000, lost=None)
    assert found.damaged == status["damaged"] > 0
    assert found.forgotten == status["forgotten"] == 0
    assert "was removed from the spool" in log_of(mount.backing / "runs")
