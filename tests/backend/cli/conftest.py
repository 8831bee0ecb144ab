"""What the tests of the command line share: a home folder, the command, and trainers that do what they are told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logclient_backend.cli import cli
from tools.faults import processes

WAIT_S = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of this test's own."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return path


class Command:
    """The command line in this process, with the environment of the test."""

    def __call__(self, *arguments: str | Path, code: int = 0) -> Result:
        """Run it, and fail with what it said if it exits with another code."""
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="logclient")
        assert result.exit_code == code, f"exit {result.exit_code}: {result.output}\n{result.exception!r}"
        return result

    def json(self, *arguments: str | Path, code: int = 0) -> Any:
        """The same with --json: strict JSON, or the test fails."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is no strict JSON")

        return json.loads(self(*arguments, "--json", code=code).stdout, parse_constant=refuse)

    def live(self, run_id: str) -> dict[str, Any] | None:
        """What `status` says of one run of this test, if it lives; its exit code fits what it says of all runs."""
        result = CliRunner().invoke(cli, ["status", "--json"], prog_name="logclient")
        assert result.exit_code in (0, 1), f"{result.output}\n{result.exception!r}"
        runs = json.loads(result.stdout)["runs"]
        assert result.exit_code == any(run["problems"] for run in runs), result.stdout
        return next((run for run in runs if run["id"] == run_id), None)

    def agent(self, run_id: str) -> dict[str, Any]:
        """What `status` says of its agent, once that is at work."""

        def at_work() -> dict[str, Any] | None:
            found = self.live(run_id)
            if found is None or found["agent"]["state"] != "running":
                return None
            return found["agent"] if min(found["agent"]["worker"], found["agent"]["supervisor"]) > 1 else None

        agent: dict[str, Any] = wait_for(at_work)
        return agent


@pytest.fixture
def logclient(run_dir: Path, home: Path) -> Command:
    return Command()


def wait_for(condition: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
    """What the condition gives, once that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {condition}"
        time.sleep(0.05)
    return found


class Trainer:
    """A process that runs Python lines: `go` feeds the next ones, which have `run` if `init` was called."""

    def __init__(self, first: str) -> None:
        loop = "import sys\nfor line in sys.stdin:\n    exec(line.encode().decode('unicode_escape'), globals())\n"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import logclient, os, signal, time\n{first}\nprint('ready', flush=True)\n{loop}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.expect("ready")

    @property
    def pid(self) -> int:
        return self.process.pid

    def expect(self, line: str) -> None:
        assert self.process.stdout is not None
        found = self.process.stdout.readline().strip()
        assert found == line, found

    def tell(self, lines: str) -> None:
        """Run these lines, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(lines.encode("unicode_escape").decode() + "\n")
        self.process.stdin.flush()

    def go(self, lines: str) -> None:
        """Run these lines, and wait until they are done."""
        self.tell(f"{lines}\nprint('done', flush=True)")
        self.expect("done")

    def end(self) -> int:
        """Close its input, so that it comes to its end; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)


@pytest.fixture
def trainer(run_dir: Path, home: Path) -> Iterator[Callable[..., Trainer]]:
    """Starts trainers; what is left of them is killed."""
    made: list[Trainer] = []

    def start(init: str = "run = logclient.init('digits', name='mlp')", more: str = "") -> Trainer:
        made.append(Trainer(f"{init}\nrun.log(0, {{'loss': 1.0}})\nrun.flush(60)\n{more}"))
        return made[-1]

    yield start
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
        for stream in (each.process.stdin, each.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        each.process.wait(WAIT_S)


def kill_agent(pids: dict[str, Any]) -> None:
    """Both processes of an agent, for good; `pids` is what `status` says of it. Stopped first: none brings another."""
    both = pids["worker"], pids["supervisor"]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in both:
            os.kill(pid, number)
    wait_for(lambda: not any(map(processes.is_alive, both)))
