"""`status`, `recover` and `doctor`: what lives on this host, and what is done about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from logclient_backend.agent.output import mounts
from logclient_backend.cli import cli, recover
from logclient_backend.cli import doctor_checks as checks
from logclient_backend.cli.status import describe
from logclient_backend.runs import contents, folder, live
from logclient_backend.runs.view import view
from tools.faults import processes

from .conftest import Command, Trainer, kill_agent, wait_for

Start = Callable[..., Trainer]
ID = "run = logclient.init('digits', name='mlp', id='the-run')"


def entry_of(logclient: Command, run_id: str = "the-run") -> dict[str, Any]:
    """What `status` says of one run: other users of this host's memory do not matter here."""
    found = logclient.live(run_id)
    assert found is not None
    return found


def is_live(logclient: Command, run_id: str = "the-run") -> bool:
    return logclient.live(run_id) is not None


def test_status_of_a_healthy_run(logclient: Command, trainer: Start) -> None:
    """Processes, streams, lag, fill, drops, and an agent that runs."""
    it = trainer(ID)
    it.go("for step in range(500): run.log(step, {'loss': 1.0, 'bad': [1]})\nrun.flush(60)")
    wait_for(lambda: entry_of(logclient)["lag_records"] == 0)
    logclient.agent("the-run")
    found = entry_of(logclient)
    assert found["agent"]["state"] == "running"
    assert found["problems"] == []
    (process,) = found["processes"]
    assert (process["pid"], process["alive"], process["open"], process["streams"]) == (it.pid, True, True, 1)
    assert process["counts"]["accepted"] == 501
    assert process["counts"]["left_out"] == 500
    assert 0 <= process["fill"] <= 1
    text = CliRunner().invoke(cli, ["status"]).stdout
    assert "none: all is on disk" in text and "500 points left out" in text


@pytest.mark.slow
def test_status_tells_lag_and_fill_while_the_agent_stands_still(logclient: Command, trainer: Start) -> None:
    """How many records are not durable, and how old the oldest is."""
    it = trainer(ID)
    agent = logclient.agent("the-run")
    for name in ("supervisor", "worker"):
        os.kill(agent[name], signal.SIGSTOP)
    try:
        it.go("for step in range(1000): run.log(step, {'loss': 1.0})")
        first = wait_for(lambda: (found := entry_of(logclient))["lag_s"] > 0.3 and found)
        assert first["lag_records"] == 1000
        assert first["processes"][0]["fill"] > 0.01
        it.go("for step in range(60_000): run.log(step, {'loss': 1.0})")
        assert entry_of(logclient)["processes"][0]["fill"] > 0.9
    finally:
        for name in ("supervisor", "worker"):
            os.kill(agent[name], signal.SIGCONT)
    wait_for(lambda: entry_of(logclient)["lag_records"] == 0)
    counts = entry_of(logclient)["counts"]
    assert counts["accepted"] == 61_001 == counts["stored"] + counts["forgotten"] + counts["damaged"]
    assert counts["forgotten"] > 0
    it.go("run.finish(60)")
    shown = logclient.json("show", "the-run")
    assert shown["counts"]["forgotten"] == counts["forgotten"] == sum(gap["records"] for gap in shown["gaps"])


def test_recover_stores_what_a_killed_run_left(logclient: Command, trainer: Start) -> None:
    """Trainer and agent killed: everything that fits the lanes is stored, nothing is missing."""
    it = trainer(ID)
    kill_agent(logclient.agent("the-run"))
    it.go("for step in range(1, 3000): run.log(step, {'loss': 1.0})")
    it.kill()
    found = entry_of(logclient)
    assert (found["agent"]["state"], found["lag_records"]) == ("gone", 2999)
    assert "`logclient recover` brings one" in " ".join(found["problems"])
    assert any(finding.advice == "logclient recover" for finding in checks.left_behind())
    (result,) = logclient.json("recover", "the-run")["runs"]
    assert (result["stored_all"], result["agent_started"]) == (True, True)
    assert (result["stored"], result["forgotten"], result["waiting"]) == (3000, 0, 0)
    wait_for(lambda: not is_live(logclient))
    assert logclient.json("show", "the-run")["counts"]["stored"] == 3000
    assert "no run in shared memory" in logclient("recover", "the-run", code=3).stderr


