"""Two hosts write one run to one shared folder; one is killed as a whole and comes back (C8-4, R2-52 reading part).

A host is a mount, network and UTS namespace with a /dev/shm and a name of its own; the second one has its own PIDs as
well, and ends as a whole. The folder lies on a FUSE mount, which stands in for NFS.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.faults import fuse

from .. import containers, recipes, scripts
from ..disturbed import wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow]

HOST = """
mount -t tmpfs -o size=256m tmpfs /dev/shm
mkdir -m 700 "$LOGCLIENT_SHM_DIR"
hostname "$0"
exec "$@"
"""

# logs when it is told to by lines on standard input: the last step, and whether to flush
PROGRAM = """
import sys
import logclient

me, resume = sys.argv[1:3]
run = logclient.init(project="case", id="both", resume=resume)
print("began", flush=True)
step = int(sys.argv[3])
for line in sys.stdin:
    word, upto = line.split()
    while step < int(upto):
        run.log(step, {f"{me}/own": step, "shared": step + (0.5 if me == "b" else 0.0)})
        step += 1
    print(word == "flush" and run.flush(60.0), flush=True)
run.finish()
"""


class Host:
    """One process there."""

    def __init__(self, where: Path, name: str, *arguments: str, flags: str) -> None:
        words = ["unshare", flags, "sh", "-ec", HOST, name, sys.executable, "train.py", *arguments]
        scripts.write(where, PROGRAM)
        self.process = subprocess.Popen(words, cwd=where, stdin=-1, stdout=-1, stderr=-1, text=True)
        assert self.line() == "began"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def log(self, upto: int, *, flush: bool = False) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{'flush' if flush else 'log'} {upto}\n")
        self.process.stdin.flush()
        assert self.line() == str(flush)

    def end(self) -> None:
        ended = scripts.end(self.process, 60)
        assert ended.code == 0, ended

    def die(self) -> None:
        """All of it at once: PID 1 is killed, and the kernel kills the rest; what was on its tmpfs is gone."""
        os.kill(containers.pid_1(self.process), 9)
        self.process.communicate(timeout=60)


@pytest.fixture
def share(mount: fuse.Fuse, monkeypatch: pytest.MonkeyPatch) -> fuse.Fuse:
    """The shared file system, and the run folder on it."""
    if shutil.which("unshare") is None or shutil.which("hostname") is None:
        pytest.skip("needs unshare and hostname")
    monkeypatch.setenv("LOGCLIENT_NETWORK_SYNC_S", "0.5")
    return mount


def command(where: Path, *words: str) -> str:
    ended = scripts.run_words(where, [sys.executable, "-m", "logclient_backend", *words], 60)
    assert ended.code == 0, ended
    return ended.out


def own_steps(where: Path, me: str) -> list[int]:
    """As exported by a third host."""
    rows = map(json.loads, command(where, "export", "both", "--format", "jsonl").splitlines())
    return [row["step"] for row in rows if row["key"] == f"{me}/own"]


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.timeout(180)
def test_two_hosts_write_one_run_to_one_folder_and_one_of_them_dies(share, tmp_path):
    """All rows of both but what a dead host had not stored; both are named; a third reads, and changes nothing."""
    a = Host(tmp_path / "a", "node-a", "a", "allow", "0", flags="-mnu")
    b = Host(tmp_path / "b", "node-b", "b", "allow", "0", flags="-mnupf")
    a.log(50)
    b.log(50, flush=True)
    wait_until(lambda: own_steps(tmp_path, "b") == list(range(50)), 30, "its documents are there, too")
    b.log(60)
    b.die()
    a.log(60, flush=True)
    (dead,) = (node for node in (share.path / "runs" / "both").iterdir() if "node-b" in host_in(node))
    before = files(dead)
    shown = json.loads(command(tmp_path, "show", "both", "--json"))
    assert shown["state"]["name"] == "running"
    wait_until(lambda: own_steps(tmp_path, "a") == list(range(60)), 30, "the same of the other")
    assert files(dead) == before, "reading changed what is read"
    again = Host(tmp_path / "b", "node-b", "b", "must", "60", flags="-mnupf")
    share.hang("write", "create", "fsync")  # the share is cut
    a.log(80)
    again.log(80)
    share.release()
    a.log(100)
    again.log(100)
    a.end()
    again.end()
    for me in "ab":
        wait_until(lambda: own_steps(tmp_path, me)[-1:] == [99], 60, f"all of {me} is stored")  # noqa: B023
    found = scripts.the_run(share.path / "runs")
    points = scripts.points(found)
    assert points["a/own"] == [(step, step) for step in range(100)]
    of_b = [step for step, _ in points["b/own"]]
    assert [step for step in of_b if not 50 <= step < 60] == [*range(50), *range(60, 100)]
    assert of_b == sorted(set(of_b))
    assert len(points["shared"]) == 100 + len(of_b)
    assert {node.host for node in found.nodes} == {"node-a", "node-b"}
    assert len(found.nodes) == 3
    page = command(tmp_path, "show", "both")
    assert "node-a" in page
    assert "node-b" in page


def host_in(node: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in node.glob("documents.*"))


@pytest.mark.timeout(120)
def test_recipe_two_hosts_one_folder(share, tmp_path):
    """The page's recipe, on two hosts at once: one run, all rows of both."""
    recipe = recipes.recipe("Two hosts, one folder")
    (line,) = recipe.commands
    started = []
    for name in ("node-a", "node-b"):
        recipe.write(tmp_path / name)
        words = [
            "unshare",
            "-mnu",
            "sh",
            "-ec",
            HOST,
            name,
            "sh",
            "-ec",
            line.replace("/shared/runs", "$LOGCLIENT_DIR"),
        ]
        env = scripts.environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        given = {"cwd": tmp_path / name, "env": env, "stdout": -1, "stderr": -1, "text": True}
        started.append(subprocess.Popen(words, **given))
    for process in started:
        ended = scripts.end(process, 60)
        assert ended.code == 0, ended
    wait_until(lambda: scripts.the_run(share.path / "runs").state.name == "finished", 60, "all is stored")
    found = scripts.the_run(share.path / "runs")
    assert found.id == "both-hosts"
    assert {node.host for node in found.nodes} == {"node-a", "node-b"}
    assert {key: len(rows) for key, rows in scripts.points(found).items()} == {
        "node-a/loss": 100,
        "node-b/loss": 100,
    }
