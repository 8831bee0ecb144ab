"""What a run's program runs in: found by children of its agent, shown everywhere, and never waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.shm import layout
from tools.collector import Collector

from .. import scripts
from ..disturbed import wait_until
from .observed_job import PATIENCE_S

# logs until somebody writes a line; what it set itself before `init` is part of its environment
PROGRAM = """
import os, sys
os.environ["NCCL_SET_LATE"] = "1"
import logclient
run = logclient.init("case", id="it")
run.log(1, {"loss": 1.0})
print(run._session.shm_dir.path, flush=True)
sys.stdin.readline()
print(run.finish(60), run.status()["damaged"])
"""
SECRET = "s3cret-s3cret"


@contextmanager
def program(where: Path, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A run of a program in that folder."""
    given: Any = {"stdin": subprocess.PIPE, "env": scripts.environment(**env)}
    process = scripts.start(where, PROGRAM, *words, **given)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.communicate("\n", timeout=PATIENCE_S)


def repository(where: Path) -> str:
    """Make a repository with one commit there; its id."""
    where.mkdir(parents=True)
    (where / "data.txt").write_text("a\n")
    (where / ".gitignore").write_text("train.py\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (
        ("init", "-q", "-b", "main"),
        ("remote", "add", "origin", f"https://me:{SECRET}@host/x"),
        ("add", "."),
        (*who, "commit", "-qm", "x"),
    ):
        subprocess.run(["git", "-C", str(where), *words], check=True, timeout=60, capture_output=True)
    done = subprocess.run(
        ["git", "-C", str(where), "rev-parse", "HEAD"], check=True, timeout=60, capture_output=True, text=True
    )
    return done.stdout.strip()


