"""The tracker for Accelerate, in a real training; with several processes as `accelerate launch` starts them."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import logclient
from logclient import BadArgument, NullRun
from logclient.integrations import guard
from logclient.integrations.accelerate import LogclientTracker
from tests.integrations.digits import digits
from tests.lanes import ROOT, opened

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("transformers")]
HOOKS = [name for name, method in vars(LogclientTracker).items() if hasattr(method, "__wrapped__")]


@pytest.fixture(autouse=True)
def _no_state() -> Iterator[None]:
    """Accelerate keeps one state per process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def run(run_dir: Path) -> Iterator[tuple[Any, Any]]:
    """A run and its lanes."""
    with opened("digits") as (made, file):
        yield made, file


def train(tracker: LogclientTracker, *, given: bool = True, lr: float = 0.2) -> int:
    """8 steps of a linear model, logged with their step where `given`; how many there were."""
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("digits", config={"lr": lr})
    model = torch.nn.Linear(64, 10)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=lr), digits(256)
    )
    step = 0
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss}, step=step if given else None)
        step += 1
    assert accelerator.get_tracker("logclient", unwrap=True) is not None
    accelerator.end_training()
    return step


def test_a_training_is_logged_to_a_run_of_its_own(run_dir: Path) -> None:
    """Tensors as they are, configuration; `end_training` finishes it; read back from disk."""
    tracker = LogclientTracker(project="digits", name="one", quiet=True, finish_timeout_s=60)
    train(tracker)
    run: Any = tracker.tracker
    assert run._session.closed
    tracker.log({"late": 1})
    assert run.status()["refused"] == 1
    read = logclient.read(run_dir)["one"]
    assert read.state == "finished" and read.project == "digits" and read.config["lr"] == 0.2
    loss = read.series("loss")
    assert loss.step.tolist() == list(range(8)) and loss.value[-1] < loss.value[0]


def test_a_run_that_was_there_goes_on(run: tuple[Any, Any]) -> None:
    """`end_training` does not end it; metrics without a step follow the last one."""
    train(LogclientTracker(), given=False)
    train(LogclientTracker(run=run[0]))
    assert [record.step for record in run[1].read()] == [*range(8), *range(8)]
    assert not run[0]._session.closed


@pytest.mark.slow
def test_steps_begin_anew_in_a_new_run(run_dir: Path) -> None:
    """Those that the tracker counts itself."""
    tracker = LogclientTracker(project="digits", quiet=True, finish_timeout_s=60)
    steps = train(tracker, given=False)
    train(tracker, given=False)
    for stored in logclient.read(run_dir):
        assert stored.series("loss").step.tolist() == list(range(steps))


def test_what_is_no_step_is_refused_once(run: tuple[Any, Any]) -> None:
    """Counted as one record; what is logged without a step goes on behind the last one that was."""
    made, file = run
    tracker = LogclientTracker()
    tracker.start()
    steps: tuple[Any, ...] = (torch.tensor(6), "nine", None)
    for step in steps:
        tracker.log({"loss": 1.0}, step=step)
    assert [record.step for record in file.read()] == [6, 7]
    assert made.status()["refused"] == 1, made.status()["notices"]


def test_bad_settings_are_said_at_once(run_dir: Path) -> None:
    """Where trackers are begun."""
    with pytest.raises(BadArgument):
        train(LogclientTracker(mode="onlien"))


BY_PROGRAM = {"log_images", "log_table"}  # Accelerate calls neither by itself


def test_hooks_are_found() -> None:
    """All that Accelerate calls."""
    called = {"_found", "start", "store_init_configuration", "log", "finish"}
    assert set(HOOKS) == called | BY_PROGRAM


