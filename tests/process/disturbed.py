"""Drives `trainer.py` and checks what became of its records: the shared harness of the process tests."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logclient.shm import layout
from logclient.shm.side_stream import side_of
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.reader import WalReader
from tests.listing import listed

from . import trainer

ROOT = Path(__file__).parents[2]


MIN_S = 60.0  # a machine that is ten times slower is no failure
ROOMY = {
    "LOGCLIENT_LANES_BYTES": str(32 << 20)
}  # nothing is forgotten, however late a dead worker's successor is


def wait_until(condition: Callable[[], Any], deadline_s: float, what: str) -> Any:
    """Ask until the answer is true; fails with `what` at the deadline, which no slow machine reaches."""
    deadline_s = max(deadline_s, MIN_S)
    deadline = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.005)


def remove_at_once(folder: Path) -> None:
    """Remove a folder in which an agent goes on making files: it is gone by its name before it is emptied."""
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.removed")))


class Trainer:
    """The process, its truth file, and the agent that serves it; either may be killed, and its folders may go."""

    def __init__(
        self,
        folder: Path,
        env: dict[str, str] | None = None,
        start: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
        **plan: Any,
    ) -> None:
        """`start` is a Popen of another host's."""
        self.begun_at = time.monotonic()
        self._page: StatusPage | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.truth = folder / f"truth-{os.urandom(4).hex()}"
        plan["truth"] = str(self.truth)
        self.process = start(
            [sys.executable, "-m", "tests.process.trainer", json.dumps(plan)],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )
        wait_until(lambda: self._words()[3] or self.process.poll() is not None, 30, "the trainer starts")
        assert self._words()[3], "the trainer ended before its first record"
        head = self.truth.read_bytes()[trainer.RUN_AT :].rstrip(b"\0").decode().split("\n")
        self.run_id, self.shm_dir = head[0], head[1]

    def _words(self) -> memoryview:
        if not self.truth.exists() or self.truth.stat().st_size < trainer.BYTES:
            return memoryview(bytes(trainer.RUN_AT)).cast("Q")
        with open(self.truth, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), trainer.RUN_AT, prot=mmap.PROT_READ)).cast("Q")

    @property
    def logged(self) -> int:
        """Records whose log() returned."""
        return int(self._words()[0])

    @property
    def begun(self) -> int:
        return int(self._words()[1])

    @property
    def longest_ms(self) -> float:
        return self._words()[2] / 1e6

    def status_page(self) -> StatusPage:
        """Map the page once, and keep it: its folder may be removed."""
        if self._page is None:
            self._page = StatusPage(os.path.join(self.shm_dir, "agent.status"))
        return self._page

    def word(self, index: int) -> int:
        """One word of the status page (layout.AGENT_...), 0 where that is gone; maps it only if `status_page` has."""
        if self._page is not None:
            return int(self._page.words[index])
        try:
            with open(os.path.join(self.shm_dir, "agent.status"), "rb") as file:
                return int.from_bytes(os.pread(file.fileno(), 8, 8 * index), "little")
        except FileNotFoundError:
            return 0

    def agent_pid(self, which: int = layout.AGENT_WORKER) -> int:
        """PID of worker or supervisor, as soon as there is one."""
        return int(wait_until(lambda: self.word(which), 10, "the agent starts"))

    @property
    def shipped(self) -> int:
        """Records that the collector has, as the agent knows."""
        return self.word(layout.AGENT_SHIPPED)

    @property
    def ship_state(self) -> str:
        return layout.SHIP_STATES[self.word(layout.AGENT_SHIP_STATE)]

    def wait_logged_more(self, more: int, deadline_s: float = MIN_S) -> None:
        """Wait until the program has logged so many more: training goes on."""
        wanted = self.logged + more
        wait_until(lambda: self.logged >= wanted, deadline_s, f"{more} records more are logged")

    def wait_shipped(self, records: int, deadline_s: float = MIN_S) -> None:
        """Wait until the agent knows so many at the collector."""
        before = self.shipped
        wait_until(
            lambda: self.shipped >= records,
            deadline_s,
            f"{records} records are at the collector; it had {before}, state {self.ship_state}",
        )

    def wait_shipped_more(self, more: int = 1, deadline_s: float = MIN_S) -> None:
        """Wait until the collector has so many more than now."""
        self.wait_shipped(self.shipped + more, deadline_s)

    def wait_caught_up(self, deadline_s: float = MIN_S) -> None:
        """Wait until all is there that was logged when this was asked."""
        self.wait_shipped(self.logged, deadline_s)

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = 120) -> dict[str, Any]:
        """Wait for it; its final status."""
        out, _ = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0, f"the trainer ended with {self.process.returncode}"
        status = json.loads(out)
        assert isinstance(status, dict)
        return status

    def end_by(self, number: int = signal.SIGKILL, timeout_s: float = 60) -> int:
        """Send it that signal and wait for it; its return code."""
        self.kill(number)
        self.process.communicate(timeout=timeout_s)
        return int(self.process.returncode)

    def tell_to_end(self) -> dict[str, Any]:
        """It finishes (with `until_told`); its last status."""
        self.kill(signal.SIGUSR1)
        return self.end()

    def wait_gone(self, timeout_s: float = 30) -> None:
        """Until the agent has stored everything and removed the shm directory."""
        wait_until(lambda: not os.path.exists(self.shm_dir), timeout_s, "the agent leaves")

    def wait_agent_gone(self, timeout_s: float = 30) -> None:
        """Wait until its processes have ended, even where the shm directory is gone: its page was mapped before."""
        assert self._page is not None, "the page goes with the shm directory"
        pids = (self.agent_pid(layout.AGENT_SUPERVISOR), self.agent_pid(layout.AGENT_WORKER))
        wait_until(
            lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), timeout_s, "the agent ends"
        )


