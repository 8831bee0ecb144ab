"""R2-24, C4-4, C8-2: real runs, ended in every way, as `ls`, `show` and `tail` tell them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import WAIT_S, Command, Trainer, kill_agent, wait_for

Start = Callable[..., Trainer]


def state(logclient: Command, wanted: str) -> dict[str, Any]:
    """The state of the newest run, once it is the wanted one."""
    wait_for(lambda: logclient.json("show", "mlp")["state"]["name"] == wanted)
    found: dict[str, Any] = logclient.json("show", "mlp")["state"]
    return found


def test_finished(logclient: Command, trainer: Start) -> None:
    """run.finish(), and the program goes on."""
    it = trainer()
    assert state(logclient, "running")["cause"] == ""
    it.go("run.finish(60)")
    assert state(logclient, "finished")["exit_code"] is None
    it.kill()
    assert state(logclient, "finished")


def test_end_of_the_program_is_finished(logclient: Command, trainer: Start) -> None:
    """Without finish(), by the exit hook."""
    assert trainer().end() == 0
    state(logclient, "finished")


def test_exception_is_failed_with_its_type(logclient: Command, trainer: Start) -> None:
    """Type, text, last lines and exit code."""
    it = trainer()
    it.tell("raise ValueError('no such batch')")
    assert it.end() == 1
    found = state(logclient, "failed")
    assert (found["cause"], found["exception"]["type"]) == ("ValueError: no such batch", "ValueError")
    assert found["exception"]["last_lines"]
    text = logclient("show", "mlp").stdout
    assert "failed: ValueError: no such batch" in text
    assert "<string>:1 in <module>" in text


def test_exit_code_is_failed_with_it(logclient: Command, trainer: Start) -> None:
    """sys.exit(3), of which the exit hook alone sees nothing."""
    it = trainer()
    it.tell("import sys; sys.exit(3)")
    assert it.end() == 3
    assert state(logclient, "failed")["exit_code"] == 3
    wait_for(lambda: "failed: exit code 3" in logclient("show", "mlp").stdout)


def test_kill_is_killed(logclient: Command, trainer: Start) -> None:
    """C4-4: SIGKILL of the trainer; every record that was logged is there, within seconds."""
    it = trainer()
    it.go("for step in range(1, 5000): run.log(step, {'loss': 1 / step})")
    it.kill()
    found = state(logclient, "killed")
    assert (found["cause"], found["signal"]) == ("SIGKILL", 9)
    counts = logclient.json("show", "mlp")["counts"]
    assert (counts["stored"], counts["forgotten"], counts["damaged"]) == (5000, 0, 0)


def test_default_sigterm_is_terminated(logclient: Command, trainer: Start) -> None:
    """Another signal, with its name."""
    it = trainer()
    it.process.terminate()
    it.process.wait(WAIT_S)
    found = state(logclient, "terminated")
    assert (found["cause"], found["signal_name"]) == ("SIGTERM", "SIGTERM")
    assert "terminated (SIGTERM)" in logclient("ls").stdout


def test_interrupt_is_terminated(logclient: Command, trainer: Start) -> None:
    """Ctrl-C that nobody caught."""
    it = trainer()
    it.tell("signal.raise_signal(signal.SIGINT)")
    it.process.wait(WAIT_S)
    assert state(logclient, "terminated")["signal"] == 2


def test_run_goes_on_without_its_agent(logclient: Command, trainer: Start) -> None:
    """Its lock says that it runs; then it dies, and what nobody saw is lost, until it comes again."""
    it = trainer("run = logclient.init('digits', name='mlp', id='again')")
    kill_agent(logclient.agent("again"))
    wait_for(lambda: any("agent is gone" in p for p in logclient.json("show", "mlp")["problems"]))
    assert state(logclient, "running")
    assert "logclient recover" in logclient("show", "mlp").stdout
    it.kill()
    assert state(logclient, "lost")["cause"]
    again = trainer("run = logclient.init('digits', name='mlp', id='again')")
    assert state(logclient, "running")
    again.go("run.finish(60)")
    assert state(logclient, "finished")
    assert len(logclient.json("show", "mlp")["attempts"]) == 2


def test_attempts_are_shown_apart(logclient: Command, trainer: Start) -> None:
    """R2-24, R2-36: killed at 300, resumed from 200: newest drawn, all exported, times kept."""
    init = "run = logclient.init('digits', name='mlp', id='two')"
    first = trainer(init)
    first.go("for step in range(1, 301): run.log(step, {'loss': 1.0})")
    first.kill()
    state(logclient, "killed")

    def has_left() -> bool:
        found = logclient.live("two")
        assert found is None or found["problems"] == []
        return found is None

    wait_for(has_left)
    second = trainer(init)
    second.go("for step in range(201, 401): run.log(step, {'loss': 2.0})\nrun.finish(60)")
    shown = logclient.json("show", "two")
    assert [attempt["number"] for attempt in shown["attempts"]] == [1, 2]
    assert shown["attempts"][0]["end"] < shown["attempts"][1]["start"]
    assert shown["first_start"] == shown["attempts"][0]["start"]
    assert shown["active_s"] == pytest.approx(sum(attempt["active_s"] for attempt in shown["attempts"]))
    assert shown["keys"]["loss"]["last"] == 2.0
    lines = [json.loads(line) for line in logclient("export", "two").stdout.splitlines()]
    assert len(lines) == 502
    assert sum(1 for line in lines if 201 <= line["step"] <= 300) == 200
    assert "in 2 attempts" in logclient("show", "two").stdout


def test_steps_in_any_order_are_all_there(logclient: Command, trainer: Start) -> None:
    """C8-2: 4, 3, 2, a stray 10,000,000, 0 to 999, then evaluation rows for step 100 after training rows for 150."""
    it = trainer()
    it.go(
        "for step in (4, 3, 2, 10_000_000, *range(1000)): run.log(step, {'train': float(step)})\n"
        "for step in (150, 100): run.log(step, {'val': 0.5})\nrun.finish(60)"
    )
    lines = [json.loads(line) for line in logclient("export", "mlp").stdout.splitlines()]
    assert [line["step"] for line in lines if line["key"] == "train"] == [4, 3, 2, 10_000_000, *range(1000)]
    assert [line["step"] for line in lines if line["key"] == "val"] == [150, 100]
    text = logclient("show", "mlp", "--key", "train").stdout
    assert "1 point far outside not drawn" in text


ODD = r"""
keys = ["timing(s)/gen", "val/AR@100", "a//b", "/a", "a/", "a", "a/b", "Loss", "loss", "\u635f\u5931", " x ", "", ".."]
keys += ["\U0001f525", "caf\xe9", "cafe\u0301", "nul\0and\nline", "k" * 10000, "k" * 9999 + "j", 3]
run.log(1, {**{key: float(n) for n, key in enumerate(keys)}, "ok": 1.0})
odd = {"nan": float("nan"), "inf": -float("inf")}
run.log(2, {"i": 2**70, "q": -2**63, "b": True, "t": "nan", "deep": {"er": 1}, **odd})
run.finish(60)
"""


def test_odd_keys_and_values_go_out_and_come_in(logclient: Command, trainer: Start, tmp_path: Path) -> None:
    """R2-02, R2-04, R2-57: whatever log() took is exported, imported and exported the same."""
    config = {"a": {"b": 1}, "a.b": 2, "a/b": 3, "enc": ["x", {"y": 4}], 5: 6}
    trainer(f"run = logclient.init('p', name='mlp', config={config})").go(ODD)
    shown = logclient.json("show", "mlp")
    keys = shown["keys"]
    assert len(keys) == 20 + 1 + 7
    assert shown["config"]["a"] == {"b": 1} and shown["config"]["a.b"] == 2 and shown["config"]["a/b"] == 3
    assert (keys["i"]["last"], keys["nan"]["last"], keys["t"]["last"]) == (2**70, "nan", "nan")
    for format in ("csv", "jsonl", "parquet"):
        out, runs, again = (
            tmp_path / f"out-{format}",
            tmp_path / f"runs-{format}",
            tmp_path / f"again-{format}",
        )
        logclient("export", "mlp", "--format", format, "--out", out)
        logclient("import", out, "--dir", runs)
        logclient("export", "mlp", "--format", format, "--out", again, "--dir", runs)
        for name in os.listdir(out):
            assert (out / name).read_bytes() == (again / name).read_bytes(), name
        assert logclient.json("show", "mlp", "--dir", runs)["keys"] == keys


def test_tail_follows_until_the_end(logclient: Command, trainer: Start) -> None:
    """It prints what is there, what comes, and how it ended; the run is not disturbed."""
    it = trainer()
    it.go("for step in range(1, 31): run.log(step, {'loss': float(step)})\nrun.flush(60)")
    command = [sys.executable, "-m", "logclient_backend", "tail", "mlp", "-f", "-n", "3"]
    tail = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert tail.stdout is not None
    first = [tail.stdout.readline() for _ in range(3)]
    assert [line.split("step ")[1].split()[0] for line in first] == ["28", "29", "30"]
    it.go("run.log(31, {'loss': 31.0, 'note': 'x\\ny'})\nrun.finish(60)")
    out, err = tail.communicate(timeout=WAIT_S)
    assert 'step 31  loss 31  note "x\\ny"' in out
    assert err.strip() == "-- finished"
    assert tail.returncode == 0


def test_tail_is_left_with_ctrl_c(logclient: Command, trainer: Start) -> None:
    """No traceback, exit code 130."""
    trainer()
    command = [sys.executable, "-m", "logclient_backend", "tail", "mlp", "-f"]
    tail = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert tail.stdout is not None
    tail.stdout.readline()
    tail.send_signal(signal.SIGINT)
    _, err = tail.communicate(timeout=WAIT_S)
    assert (tail.returncode, err) == (130, "")


def test_tail_of_json_is_one_point_a_line(logclient: Command, trainer: Start) -> None:
    """As export has them, strict."""
    it = trainer()
    it.go("run.log(7, {'a': float('nan'), 'b': 2})\nrun.finish(60)")
    lines = [json.loads(line) for line in logclient("tail", "mlp", "-n", "1", "--json").stdout.splitlines()]
    assert [(line["step"], line["key"], line["value"]) for line in lines] == [(7, "a", "nan"), (7, "b", 2)]
    assert logclient("tail", "mlp", "-n", "0").stdout == ""


def test_newest_run_is_meant_where_none_is_named(logclient: Command, trainer: Start) -> None:
    """`logclient show` right after a start shows that run."""
    trainer("run = logclient.init('p', name='old')").go("run.finish(60)")
    trainer("run = logclient.init('p', name='new')").go("run.finish(60)")
    assert logclient.json("show")["name"] == "new"
    assert [run["name"] for run in logclient.json("ls")["runs"]] == ["old", "new"]
