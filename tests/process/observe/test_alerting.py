"""Alerts of a live run, sent by its observer to a receiver on loopback: each once, and none costs the run anything."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import layout
from tests.certificates import Authority
from tests.hooks import Hooks, hooks, target_file, webhook
from tools.faults import frozen, fuse, processes

from ..disturbed import ROOT, wait_until
from .observed_job import PATIENCE_S, Job, job

ENDLESS = "logs(100_000)\n"


@contextmanager
def alerted(
    folder: Path, source: str, *, at: str = "/ok", more: str = "", **given: Any
) -> Iterator[tuple[Job, Hooks]]:
    """A job whose alerts go to that path of a receiver."""
    with hooks() as served:
        path = target_file(folder, more + webhook("team", f"{served.url}{at}/T0KEN"))
        with job(folder, source, LOGCLIENT_ALERTS=str(path), **given) as run:
            yield run, served


def of(served: Hooks, kind: str) -> list[dict[str, Any]]:
    """Return the events of that kind that came."""
    return [content for _, content in list(served.came) if content["kind"] == kind]


def wait_for(served: Hooks, kind: str, count: int) -> list[dict[str, Any]]:
    """Wait until so many events of that kind came."""
    wait_until(lambda: len(of(served, kind)) >= count, PATIENCE_S, f"{count} events {kind}")
    found = of(served, kind)
    assert len(found) == count, found
    return found


def kept(run: Job) -> dict[str, Any]:
    """Return the content of `alerts.json`, once there is one."""
    wait_until(lambda: (run.shm_dir / "alerts.json").exists(), PATIENCE_S, "it is written")
    found: dict[str, Any] = json.loads((run.shm_dir / "alerts.json").read_bytes())
    return found


def test_stalled_run_is_one_alert_and_one_when_it_moves(tmp_path: Path, run_dir: Path) -> None:
    """Rank 1 is stopped; a second stall is a second episode."""
    with alerted(tmp_path, ENDLESS, count=2) as (run, served):
        run.wait("ok")
        time.sleep(1.0)
        for number in (1, 2):
            with processes.stopped(run.processes[1].pid):
                begin = wait_for(served, "stalled", 2 * number - 1)[-1]
                run.watch(4)
                assert (begin["phase"], begin["level"], begin["rank"]) == ("begin", "error", 1), begin
                assert begin["text"].startswith("stopped: rank 1 is stopped by a signal"), begin
                assert (begin["name"], begin["run"]) == ("job", "observed")
            end = wait_for(served, "stalled", 2 * number)[-1]
            assert (end["phase"], end["text"]) == ("end", "the run moves again")
        assert [each["phase"] for each in of(served, "stalled")] == ["begin", "end"] * 2
        assert {path for path, _ in served.came} == {"/ok/T0KEN"}
        names = [
            path.name for path in run.shm_dir.iterdir() if path.is_file() and b"T0KEN" in path.read_bytes()
        ]
        assert not names, names


def test_rank_that_is_killed_while_its_peers_live_is_told_within_ten_seconds(
    tmp_path: Path, run_dir: Path
) -> None:
    """With the settings that are the default; so is the end of the whole run, with its cause."""
    defaults = {"LOGCLIENT_OBSERVE_S": "2", "LOGCLIENT_LATE_AFTER_S": "10", "LOGCLIENT_LATE_FACTOR": "5"}
    source = "logs(100_000 if RANK != 1 else 200)\nwait_for('never')\n"
    with alerted(tmp_path, source, count=3, **defaults) as (run, served):
        run.wait("ok")
        wait_until(lambda: len(list(run.shm_dir.glob("*.lanes"))) == 3, PATIENCE_S, "all are there")
        time.sleep(2.5)
        processes.send(run.processes[1].pid, signal.SIGKILL)
        begun = time.monotonic()
        wait_until(lambda: of(served, "gone"), PATIENCE_S, "it is missed")
        took_s = time.monotonic() - begun
        (gone,) = of(served, "gone")
        assert took_s < 10.0, took_s
        assert (gone["rank"], gone["phase"]) == (1, "begin")
        assert "signal SIGKILL" in gone["text"] and "2 of its peers live" in gone["text"], gone
        for rank in (0, 2):
            processes.send(run.processes[rank].pid, signal.SIGTERM)
        wait_until(lambda: len(of(served, "gone")) == 2, PATIENCE_S, "none of its peers lives")
        wait_until(lambda: of(served, "state"), PATIENCE_S, "the run is over")
        (state,) = of(served, "state")
        assert state["level"] == "error" and state["text"].startswith("the run is "), state


VALUES = """
for step in range(100):
    run.log(step, {"loss": 1.0, "other": 20.0})
