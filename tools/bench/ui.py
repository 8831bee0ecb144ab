"""How soon does `logclient ui` list the runs of a folder that it opens for the first time?

    python tools/bench/ui.py [--quick] [--rounds N] [--runs N]

Each round starts the command with an empty cache, logs in with the code of the link that it prints, and asks for the
list until all runs are in it, then until all their records are. The floor is the start of `logclient --version`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

import requests

from tests.backend.runs.build import simple_run

LIST_S = 3.0
RECORDS = 20  # of each run
PATIENCE_S = 120.0
LINK = re.compile(r"page +(http://\S+?)/#/login\?code=(\S+)")
COMMAND = [sys.executable, "-m", "logclient_backend"]


def wait_for(holds: Callable[[], bool]) -> float:
    """Return when it held, by the monotonic clock."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:g} s")
        time.sleep(0.01)
    return time.monotonic()


def first_opening(runs: Path, count: int) -> tuple[float, float]:
    """Return seconds from the start of the command to the list of all runs, and to all of their records."""
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as cache, requests.Session() as session:
        printed = Path(cache) / "printed"
        env = {**os.environ, "XDG_CACHE_HOME": cache, "DISPLAY": ""}
        with printed.open("w") as file:
            begin = time.monotonic()
            words = [*COMMAND, "ui", str(runs), "--no-open", "--port", "0"]
            process = subprocess.Popen(words, stdout=file, stderr=file, env=env)
        try:
            wait_for(lambda: LINK.search(printed.read_text()) is not None)
            found = LINK.search(printed.read_text())
            assert found is not None
            url, code = found.groups()
            head = {"X-Logclient": "1", "X-Logclient-Code": code}
            session.post(f"{url}/api/v1/session", headers=head, timeout=PATIENCE_S).raise_for_status()

            def is_complete(records: int) -> bool:
                answer = session.get(f"{url}/api/v1/runs", params={"limit": count}, timeout=PATIENCE_S).json()
                return answer["total"] == count and all(run["records"] >= records for run in answer["runs"])

            listed = wait_for(lambda: is_complete(0))
            return listed - begin, wait_for(lambda: is_complete(RECORDS)) - begin
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)


def started() -> float:
    begin = time.monotonic()
    subprocess.run([*COMMAND, "--version"], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        runs = Path(folder) / "runs"
        for number in range(given.runs):
            simple_run(runs, f"run-{number:04d}", RECORDS)
        floors, lists, wholes = [], [], []
        for _ in range(given.rounds):
            floors.append(started())
            listed, whole = first_opening(runs, given.runs)
            lists.append(listed)
            wholes.append(whole)
    words = f"a folder of {given.runs:,} runs, first opening"
    floor, listed, whole = map(statistics.median, (floors, lists, wholes))
    report.figure(f"list of {words}", listed, "s", floor=floor, ratio=listed / floor, most=LIST_S)
    report.figure(f"all records of {words}", whole, "s", floor=floor, ratio=whole / floor)


if __name__ == "__main__":
    sys.exit(harness.main(__doc__, run, rounds=(5, 1, "openings"), runs=(1_000, 1_000, "runs of the folder")))
