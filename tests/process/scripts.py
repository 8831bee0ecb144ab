"""Runs small programs as a user would, each in a process of its own, and reads back what became of their runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from logclient.shm.health import describe_agent
from logclient_backend.runs import folder
from logclient_backend.runs.points import RunReader
from logclient_backend.runs.view import RunView, view
from tests.listing import listed

from .disturbed import MIN_S, wait_until

LOG_TEN = """
import logclient
run = logclient.init(project="case")
for step in range(10):
    logclient.log(step, {"loss": step / 2})
"""


def environment(**more: str) -> dict[str, str]:
    """Return this test's environment, and more; without a VIRTUAL_ENV of a shell, of which IPython warns."""
    return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | more


class Ended(NamedTuple):
    """What a program left behind."""

    code: int
    out: str
    err: str
    took_s: float

    @property
    def said(self) -> list[str]:
        """The lines that logclient wrote to the terminal."""
        return [line for line in self.err.splitlines() if line.startswith("logclient: ")]


def write(where: Path, code: str, name: str = "train.py") -> Path:
    where.mkdir(parents=True, exist_ok=True)
    path = where / name
    path.write_text(dedent(code))
    return path


def start(where: Path, code: str, *args: str, name: str = "train.py", **more: Any) -> subprocess.Popen[str]:
    """Start `code` as a script that lies in the folder `where`, which is also its working directory."""
    words = [sys.executable, name, *args]
    write(where, code, name)
    given = {"cwd": where, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return subprocess.Popen(words, **given)


def end(process: subprocess.Popen[str], timeout_s: float = MIN_S) -> Ended:
    """Wait for a program that was started; it is killed at the deadline, and the test fails."""
    timeout_s = max(timeout_s, MIN_S)
    begun = time.monotonic()
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout_s:g} s:\n{out}\n{err}") from None
    return Ended(process.returncode, out or "", err or "", time.monotonic() - begun)


def end_with(process: subprocess.Popen[str], text: str, timeout_s: float = MIN_S) -> Ended:
    """Give a waiting program its input, and wait for its end."""
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()
    return end(process, timeout_s)


def run_words(where: Path, words: list[str], timeout_s: float = MIN_S, **more: Any) -> Ended:
    """Run a command line in the folder `where`."""
    given = {"cwd": where, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return end(subprocess.Popen(words, **given), timeout_s)


def run(where: Path, code: str, *args: str, timeout_s: float = MIN_S, **more: Any) -> Ended:
    """The same as `start` and `end`."""
    return end(start(where, code, *args, **more), timeout_s)


def run_well(where: Path, code: str, *args: str, **more: Any) -> Ended:
    """The same; fails where the program did not end with 0, or Python complained."""
    ended = run(where, code, *args, **more)
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err, ended.err
    assert "Warning" not in ended.err, ended.err
    return ended


def runs(where: Path) -> list[RunView]:
    """The runs of a folder, as every reader of this product sees them."""
    if not where.exists():
        return []
    return [view(found) for found in folder.find(str(where)) if not found.problem]


def the_run(where: Path) -> RunView:
    """The only run of that folder."""
    (only,) = runs(where)
    return only


def points(found: RunView) -> dict[str, list[tuple[int, Any]]]:
    """(step, value) per key, in the order in which readers show them."""
    reader = RunReader(node.path for node in found.nodes)
    by_key: dict[str, list[tuple[int, Any]]] = {}
    for point in reader.points():
        by_key.setdefault(point.key, []).append((point.step, point.value))
    assert not reader.damage
    assert not reader.unsupported
    return by_key


def steps(found: RunView, key: str = "loss") -> list[int]:
    return [step for step, _ in points(found).get(key, [])]


def shm_dirs() -> list[Path]:
    """Shm directories of this test that are there now."""
    return [path.parent for path in listed(Path(os.environ["LOGCLIENT_SHM_DIR"]), "logclient-*/*/run.json")]


def shm_dir_of(run_id: str) -> Path:
    """The shm directory of a run; it must be there."""
    (found,) = listed(Path(os.environ["LOGCLIENT_SHM_DIR"]), f"logclient-*/{run_id}")
    return found


def wait_gone(deadline_s: float = 20.0) -> None:
    """Until every agent of this test has stored all and left, and nothing of it is in shared memory."""
    top = Path(os.environ["LOGCLIENT_SHM_DIR"])
    try:
        wait_until(lambda: not any(top.iterdir()), deadline_s, "agents leave")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_what_is_left(top)}") from None


def _what_is_left(top: Path) -> str:
    """All that may tell why an agent has not left."""
    lines = []
    for path in listed(top):
        try:
            lines.append(f"{path.relative_to(top)} {path.stat().st_size:,} bytes")
            if path.name == "agent.status":
                words = memoryview(path.read_bytes()).cast("Q")
                lines.append(f"  {describe_agent(words, time.monotonic_ns(), 5.0)} {words[:24].tolist()}")
        except OSError as error:
            lines.append(f"{path}: {error}")
    for pid in agents():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]
            lines.append(
                f"agent {pid}, state and parent {state}, in {Path(f'/proc/{pid}/wchan').read_text()}"
            )
        except OSError:
            continue
    return "\n".join(lines)


def wait_state(where: Path, name: str, deadline_s: float = 20.0) -> RunView:
    """Until the only run of the folder is in that state."""

    def now() -> RunView | None:
        found = runs(where)
        return found[0] if len(found) == 1 and found[0].state.name == name else None

    result = wait_until(now, deadline_s, f"the run is {name}: {[run.state for run in runs(where)]}")
    assert isinstance(result, RunView)
    return result


def agents() -> list[int]:
    """Supervisors and workers of this test, by the shm directory in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"logclient_backend" in words and any(
                os.environ["LOGCLIENT_SHM_DIR"].encode() in w for w in words
            ):
                found.append(int(entry))
    return found


def kill_agents() -> None:
    """SIGKILL supervisors and workers at once, so that none brings the others back."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in agents():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
