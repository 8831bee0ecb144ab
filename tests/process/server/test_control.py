"""Requests through a collector: who may ask, on which nodes and in which attempt it counts, and what is told of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.remote.source import ServerSource
from tools.collector import Collector

from .. import scripts
from ..disturbed import ROOT, wait_until
from ..stop.asking import command, live_dir, taken

# a rank on a node of its own: logs until it is stopped, then prints after which steps it saved and stopped
NODE = """
import json, os, sys, time
import logclient
run = logclient.init("stop", id="nodes", quiet=True)
first, most, pause_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
saves, step = [], first
while step < first + most:
    step += 1
    run.log(step, {"loss": 1 / step})
    if run.should_save():
        saves.append(step)
    if run.should_stop():
        break
    time.sleep(pause_s)
print(json.dumps([step, saves, run.should_stop()]))
sys.stdin.readline()
run.finish(60)
"""


class Node:
    """One rank with shared memory of its own, as on another host."""

    def __init__(
        self, folder: Path, server: Collector, token: str, rank: int, *words: object, **env: str
    ) -> None:
        self.memory = tempfile.mkdtemp(dir=os.environ["LOGCLIENT_SHM_DIR"])
        given = {
            "LOGCLIENT_SERVER": server.address,
            "LOGCLIENT_TOKEN": token,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "29500",
            "LOGCLIENT_SHM_DIR": self.memory,
        }
        where = folder / f"rank{rank}"
        self.process = scripts.start(
            where,
            NODE,
            *map(str, words),
            env=scripts.environment(**{**given, **env}),
            stdin=subprocess.PIPE,
        )

    def end(self) -> Any:
        """Let it finish; what it printed."""
        ended = scripts.end_with(self.process, "\n", 120)
        assert ended.code == 0, ended
        return json.loads(ended.out)


@contextmanager
def nodes(folder: Path, server: Collector, *given: tuple[Any, ...], **env: str) -> Iterator[list[Node]]:
    """Ranks 0, 1, ..., each with those words."""
    token = token_for(server, "ingest")
    made = [Node(folder, server, token, rank, *words, **env) for rank, words in enumerate(given)]
    try:
        yield made
    finally:
        for node in made:
            node.process.kill()
            node.process.communicate()


def token_for(server: Collector, *roles: str) -> str:
    """A token with these roles; they are made anew for each call."""
    name = f"{'-'.join(roles)}-{os.urandom(3).hex()}"
    words = [word for role in roles for word in ("--role", role)]
    done = server.command("token", "add", name, *words, "--json")
    return str(json.loads(done.stdout)["token"])


def asked(server: Collector, token: str | None = None, run: str = "nodes", **given: Any) -> Any:
    return server.ask("POST", "/api/v1/run/control", token, params={"run": run, "kind": "stop", **given})


def wait_known(server: Collector, ranks: int, run: str = "nodes", attempts: int = 1) -> None:
    """Until the collector has records of so many ranks, in that attempt."""

    def is_known() -> bool:
        found = server.get("/api/v1/run", params={"run": run})
        if found.status_code != 200:
            return False
        whole = found.json()
        newest = [process for process, number in whole["processes"].items() if number == attempts]
        contents = server.get("/api/v1/run/keys", params={"run": run}).json()
        return len(newest) == ranks and bool(contents["keys"])

    wait_until(is_known, 120, f"{ranks} ranks of attempt {attempts} are known")


@pytest.mark.timeout(240)
def test_nodes_act_after_the_same_step(
    listening_server: Collector, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is slower, too; the command on a node of the run asks the server. Who asked stands everywhere."""
    server, control = listening_server, token_for(listening_server, "control", "read")
    with nodes(tmp_path, server, (0, 10**6, 0.01), (0, 10**6, 0.013)) as (first, second):
        wait_known(server, 2)
        answer = command(
            *("nodes", "--save", "--reason", "loss went up"),
            LOGCLIENT_SHM_DIR=first.memory,
            LOGCLIENT_TOKEN=control,
        )
        assert answer["nodes"] == 2 and answer["via"] == "server" and answer["by"].startswith("control-read")
        step = answer["step"]
        assert first.end() == second.end() == [step, [step], True]
    local = scripts.the_run(run_dir).requests()
    monkeypatch.setenv("LOGCLIENT_TOKEN", control)
    there = ServerSource(server.facts["http"])
    wait_until(lambda: len(there.run("nodes").view().requests()[0].nodes) == 2, 60, "both nodes have told")
    for (found,) in (local, there.run("nodes").view().requests()):
        assert (found.step, found.reason, found.via, found.state) == (step, "loss went up", "server", "holds")
        assert found.by == answer["by"] and found.what == "stop and save" and len(found.nodes) == 2
    kept = server.get("/api/v1/run/control", control, params={"run": "nodes"}).json()["requests"]
    assert [(each["step"], each["attempt"], each["by"]) for each in kept] == [(step, 1, answer["by"])]


