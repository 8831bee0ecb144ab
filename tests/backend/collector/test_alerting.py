"""Alerts of a collector: rules over the nodes of a run, what is left out, and the process that sends."""

from __future__ import annotations

import os
import signal
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector import alerting as module
from logclient_backend.collector.alerting import Alerting
from logclient_backend.collector.eventlog import EventLog
from logclient_backend.collector.metrics import Metrics
from logclient_backend.collector.store.interface import Description, Parcel
from logclient_backend.wal.encoded import StreamColumns
from tests.hooks import Hooks, hooks, target_file, webhook

WAIT_S = 60.0


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def batch(rank: int, start: int, values: list[float], key: str = "t") -> StreamColumns:
    index = array("Q", range(start + 1, start + 1 + len(values)))
    times = array("q", [0] * len(values))
    cells: list[Any] = [array("Q", array("d", values).tobytes())]
    columns = Columns(
        Shape((key,), "d"), rank, index, index, array("q", range(start, start + len(values))), times, cells
    )
    return StreamColumns(bytes([rank]) * 16, bytes([rank]) * 16, 0, columns)


def described(state: str = "running", **more: Any) -> Description:
    return Description(project="p", name="n", state=state, attempts={"aa": 1}, more=more)


class Bench:
    """One collector's alerts, and where they come."""

    def __init__(self, tmp_path: Path, text: str = "") -> None:
        self.folder = tmp_path
        self.text = text
        self.states: dict[str, tuple[str, str]] = {}
        self.metrics = Metrics()
        self.served: Hooks

    @contextmanager
    def running(self) -> Iterator[Alerting]:
        path = target_file(self.folder, self.text + webhook("team", f"{self.served.url}/ok"))
        made = Alerting(
            str(path), str(self.folder), lambda run: self.states.get(run), self.metrics, EventLog()
        )
        made.start()
        try:
            yield made
        finally:
            made.stop(WAIT_S)

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [content for _, content in list(self.served.came) if content["kind"] == kind]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    with hooks() as made.served:
        yield made


@pytest.mark.timeout(200)
def test_slow_rank_is_found_over_the_nodes(bench: Bench) -> None:
    """Times come node by node; records that come again change nothing. The rule is the run's own."""
    with bench.running() as alerts:
        alerts.committed([Parcel("r", "n0", 0, description=described(rules=["straggler t"]))])
        for start in range(0, 200, 10):
            for rank in range(4):
                times = [
                    (1.1 if rank == 2 else 1.0) + 0.001 * ((step * 31 + rank) % 7)
                    for step in range(start, start + 10)
                ]
                parcel = Parcel("r", f"n{rank}", 0, batches=[batch(rank, start, times)])
                alerts.committed([parcel, parcel])
        wait_for(lambda: bench.told("straggler"), "it is found")
        (found,) = bench.told("straggler")
        assert (found["rank"], found["key"], found["name"], found["phase"]) == (2, "t", "n", "begin")


@pytest.mark.timeout(200)
def test_replica_that_differs_is_found_over_the_nodes(bench: Bench) -> None:
    """Each rank is on a node of its own, where nobody can compare; another attempt ends the episode."""
    key = "fingerprint/dp0/layer_norm/bits"
    with bench.running() as alerts:
        alerts.committed([Parcel("r", "n0", 0, description=described(rules=["replica"]))])
        for start in range(0, 100, 2):
            for rank in range(4):
                bits = [float(step if rank != 1 or step < 40 else -step) for step in (start, start + 1)]
                alerts.committed([Parcel("r", f"n{rank}", 0, [batch(rank, start, bits, key)])])
        wait_for(lambda: bench.told("replica"), "it is found")
        (found,) = bench.told("replica")
        assert (found["rank"], found["step"], found["level"]) == (1, 40, "error")
        assert found["text"] == "layer_norm of dp0: rank 1 differs from the 3 others at step 40"
        again = Description(
            project="p", name="n", state="running", attempts={"bb": 2}, more={"rules": ["replica"]}
        )
        alerts.committed([Parcel("r", "n0", 0, description=again)])
        wait_for(lambda: len(bench.told("replica")) == 2, "it ends")
        assert bench.told("replica")[1]["phase"] == "end"


