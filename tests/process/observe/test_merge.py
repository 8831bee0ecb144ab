"""`why --local --json` on each host and `why --merge` over all of them: one verdict, whatever lies in the files."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.observe import report
from logclient_backend.observe.described import described
from tools.faults import network

from .plant import PATIENCE_S, asked, of, program, settled, why

LOGGED = """
import logclient
run = logclient.init(project="why", name="halves", dir={dir!r}, quiet=True)
for step in range(5): run.log(step, {{"loss": 1.0}})
ready()
def waits(): time.sleep(1000)
def odd(): time.sleep(1000)
odd() if RANK == 5 else waits()
"""


def halved(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The report of eight ranks as two hosts of four would have written it; with equal PIDs on both."""
    (one,) = data["reports"]
    halves: list[dict[str, Any]] = []
    for host, wanted in (("host-a", range(4)), ("host-b", range(4, 8))):
        half = json.loads(json.dumps(one))
        half["node"] |= {"host": host, "boot_id": host, "node": host}
        half["processes"] = [each for each in half["processes"] if each["rank"] in wanted]
        halves.append({"why": 1, "reports": [half]})
    numbers = {
        other["pid"]: each["pid"]
        for each, other in zip(
            halves[0]["reports"][0]["processes"], halves[1]["reports"][0]["processes"], strict=True
        )
    }
    text = json.dumps(halves[1])
    for there, here in numbers.items():
        text = text.replace(f": {there},", f": {here},")
    return [halves[0], json.loads(text)]


@pytest.mark.slow
def test_reports_of_two_hosts_make_one_verdict(tmp_path: Path, run_dir: Path) -> None:
    """By files and by standard input; a PID that is on both hosts is two processes."""
    with program(tmp_path, LOGGED.format(dir=str(run_dir)), count=8, LOGCLIENT_RUN_ID="halves") as begun:
        whole, code = settled("user code", "halves", "--local", "--late-after", 0.2)
        assert (code, whole["pids"]) == (3, [begun[5].pid])
        assert len(whole["reports"]) == 1
        line = asked("halves", "--local", "--json", "--late-after", 0.2).stdout
        assert line.count("\n") == 1  # several hosts may write to one file
    halves = halved(whole)
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, half in zip(paths, halves, strict=True):
        path.write_text(json.dumps(half))
    found, code = why("--merge", *paths)
    assert (found["verdict"], code) == ("user code", 3)
    assert [(each["host"], each["rank"]) for each in found["blamed"]] == [("host-b", 5)]
    assert "rank 5 on host-b waits in user code at odd" in found["text"]
    assert [each["rank"] for each in found["processes"]] == list(range(8))
    assert sorted(len(group["processes"]) for group in found["groups"]) == [1, 7]
    assert found["missing_ranks"] == []
    page = asked("--merge", *paths).stdout
    assert "HOST" in page and "rank 5 on host-b" in page
    both = subprocess.run(
        ["sh", "-c", 'cat "$0" "$1" | logclient why --merge - --json', *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PATH": path_with(tmp_path)},
    )
    assert json.loads(both.stdout)["blamed"] == found["blamed"], both.stderr
    again = tmp_path / "again.json"
    again.write_text(json.dumps(found))
    merged, _ = why("--merge", again)
    assert (merged["text"], merged["reports"]) == (found["text"], found["reports"])
    assert found["spread_s"] == 0 and "ask them at one time" not in page
    halves[1]["reports"][0]["node"]["time_ns"] += 90 * 10**9
    paths[1].write_text(json.dumps(halves[1]))
    assert "looked at within 1 m 30 s: ask them at one time" in asked("--merge", *paths).stdout
    half, code = why("--merge", paths[0])
    assert half["missing_ranks"] == [4, 5, 6, 7] and "ranks 4 to 7 were not looked at" in half["text"]


def path_with(folder: Path) -> str:
    """PATH with the command `logclient` of this source in front."""
    import sys

    script = folder / "logclient"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m logclient_backend "$@"\n')
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.slow
def test_page_of_many_ranks_stays_short(tmp_path: Path) -> None:
    """Of hundreds the ones to blame come first, and the others are numbers; the JSON has all."""
    with program(tmp_path, "def f(): time.sleep(1000)\nready()\nf()\n") as begun:
        seen = settled("user code", *of(begun))[0]["reports"][0]
    (one,) = seen["processes"]
    everybody = [json.loads(json.dumps(one)) | {"rank": rank, "pid": 1000 + rank} for rank in range(200)]
    for each in everybody:
        for look in ("first", "second"):
            each[look]["stacks"]["pid"] = each["pid"]
            (thread,) = each[look]["stacks"]["threads"]
            thread["id"] = each["pid"]
            if each["rank"] != 150:
                thread["frames"][0] = {
                    "function": "barrier",
                    "file": "/x/site-packages/torch/distributed/distributed_c10d.py",
                    "line": 5,
                }
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"why": 1, "reports": [seen | {"processes": everybody}]}))
    page = asked("--merge", path).stdout
    assert page.startswith("user code: rank 150 waits in user code")
    lines = page.splitlines()
    assert lines[2].split()[0] == "150" and "and 136 more" in page and "ranks 0 to 149, 151 to 199" in page
    assert len(lines) < 100
    assert len(why("--merge", path)[0]["processes"]) == 200


