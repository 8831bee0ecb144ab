"""Threads, children, finalizers and signals all log at once: counts stay exact and every exception arrives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Pace
from tests.lanes import ROOT, LaneFile, Record, lane_files
from tests.listing import listed
from tests.process.storm import HANDLER, LANES, MAIN


class Watcher:
    """Drains the lanes of all processes as they come, and keeps only what the checks need."""

    def __init__(self) -> None:
        self.files: dict[Path, LaneFile] = {}
        self.numbers: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))

    def look(self) -> None:
        for path in listed(Path(os.environ["LOGCLIENT_SHM_DIR"]), "*/*/*.lanes"):
            if path not in self.files:
                self.files[path] = LaneFile(path)
        for file in self.files.values():
            for record in file.read():
                self._check(file, record)

    def _check(self, file: LaneFile, record: Record) -> None:
        values = dict(record.values)
        source, number = int(values.pop("source")), int(values.pop("number"))
        assert values.pop("double") == 2 * number and record.step == number
        assert values == ({"int": number, "text": str(number)} if number % 5 == 0 else {})
        # with its place in the process: lanes are read one after the other, and a thread may use several
        self.numbers[file.pid][source].append((record.order, number))


def run_storm(folder: Path, seconds: float, threads: int, children: int) -> tuple[dict[str, Any], Watcher]:
    plan = {"seconds": seconds, "threads": threads, "children": children, "folder": str(folder)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.process.storm", json.dumps(plan)],
        cwd=ROOT,
        env={**os.environ, "LOGCLIENT_QUIET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watcher = Watcher()
    deadline = time.monotonic() + seconds + 60
    try:
        while process.poll() is None:
            watcher.look()
            assert time.monotonic() < deadline, "the storm does not end"
            time.sleep(0.001)
        watcher.look()
    finally:
        process.kill()
        out, err = process.communicate()
    assert process.returncode == 0 and not err, err
    return json.loads(out), watcher


def check_process(facts: dict[str, Any], file: LaneFile, numbers: dict[int, list[tuple[int, int]]]) -> None:
    begun, returned = ({int(k): v for k, v in facts[name].items()} for name in ("begun", "returned"))
    assert facts["raised"] == facts["caught"], "an exception of the user's handler vanished"
    assert facts["lanes_back"] == LANES, "a lane is gone"
    assert sum(file.damaged) == 0
    assert file.accepted == sum(file.taken) + sum(file.forgotten)
    assert facts["status"]["refused"] == file.refused
    calls = sum(begun.values())
    assert sum(returned.values()) <= file.accepted + file.refused <= calls
    assert calls == sum(returned.values()) + facts["interrupted"]
    for source, placed in numbers.items():
        stored = [number for _, number in sorted(placed)]
        assert len(set(stored)) == len(stored), f"stored twice by {source}"
        assert set(stored) <= set(range(1, begun[source] + 1))
        if source < MAIN:  # one thread; what nests inside itself, a handler or finalizer, may overtake
            assert stored == sorted(stored), f"the order of thread {source} broke"
    missing = sum(returned.values()) - sum(map(len, numbers.values()))
    assert missing <= sum(file.forgotten) + file.refused


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    ("seconds", "threads", "children"),
    [
        pytest.param(30, 0, 0, id="signals"),
        pytest.param(30, 16, 0, id="threads"),
        pytest.param(600, 16, 8, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(240)]),
    ],
)
def test_counts_are_exact_and_every_exception_reaches_the_user(
    seconds: float, threads: int, children: int, pace: Pace, run_dir: Path, tmp_path: Path
) -> None:
    """No hang, no torn or foreign record, no lane gone, nothing uncounted; children log into lanes of their own."""
    answer, watcher = run_storm(tmp_path, pace.seconds(seconds), threads, children)
    assert answer["codes"] == [0] * children
    reports = {int(path.stem): json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    files = {file.pid: file for file in watcher.files.values()}
    assert (
        len(reports) == 1 + children and reports.keys() == files.keys() and len(watcher.files) == len(files)
    )
    for pid, facts in reports.items():
        check_process(facts, files[pid], watcher.numbers[pid])
    # else it showed nothing; how many there are in a second is up to the machine
    assert sum(facts["raised"] for facts in reports.values()) >= 5
    assert sum(len(numbers[HANDLER]) for numbers in watcher.numbers.values()) > 20
    own = files[answer["pid"]]
    assert own.document("start")["role"] == "owner" and own.document("state")["state"] == "finished"
    for pid, file in files.items():
        if pid != answer["pid"]:
            assert file.document("start")["role"] == "member" and file.document("state") is None
    assert len(lane_files()) == 1 + children