@dataclass
class Stored:
    """What the run folder holds, per stream."""

    seqs: dict[bytes, list[int]] = field(default_factory=dict)
    steps: dict[bytes, list[int]] = field(default_factory=dict)
    forgotten: int = 0
    damaged: int = 0
    wrong: int = 0  # values that are not what the trainer logged for that step

    @property
    def records(self) -> int:
        return sum(map(len, self.seqs.values()))

    def take(self, item: StreamColumns) -> None:
        """Records of one stream, and whether their values are what was logged; none of what the agent measured."""
        if side_of(item.stream):
            return
        columns = item.columns
        self.seqs.setdefault(item.stream, []).extend(columns.seq)
        self.steps.setdefault(item.stream, []).extend(columns.step)
        first = array("d", columns.cells[0].tobytes())  # type: ignore[union-attr]
        last = array("d", columns.cells[-1].tobytes())  # type: ignore[union-attr]
        width = len(columns.cells) - 1
        self.wrong += sum(
            1
            for step, a, z in zip(columns.step, first, last, strict=True)
            if a != step or z != step + width / 16
        )


def node_folders(run_dir: Path) -> list[Path]:
    folders = {path.parent for path in listed(run_dir, "*/*/*") if path.name.startswith("documents")}
    return sorted(folders | {path.parent for path in listed(run_dir, "*/*/*.[ws][ae][lg]")})


def stored(run_dir: Path) -> Stored:
    """Read everything; repeats are not dropped by hand: the reader must do that."""
    found = Stored()
    for folder in node_folders(run_dir):
        reader = WalReader(str(folder))
        for item in reader.items():
            if isinstance(item, StreamColumns):
                found.take(item)
        for span in [span for span in reader.spans().values() if not side_of(span.stream)]:
            found.forgotten += len(span.forgotten) + len(span.trimmed) + len(span.missing())
            found.damaged += len(span.damaged)
    return found


def documents(run_dir: Path) -> list[dict[str, Any]]:
    from logclient_backend.wal.documents import DocumentFile

    loaded = [DocumentFile(str(folder)).load() for folder in node_folders(run_dir)]
    return [json.loads(content) for content in loaded if content]
