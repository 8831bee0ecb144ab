"""`logclient alerts test`, and alerts in `logclient status`."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.alerts.facts import Facts
from logclient_backend.alerts.node_alerts import NodeAlerts
from tests.hooks import hooks, target_file, webhook
from tests.lanes import opened

from .conftest import WAIT_S, Command

SECRET = "T0KEN"


def test_each_target_is_tried_and_named(logclient: Command, tmp_path: Path) -> None:
    """Delivered or not, by name; a command runs only where that is asked for; no URL is shown."""
    made = tmp_path / "made"
    with hooks() as served:
        text = "commands = true\n" + webhook("team", f"{served.url}/ok/{SECRET}", 'format = "slack"')
        text += webhook("broken", f"{served.url}/500/{SECRET}")
        text += (
            f'[[targets]]\nname = "do"\ncommand = ["/usr/bin/env", "touch", "{made}"]\nevents = ["stalled"]\n'
        )
        path = target_file(tmp_path, text)
        found = logclient.json("alerts", "test", path, code=1)
        assert {each["name"]: (each["state"], each["text"]) for each in found["targets"]} == {
            "team": ("delivered", ""),
            "broken": ("failed", "it answers with status 500"),
            "do": ("skipped", "a command is run with --commands only"),
        }
        assert found["problems"] == [] and not made.exists()
        (content,) = served.of(f"/ok/{SECRET}")
        assert "nothing is wrong" in content["text"]
        shown = logclient("alerts", "test", path, "--commands", code=1).stdout
        assert made.exists() and "do  delivered" in shown and "broken  failed: it answers" in shown
        assert SECRET not in shown + json.dumps(found)


def test_file_of_the_user_is_the_default(
    logclient: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~/.config/logclient/alerts.toml`, or what LOGCLIENT_ALERTS names."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("LOGCLIENT_ALERTS", raising=False)
    assert "alerts.toml is not there" in logclient("alerts", "test", code=3).stderr
    folder = home / ".config" / "logclient"
    folder.mkdir(parents=True)
    target_file(folder, "")
    assert "neither targets nor rules" in logclient("alerts", "test").stdout
    monkeypatch.setenv("LOGCLIENT_ALERTS", str(target_file(tmp_path, 'rules = ["loss > 1"]')))
    assert logclient.json("alerts", "test")["file"] == str(tmp_path / "alerts.toml")


def test_what_is_wrong_with_the_file_is_said(logclient: Command, tmp_path: Path) -> None:
    """Refused: exit code 1. Others may read it: a warning."""
    path = target_file(tmp_path, "targets = 3")
    assert "'targets' is a list" in logclient("alerts", "test", path, code=1).stdout
    with hooks() as served:
        path = target_file(tmp_path, webhook("team", f"{served.url}/ok"))
        path.chmod(0o644)
        assert "chmod 600" in logclient("alerts", "test", path).stdout
        path.chmod(0o664)
        assert "chmod go-w" in logclient("alerts", "test", path, code=1).stdout


def lines_of(process: subprocess.Popen[bytes], count: int) -> list[str]:
    """The first lines of its standard output, as they come."""
    assert process.stdout is not None
    deadline, data = time.monotonic() + WAIT_S, b""
    while data.count(b"\n") < count:
        assert time.monotonic() < deadline, data
        if select.select([process.stdout], [], [], 0.1)[0]:
            data += os.read(process.stdout.fileno(), 1 << 16)
    return data.decode().splitlines()


@pytest.mark.timeout(200)
def test_status_shows_alerts_and_follows_them(logclient: Command, run_dir: Path, tmp_path: Path) -> None:
    """Those that were there, then each as it comes; and which target does not get them."""
    with hooks() as served, opened(id="the-run") as (run, file):
        path = target_file(tmp_path, webhook("broken", f"{served.url}/500/{SECRET}"))
        alerts = NodeAlerts(run._session.shm_dir, str(path))

        def look(**facts: Any) -> None:
            alerts.take_notices("p", file.document("notices"))
            alerts.look(Facts(now=time.monotonic(), **facts))

        run.alert("Loss", "is high\x1b[2J", "error")
        look()
        words = [sys.executable, "-m", "logclient_backend", "status", "--follow", "--json"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            (first,) = lines_of(process, 1)
            assert json.loads(first)["kind"] == "alert" and json.loads(first)["level"] == "error"
            look(stalled="rank 3 waits")
            look(stalled="")
            begin, end = map(json.loads, lines_of(process, 2))
            assert [(each["kind"], each["phase"]) for each in (begin, end)] == [
                ("stalled", "begin"),
                ("stalled", "end"),
            ]
        finally:
            process.kill()
            process.communicate()
        deadline = time.monotonic() + WAIT_S
        while not (found := logclient.live("the-run")) or not found["alerts"]["targets"].get(
            "broken", {}
        ).get("trouble"):
            assert time.monotonic() < deadline
            look()
            time.sleep(0.05)
        assert any(
            "target broken: it answers with status 500, 3 alerts" in line for line in found["problems"]
        )
        text = logclient("status", code=1).stdout
        assert "3 alerts (broken has 0)" in text and SECRET not in text + json.dumps(found)
        alerts.close(0.0)