@pytest.mark.timeout(240)
def test_request_is_for_the_attempt_that_ran(
    listening_server: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """The collector keeps it, over a restart of its own; the resumed run on the same nodes goes on."""
    server = listening_server
    with nodes(tmp_path, server, (0, 10**6, 0.01)) as (node,):
        wait_known(server, 1)
        assert asked(server).status_code == 200
        last = node.end()[0]
    wait_until(
        lambda: server.get("/api/v1/run", params={"run": "nodes"}).json()["state"] == "finished",
        60,
        "it ended",
    )
    over = asked(server)
    assert (over.status_code, over.json()["error"]) == (409, "not_now")
    server.stop()
    server.start()
    with nodes(tmp_path, server, (last, 600, 0.01)) as (node,):
        wait_known(server, 1, attempts=2)
        assert node.end() == [last + 600, [], False]
    with nodes(tmp_path, server, (last + 600, 10**6, 0.01)) as (node,):
        wait_known(server, 1, attempts=3)
        assert asked(server, kind="save").json()["attempt"] == 3
        assert asked(server).json()["attempt"] == 3
        assert node.end()[2] is True


def test_only_control_and_admin_may_ask(listening_server: Collector, run_dir: Path, tmp_path: Path) -> None:
    """By role; and what is no request is a sentence."""
    server = listening_server
    with nodes(tmp_path, server, (0, 10**6, 0.05)) as (node,):
        wait_known(server, 1)
        for roles in (("read",), ("ingest",), ("ingest", "read")):
            answer = asked(server, token_for(server, *roles))
            assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")
            assert "`control`" in answer.json()["message"]
        assert asked(server, "lct_nonsense").status_code == asked(server, "").status_code == 401
        control = token_for(server, "control")
        assert server.get("/api/v1/runs", control).status_code == 403, "it may not read"
        assert server.get("/api/v1/run/control", control, params={"run": "nodes"}).status_code == 403
        for wrong in ({"kind": "exec"}, {"reason": "x" * 501}, {"path": "/bin/sh"}, {"save": "perhaps"}):
            assert asked(server, control, **wrong).status_code == 400, wrong
        assert asked(server, control, run="nobody").status_code == 404
        assert "not read" not in command("nodes", "--server", server.facts["http"], LOGCLIENT_TOKEN=control)
        assert node.end()[2] is True
    assert "needs the role" in command(
        "nodes", "--server", server.facts["http"], code=1, LOGCLIENT_TOKEN=token_for(server, "read")
    )["error"]  # fmt: skip


def test_run_that_follows_no_collector_says_so(
    listening_server: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """LOGCLIENT_REMOTE_STOP=off: recorded as refused; a request on the node itself counts."""
    server = listening_server
    with nodes(tmp_path, server, (0, 10**6, 0.01), LOGCLIENT_REMOTE_STOP="off") as (node,):
        wait_known(server, 1)
        assert asked(server, reason="loss went up").status_code == 200
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOGCLIENT_SHM_DIR", node.memory)
            there = live_dir("nodes")
            found = taken(there.shm_dir.path)
            assert (found["state"], found["why"], found["reason"]) == (
                "refused",
                "remote_off",
                "loss went up",
            )
            shown = subprocess.run(
                [sys.executable, "-m", "logclient_backend", "status"],
                capture_output=True,
                text=True,
                cwd=ROOT,
            ).stdout
            assert shown.count("LOGCLIENT_REMOTE_STOP=off") == 2 and "loss went up" in shown
            command("nodes", "--this-node-only")
        assert node.end()[2] is True
    states = [each.state for each in scripts.the_run(run_dir).requests()]
    assert states == ["refused", "holds"]


def test_withdrawal_reaches_the_nodes(listening_server: Collector, run_dir: Path, tmp_path: Path) -> None:
    """A withdrawal is sent as a request is, with a step of its own."""
    server = listening_server
    with nodes(tmp_path, server, (0, 10**6, 0.2)) as (node,):
        wait_known(server, 1)
        stop = asked(server).json()
        clear = asked(server, kind="clear").json()
        assert clear["step"] >= stop["step"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOGCLIENT_SHM_DIR", node.memory)
            there = live_dir("nodes")
            assert taken(there.shm_dir.path, clear["id"])["state"] == "done"
            assert taken(there.shm_dir.path, stop["id"])["state"] == "withdrawn"
