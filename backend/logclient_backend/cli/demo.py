"""`logclient demo`: trains a small model while its agent is killed and its disk frozen, and checks what was stored.

The driver, this process, starts the trainer (demo_train.py) and makes the faults (demo_faults.py); the trainer knows
nothing of them. What is told at the end comes from the trainer's own notes and from the stored run (demo_check.py).
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from logclient.errors import LogclientError
from logclient.shm.shm_dir import folder_name

from ..runs import contents, folder, live
from ..runs.curve import Curve
from ..runs.view import RunView, view
from . import screen
from .demo_check import Checked, Truth, check, truths
from .demo_faults import Agent, Disk, states_of
from .demo_screen import EventPrinter, show_result
from .options import run_folder, with_dir, with_json
from .text import plural, safe

_SECONDS, _MIN_S = 20.0, 8.0
_START_S = 180.0  # for PyTorch to be imported from a cold disk
_END_S = 60.0  # for finish, evaluation and the agent's last writes
_KILLS, _FREEZE = (0.15, 0.35, 0.6), (0.5, 0.7)  # shares of the training time
_LATE_KILL = 0.85  # the third, where the worker is stopped instead of the disk
_LOOK_S = 0.02  # between two looks at the faults while they go on
_SOON_S = 1.0  # a worker that was replaced by then shares a line with its successor


@click.command(
    "demo", epilog="Exit codes: 0 all is as it was logged, 1 something does not add up or is missing."
)
@click.option(
    "--seconds", default=_SECONDS, show_default=True, metavar="S", help="How long to train, at least 8."
)
@with_dir
@with_json
@click.pass_context
def command(ctx: click.Context, seconds: float, dir: str | None, as_json: bool) -> None:
    """Train a small model while faults are injected, and check every record.

    A small PyTorch network learns scikit-learn's handwritten digits for 20 s, with two data loader workers, and each
    of the three processes logs every step. Meanwhile the agent's worker is killed three times and the disk under the
    run is frozen once (as root; else the worker is stopped instead). At the end every stored record is compared with
    what the trainer noted in files of its own.

    \b
    logclient demo
    logclient demo --seconds 60
    """
    missing = [name for name, module in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise LogclientError(
            f"the demo needs {' and '.join(missing)}: {sys.executable} -m pip install 'logclient[demo]'"
        )
    demo = Demo(max(_MIN_S, seconds), run_folder(dir), quiet=as_json)
    result = demo.run()
    if as_json:
        screen.print_json(result)
    else:
        show_result(result, demo.curve)
    if demo.troubles:
        for trouble in demo.troubles:
            click.echo(f"logclient: {safe(trouble)}", err=True)
        ctx.exit(1)


_NEEDED = {"PyTorch": "torch", "scikit-learn": "sklearn"}


class Demo:
    """One demo, from the trainer's start to the comparison."""

    def __init__(self, seconds: float, base: str, *, quiet: bool) -> None:
        self.seconds = seconds
        self.base = base
        self.run_id = time.strftime("demo-%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)
        self.troubles: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.why_no_freeze: str | None = None
        self.trained: dict[str, Any] = {}
        self.checked = Checked()
        self.counts: dict[str, int] = {}
        self.curve = Curve()
        self.notes: list[Truth] = []
        self._printer = EventPrinter(quiet, seconds)

    def run(self) -> dict[str, Any]:
        """All of it; what there is to tell."""
        with ExitStack() as stack:
            work = Path(tempfile.mkdtemp(prefix="logclient-demo-"))
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            (work / "truth").mkdir()
            disk = self._disk(stack, work)
            where = str(disk.path / "runs") if disk is not None else self.base
            self._printer.begin(disk is not None, self.why_no_freeze)
            self._train(work, where, disk)
            if disk is not None:
                self._bring_home(where)
            self.notes = truths(work / "truth")
            self._compare()
        return self._as_dict()

    def _disk(self, stack: ExitStack, work: Path) -> Disk | None:
        self.why_no_freeze = Disk.why_not()
        if self.why_no_freeze is None:
            try:
                return stack.enter_context(Disk(work))
            except (OSError, subprocess.TimeoutExpired) as error:
                self.why_no_freeze = f"more rights than here ({error})"
        return None

    # ---- training and faults --------------------------------------------------------------------------------

    def _train(self, work: Path, where: str, disk: Disk | None) -> None:
        plan = {"seconds": self.seconds, "truth": str(work / "truth"), "dir": where, "run_id": self.run_id}
        script = Path(__file__).with_name("demo_train.py")
        with open(work / "trainer.txt", "w+") as complaints:
            trainer = subprocess.Popen(
                [sys.executable, "-P", str(script), json.dumps(plan)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )
            try:
                notes = self._wait_first_step(work / "truth", trainer)
                live_dir = next(
                    (live_dir for live_dir in live.scan() if live_dir.run_id == self.run_id), None
                )
                if notes is not None and live_dir is not None:
                    self._disturb(Agent(live_dir.shm_dir), disk, notes, trainer)
                answer, _ = trainer.communicate(timeout=_END_S)
                self.trained = json.loads(answer)
            except (ValueError, subprocess.TimeoutExpired):
                complaints.seek(0)
                last = complaints.read().strip().splitlines()[-1:] or ["it said nothing"]
                self.troubles.append(f"the trainer did not end well: {last[0]}")
            finally:
                if trainer.poll() is None:
                    trainer.kill()
                trainer.wait()
                self._printer.end()
                self._wait_agent_gone()

    def _wait_first_step(self, folder: Path, trainer: subprocess.Popen[str]) -> Truth | None:
        deadline = time.monotonic() + _START_S
        while trainer.poll() is None and time.monotonic() < deadline:
            found = truths(folder)
            if found and "train/loss" in found[0].keys and found[0].rows:
                return found[0]
            time.sleep(0.05)
        return None

    def _disturb(self, agent: Agent, disk: Disk | None, notes: Truth, trainer: subprocess.Popen[str]) -> None:
        """Make each fault when its time has come, until the trainer has trained for its time."""
        begin = time.monotonic()
        faults = self._faults(agent, disk)
        now = 0.0
        with resumed(agent):
            while now < self.seconds and trainer.poll() is None:
                while faults and now >= faults[0][0] * self.seconds:
                    faults.pop(0)[1](now)
                self._watch(agent, disk, now)
                self._printer.show(now, notes)
                time.sleep(_LOOK_S)
                now = time.monotonic() - begin
            if faults:
                self.troubles.append(
                    f"{plural(len(faults), 'fault')} could not be made: training ended early"
                )
        self._watch_to_end(agent, disk, begin, trainer)

    def _watch_to_end(
        self, agent: Agent, disk: Disk | None, begin: float, trainer: subprocess.Popen[str]
    ) -> None:
        """Record what the last faults led to: on a busy machine that comes after the training."""
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            is_over = trainer.poll() is not None and not (disk is not None and disk.is_frozen())
            self._watch(agent, disk, time.monotonic() - begin)
            if is_over:
                return
            time.sleep(_LOOK_S)

    def _faults(self, agent: Agent, disk: Disk | None) -> list[tuple[float, Callable[[float], None]]]:
        """Return the faults of the demo, and when each comes as a share of the time."""

        def kill(now: float) -> None:
            at_ns = time.monotonic_ns()
            frozen = disk is not None and disk.is_frozen()
            in_wait = frozen and "D" in states_of(agent.worker)
            pid = agent.signal_worker(signal.SIGKILL)
            self._event(now, "kill", pid, at_ns=at_ns, frozen=frozen, in_wait=in_wait)

        def freeze(now: float) -> None:
            assert disk is not None
            disk.freeze((_FREEZE[1] - _FREEZE[0]) * self.seconds)
            self._event(now, "freeze", agent.worker)

        def stop(now: float) -> None:
            self._event(now, "stop", agent.signal_worker(signal.SIGSTOP))

        def go_on(now: float) -> None:
            self._event(now, "continue", agent.signal_worker(signal.SIGCONT))

        if disk is not None:
            return [(_KILLS[0], kill), (_KILLS[1], kill), (_FREEZE[0], freeze), (_KILLS[2], kill)]
        long = min(
            4.0 / self.seconds, _FREEZE[1] - _FREEZE[0]
        )  # a supervisor replaces who stands still for 5 s
        return [
            (_KILLS[0], kill),
            (_KILLS[1], kill),
            (_FREEZE[0], stop),
            (_FREEZE[0] + long, go_on),
            (_LATE_KILL, kill),
        ]

    def _event(self, now: float, kind: str, pid: int, **more: Any) -> None:
        if not pid:
            self.troubles.append(f"there was no worker to {kind}, {now:.1f} s into the training")
        event = {"at_s": round(now, 2), "kind": kind, "pid": pid, **more}
        self.events.append(event)
        if kind != "kill":
            self._printer.show_event(event)

    def _watch(self, agent: Agent, disk: Disk | None, now: float) -> None:
        """Tell once when a killed worker was replaced, and when the disk goes on."""
        for event in tuple(self.events):
            if event["kind"] == "kill" and "after_s" not in event:
                if agent.beats_since(event["pid"], event["at_ns"]):
                    event["after_s"] = round((time.monotonic_ns() - event["at_ns"]) / 1e9, 2)
                    self._printer.show_replaced(event, agent.worker)
                elif now - event["at_s"] > _SOON_S:
                    self._printer.show_event(event)
            if event["kind"] == "freeze" and "frozen_s" not in event and disk is not None:
                event["in_wait"] = event.get("in_wait", False) or "D" in states_of(agent.worker)
                if not disk.is_frozen():
                    event["frozen_s"] = round(disk.wait_thawed(), 2)
                    if not event["frozen_s"]:
                        self.troubles.append("the disk could not be frozen")
                    self._event(
                        now, "thaw", event["pid"], frozen_s=event["frozen_s"], in_wait=event["in_wait"]
                    )

    def _wait_agent_gone(self) -> None:
        deadline = time.monotonic() + _END_S
        while any(live_dir.run_id == self.run_id for live_dir in live.scan()):
            if time.monotonic() > deadline:
                self.troubles.append("the agent did not end: see `logclient status`")
                return
            time.sleep(0.05)

    def _bring_home(self, where: str) -> None:
        """From the disk that froze, which ends with this command, to where runs are kept."""
        name = folder_name(self.run_id)
        if os.path.isdir(os.path.join(where, name)):
            shutil.copytree(os.path.join(where, name), os.path.join(self.base, name))

    # ---- what came of it ------------------------------------------------------------------------------------

    def _compare(self) -> None:
        found = next((run for run in folder.find(self.base) if run.id == self.run_id), None)
        if found is None:
            self.troubles.append(f"no run {self.run_id} is stored in {self.base}")
            return
        shown = view(found)
        read = contents.read(shown, only="train/loss".__eq__)
        self.counts = read.counts(shown)
        self.checked = check(shown, self.notes, self.counts)
        self.troubles += self.checked.troubles
        loss = read.keys.get("train/loss")
        if loss is not None:
            self.curve = loss.curve()
        self._judge(shown)

    def _judge(self, run: RunView) -> None:
        if run.state.name != "finished":
            self.troubles.append(f"the run is {run.state.name}, not finished")
        killed = [event for event in self.events if event["kind"] == "kill"]
        if len(killed) != len(_KILLS) or any("after_s" not in event for event in killed):
            self.troubles.append("a killed worker was not replaced")
        if not self.checked.logged:
            self.troubles.append("nothing was logged")

    @property
    def longest_ns(self) -> int:
        """The longest of all calls but the first of each process."""
        return max((truth.longest_ns for truth in self.notes), default=0)

    @property
    def first_ns(self) -> int:
        """The longest first call of a data loader worker: it makes that process's lanes."""
        return max((truth.first_ns for truth in self.notes[1:]), default=0)

    def _as_dict(self) -> dict[str, Any]:
        names = ("accepted", "stored", "forgotten", "damaged", "refused")
        return {
            "id": self.run_id,
            "dir": self.base,
            "disk_frozen": self.why_no_freeze is None,
            "events": [
                {name: value for name, value in event.items() if name != "at_ns"} for event in self.events
            ],
            "training": {name: value for name, value in self.trained.items() if name != "status"},
            "longest_call_ms": round(self.longest_ns / 1e6, 3),
            "first_call_of_a_fork_ms": round(self.first_ns / 1e6, 3),
            "records_logged": self.checked.logged,
            "same": self.checked.is_same,
            "records": {name: self.counts.get(name, 0) for name in names},
            "processes": {truth.pid: truth.rows for truth in self.notes},
            "troubles": self.troubles,
        }


@contextmanager
def resumed(agent: Agent) -> Iterator[None]:
    """Whatever happens inside, no worker stays stopped."""
    try:
        yield
    finally:
        if "T" in states_of(agent.worker):
            agent.signal_worker(signal.SIGCONT)
