"""Alerts of a collector: over all nodes of a run, once each, from a file of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hooks import Hooks, hooks, target_file, webhook
from tools.collector import ROOT, Collector

from ..disturbed import wait_until

PATIENCE_S = 90.0
# Logs what it is told to on standard input: a loss, an alert, or the end.
_TRAINER = textwrap.dedent("""
    import sys, threading, time, logclient
    run = logclient.init("digits", name="mlp", id="it", rank=int(sys.argv[1]), alerts=["loss > 10"])
    loss = [1.0]
    def listen():
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "loss":
                loss[0] = float(rest)
            elif word == "alert":
                run.alert(rest)
        loss.clear()
    threading.Thread(target=listen, daemon=True).start()
    step = 0
    while loss:
        run.log(step, {"loss": loss[0]})
        step += 1
        time.sleep(0.05)
    run.finish(60)
""")


class Rank:
    """One process of a run on one node; nodes are shm directories and run folders of their own."""

    def __init__(self, server: Collector, base: Path, node: str, rank: int) -> None:
        shm = Path(os.environ["LOGCLIENT_SHM_DIR"]) / node
        shm.mkdir(exist_ok=True)
        env = {
            **server.env,
            "LOGCLIENT_SHM_DIR": str(shm),
            "LOGCLIENT_DIR": str(base / node),
            "LOGCLIENT_ALERTS": str(base / "none.toml"),
            "LOGCLIENT_QUIET": "1",
        }
        words = [sys.executable, "-c", _TRAINER, str(rank)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **env}
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.communicate(timeout=PATIENCE_S)


@contextmanager
def collector(tmp_path: Path) -> Iterator[tuple[Collector, Hooks]]:
    with hooks() as served:
        path = target_file(tmp_path, webhook("team", f"{served.url}/ok/T0KEN"))
        server = Collector(tmp_path / "data", "--late", "3", "--lost", "10", "--alerts", str(path))
        try:
            server.start()
            yield server, served
        finally:
            server.kill()


def told(served: Hooks, kind: str) -> list[dict[str, Any]]:
    return [content for _, content in list(served.came) if content["kind"] == kind]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_several_nodes_show_is_one_alert(run_dir: Path, tmp_path: Path) -> None:
    """A limit that all ranks cross, a program's alert, a rank that is killed while its peers live, the end."""
    with collector(tmp_path) as (server, served):
        ranks = [Rank(server, tmp_path, node, rank) for node, rank in (("a", 0), ("a", 1), ("b", 2))]
        try:

            def row() -> dict[str, Any]:
                answer = server.get("/api/v1/run?run=it")
                return dict(answer.json()) if answer.status_code == 200 else {}

            wait_until(lambda: row().get("more", {}).get("processes") == 3, PATIENCE_S, "all three are there")
            for rank in ranks:
                rank.tell("loss 20")
            ranks[2].tell("alert look at this")
            wait_until(lambda: told(served, "over") and told(served, "alert"), PATIENCE_S, "both are told")
            for rank in ranks:
                rank.tell("loss 1")
            wait_until(lambda: len(told(served, "over")) == 2, PATIENCE_S, "it ends")
            begin, end = told(served, "over")
            assert (begin["phase"], end["phase"]) == ("begin", "end") and begin["episode"] == end["episode"]
            assert begin["key"] == "loss" and begin["name"] == "mlp" and begin["project"] == "digits"
            ranks[2].process.send_signal(signal.SIGKILL)
            wait_until(lambda: told(served, "gone"), PATIENCE_S, "it is missed")
            (gone,) = told(served, "gone")
            assert gone["rank"] == 2 and "SIGKILL" in gone["text"] and "2 of its peers live" in gone["text"]
            server.stop()
            server.start()
            ranks[0].tell("alert after the restart")
            wait_until(lambda: len(told(served, "alert")) == 2, PATIENCE_S, "the second alert comes")
            for rank in ranks:
                rank.end()
            wait_until(lambda: len(told(served, "gone")) == 2, PATIENCE_S, "its absence ends with the run")
            wait_until(lambda: told(served, "state"), PATIENCE_S, "the end is told")
            alerts = [(each["text"], each["rank"]) for each in told(served, "alert")]
            assert alerts == [("look at this", 2), ("after the restart", 0)]
            assert len(told(served, "over")) == 2
            assert [each["phase"] for each in told(served, "gone")] == ["begin", "end"]
            assert "T0KEN" not in server.log.read_text() + (tmp_path / "data" / "alerts.json").read_text()
            assert b"T0KEN" not in server.cmdline()
            counted = "logclient_alerts_total", "logclient_alerts_waiting 0"
            wait_until(
                lambda: all(each in server.get("/metrics").text for each in counted),
                PATIENCE_S,
                "it is counted",
            )
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.communicate()


@pytest.mark.timeout(300)
def test_file_is_checked_at_the_start_and_watched_afterwards(run_dir: Path, tmp_path: Path) -> None:
    """One that others may write to stops the start; one that is broken later is a warning."""
    path = target_file(tmp_path, 'rules = ["loss > 1"]')
    path.chmod(0o666)
    words = ["server", "--data", str(tmp_path / "data"), "--alerts", str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "logclient_backend", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 2 and "chmod go-w" in done.stderr
    path.chmod(0o600)
    server = Collector(tmp_path / "data", "--alerts", str(path))
    try:
        server.start()
        report = tmp_path / "data" / "alerts.json"

        def state() -> Any:
            return report.exists() and json.loads(report.read_text())["delivery"].get("file", {}).get("state")

        wait_until(lambda: state() == "ok", PATIENCE_S, "the file is read")
    finally:
        server.kill()