wait_for("go")
for step in range(100, 103):
    run.log(step, {"loss": 20.0})
run.log(103, {"loss": float("nan")})
run.finish()
"""


def test_values_are_judged_to_the_last_record_of_a_process(tmp_path: Path, run_dir: Path) -> None:
    """Those that come right before the end, too: a run that fails by them is why there are such rules."""
    rules = 'rules = ["loss > 10", "nonfinite loss"]\n'
    with alerted(tmp_path, VALUES, more=rules) as (run, served):
        run.wait("ok")
        run.go()
        wait_until(lambda: of(served, "over") and of(served, "nonfinite"), PATIENCE_S, "both are sent")
        over, bad = of(served, "over")[0], of(served, "nonfinite")[0]
        assert (over["key"], over["step"], over["value"], over["rank"]) == ("loss", 100, 20.0, 0), over
        assert (bad["phase"], bad["step"], bad["value"]) == ("begin", 103, "nan"), bad
        assert [each["phase"] for each in wait_for(served, "over", 2)] == ["begin", "end"]
        assert wait_for(served, "state", 1)[0]["text"].startswith("the run is finished")


def test_alert_of_a_program_comes_at_once(tmp_path: Path, run_dir: Path) -> None:
    """It wakes the observer, which would look again only after minutes; so does one right before the end."""
    source = "logs(50)\nwait_for('go')\nrun.alert('Loss', 'is odd', 'warn')\nwait_for('end')\n"
    source += "run.alert('Bye')\nrun.finish()\n"
    with alerted(tmp_path, source, LOGCLIENT_OBSERVE_S="300", LOGCLIENT_STALL_S="120") as (run, served):
        wait_until(lambda: (run.shm_dir / "why.json").exists(), PATIENCE_S, "it is observed")
        time.sleep(1.0)
        run.go()
        wait_until(lambda: of(served, "alert"), PATIENCE_S, "it comes")
        (first,) = of(served, "alert")
        assert (first["text"], first["level"], first["rank"]) == ("Loss: is odd", "warn", 0)
        run.go("end")
        wait_until(lambda: len(of(served, "alert")) == 2, PATIENCE_S, "the last one comes")
        assert of(served, "alert")[1]["text"] == "Bye"


def test_receiver_that_hangs_costs_the_run_nothing_and_is_counted(tmp_path: Path, run_dir: Path) -> None:
    """Records are stored meanwhile, looks go on, and the agent leaves as soon as without it."""
    source = "for _ in range(5): run.alert('x')\nlogs(300)\nwait_for('go')\nrun.finish()\n"
    with alerted(tmp_path, source, at="/hang") as (run, served):
        run.wait("ok")
        wait_until(lambda: len(served.came) >= 2, PATIENCE_S, "it was tried twice")
        team = kept(run)["delivery"]["targets"]["team"]
        assert team["failed"] >= 1 and team["delivered"] == 0 and team["waiting"] >= 5, team
        assert team["trouble"] == "no answer within 5 s"
        command = [sys.executable, "-m", "logclient_backend", "status"]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT)
        assert shown.returncode == 1 and "target team: no answer within 5 s" in shown.stdout, shown
        run.wait("stalled")
        restarts = [run.word(index) for index in (layout.AGENT_OBSERVER_RESTARTS, layout.AGENT_RESTARTS)]
        assert restarts == [0, 0]
        observer = run.word(layout.AGENT_OBSERVER)
        begun = time.monotonic()
        run.go()
        wait_until(lambda: not run.shm_dir.exists(), PATIENCE_S, "the agent leaves")
        assert processes.is_alive(observer) or time.monotonic() - begun > 5.0, (
            "it goes on with the last alerts"
        )
        wait_until(lambda: not processes.is_alive(observer), PATIENCE_S, "for a while")


def test_next_observer_sends_nothing_twice(tmp_path: Path, run_dir: Path) -> None:
    """Killed in a stall and with a value over its limit; both end once."""
    source = """