@pytest.mark.timeout(200)
def test_run_that_is_silent_is_lost_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late is no news; lost is, and that it runs again."""
    monkeypatch.setattr(module, "_FRESH_S", 0.0)
    monkeypatch.setattr(module, "_ASK_S", 0.0)
    monkeypatch.setattr(module, "_ASK_LOST_S", 0.0)
    with bench.running() as alerts:
        bench.states["r"] = ("running", "")
        alerts.committed([Parcel("r", "n0", 0, description=described())])
        for state in ("late", "lost", "running"):
            time.sleep(2 * module._LOOK_S)
            bench.states["r"] = (state, "nothing is heard from it" if state == "lost" else "")
        wait_for(lambda: len(bench.told("state")) == 2, "both are told")
        assert [each["text"] for each in bench.told("state")] == [
            "the run is lost: nothing is heard from it (it was running)",
            "the run is running (it was lost)",
        ]


@pytest.mark.timeout(200)
def test_stall_that_an_observer_found_is_told_once_and_ends_with_the_run(bench: Bench) -> None:
    """Of all nodes the worst stands for the run; documents may hold anything."""
    stalled = {"kind": "stalled", "verdict": "user code", "text": "rank 5 waits at load", "rank": 5}
    with bench.running() as alerts:
        for odd in (
            7,
            {},
            {"kind": ["stalled"]},
            {"kind": "quiet"},
            stalled,
            stalled | {"text": "rank 5 waits on"},
        ):
            alerts.committed([Parcel("r", "n0", 0, description=described(observed=odd))])
        wait_for(lambda: bench.told("stalled"), "it begins")
        (begin,) = bench.told("stalled")
        assert (begin["phase"], begin["rank"]) == ("begin", 5) and begin["text"].startswith(
            "user code: rank 5"
        )
        alerts.committed([Parcel("r", "n0", 0, description=described("killed", observed=None))])
        wait_for(lambda: len(bench.told("stalled")) == 2, "it ends")
        assert bench.told("stalled")[1]["phase"] == "end"


@pytest.mark.timeout(200)
def test_rules_of_anybody_are_checked_and_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents may hold anything; what the thread does not get through is counted, and nothing waits for it."""
    monkeypatch.setattr(module, "_QUEUE_RECORDS", 100)
    bench.text = 'rules = ["t > 10"]\n'
    with bench.running() as alerts:
        wait_for(lambda: alerts._process.rules, "the file is read")
        for odd in ([{"when": "webhook", "url": "https://x"}], 7, ["spike"], {"a": 1}):
            alerts.committed([Parcel("odd", "n", 0, description=described(rules=odd))])
        alerts.committed([Parcel("r", "n", 0, description=described(rank_ends=7, alerts=7, rules=None))])
        begun = time.monotonic()
        for _ in range(50):
            alerts.committed([Parcel("r", "n", 0, batches=[batch(0, 0, [1.0] * 60)])])
        assert time.monotonic() - begun < 30
        assert "logclient_alerts_skipped_records_total" in bench.metrics.text()
        wait_for(lambda: not alerts._queue, "the queue is empty")
        alerts.committed([Parcel("r", "n", 0, batches=[batch(1, 0, [20.0])])])
        wait_for(lambda: bench.told("over"), "the rule of the file holds for every run")


@pytest.mark.timeout(200)
def test_process_that_sends_is_started_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed or not: each event comes once. A collector that starts again goes on, too."""
    from logclient_backend.collector import alert_process

    monkeypatch.setattr(alert_process, "_AGAIN_S", 0.1)
    alert = {"process": "p", "time": 1, "level": "info", "title": "one", "text": ""}
    with bench.running() as alerts:
        alerts.committed([Parcel("r", "n", 0, description=described(alerts=[alert]))])
        delivered = lambda: alerts._process.report.get("targets", {}).get("team", {}).get("delivered")  # noqa: E731
        wait_for(lambda: delivered() == 1, "the first comes")
        process = alerts._process._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        second = alert | {"time": 2, "title": "two"}
        alerts.committed([Parcel("r", "n", 0, description=described(alerts=[alert, second]))])
        wait_for(lambda: len(bench.told("alert")) == 2, "the second comes")
    with bench.running() as alerts:
        third = alert | {"time": 3, "title": "three"}
        alerts.committed([Parcel("r", "n", 0, description=described(alerts=[alert, second, third]))])
        wait_for(lambda: len(bench.told("alert")) >= 3, "the third comes")
    assert [each["text"] for each in bench.told("alert")] == ["one", "two", "three"]