def test_files_that_do_not_belong_together_are_named(tmp_path: Path) -> None:
    """Not JSON, no report, not there, the same host twice, another run; the exit code is that of a wrong call."""
    with program(tmp_path, "ready()\ntime.sleep(1000)\n") as begun:
        found, _ = why(*of(begun))
    good = tmp_path / "good.json"
    good.write_text(json.dumps(found))
    (tmp_path / "bad.json").write_text("{")
    other = json.loads(json.dumps(found))
    other["reports"][0]["node"] |= {"host": "elsewhere", "run_id": "another"}
    (tmp_path / "other.json").write_text(json.dumps(other))
    del other["reports"][0]["processes"][0]["pid"]
    (tmp_path / "less.json").write_text(json.dumps(other))
    for names, said in (
        (["bad.json"], "bad.json is no output of `logclient why --json`: not JSON"),
        (
            ["good.json", "less.json"],
            "less.json is no output of `logclient why --json`: reports[0].processes[0].pid",
        ),
        (["good.json", "good.json"], "are of one node"),
        (["good.json", "other.json"], "other.json of another: give the reports of one run"),
        (["none.json"], "none.json: No such file or directory"),
        ([], "--merge takes the files to read"),
    ):
        done = asked("--merge", *(tmp_path / name for name in names), "--json")
        assert done.returncode in (1, 2, 3) and said in done.stderr and not done.stdout, done
        assert "Traceback" not in done.stderr
    assert asked("--merge", good, "--follow").returncode == 2


def test_report_of_real_processes_comes_back_without_loss(tmp_path: Path) -> None:
    """The verdict and all that is shown are the same from the JSON as from the looks."""
    with program(tmp_path, "def f(): time.sleep(1000)\nready()\nf()\n", count=2) as begun:
        seen = report.of_pids([process.pid for process in begun])
    shown = json.dumps(described(report.put_together([seen])))
    (read,) = report.reports_in(shown.encode(), "x")
    assert read == seen
    assert json.dumps(described(report.put_together([read]))) == shown


RANKS_OF_TWO_HOSTS = """
import logclient
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://{address}:29511", rank=RANK, world_size=RANKS)
run = logclient.init(project="why", name="job", dir={dir!r} + str(RANK // 4), quiet=True)
for step in range(3):
    dist.all_reduce(torch.ones(1))
    run.log(step, {{"loss": 1.0}})
ready()
def elsewhere(): time.sleep(10_000)
elsewhere() if RANK == 6 else dist.all_reduce(torch.ones(1))
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_of_two_hosts(tmp_path: Path, run_dir: Path, two_hosts: network.Network) -> None:
    """Network, host name and shared memory of their own; 2 x 4 gloo ranks, of which one of the second is elsewhere."""
    pytest.importorskip("torch")
    net = two_hosts
    hosts = [net.left] * 4 + [net.right] * 4
    source = RANKS_OF_TWO_HOSTS.format(address=net.left.address, dir=str(run_dir))

    def there(rank: int, words: list[str]) -> list[str]:
        return hosts[rank].words(*words, cwd=tmp_path)

    env = {"LOGCLIENT_RUN_ID": "job", "GLOO_SOCKET_IFNAME": "veth"}
    with program(tmp_path, source, count=8, wrap=there, **env) as begun:
        one = net.left.words()
        alone, _ = settled("collective or peer", "job", "--late-after", 1, wrap=one)
        assert alone["missing_ranks"] == [4, 5, 6, 7] and "ranks 4 to 7 were not looked at" in alone["text"]
        assert "logclient why --merge FILES" in asked("job", "--late-after", 1, wrap=one).stdout
        paths = []
        for host in (net.left, net.right):
            paths.append(tmp_path / f"{host.name}.json")
            done = asked("job", "--late-after", 1, "--local", "--json", wrap=host.words())
            paths[-1].write_text(done.stdout)
        found, code = why("--merge", *paths)
        assert (found["verdict"], code, found["pids"]) == ("user code", 3, [begun[6].pid]), found["text"]
        names = [host.run("uname", "-n").strip() for host in (net.left, net.right)]
        assert found["text"].startswith(f"rank 6 on {names[1]} waits in user code at elsewhere (")
        assert sorted(len(group["processes"]) for group in found["groups"]) == [1, 7]
        assert [each["host"] for each in found["processes"]] == [names[0]] * 4 + [names[1]] * 4