for step in range(60):
    run.log(step, {"loss": 20.0 if step > 50 else 1.0})
    time.sleep(0.02)
run.alert("hello")
wait_for("go")
logs(100_000)
"""
    with alerted(tmp_path, source, more='rules = ["loss > 10"]\n') as (run, served):
        wait_until(
            lambda: of(served, "stalled") and of(served, "over") and of(served, "alert"),
            PATIENCE_S,
            "all came",
        )
        wait_until(lambda: kept(run)["delivery"]["targets"]["team"]["waiting"] == 0, PATIENCE_S, "noted")
        for end in (signal.SIGKILL, signal.SIGKILL):
            pid = run.word(layout.AGENT_OBSERVER)
            os.kill(pid, end)
            run.wait_for_another_observer(pid)
            run.watch(4)
        assert len(served.came) == 3, served.came
        run.go()
        wait_until(lambda: len(of(served, "stalled")) == 2, PATIENCE_S, "it moves again")
        wait_until(lambda: len(of(served, "over")) == 2, PATIENCE_S, "the loss is below it again")
        assert [each["phase"] for each in of(served, "over")] == ["begin", "end"]
        assert len(of(served, "alert")) == 1


@pytest.mark.root
@pytest.mark.timeout(300)
def test_frozen_disk_is_told_over_https_with_a_ca_of_its_own(tmp_path: Path, disk: frozen.LoopExt4) -> None:
    """Run folder and file of targets are on that disk: verdict, code and certificates are in memory."""
    authority = Authority(tmp_path / "ca")
    source = f"""
logs(50)
wait_for("go")
def save(): open({str(disk.path / "checkpoint")!r}, "w").close()
save()
logs(100_000)
"""
    with hooks(authority.certificate("good")) as served:
        folder = disk.path / "config"
        folder.mkdir()
        shutil.copy(authority.folder / "ca.pem", folder)
        path = target_file(folder, f'ca = "{folder}/ca.pem"\n' + webhook("team", f"{served.url}/ok/T0KEN"))
        with job(tmp_path, source, LOGCLIENT_ALERTS=str(path)) as run:
            run.wait("ok")
            wait_until(lambda: kept(run)["delivery"]["file"]["state"] == "ok", PATIENCE_S, "the file is read")
            with disk.frozen():
                run.go()
                begin = wait_for(served, "stalled", 1)[0]
                assert begin["text"].startswith("file system: rank 0 waits for a disk"), begin
                assert run.text.startswith("stalled: file system: rank 0"), run.text
                assert f"save ({tmp_path}/main.py:" in run.text
            assert wait_for(served, "stalled", 2)[1]["phase"] == "end"


@pytest.mark.root
@pytest.mark.timeout(300)
def test_mount_that_hangs_is_told_with_section_and_last_calls(tmp_path: Path, mount: fuse.Fuse) -> None:
    """Opening a file on it takes for ever; so does whatever else would look at it, the run folder included."""
    (mount.path / "checkpoint").write_text("x")
    source = f"""