@pytest.mark.first_is_quick
@pytest.mark.parametrize("hook", HOOKS)
def test_a_failing_hook_ends_no_training(
    run: tuple[Any, Any], hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on; said once, counted each time (R2-38)."""
    ours: dict[str, Any] = {"__name__": "logclient.integrations.accelerate"}
    exec(f"def {hook}(self, *args, **kwargs):\n    raise RuntimeError('ours')", ours)
    decorated = guard.opening if hook == "start" else guard.hook
    monkeypatch.setattr(LogclientTracker, hook, decorated(ours[hook]))
    tracker = LogclientTracker()
    assert train(tracker) == 8
    if hook in BY_PROGRAM:
        getattr(tracker, hook)({}, step=1)
    status = run[0].status()
    (notice,) = status["notices"]
    assert f"LogclientTracker.{hook} failed" in notice and status["refused"] >= 1


@pytest.mark.first_is_quick
@pytest.mark.parametrize("state", [{}, {"_tie": None}, {"_tie": 5}])
def test_a_broken_tracker_ends_no_training(run: tuple[Any, Any], state: dict[str, Any]) -> None:
    """Whatever of its state is missing or nonsense."""
    tracker = LogclientTracker()
    tracker.__dict__.clear()
    tracker.__dict__.update(state)
    assert train(tracker) == 8
    tracker.log(None)  # type: ignore[arg-type]
    assert run[0].status()["refused"] >= 8


def test_switched_off_no_line_of_ours_runs(run_dir: Path) -> None:
    """mode="disabled": but for the look which run it is."""
    ran: set[str] = set()
    tracker = LogclientTracker(mode="disabled")

    def trace(frame: Any, event: str, _: Any) -> None:
        if frame.f_code.co_filename.endswith("integrations/accelerate.py"):
            ran.add(frame.f_code.co_name)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        train(tracker)
    finally:
        sys.settrace(before)
    assert ran == {"_open", "start", "tracker"} and not list(run_dir.glob("*"))


@pytest.mark.slow
def test_a_copy_takes_along_no_run(run: tuple[Any, Any]) -> None:
    """Pickled or deep: settings; here it is inert."""
    tracker = LogclientTracker()
    tracker._next_step = 7
    tracker.start()
    for made in (pickle.loads(pickle.dumps(tracker)), copy.deepcopy(tracker)):
        assert set(vars(made)) == {"_tie", "_next_step"} and made._next_step == 7
        train(made)
        assert type(made.tracker) is NullRun
    assert run[1].read() == [] and run[0].status()["refused"] == 0


RANKS = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import logclient
from accelerate import Accelerator
from logclient.integrations.accelerate import LogclientTracker
from logclient.integrations.transformers import LogclientCallback
from tests.integrations.gpt import trainer

tracker = LogclientTracker(project="ranks", name="one", finish_timeout_s=60)
accelerator = Accelerator(cpu=True, log_with=tracker)
accelerator.init_trackers("ranks", config={"lr": 1})
for step in range(3):
    accelerator.log({"main": step}, step=step)
    tracker.log({"rank": accelerator.process_index}, step=step)
accelerator.wait_for_everyone()
trainer(Path.cwd(), LogclientCallback(), logging_steps=4).train()
logclient.log(100, {"by_hand": accelerator.process_index})
accelerator.end_training()
"""


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_two_processes_are_one_run(run_dir: Path, tmp_path: Path) -> None:
    """Each logs with its rank; of the Trainer, whose figures are of both, rank 0 alone (R2-40)."""
    (tmp_path / "train.py").write_text(RANKS)
    path = os.pathsep.join([str(ROOT), str(ROOT / "backend")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "LOGCLIENT_QUIET": "1"}
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"]
    words = [*launcher, "--standalone", "--nproc-per-node", "2", "train.py"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=said, stderr=said)
        try:
            code = process.wait(900)
        finally:
            process.kill()
            process.wait()
    assert code == 0, (tmp_path / "said").read_text()
    runs = logclient.read(run_dir)
    assert len(runs) == 1, "".join(
        f"{run.id} {run.name} {list(run.keys())} {dict(run.about)}\n" for run in runs
    )
    marked = runs["one"].series("rank")
    assert (
        sorted(marked.step.tolist()) == [0, 0, 1, 1, 2, 2] and marked.value.tolist() == marked.rank.tolist()
    )
    assert sorted(runs["one"].series("by_hand").value.tolist()) == [0, 1]
    assert runs["one"].series("main").rank.tolist() == [0, 0, 0]
    loss = runs["one"].series("train/loss")
    assert loss.step.tolist() == [4] and loss.rank.tolist() == [0]
    assert runs["one"].config["lr"] == 1
