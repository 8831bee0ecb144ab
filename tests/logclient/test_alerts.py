"""`alert` in the training process: numbered, bounded, at once; and rules that `init` takes."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import BadArgument
from logclient.session import alerting
from logclient.shm.wake import OBSERVER
from tests.lanes import Script, by_pid, opened


def test_alerts_are_numbered_and_carry_the_rank_of_their_logger(run_dir: Path) -> None:
    """The agent finds new ones by number; a thread's rank is its own."""
    with opened(rank=5) as (run, file):
        run.alert("one", "text", "warn")
        run.as_rank(7).alert("two")
        first, second = file.document("notices")["alerts"]
        assert (first["number"], first["title"], first["level"], "rank" in first) == (1, "one", "warn", False)
        assert (second["number"], second["title"], second["rank"]) == (2, "two", 7)


def test_alert_wakes_the_observer(run_dir: Path) -> None:
    """A byte lies in its pipe when `alert` returns; without the pipe nothing happens."""
    with opened() as (run, _):
        run.alert("nobody is there")
        path = run._session.shm_dir.file(OBSERVER)
        os.mkfifo(path, 0o600)
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            run.alert("now")
            assert select.select([fd], [], [], 0)[0] == [fd]
        finally:
            os.close(fd)


def test_alerts_beyond_the_limit_are_counted_and_not_stored(run_dir: Path) -> None:
    """A loop that alerts writes no document each time; the gap of numbers is what is missing."""
    with opened() as (run, file):
        for number in range(3 * alerting.BURST):
            run.alert(f"alert {number}")
        before = file.document("notices")
        assert len(before["alerts"]) == 50
        assert before["alerts"][-1]["number"] <= alerting.BURST + 10  # a slow machine earns a few more
        assert sum("alerts in a short time" in line for line in run.status()["notices"]) == 1
        run._session.alerts._at -= 5 * alerting.EVERY_S
        run.alert("later")
        alerts = file.document("notices")["alerts"]
        assert alerts[-1]["title"] == "later" and alerts[-1]["number"] > 3 * alerting.BURST
        assert alerts[-1]["number"] - alerts[-2]["number"] > alerting.BURST


FORKS = """
run = logclient.init("p", name="n")
run.alert("of the parent")
pid = os.fork()
if pid == 0:
    logclient.alert("of the child")
    os._exit(0)
os.waitpid(pid, 0)
print(json.dumps({"pid": pid}))
"""


def test_forked_child_has_alerts_of_its_own(tmp_path: Path, run_dir: Path) -> None:
    """What the parent said is not said again by the child."""
    pid = Script(tmp_path, FORKS).result()["pid"]
    files = {found: file for found, (file, _) in by_pid().items()}
    child = files.pop(pid).document("notices")["alerts"]
    assert [(alert["title"], alert["number"]) for alert in child] == [("of the child", 1)]
    (parent,) = files.values()
    assert [alert["title"] for alert in parent.document("notices")["alerts"]] == ["of the parent"]


def test_rules_go_to_the_agent_and_with_the_run(run_dir: Path) -> None:
    """In `run.json`, and in the owner's start document, which a collector gets."""
    with opened(alerts=["loss > 10 for 3", {"when": "spike", "key": "loss"}]) as (run, file):
        rules = [
            {"when": "over", "key": "loss", "value": 10.0, "steps": 3},
            {"when": "spike", "key": "loss", "by": 0.0},
        ]
        assert run._session.shm_dir.facts["alerts"] == rules == file.document("start")["alerts"]


@pytest.mark.parametrize(
    ("alerts", "sentence"),
    [
        (["loss >"], r"rule 1 \('loss >'\): expected KEY > NUMBER"),
        (["stalled", "spike"], r"rule 2 \('spike'\): spike needs 'key'"),
        ([{"when": "webhook", "url": "https://x"}], "'when' is one of over, under"),
        ([{"when": "stalled", "url": "https://secret.example"}], "stalled has no field 'url'"),
        (5, "a list of rules, not of type int"),
        (["stalled"] * 101, "101 rules, and at most 100"),
    ],
)
def test_wrong_rules_raise_before_the_run_starts(alerts: Any, sentence: str, run_dir: Path) -> None:
    """And a URL is in no rule."""
    with pytest.raises(BadArgument, match=sentence):
        logclient.init("p", alerts=alerts)
    assert not (run_dir / "logclient-runs").exists()