run.trace(include=["__main__"])
logs(50)
wait_for("go")
def save(): open({str(mount.path / "checkpoint")!r}).read()
with run.section("save"): save()
logs(100_000)
"""
    with alerted(tmp_path, source) as (run, served):
        run.wait("ok")
        mount.hang("open", "read", "write", "getattr")
        try:
            run.go()
            begin = wait_for(served, "stalled", 1)[0]
            assert begin["rank"] == 0 and "save" in begin["text"], begin
            assert "in section 'save'" in run.text, run.text
            (rank,) = run.why()["processes"]
            assert rank["wait_channel"] and rank["state"] in ("file system", "user code"), rank
            assert rank["last_calls"][0]["calls"][-1]["function"] == "save", rank["last_calls"]
        finally:
            mount.release()
        assert wait_for(served, "stalled", 2)[1]["phase"] == "end"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rank_that_works_longer_in_its_sections_is_a_straggler(tmp_path: Path, run_dir: Path) -> None:
    """All log at one pace, since they wait for each other; the times outside of collectives tell them apart."""
    source = """
work, wait = run.section("work"), run.section("wait")
for step in range(100_000):
    with work: time.sleep(0.03 if RANK == 1 else 0.02)
    with wait: time.sleep(0.01 if RANK == 1 else 0.02)
    run.log(step, {"loss": 1.0})
"""
    with alerted(tmp_path, source, more='rules = ["straggler"]\n', count=4) as (_, served):
        wait_until(lambda: of(served, "straggler"), 2 * PATIENCE_S, "it is found")
        found = of(served, "straggler")[0]
        assert (found["rank"], found["phase"]) == (1, "begin") and "slower than the median" in found[
            "text"
        ], found


@pytest.mark.timeout(300)
def test_spike_and_rules_of_init(tmp_path: Path, run_dir: Path) -> None:
    """Rules that the program gives count as well; where it has no file of receivers they are kept for `status`."""
    source = """
run.finish()
run = logclient.init("observed", name="job", id="second", rank=0, quiet=True, alerts=["acc < 0.1 for 3 steps"])
for step in range(400):
    run.log(step, {"acc": 0.05 if 200 <= step < 210 else 0.9})
    time.sleep(0.005)
wait_for("never")
"""
    with job(tmp_path, source) as run:
        root = Path(os.environ["LOGCLIENT_SHM_DIR"])

        def events() -> list[dict[str, Any]]:
            found = list(root.glob("logclient-*/second*/alerts.json"))
            return [each["event"] for each in json.loads(found[0].read_bytes())["events"]] if found else []

        wait_until(
            lambda: len([each for each in events() if each["kind"] == "under"]) == 2, PATIENCE_S, "both"
        )
        begin, end = [each for each in events() if each["kind"] == "under"]
        assert (begin["phase"], begin["step"], end["phase"]) == ("begin", 202, "end"), (begin, end)
        assert run.processes[0].poll() is None


FILLS = """
import random
for step in range(10**7):
    run.log(step, {f"key{number}": random.random() for number in range(20)})
    if not step % 200:
        time.sleep(0.02)
"""


def test_disk_budget_of_the_run_is_told_before_the_oldest_records_go(tmp_path: Path, run_dir: Path) -> None:
    """One episode, however often room is made from then on: the run stays near its budget."""
    small = {"LOGCLIENT_DISK_BYTES": str(4 << 20), "LOGCLIENT_SEGMENT_BYTES": str(128 << 10)}
    with alerted(tmp_path, FILLS, **small) as (run, served):
        (found,) = wait_for(served, "budget", 1)
        assert found["phase"] == "begin" and found["text"].startswith("disk of this run: "), found
        assert found["value"] >= 0.9
        seen: set[int] = set()

        def has_changed() -> bool:
            seen.add(run.word(layout.AGENT_RUN_DISK))
            return len(seen) > 3

        wait_until(has_changed, PATIENCE_S, "segments come and go")
        assert len(of(served, "budget")) == 1