def shown(run_dir: Path, *words: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "logclient_backend", "show", "it", "--dir", str(run_dir), "--json", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def the_environment(run_dir: Path) -> dict[str, Any]:
    """The only one, once it is there."""

    def there() -> list[dict[str, Any]]:
        run = scripts.runs(run_dir)
        return [each.as_dict() for each in run[0].environments] if run else []

    (found,) = wait_until(there, PATIENCE_S, "the environment is in the documents")
    return dict(found)


def test_commit_packages_machine_and_command_are_with_the_run(
    collector: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """Found while it runs, shown by `show`, `logclient.read` and the collector; no secret is anywhere in it."""
    commit = repository(tmp_path / "repo")
    env = {
        "LOGCLIENT_SERVER": collector.address,
        "LOGCLIENT_TOKEN": collector.token,
        "CUDA_VISIBLE_DEVICES": "3",
        "NCCL_TOKEN": SECRET,
        "HUB_KEY": SECRET,
    }
    with program(tmp_path / "repo", "--api-key", SECRET, "lr=0.1", **env) as process:
        found = the_environment(run_dir)
        assert found["command"]["arguments"][1:] == ["train.py", "--api-key", "***", "lr=0.1"]
        assert found["command"]["folder"] == str(tmp_path / "repo")
        variables = found["command"]["variables"]
        assert (variables["CUDA_VISIBLE_DEVICES"], variables["NCCL_SET_LATE"]) == ("3", "1")
        assert (variables["NCCL_TOKEN"], variables["LOGCLIENT_TOKEN"]) == ("***", "***")
        assert not {"HUB_KEY", "HOME", "LOGCLIENT_AGENT"} & set(variables)
        code = found["code"]
        assert (code["commit"], code["branch"], code["dirty"]) == (commit, "main", False)
        assert (code["remote"], code["top"]) == ("https://host/x", str(tmp_path / "repo"))
        assert any(package.startswith("zstandard==") for package in found["packages"])
        assert found["machine"]["processors"] >= 1 and found["machine"]["memory_bytes"] > 1 << 20
        assert found["missing"] == {} and "diff" not in code
        assert SECRET not in json.dumps(found) and collector.token not in json.dumps(found)
        parameters = {"run": "it"}

        def there() -> list[Any]:
            more = collector.get("/api/v1/run", params=parameters).json().get("more") or {}
            return list(more.get("environments") or [])

        (brief,) = wait_until(there, PATIENCE_S, "the collector has it")
        assert (brief["code"]["commit"], brief["packages"]) == (commit, len(found["packages"]))
        whole = collector.get("/api/v1/run/environment", params=parameters).json()["environments"]
        assert whole == [found]
        assert (
            collector.get("/api/v1/run/environment", params=parameters | {"node": "x"}).json()["environments"]
            == []
        )
        out, _ = process.communicate("\n", timeout=PATIENCE_S)
        assert out.splitlines()[-1] == "True 0"
    assert shown(run_dir, "--environment")["environments"][0]["packages"] == found["packages"]
    assert shown(run_dir)["environments"][0]["code"]["commit"] == commit
    assert logclient.read(run_dir)["it"].about["environments"] == [found]
    line = [sys.executable, "-m", "logclient_backend", "show", "it", "--dir", str(run_dir)]
    for more in ([], ["--environment"]):
        done = subprocess.run([*line, *more], capture_output=True, text=True, timeout=PATIENCE_S)
        assert commit in done.stdout and SECRET not in done.stdout


def test_more_is_recorded_only_when_asked_for(run_dir: Path, tmp_path: Path) -> None:
    """The diff and all variables, masked; with `off` nothing; what makes no sense is refused by `init`."""
    repository(tmp_path / "repo")
    (tmp_path / "repo" / "data.txt").write_text(f"changed\nkey = {SECRET}\n")
    with program(tmp_path / "repo", LOGCLIENT_CAPTURE="diff,env", HUB_KEY=SECRET, PLAIN="1"):
        found = the_environment(run_dir)
        assert "+changed" in found["code"]["diff"] and found["code"]["dirty"] is True
        variables = found["command"]["variables"]
        assert (variables["PLAIN"], variables["HUB_KEY"]) == ("1", "***")
        assert SECRET not in json.dumps(found)
    scripts.wait_gone()
    with program(
        tmp_path / "off", LOGCLIENT_CAPTURE="off", LOGCLIENT_RUN_ID="off", LOGCLIENT_DIR=str(tmp_path / "o")
    ):
        pass
    scripts.wait_gone()
    assert [run.environments for run in scripts.runs(tmp_path / "o")] == [[]]
    with pytest.raises(logclient.BadArgument, match="expected on, off, diff, env"):
        logclient.init(capture="everything")


def children_named(text: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                if text.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(int(entry))
            except OSError:
                continue
    return found


def test_a_git_that_hangs_holds_nobody_up(run_dir: Path, tmp_path: Path) -> None:
    """The run logs, finishes and leaves while git hangs; that is killed with the agent, and nothing is left."""
    repository(tmp_path / "repo")
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "git").write_text("#!/bin/sh\nexec /bin/sleep 4242.4242\n")
    (bin / "git").chmod(0o755)
    with program(tmp_path / "repo", PATH=f"{bin}:{os.environ['PATH']}") as process:
        wait_until(lambda: children_named("4242.4242"), PATIENCE_S, "git was asked")
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "capture-scratch").is_dir()
        begun = time.monotonic()
        out, _ = process.communicate("\n", timeout=PATIENCE_S)
        assert out.splitlines()[-1] == "True 0" and time.monotonic() - begun < PATIENCE_S
    scripts.wait_gone()
    wait_until(lambda: not children_named("4242.4242"), PATIENCE_S, "git is killed")
    assert scripts.the_run(run_dir).state.name == "finished"


def word(folder: Path, index: int) -> int:
    """A word of the status page."""
    return int.from_bytes((folder / "agent.status").read_bytes()[8 * index : 8 * index + 8], "little")


def test_an_attempt_is_looked_at_once(run_dir: Path, tmp_path: Path) -> None:
    """Another worker asks nothing anew, and what was found stays; the next attempt has an environment of its own."""
    with program(tmp_path / "one", "first") as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        found = the_environment(run_dir)
        worker = word(folder, layout.AGENT_WORKER)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: word(folder, layout.AGENT_WORKER) != worker, PATIENCE_S, "another worker")
        wait_until(lambda: word(folder, layout.AGENT_DRAINED), PATIENCE_S, "it is at work")
        assert the_environment(run_dir) == found
        assert word(folder, layout.AGENT_CAPTURE_ASKED) == word(folder, layout.AGENT_CAPTURE_WRITTEN) == 1
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    with program(tmp_path / "two", "second"):

        def newest() -> list[str]:
            (run,) = scripts.runs(run_dir)
            return list(run.environments[-1].content["command"]["arguments"]) if run.environments else []

        wait_until(lambda: newest()[-1:] == ["second"], PATIENCE_S, "the second attempt was looked at")
