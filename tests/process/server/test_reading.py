"""Runs read from a `logclient server` process, by each of its addresses; one that is followed as it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import logclient
from tests.served import sample_runs
from tools.collector import Collector

from ..disturbed import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_S = 90.0

TRAINER = """
import sys
import logclient

run = logclient.init("digits", id="live", server=sys.argv[1])
for part in range(3):
    for step in range(100 * part, 100 * part + 100):
        logclient.log(step, {"loss": float(step)})
    sys.stdin.readline()
run.finish(60)
"""


@pytest.fixture(autouse=True)
def alone(listening_server: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's environment with the token, and no config file."""
    monkeypatch.setenv("LOGCLIENT_TOKEN", listening_server.token)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LOGCLIENT_SERVER", raising=False)


def say(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "logclient_backend", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_synced_runs_are_read_by_every_address(
    listening_server: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Web address, the agents' address, and the one of the environment; the same as the folder."""
    folder = tmp_path / "runs"
    sample_runs(folder)
    grpc, http = listening_server.address, listening_server.facts["http"]
    say("sync", str(folder), "--server", grpc)
    expected = say("export", "mixed", "--dir", str(folder))
    for server in (http, grpc):
        assert say("export", "mixed", "--server", server) == expected
    monkeypatch.setenv("LOGCLIENT_SERVER", grpc)
    assert say("export", "mixed", "--server", "-") == expected
    runs = logclient.read(grpc)
    assert {run.id for run in runs} == {run.id for run in logclient.read(folder)}
    mine, theirs = logclient.read(folder)["mixed"].series("x"), runs["mixed"].series("x")
    assert repr(mine.value.tolist()) == repr(theirs.value.tolist())
    monkeypatch.setenv("LOGCLIENT_TOKEN", "wrong")
    assert say("ls", "--server", http, code=1) == ""


class Lines:
    """What a process prints, as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.all: list[str] = []
        self._thread = threading.Thread(target=self._take, args=(process,), daemon=True)
        self._thread.start()

    def _take(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.all.extend(iter(process.stdout.readline, ""))

    def steps(self) -> list[int]:
        return [json.loads(line)["step"] for line in list(self.all)]

    def join(self) -> None:
        self._thread.join(PATIENCE_S)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python processes that end with the test."""
    made: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=dict(os.environ),
        )
        made.append(process)
        return process

    yield start
    for process in made:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_live_run_is_followed_to_its_end(
    listening_server: Collector, run_dir: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """`tail -f --server` prints each record once, while the run goes on, and ends when it has finished."""
    grpc, http = listening_server.address, listening_server.facts["http"]
    trainer = started("-c", TRAINER, grpc)
    assert trainer.stdin is not None

    def points() -> int:
        answer = listening_server.get("/api/v1/run?run=live")
        return int(answer.json()["points"]) if answer.status_code == 200 else 0

    wait_until(lambda: points() == 100, PATIENCE_S, "the first records at the server")
    tail = started("-m", "logclient_backend", "tail", "live", "-f", "-n", "1000", "--json", "--server", http)
    lines = Lines(tail)
    for part in (1, 2, 3):
        wait_until(lambda: len(lines.all) == 100 * part, PATIENCE_S, f"part {part}")  # noqa: B023  # called at once
        trainer.stdin.write("go on\n")
        trainer.stdin.flush()
    assert trainer.wait(PATIENCE_S) == 0
    assert tail.wait(PATIENCE_S) == 0
    lines.join()
    assert lines.steps() == list(range(300))
    series = logclient.read(http)["live"].series("loss")
    assert series.step.tolist() == list(range(300))
    assert logclient.read(http)["live"].state == "finished"


def test_over_tls_with_a_certificate_of_the_config_file(
    listening_server: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ca`, `server` and `token` of the file open both addresses; without them nothing is said, and why is told."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    try:
        subprocess.run(
            [*words, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate")
    assert listening_server.stop() == 0
    facts = listening_server.start("--tls-cert", str(cert), "--tls-key", str(key))
    monkeypatch.delenv("LOGCLIENT_TOKEN")
    with pytest.raises(logclient.LogclientError, match=r"TLS fails.*set ca in the config file"):
        logclient.read(facts["http"], token=listening_server.token)
    config = tmp_path / "logclient" / "config.toml"
    config.parent.mkdir()
    config.touch(0o600)
    config.write_text(f'server = "{facts["grpc"]}"\ntoken = "{listening_server.token}"\nca = "{cert}"\n')
    assert facts["http"].startswith("https://")
    for address in (facts["http"], facts["grpc"]):
        assert len(logclient.read(address)) == 0
    assert say("ls", "--server", "-") == f"no runs in {facts['http']}\n"


SUMS = """
import os
import sys
import tempfile
import logclient

os.environ["LOGCLIENT_SHM_DIR"] = tempfile.mkdtemp(dir=os.environ["LOGCLIENT_SHM_DIR"])  # as on a node of its own
run = logclient.init("sums", id="sums", dir=sys.argv[1], quiet=True)
run.as_rank(int(sys.argv[2])).log(3, {"fingerprint/dp0/w/bits": int(sys.argv[3])})
print("logged", flush=True)
sys.stdin.readline()
run.finish(60)
"""


def test_replicas_of_several_nodes_are_compared(
    listening_server: Collector, run_dir: Path, tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """By what the collector has of all of them; a node alone has nothing to compare."""
    folders = [str(tmp_path / f"node{rank}") for rank in range(3)]
    ranks = [
        started("-c", SUMS, folder, str(rank), str(bits))
        for rank, (folder, bits) in enumerate(zip(folders, (7, 7, 8), strict=True))
    ]
    for process in ranks:
        assert process.stdout is not None and process.stdout.readline() == "logged\n"
    for process in ranks:
        process.communicate("\n", timeout=PATIENCE_S)
    words = ("--replicas", "--json")
    for folder in folders:
        say("sync", folder, "--server", listening_server.address)
        assert json.loads(say("show", "sums", "--dir", folder, *words))["compared"] == 0
    found = json.loads(say("show", "sums", "--server", listening_server.address, *words))
    (only,) = found["differences"]
    assert found["compared"] == 1 and (only["tensor"], only["step"], only["ranks"]) == ("w", 3, [2])