@pytest.mark.slow
def test_recover_counts_the_gap_exactly(logclient: Command, trainer: Start) -> None:
    """More than the lanes hold: the newest is stored, and what was forgotten is counted."""
    it = trainer(ID)
    kill_agent(logclient.agent("the-run"))
    it.go("for step in range(1, 60_000): run.log(step, {'loss': 1.0})")
    text = logclient("recover", "the-run").stdout
    (counts,) = [run["counts"] for run in [entry_of(logclient)]]
    assert counts["forgotten"] > 0
    assert counts["accepted"] == 60_000 == counts["stored"] + counts["forgotten"]
    assert f"{counts['forgotten']:,} forgotten: exactly these are missing" in text
    assert is_live(logclient)  # the trainer lives, and has an agent again
    it.go("run.finish(60)")
    assert logclient.json("show", "the-run")["state"]["name"] == "finished"


@pytest.fixture
def homeless(run_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither the run folder nor the home folder can be made: both lie below a file."""
    (home / "file").write_text("")
    monkeypatch.setenv("LOGCLIENT_DIR", str(home / "file" / "runs"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "file" / "data"))
    return home


@pytest.mark.slow
def test_run_in_shared_memory_only_is_seen_and_stored(
    logclient: Command, homeless: Path, trainer: Start
) -> None:
    """C6-4: `ls` and `show` find it where it should have been; `recover --dir` stores it elsewhere."""
    it = trainer(ID)
    it.go("for step in range(1, 100): run.log(step, {'loss': 1.0})")
    wait_for(lambda: logclient.json("show", "the-run")["counts"]["stored"] == 100)
    assert [run["id"] for run in logclient.json("ls")["runs"]] == ["the-run"]
    assert "shared memory only" in " ".join(logclient.json("show", "the-run")["problems"])
    assert entry_of(logclient)["dir"] == ""
    it.kill()
    result = logclient.json("recover", "the-run", code=1)["runs"][0]
    assert "say where to with --dir" in result["trouble"]
    assert (
        "cannot be used" in logclient("recover", "the-run", "--dir", homeless / "file" / "x", code=1).stdout
    )
    target = homeless / "saved"
    assert "100 records stored, none missing" in logclient("recover", "the-run", "--dir", target).stdout
    assert logclient.json("show", "the-run", "--dir", target)["counts"]["stored"] == 100


@pytest.mark.slow
def test_recover_brings_another_where_the_agent_it_found_was_about_to_leave(
    logclient: Command, homeless: Path, trainer: Start
) -> None:
    """It says where to while an agent is there, which then leaves what it has in shared memory."""
    it = trainer(ID)
    it.go("for step in range(1, 100): run.log(step, {'loss': 1.0})")
    agent, answer = logclient.agent("the-run"), Path(entry_of(logclient)["meeting_place"], "folder.json")
    for name in ("worker", "supervisor"):
        os.kill(agent[name], signal.SIGSTOP)
    it.kill()
    target = homeless / "saved"
    words = [sys.executable, "-m", "logclient_backend", "recover", "the-run", "--dir", str(target), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: str(target) in answer.read_text())
        kill_agent(agent)
        told = json.loads(process.communicate(timeout=120)[0])["runs"][0]
    assert (process.returncode, told["trouble"], told["stored"], told["waiting"]) == (0, "", 100, 0)
    assert told["agent_started"]


def test_shm_dir_whose_agent_leaves_while_it_is_looked_at_has_no_problem(
    logclient: Command, trainer: Start
) -> None:
    """Its files go after they were listed: nothing is said of an agent that is gone."""
    it = trainer(ID)
    (found,) = (each for each in live.scan() if each.run_id == "the-run")
    it.go("run.finish(60)")
    it.end()
    wait_for(lambda: not found.is_there)
    assert found.agent()["state"] == "left"
    assert describe(found)["problems"] == []


def test_worker_that_is_to_bring_another_supervisor_is_an_agent(
    logclient: Command, trainer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody holds the lock for that long: `status` does not say that the agent is gone."""
    monkeypatch.setenv("LOGCLIENT_STALL_S", "300")
    trainer(ID)
    agent = logclient.agent("the-run")
    os.kill(agent["worker"], signal.SIGSTOP)
    try:
        os.kill(agent["supervisor"], signal.SIGKILL)
        wait_for(lambda: not processes.is_alive(agent["supervisor"]))
        found = entry_of(logclient)
        assert found["agent"]["state"] == "running"
        assert found["problems"] == []
    finally:
        os.kill(agent["worker"], signal.SIGCONT)

    def has_another() -> bool:
        now = entry_of(logclient)
        return bool(now["agent"]["supervisor"] != agent["supervisor"] and now["problems"] == [])

    wait_for(has_another)


@pytest.mark.slow
def test_worker_that_is_stopped_and_has_no_supervisor_is_replaced(
    logclient: Command, trainer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives and will not bring another: once it is silent for long, `recover` does."""
    monkeypatch.setenv("LOGCLIENT_STALL_S", "1")
    it = trainer(ID)
    agent = logclient.agent("the-run")
    os.kill(agent["worker"], signal.SIGSTOP)
    os.kill(agent["supervisor"], signal.SIGKILL)
    it.go("for step in range(1, 100): run.log(step, {'loss': 1.0})")
    it.kill()
    (result,) = logclient.json("recover", "the-run")["runs"]
    assert (result["agent_started"], result["stored"], result["waiting"]) == (True, 100, 0)


@pytest.mark.slow
def test_agent_that_is_late_and_stores_all_is_no_trouble(
    logclient: Command, trainer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine it starts after the time that is given for that: `recover` waits for what it does."""
    it = trainer(ID)
    kill_agent(logclient.agent("the-run"))
    it.go("for step in range(1, 100): run.log(step, {'loss': 1.0})")
    it.kill()
    monkeypatch.setattr(recover, "_START_S", 0.0)
    (result,) = logclient.json("recover", "the-run")["runs"]
    assert (result["trouble"], result["stored"], result["waiting"]) == ("", 100, 0)


def test_recover_removes_what_an_agent_left_that_was_killed_while_it_left(logclient: Command) -> None:
    """Its directory has no name any more; nothing of a run is in it."""
    shm = Path(os.environ["LOGCLIENT_SHM_DIR"])
    left = shm / f"logclient-{os.getuid()}" / ".gone-8b26e8bc5c6d"
    left.mkdir(parents=True, mode=0o700)
    left.parent.chmod(0o700)
    (left / "agent.lock").touch(0o600)
    logclient("recover", "no-such-run", code=3)
    assert not left.parent.exists()


def test_recover_says_what_is_not_there(logclient: Command) -> None:
    """Exit code 3 for a run that nobody knows."""
    assert "no run in shared memory" in logclient("recover", "no-such-run", code=3).stderr
    assert "not in the range" in logclient("recover", "--timeout", "-1", code=2).stderr


def test_fallback_to_the_home_folder_is_found(
    logclient: Command, home: Path, trainer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6-4: the run went home; readers that look where it was wanted find it."""
    (home / "file").write_text("")
    monkeypatch.setenv("LOGCLIENT_DIR", str(home / "file" / "runs"))
    it = trainer(ID)
    it.go("run.finish(60)")
    shown = logclient.json("show", "the-run")
    assert shown["path"].startswith(str(home / ".local" / "share" / "logclient-runs"))
    assert shown["counts"]["stored"] == 1


@pytest.mark.slow
def test_run_whose_agent_leaves_meanwhile_is_read_from_its_folder(
    logclient: Command, home: Path, trainer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shm directory was there when a reader listed it, and is gone when it is read: wherever the run lies."""
    (home / "file").write_text("")
    for where in (home / "runs", home / "file" / "runs"):  # as wanted, and in the home folder instead
        monkeypatch.setenv("LOGCLIENT_DIR", str(where))
        it = trainer(ID)
        live_dirs = [
            each for each in live.scan() if each.run_id == "the-run"
        ]  # other users of /dev/shm have theirs
        assert len(live_dirs) == 1
        it.go("assert run.finish(60)")
        assert it.end() == 0
        wait_for(lambda: "the-run" not in [each.run_id for each in live.scan()])
        (found,) = folder.find(str(where), live_dirs=live_dirs)
        assert contents.read(view(found)).counts(view(found))["stored"] == 1


def test_live_run_is_not_repaired_nor_replaced(logclient: Command, trainer: Start, tmp_path: Path) -> None:
    """What its agent still writes is left alone."""
    it = trainer(ID)
    it.go("for step in range(1, 100): run.log(step, {'loss': 1.0})\nrun.flush(60)")
    assert "sound" in logclient("wal", "verify", "the-run").stdout
    repairs = logclient.json("wal", "repair", "the-run", code=4)["repairs"]
    assert {repair["action"] for repair in repairs} == {"left"}
    out = tmp_path / "out"
    logclient("export", "the-run", "--out", out)
    assert "is live: it cannot be replaced" in logclient("import", out, "--replace", code=2).stderr
    imported, again = tmp_path / "other", tmp_path / "again"
    logclient("import", out, "--dir", imported)
    logclient("export", "the-run", "--dir", imported, "--out", again)
    for name in ("points.jsonl", "run.json"):
        assert (out / name).read_bytes() == (again / name).read_bytes(), name
    assert logclient.json("show", "the-run", "--dir", imported)["counts"]["stored"] == 100


# ---- doctor ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_doctor_looks_at_everything(logclient: Command, run_dir: Path) -> None:
    """Memory, disk, agent, rights, versions; what needs doing has advice."""
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    found = json.loads(result.stdout)
    subjects = {finding["subject"] for finding in found["findings"]}
    expected = {"shared memory", "live runs", "run folder", "disk", "agent", "agent's life", "observing"}
    assert expected | {"exit codes", "forks", "versions"} <= subjects
    assert all(finding["advice"] for finding in found["findings"] if finding["level"] == "do")
    needed = sum(1 for finding in found["findings"] if finding["level"] == "do")
    assert (found["needs_doing"], result.exit_code) == (needed, 1 if needed else 0)
    assert not list(run_dir.parent.glob("**/.logclient-probe*"))
    text = CliRunner().invoke(cli, ["doctor"]).stdout
    assert "Python 3." in text and "zstandard" in text


def levels(findings: list[checks.Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_run_folder_that_cannot_be_written_needs_doing(tmp_path: Path) -> None:
    """With the reason, and what else to do."""
    (tmp_path / "file").write_text("")
    (finding,) = checks.disk_speed(str(tmp_path / "file" / "runs"))
    assert finding.level == "ok"  # the probe is written where the folder would be made, above the file
    assert levels(checks.disk_speed("/proc/runs")) == ["do"]


def test_run_folder_on_tmpfs_needs_doing() -> None:
    """It is gone with the next reboot."""
    (finding,) = checks.file_system("/dev/shm/runs")
    assert (finding.level, "reboot" in finding.text) == ("do", True)
    assert levels(checks.file_system("/tmp/runs")) == ["do"]


def test_mount_is_found_without_touching_it(tmp_path: Path) -> None:
    """The longest mount point above the path, from the kernel's own list."""
    assert mounts.mount_of("/proc/self/nothing")[1] == "proc"
    assert mounts.mount_of("/dev/shm/x")[0] == "/dev/shm"
    assert mounts.mount_of("/")[0] == "/"
    assert mounts.network_of("/dev/shm/x") == ""


def test_small_shared_memory_needs_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's 64 MiB, or a mount that is full."""

    def stat(free: int) -> Any:
        return lambda path: os.statvfs_result(
            (4096, 4096, 16384, free // 4096, free // 4096, 0, 0, 0, 0, 255)
        )

    monkeypatch.setattr(os, "statvfs", stat(64 << 20))
    assert levels(checks.shared_memory())[0] == "do"
    monkeypatch.setattr(os, "statvfs", stat(1 << 20))
    (finding,) = checks.shared_memory()
    assert "too little, nothing would be logged" in finding.text


def test_interpreter_that_cannot_start_the_agent_needs_doing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty sys.executable, or one without logclient."""
    assert levels(checks.agent_starts()) == ["ok"]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert levels(checks.agent_starts()) == ["do"]
    monkeypatch.setattr(sys, "executable", "")
    assert levels(checks.agent_starts()) == ["do"]


def test_exit_information_is_tried_on_a_child() -> None:
    """One finding, and no child left behind."""
    before = {child.pid for child in psutil.Process().children()}  # those of other tests
    assert levels(checks.exit_information())[0] in ("ok", "note")
    assert {child.pid for child in psutil.Process().children()} <= before
