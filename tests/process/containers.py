"""What the tests of containers and scheduler steps share: namespaces of one's own, and a trainer that tells the truth.

`unshare` stands for a container's runtime: it makes the same namespaces by the same system calls. What is not here is
an image, and a runtime's own way of ending a container.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from logclient_backend.runs.points import RunReader
from tools.faults import kernel, processes

from . import scripts
from .disturbed import wait_until

# logs the time of each record, and keeps the count of those whose log() returned in a mapped file
COUNTED = """
import mmap, os, sys, time
import logclient
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
truth = memoryview(mmap.mmap(fd, 4096)).cast("Q")
run = logclient.init(project="case", quiet=True)
run.log(0, {"time": time.time()})
truth[0] = 1
assert run.flush(120), run.status()  # from now on there is an agent
begun = time.monotonic()
seconds = float(sys.argv[2])
while time.monotonic() - begun < seconds:
    run.log(truth[0], {"time": time.time()})
    truth[0] += 1
    time.sleep(0.002)
"""


# a mount namespace starts with a copy of every mount: those of tests that run beside must not be held by it
_LET_GO = """
for point in $(grep -o "/[^ ]*logclient-fault-[^ ]*" /proc/self/mounts); do umount -l "$point" 2>/dev/null || :; done
exec "$@"
"""


def unshared(*words: str, flags: str = "-pf", proc: bool = True) -> list[str]:
    """A command line that runs those words in namespaces of their own; PID 1 there dies with `unshare`."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare of util-linux")
    if not proc:
        return ["unshare", flags, "--kill-child", *words]
    return ["unshare", flags, "--kill-child", "--mount-proc", "sh", "-c", _LET_GO, "sh", *words]


def start(where: Path, code: str, *args: str, flags: str = "-pf", proc: bool = True, **more: Any) -> Any:
    """Start `code` as PID 1 of a PID namespace."""
    words = unshared(sys.executable, "train.py", *args, flags=flags, proc=proc)
    scripts.write(where, code)
    given = {"cwd": where, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return subprocess.Popen(words, **given)


def run(where: Path, code: str, *args: str, timeout_s: float = 150.0, **more: Any) -> scripts.Ended:
    return scripts.end(start(where, code, *args, **more), timeout_s)


def pid_1(unshare: subprocess.Popen[str]) -> int:
    """As seen from outside."""
    return int(wait_until(lambda: processes.children_of(unshare.pid), 30, "PID 1 is there")[0])


def kill_namespace(unshare: subprocess.Popen[str]) -> float:
    """SIGKILL to PID 1: the kernel kills all that is in there. The time just before."""
    when = time.time()
    os.kill(pid_1(unshare), signal.SIGKILL)
    return when


class Truth:
    """The file of `COUNTED`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def logged(self) -> int:
        if not self.path.exists() or self.path.stat().st_size < 4096:
            return 0
        with open(self.path, "rb") as file:
            return int(memoryview(mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)).cast("Q")[0])


def times(run_dir: Path) -> list[float]:
    """When what is in the run folder was logged; its steps are 0, 1, 2 and so on, each once."""
    found = sorted(
        point for node in scripts.the_run(run_dir).nodes for point in _points(node.path) if point is not None
    )
    assert [step for step, _ in found] == list(range(len(found)))
    return [value for _, value in found]


def _points(node: str) -> list[tuple[int, float]]:
    return [(point.step, float(point.value)) for point in RunReader([node]).points() if point.key == "time"]


def recover(*words: str, python: tuple[str, ...] = (sys.executable,), **more: Any) -> None:
    """`logclient recover`, outside, until it says that all is stored: on a busy machine its agent may start late."""
    command = [*python, "-m", "logclient_backend", "recover", *words]

    def is_stored() -> bool:
        return scripts.run_words(Path("/"), command, 120, **more).code == 0

    wait_until(is_stored, 150, "all is recovered")


class Step:
    """A scheduler's step: a control group that holds whatever its processes start, as SLURM's with cgroup tracking."""

    ENVIRONMENT: ClassVar = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}

    def __init__(self) -> None:
        tops = [mount.point for mount in kernel.mounts() if mount.kind == "cgroup2"]
        if not tops or not os.access(tops[0], os.W_OK):
            pytest.skip("needs a control group hierarchy of version 2")
        self.path = Path(tops[0]) / f"logclient-test-{os.getpid()}-{os.urandom(4).hex()}"

    def __enter__(self) -> Step:
        self.path.mkdir()
        if not (self.path / "cgroup.kill").exists():
            self.path.rmdir()
            pytest.skip("needs cgroup.kill (Linux 5.14)")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait(30)
        self.path.rmdir()

    def start(self, where: Path, code: str, *args: str, **env: str) -> subprocess.Popen[str]:
        """A trainer in the step."""
        scripts.write(where, code)
        enter = f'echo $$ > {self.path}/cgroup.procs && exec "$@"'
        return subprocess.Popen(
            ["sh", "-c", enter, "sh", sys.executable, "train.py", *args],
            cwd=where,
            env=scripts.environment(**self.ENVIRONMENT, **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def is_over(self) -> bool:
        """No process is left in it; zombies count as none."""
        return "populated 0" in (self.path / "cgroup.events").read_text()

    def states(self) -> list[str]:
        """Of all threads that are left, those of half-dead processes too."""
        return [
            processes.state_of(int(thread)) for thread in (self.path / "cgroup.threads").read_text().split()
        ]

    def wait(self, timeout_s: float) -> None:
        """As a scheduler that lets a step end by itself."""
        wait_until(lambda: self.is_over, timeout_s, "the step ends")

    def kill(self) -> None:
        """As a scheduler that ends a step with its first process."""
        (self.path / "cgroup.kill").write_text("1")
