"""`why --server`: one verdict over two hosts from what their observers sent to a collector, and what it lacks."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.collector import Collector
from tools.faults import network

from ..disturbed import wait_until
from .plant import PATIENCE_S, asked, program, why

pytestmark = [pytest.mark.root, pytest.mark.slow]

ENV = {
    "LOGCLIENT_RUN_ID": "job",
    "LOGCLIENT_OBSERVE_S": "0.2",
    "LOGCLIENT_LATE_AFTER_S": "2",
    "LOGCLIENT_STALL_SAMPLES_S": "0.5",
    "GLOO_SOCKET_IFNAME": "veth",
}

GLOO_RANKS = """
import logclient
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://{address}:29511", rank=RANK, world_size=RANKS)
run = logclient.init(project="why", name="job", dir={dir!r} + str(RANK // 4), quiet=True)
def step(number):
    dist.all_reduce(torch.ones(1))
    run.log(number, {{"loss": 1.0}})
for number in range(3): step(number)
ready()
def elsewhere():
    while not os.path.exists("go"): time.sleep(0.6)
if RANK == 6: elsewhere()
for number in range(3, 1_000_000):
    step(number)
    time.sleep(0.05)
"""

RANKS = """
import logclient
run = logclient.init(project="why", name="job", dir={dir!r} + str(RANK // 2), quiet=True)
for number in range(3): run.log(number, {{"loss": 1.0}})
ready()
def elsewhere(): time.sleep(10_000)
elsewhere()
"""


class Job:
    """A run on both hosts, the higher half of its ranks on the left one, whose network may be cut."""

    def __init__(self, net: network.Network, collector: Collector) -> None:
        self.net = net
        self.collector = collector
        self.names = [host.run("uname", "-n").strip() for host in (net.right, net.left)]

    def why(self) -> tuple[dict[str, Any], int]:
        """The verdict, asked for on the host of the collector."""
        words = ("job", "--server", self.collector.url)
        return why(*words, wrap=self.net.right.words(), LOGCLIENT_TOKEN=self.collector.token)

    def api(self) -> dict[str, Any]:
        """The verdict as the dashboard has it."""
        asking = (
            "import json, os, requests, sys; "
            "token = {'Authorization': 'Bearer ' + os.environ['TOKEN']}; "
            "print(requests.get(sys.argv[1] + '/api/v1/run/why?run=job', headers=token, timeout=60).text)"
        )
        words = ("env", f"TOKEN={self.collector.token}", sys.executable, "-c", asking, self.collector.url)
        made: dict[str, Any] = json.loads(self.net.right.run(*words))
        return made

    def page(self) -> str:
        words = ("job", "--server", self.collector.url)
        return asked(*words, wrap=self.net.right.words(), LOGCLIENT_TOKEN=self.collector.token).stdout

    def wait(self, verdict: str, text: str = "") -> tuple[dict[str, Any], int]:
        """Wait for a verdict."""
        found: list[tuple[dict[str, Any], int]] = []

        def is_so() -> bool:
            found[:] = [self.why()]
            return found[0][0]["verdict"] == verdict and text in found[0][0]["text"]

        try:
            wait_until(is_so, PATIENCE_S, f"the verdict is {verdict}")
        except AssertionError:
            raise AssertionError(f"{found[0][0]['verdict']}: {found[0][0]['text']}") from None
        return found[0]

    def nodes(self, found: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {node["host"]: node for node in found["nodes"]}


@pytest.fixture
def job(two_hosts: network.Network, tmp_path: Path) -> Iterator[Job]:
    collector = Collector(tmp_path / "collector", host=two_hosts.right)
    try:
        collector.start()
        yield Job(two_hosts, collector)
    finally:
        collector.kill()


def test_odd_rank_of_two_hosts_is_named_until_it_moves(tmp_path: Path, run_dir: Path, job: Job) -> None:
    """2 x 4 gloo ranks: the groups are over all of them, and a report of a run that moves again is not shown."""
    pytest.importorskip("torch")
    hosts = [job.net.right] * 4 + [job.net.left] * 4
    source = GLOO_RANKS.format(address=job.net.right.address, dir=str(run_dir))

    def there(rank: int, words: list[str]) -> list[str]:
        return hosts[rank].words(*words, cwd=tmp_path)

    with program(tmp_path, source, count=8, wrap=there, **ENV, **job.collector.env) as begun:
        found, code = job.wait("user code", "rank 6")
        assert (code, found["pids"], found["missing_ranks"]) == (3, [begun[6].pid], []), found["text"]
        right, left = job.names
        assert found["text"].startswith(f"rank 6 on {left} ")
        assert " at elsewhere (" in found["text"] and f"rank 0 on {right}" in found["text"]
        assert [each["host"] for each in found["processes"]] == [right] * 4 + [left] * 4
        assert sorted(len(group["processes"]) for group in found["groups"]) == [1, 7]
        assert {host: node["is_seen"] for host, node in job.nodes(found).items()} == {right: True, left: True}
        assert f"{left}: as it was " in (page := job.page()) and f"rank 6 on {left}" in page
        shown = job.api()
        assert shown["blamed"] == found["blamed"] and shown["verdict"] == found["verdict"]
        assert [each["frames"] for each in shown["groups"]] == [each["frames"] for each in found["groups"]]
        (tmp_path / "go").touch()
        found, code = job.wait("not stuck")
        assert (code, found["processes"], found["text"]) == (0, [], "no rank is late on any node")
        assert {node["kind"] for node in found["nodes"]} == {"ok"}


def test_host_that_is_cut_off_is_named(tmp_path: Path, run_dir: Path, job: Job) -> None:
    """What is known of it is told with its age, and is no part of the verdict; it comes back, and is."""
    hosts = [job.net.right] * 2 + [job.net.left] * 2
    source = RANKS.format(dir=str(run_dir))

    def there(rank: int, words: list[str]) -> list[str]:
        return hosts[rank].words(*words, cwd=tmp_path)

    with program(tmp_path, source, count=4, wrap=there, **ENV, **job.collector.env) as begun:
        right, left = job.names
        found, code = job.wait("user code", f"rank 3 on {left}")
        assert (code, len(found["processes"])) == (3, 4)
        with job.net.black_hole():
            found, code = job.wait("user code", f"{left}: nothing has come from it for ")
            assert "ranks 2 to 3 were not looked at" in found["text"] and code == 3
            assert [each["rank"] for each in found["processes"]] == [0, 1]
            gone = job.nodes(found)[left]
            assert (gone["is_seen"], gone["is_known"]) == (False, False) and gone["silent_s"] > 15
            assert "; its last state was " in gone["text"] and "rank 3" in gone["text"]
            assert f"{left}: nothing has come from it for " in job.page()
        found, _ = job.wait("user code", f"rank 3 on {left}")
        for process in begun[:2]:  # those on the right host, whose agent then leaves
            os.kill(process.pid, signal.SIGKILL)
        found, code = job.wait(
            "process gone", f"rank 0 on {right}, rank 1 on {right}: each has ended (killed, SIGKILL)"
        )
        assert code == 3 and job.nodes(found)[right]["text"] == "its processes have ended"
        assert [each["rank"] for each in found["processes"] if each["host"] == left] == [2, 3]
