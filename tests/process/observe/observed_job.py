"""A few ranks of one run, and what their observer has written; limits are seconds that are minutes by default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logclient.shm import layout

from ..disturbed import ROOT, wait_until

PATIENCE_S = 90.0
ENV = {
    "LOGCLIENT_OBSERVE_S": "0.1",
    "LOGCLIENT_LATE_AFTER_S": "1.0",
    "LOGCLIENT_LATE_FACTOR": "2.0",
    "LOGCLIENT_STALL_SAMPLES_S": "0.5",
}
ENOUGH = 6  # samples in which a run that must not be stalled is not
PRELUDE = """
import os, sys, time
import logclient
RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
run = logclient.init("observed", name="job", id="observed", rank=RANK, quiet=True)

def logs(count, pause_s=0.02):
    for step in range(count):
        run.log(step, {"loss": 1 / (step + 1)})
        time.sleep(pause_s)

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.6)

"""


class Job:
    """A few processes of one run, and what their observer has written."""

    def __init__(self, folder: Path, begun: list[subprocess.Popen[bytes]], shm_root: str) -> None:
        self.folder = folder
        self.processes = begun
        self._shm_root = Path(shm_root)
        self._shm_dir: Path | None = None

    @property
    def shm_dir(self) -> Path:
        """Once there is one."""
        if self._shm_dir is None:
            found = list(self._shm_root.glob("logclient-*/*/run.json"))
            assert len(found) <= 1
            if found:
                self._shm_dir = found[0].parent
        return self._shm_dir or self._shm_root

    def word(self, index: int) -> int:
        """A word of the status page; 0 where there is none."""
        try:
            page = (self.shm_dir / "agent.status").read_bytes()
        except FileNotFoundError:
            return 0
        return memoryview(page).cast("Q")[index] if len(page) >= 8 * (index + 1) else 0

    def why(self) -> dict[str, Any]:
        """The content of `why.json`."""
        alive = [each.poll() is None for each in self.processes]
        assert any(alive) or not alive, "all ranks have ended"
        wait_until(lambda: (self.shm_dir / "why.json").exists(), PATIENCE_S, "the observer has looked")
        found: dict[str, Any] = json.loads((self.shm_dir / "why.json").read_bytes())
        return found

    @property
    def text(self) -> str:
        return (self.shm_dir / "why.txt").read_text()

    @property
    def kind(self) -> str:
        return str(self.why()["observed"]["kind"])

    def wait(self, kind: str) -> dict[str, Any]:
        """Wait for a state; what is written then."""
        found: list[dict[str, Any]] = []

        def is_so() -> bool:
            found[:] = [self.why()]
            return bool(found[0]["observed"]["kind"] == kind)

        try:
            wait_until(is_so, PATIENCE_S, f"it is {kind}")
        except AssertionError:
            raise AssertionError(f"not {kind}, but {found[0]['observed']}\n{self.text}") from None
        return found[0]

    def watch(self, samples: int = ENOUGH) -> list[dict[str, Any]]:
        """Wait for so many samples; the states that were written with them."""
        seen: dict[int, dict[str, Any]] = {}

        def is_enough() -> bool:
            seen[(self.shm_dir / "why.json").stat().st_mtime_ns] = self.why()["observed"]
            return len(seen) >= samples

        wait_until(is_enough, PATIENCE_S, f"{samples} samples")
        return list(seen.values())

    def wait_for_another_observer(self, pid: int) -> None:
        """Wait until that one is replaced."""
        wait_until(lambda: self.word(layout.AGENT_OBSERVER) != pid, PATIENCE_S, "there is another observer")

    def go(self, name: str = "go") -> None:
        (self.folder / name).touch()


@contextmanager
def job(
    folder: Path,
    source: str,
    *,
    count: int = 1,
    python: str = sys.executable,
    **env: str,
) -> Iterator[Job]:
    """Start `count` ranks of one run."""
    (folder / "main.py").write_text(PRELUDE + source)
    begun: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(count):
            begun.append(
                subprocess.Popen(
                    [python, str(folder / "main.py"), str(rank), str(count)],
                    cwd=folder,
                    env={
                        **os.environ,
                        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "backend"))),
                        "RANK": str(rank),
                        "WORLD_SIZE": str(count),
                        "LOCAL_RANK": str(rank),
                        **ENV,
                        **env,
                    },
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                )
            )
        yield Job(folder, begun, os.environ["LOGCLIENT_SHM_DIR"])
    finally:
        for process in begun:
            process.kill()
        for process in begun:
            process.communicate(timeout=PATIENCE_S)
