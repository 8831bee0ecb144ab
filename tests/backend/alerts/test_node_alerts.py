"""Alerts of a run on one node, from a program's call to a receiver; and an observer that is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logclient.shm.shm_dir import ShmDir
from logclient_backend.alerts import saved
from logclient_backend.alerts.event import BEGIN, END, Event
from logclient_backend.alerts.facts import Facts, RankState
from logclient_backend.alerts.node_alerts import NodeAlerts
from logclient_backend.alerts.target_file import REST_S
from tests.hooks import hooks, target_file, webhook
from tests.lanes import opened

ROOT = Path(__file__).parents[3]


def shm_dir(tmp_path: Path, *rules: Any) -> ShmDir:
    facts = {"run_id": "r1", "name": "mlp", "project": "digits", "node": "node1", "alerts": list(rules)}
    return ShmDir(str(tmp_path), facts)


def look_until(alerts: NodeAlerts, facts: Facts, condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        alerts.look(facts)
        time.sleep(0.01)


def delivered(path: str | Path) -> int:
    """How many the target `team` has, by the file on tmpfs."""
    if not Path(path).exists():
        return 0
    content = json.loads(Path(path).read_text())
    return int(content["delivery"]["targets"].get("team", {}).get("delivered", 0))


def kept(folder: Path) -> list[Event]:
    found = saved.read(str(folder / saved.NAME))
    return [] if found is None else [event for _, event in found.events]


def test_alert_of_a_program_is_delivered_once(run_dir: Path, tmp_path: Path) -> None:
    """By its document, without an observer waiting; the next observer does not send it again."""
    with hooks() as served, opened(rank=3) as (run, file):
        path = target_file(tmp_path, webhook("team", f"{served.url}/ok"))
        run.alert("Loss", "is high", "error")
        alerts = NodeAlerts(run._session.shm_dir, str(path))
        for _ in range(3):
            alerts.take_notices("p1", file.document("notices"), 3)
            look_until(alerts, Facts(now=0.0), lambda: delivered(alerts._path) == 1, "it comes")
        (content,) = served.of("/ok")
        assert (
            content["kind"] == "alert" and content["level"] == "error" and content["text"] == "Loss: is high"
        )
        assert content["run"] == run.id and content["project"] == "test"
        run.as_rank(7).alert("Second")
        following = NodeAlerts(run._session.shm_dir, str(path))
        following.take_notices("p1", file.document("notices"), 3)
        look_until(following, Facts(now=0.0), lambda: len(served.came) == 2, "the second comes")
        assert [(each["text"], each["rank"]) for each in served.of("/ok")] == [
            ("Loss: is high", 3),
            ("Second", 7),
        ]
        assert following.close(60)


def test_rules_of_init_and_of_the_file_count_together(tmp_path: Path) -> None:
    """Rules of the file are read again when it changes, and episodes of rules that are gone end."""
    now = [1000.0]
    path = target_file(tmp_path, 'rules = ["acc < 0.5"]')
    rule = {"when": "over", "key": "loss", "value": 10.0, "steps": 1}
    alerts = NodeAlerts(shm_dir(tmp_path, rule), str(path), clock=lambda: now[0])
    look_until(alerts, Facts(now=0.0), lambda: alerts.wants("acc"), "the file is read")
    assert alerts.wants("loss") and not alerts.wants("other")
    alerts.feed("s", "acc", [1], [0.1])
    alerts.look(Facts(now=0.0))
    target_file(tmp_path, 'rules = ["other > 1"]')
    now[0] += REST_S + 1
    look_until(alerts, Facts(now=0.0), lambda: alerts.wants("other"), "it is read again")
    assert alerts.wants("loss") and not alerts.wants("acc")
    assert [(event.kind, event.phase) for event in kept(tmp_path)] == [("under", BEGIN), ("under", END)]


def test_wrong_rules_in_shared_memory_stop_nothing(tmp_path: Path) -> None:
    """Whoever wrote them: the rules of every run hold."""
    alerts = NodeAlerts(shm_dir(tmp_path, {"when": "webhook"}), None)
    assert "'when' is one of" in alerts.trouble
    (event,) = alerts.look(Facts(now=0.0, stalled="rank 3 waits"))
    assert event.kind == "stalled"


def test_file_in_shared_memory_that_makes_no_sense_is_no_obstacle(tmp_path: Path) -> None:
    """It is written anew."""
    for content in ("rubbish", '{"version": 1, "number": 1, "events": [], "episodes": {"open": [{}]}}', "[]"):
        (tmp_path / saved.NAME).write_text(content)
        alerts = NodeAlerts(shm_dir(tmp_path), None)
        alerts.look(Facts(now=0.0, stalled="x"))
        assert [event.kind for event in kept(tmp_path)] == ["stalled"]
        alerts.look(Facts(now=0.0, stalled=""))


def test_end_of_a_run_ends_its_episodes_and_delivers(tmp_path: Path) -> None:
    """Within the time that is given, hanging receiver or not."""
    with hooks() as served:
        text = webhook("team", f"{served.url}/ok") + webhook("slow", f"{served.url}/hang")
        alerts = NodeAlerts(shm_dir(tmp_path), str(target_file(tmp_path, text)))
        alerts.look(Facts(now=0.0, stalled="x", ranks={0: RankState(is_alive=True)}))
        begun = time.monotonic()
        assert not alerts.close(3.0)
        assert time.monotonic() - begun < 30
        assert [content["phase"] for content in served.of("/ok")] == ["begin", "end"]
    assert os.stat(tmp_path / saved.NAME).st_mode & 0o777 == 0o600
    report = json.loads((tmp_path / saved.NAME).read_text())["delivery"]["targets"]
    assert (report["team"]["delivered"], report["slow"]["waiting"]) == (2, 2)


_OBSERVER = """
import json, sys, time
from logclient.shm.shm_dir import ShmDir
from logclient_backend.alerts.facts import Facts
from logclient_backend.alerts.node_alerts import NodeAlerts
folder, path, stalled = sys.argv[1:]
alerts = NodeAlerts(ShmDir(folder, {"run_id": "r1", "node": "n"}), path)
while True:
    alerts.look(Facts(now=time.monotonic(), stalled=stalled))
    time.sleep(0.01)
"""


@pytest.mark.timeout(200)
def test_killed_observer_sends_each_event_once(tmp_path: Path) -> None:
    """The next one goes on: no second begin, what was not delivered is, and the end comes."""
    with hooks() as served:
        path = target_file(
            tmp_path, webhook("team", f"{served.url}/ok") + webhook("late", f"{served.url}/503")
        )

        def observe(stalled: str, until: Callable[[], Any]) -> None:
            words = [sys.executable, "-c", _OBSERVER, str(tmp_path), str(path), stalled]
            process = subprocess.Popen(words, cwd=ROOT)
            try:
                deadline = time.monotonic() + 60
                while not until():
                    assert time.monotonic() < deadline and process.poll() is None, served.came
                    time.sleep(0.01)
            finally:
                os.kill(process.pid, signal.SIGKILL)
                process.wait(60)

        observe(
            "rank 3 waits",
            lambda: served.of("/ok") and served.of("/503") and delivered(tmp_path / saved.NAME) == 1,
        )
        served.answers["/503"] = [200] * 3
        observe("rank 3 waits", lambda: len(served.of("/503")) >= 2)
        observe("", lambda: len(served.of("/ok")) == 2)
        assert [content["phase"] for content in served.of("/ok")] == ["begin", "end"]
        assert len({content["episode"] for content in served.of("/ok")}) == 1
