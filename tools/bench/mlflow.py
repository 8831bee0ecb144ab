"""Points per second into a collector, and into an MLflow server that is fed by REST log-batch, in turns.

    python tools/bench/mlflow.py [--quick] [--environment DIR] [--seconds S] [--pairs N]

Both on loopback, each one server process with a store in a file (MLflow: SQLite, one worker), 10 values a record.
MLflow takes its most, 1,000 metrics a call, from as many clients as serve it best; the collector gets parcels of 10,000
points from one client, and a point counts when it is acknowledged, which is after its commit. MLflow is installed in
an environment of its own, some 900 MB, made in DIR or for this run only.

The bar: at least 20 x the points per second. Not a part of `make test`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.bench import harness

if __name__ == "__main__":
    harness.use_environment()

import requests

from tools.bench.feed import Feed
from tools.collector import collector

BAR = 20.0
VALUES = 10
A_CALL = 1000  # metrics, MLflow's limit
CLIENTS = (1, 4)
INSTALL_S, READY_S, CALL_S, LEAVE_S = 900.0, 180.0, 60.0, 20.0
SETTINGS = {
    # else it starts seven more processes, which outlive it
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def environment(folder: Path) -> Path:
    """The `mlflow` program in there, installed where it is not."""
    program = folder / "bin" / "mlflow"
    if not program.exists():
        harness.say("Installing MLflow: some minutes.")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "mlflow"]
        subprocess.run(pip, check=True, timeout=INSTALL_S)
    return program


@contextlib.contextmanager
def mlflow_server(program: Path) -> Iterator[str]:
    """Its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="logclient-bench-") as folder:
        store = [
            "--backend-store-uri",
            f"sqlite:///{folder}/mlflow.db",
            "--artifacts-destination",
            f"{folder}/a",
        ]
        words = [str(program), "server", *store, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        # of itself and its workers, in a session of its own
        with open(f"{folder}/log", "wb") as log:
            server = subprocess.Popen(
                words, env={**os.environ, **SETTINGS}, stdout=log, stderr=log, start_new_session=True
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(server, url, Path(folder) / "log")
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(LEAVE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)
                server.wait(LEAVE_S)


def _wait_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"{url}/health", timeout=5).ok:
                return
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"MLflow is not ready:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)


class Rest:
    """One client of MLflow's."""

    def __init__(self, url: str, name: str) -> None:
        self._url = f"{url}/api/2.0/mlflow"
        self._session = requests.Session()
        self._session.trust_env = False  # loopback: no proxy
        experiment = self._call("experiments/create", name=name)["experiment_id"]
        self._run = self._call("runs/create", experiment_id=experiment)["run"]["info"]["run_id"]
        self._step = 0

    def _call(self, method: str, **body: Any) -> dict[str, Any]:
        answer = self._session.post(f"{self._url}/{method}", json=body, timeout=CALL_S)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def feed(self, until: float) -> int:
        """Points that were taken by that time; the last call is finished."""
        points = 0
        while time.monotonic() < until:
            now = int(time.time() * 1000)
            metrics = [
                {"key": f"metric{at}", "value": step + at / 16, "timestamp": now, "step": step}
                for step in range(self._step, self._step + A_CALL // VALUES)
                for at in range(VALUES)
            ]
            self._step += A_CALL // VALUES
            self._call("runs/log-batch", run_id=self._run, metrics=metrics)
            points += A_CALL
        return points


def rate_of_mlflow(url: str, clients: int, seconds: float, name: str) -> float:
    """Points per second."""
    feeders = [Rest(url, f"{name}-{number}") for number in range(clients)]
    begin = time.monotonic()
    counts = [0] * clients

    def feed(number: int) -> None:
        counts[number] = feeders[number].feed(begin + seconds)

    threads = [threading.Thread(target=feed, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(counts):
        raise RuntimeError("A client of MLflow's failed; its error stands above.")
    return sum(counts) / (time.monotonic() - begin)


def run(report: harness.Report, given: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        folder = given.environment or stack.enter_context(tempfile.TemporaryDirectory())
        url = stack.enter_context(mlflow_server(environment(Path(folder).absolute())))
        ours = stack.enter_context(collector())
        theirs: list[float] = []
        rates: list[float] = []
        for number in range(given.pairs):
            found = {n: rate_of_mlflow(url, n, given.seconds, f"pair {number} of {n}") for n in CLIENTS}
            theirs.append(max(found.values()))
            rates.append(Feed(ours, run=f"pair {number}", values=VALUES).for_seconds(given.seconds))
            harness.say(f"MLflow by clients {found}, collector {rates[-1]:.0f} points/s")
    ratio = harness.median([a / b for a, b in zip(rates, theirs, strict=True)])
    report.figure("points per second, MLflow", harness.median(theirs), "1/s")
    report.figure("points per second, collector", harness.median(rates), "1/s", ratio=ratio)
    report.figure("MLflow's points per second, in per cent of ours", 100 / ratio, "%", most=100 / BAR)


if __name__ == "__main__":
    options: dict[str, Any] = {
        "environment": ("", "", "folder of an environment with MLflow, made where it is not there"),
        "seconds": (20.0, 5.0, "of each measurement"),
        "pairs": (5, 2, "measurements of each"),
    }
    sys.exit(harness.main(__doc__, run, **options))
