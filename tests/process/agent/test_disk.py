"""The run folder: its budget, what cannot be sealed, what somebody removes, and settings that make little sense."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.agent.output import agent_log
from logclient_backend.wal.reader import WalReader

from ..agents import WORKER, both_killed, checked, kill, log_of, nothing_left, successor
from ..disturbed import Trainer, documents, node_folders, remove_at_once, wait_until


def sizes(run_dir: Path) -> list[int]:
    """Bytes of each segment."""
    return [path.stat().st_size for path in run_dir.glob("*/*/*-*.*") if path.suffix in (".seg", ".wal")]


@pytest.mark.first_is_quick
@pytest.mark.timeout(120)
@pytest.mark.parametrize("budget", [0, 10_000, 30_000])
def test_disk_budget_is_kept_and_what_goes_is_told_exactly(
    run_dir: Path, tmp_path: Path, budget: int
) -> None:
    """The oldest segments go; stored and trimmed together are what was accepted, to the record."""
    settings = {"LOGCLIENT_DISK_BYTES": str(budget), "LOGCLIENT_SEGMENT_BYTES": "65536"}
    trainer = Trainer(tmp_path, settings, records=20_000, rate=10_000)
    status = trainer.end()
    trainer.wait_gone()
    found = checked(run_dir, status["accepted"], lost=None)
    assert found.damaged == 0
    assert found.forgotten > 0
    note = 4096  # of what was trimmed
    kept = sizes(run_dir)
    assert sum(kept) <= budget + note
    if budget:
        assert sum(kept) + 2 * max(kept) > budget, (
            "no more went than had to: segments are of much the same size"
        )
        (seqs,) = found.seqs.values()
        assert seqs == list(range(seqs[0], 20_001)), "the newest are kept"


@pytest.mark.first_is_quick
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "settings",
    [
        {"SEGMENT_BYTES": "0", "SPILL_BYTES": "0"},
        {"SEGMENT_BYTES": "1000000000000", "SPILL_BYTES": "1000000000000", "DISK_BYTES": "1000000000000000"},
        {"SEAL_S": "0", "SYNC_S": "0", "POLL_S": "0", "LINGER_S": "0"},
        {"STALL_S": "0", "RESTART_LIMIT": "0"},
        {"SYNC_S": "1000", "SEAL_S": "1000000", "POLL_S": "0.5"},
        {"LANES": "1", "LANES_BYTES": "1"},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_settings_out_of_range_do_no_harm(run_dir: Path, tmp_path: Path, settings: dict[str, str]) -> None:
    """What is too small or too large is brought into range; the run is stored."""
    env = {f"LOGCLIENT_{name}": value for name, value in settings.items()}
    trainer = Trainer(tmp_path, env, records=3_000, rate=3_000, finish_timeout_s=20)
    wait_until(lambda: trainer.logged > 1_000, 20, "some are logged")
    worker = trainer.agent_pid(WORKER)
    kill(worker)
    successor(trainer, WORKER, worker)
    status = trainer.end()
    trainer.wait_gone()
    checked(run_dir, 3_000, lost=status["forgotten"])


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_removed_run_folder_is_made_again(run_dir: Path, tmp_path: Path) -> None:
    """Somebody removes it in mid-run: what is still in shared memory and what comes later is stored."""
    trainer = Trainer(tmp_path, {"LOGCLIENT_SEAL_S": "1"}, records=8_000, rate=2_000, finish_timeout_s=20)
    wait_until(lambda: trainer.logged > 4_000, 20, "half is logged")
    remove_at_once(run_dir)
    status = trainer.end()
    assert status["durable"] == 8_000
    trainer.wait_gone()
    (folder,) = node_folders(run_dir)
    (span,) = WalReader(str(folder)).spans().values()
    assert span.last == 8_000
    assert span.records >= 4_000
    (node,) = documents(run_dir)
    assert node["closed"]
    assert "works again" in log_of(run_dir)


@pytest.mark.timeout(120)
def test_damaged_staged_segment_costs_what_was_in_it(run_dir: Path, tmp_path: Path) -> None:
    """Bytes flip in shared memory before they are copied: the successor tells what is gone, and stores the rest."""
    settings = {"LOGCLIENT_FAILPOINTS": "copy.write=eio:1+"}
    trainer = Trainer(tmp_path, settings, rate=2_000, seconds=60, finish=False)
    wait_until(lambda: trainer.word(layout.AGENT_STAGE_COMMIT) & 0xFFFF_FFFF > 20_000, 20, "some are staged")
    both_killed(trainer)
    trainer.end_by()
    (staged,) = (path for path in Path(trainer.shm_dir).glob("*.wal") if any(path.read_bytes()[:1000]))
    with open(staged, "r+b") as file:
        file.seek(10_000)
        file.write(b"\xff" * 20)
    other = Trainer(tmp_path / "other", {"LOGCLIENT_RUN_ID": trainer.run_id}, records=10, rate=100)
    other.end()
    trainer.wait_gone()
    found = checked(run_dir, trainer.logged + 10, lost=None)
    assert 0 < found.damaged < trainer.logged
    assert found.forgotten == 0
    assert "do not check" in log_of(run_dir)
    (node,) = documents(run_dir)
    assert sum(counts["damaged"] for counts in node["streams"].values()) == found.damaged
    assert sum(counts["stored"] for counts in node["streams"].values()) == found.records


def test_log_of_the_agent_is_rotated(tmp_path: Path) -> None:
    """Two files at most, whatever happens; a folder that takes nothing costs lines, not data."""
    for number in range(60):
        agent_log.write(str(tmp_path), [(number * 10**9, f"{number} " + "x" * 10_000)])
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["agent.log", "agent.log.old"]
    assert sum(path.stat().st_size for path in files) < 700_000
    assert files[0].read_text().splitlines()[-1].startswith("1970-01-01T00:00:59Z 59 x")
    agent_log.write(str(tmp_path / "nowhere"), [(0, "a line")])
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "agent.log").symlink_to(tmp_path / "victim")
    agent_log.write(str(tmp_path / "link"), [(0, "a line")])
    assert not (tmp_path / "victim").exists()


@pytest.mark.timeout(60)
def test_segment_that_cannot_be_sealed_stays_as_it_is(run_dir: Path, tmp_path: Path) -> None:
    """Its records do not decode as they were: it is kept open, durable and readable, and the others are sealed."""
    trainer = Trainer(tmp_path, {"LOGCLIENT_SEAL_S": "1"}, records=4_000, rate=2_000)
    wait_until(lambda: list(run_dir.glob("*/*/*.wal")), 20, "a segment is open")
    (opened,) = run_dir.glob("*/*/*.wal")
    blocked = opened.with_suffix(".seg")
    blocked.mkdir()  # a rename onto a folder fails: the disk refuses this one
    wait_until(lambda: "refused" in trainer_log(trainer, run_dir), 20, "sealing is refused")
    blocked.rmdir()
    status = trainer.end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    nothing_left()


def trainer_log(trainer: Trainer, run_dir: Path) -> str:
    """Errors reach the log only once the folder works; until then the status page tells them."""
    word = trainer.word(13)
    time.sleep(0.05)
    return "refused" if word else json.dumps(log_of(run_dir))
