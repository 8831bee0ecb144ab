"""Requests to stop and to save: each framework's callback follows them through the framework's own means."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.run import session_of
from logclient.shm import stop_requests
from tests.lanes import wait_until

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported
torch = pytest.importorskip("torch", reason="needs torch")

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore"),  # of the frameworks
]
EPOCHS = 100_000  # a training that nobody stops does not end within the test's time


def ask(kind: str, **more: Any) -> None:
    """Ask the current run, as `logclient stop` does."""
    run: Any = logclient._run
    request = {"id": stop_requests.new_id(), "kind": kind, "time_ns": time.time_ns(), "by": "a test", **more}
    stop_requests.ask(session_of(run).shm_dir, request)


class Asks:
    """Asks once, at the `at`-th call."""

    def __init__(self, at: int = 20, **request: Any) -> None:
        self.left = at
        self.request = {"kind": "stop", "save": True, **request}

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            ask(**self.request)
        time.sleep(0.002)  # else a small model takes some thousand steps until the step comes


def granted(run_dir: Path, name: str) -> dict[str, Any]:
    """The one request of the run, as its documents have it."""
    from logclient_backend.runs.source import FolderSource

    logclient.finish(60)
    (found,) = FolderSource(str(run_dir)).run(name).view().requests()
    assert found.state == "holds" and found.by == "a test"
    return found.as_dict()


def test_fastai_stops_and_saves_after_the_step(run_dir: Path, tmp_path: Path) -> None:
    """CancelFitException after the batch of that step; a model is saved as a SaveModelCallback does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("fastai", reason="needs fastai")
        from fastai.callback.core import Callback
        from fastai.callback.tracker import SaveModelCallback

        from logclient.integrations.fastai import LogclientCallback
        from tests.integrations.learners import digits_learner

    class Asking(Callback):
        asks = Asks()

        def after_step(self) -> None:
            Asking.asks()

    cbs = [LogclientCallback(project="stop", name="fastai", quiet=True), Asking(), SaveModelCallback()]
    learn = digits_learner(tmp_path, cbs)
    learn.fit(EPOCHS)
    run: Any = logclient._run
    assert run.should_stop()
    request = granted(run_dir, "fastai")
    steps = logclient.read(run_dir)["fastai"].series("batch/loss").step
    assert steps[-1] == request["step"], "another batch was trained, or none of that step"
    assert (tmp_path / "models" / f"model-step-{request['step']}.pth").exists()


def test_keras_stops_after_a_batch(run_dir: Path) -> None:
    """`stop_training` ends the training within a few batches of the step: batches end in other threads."""
    from logclient.integrations.keras import LogclientCallback
    from tests.integrations import test_keras
    from tests.integrations.test_keras import classifier, fit

    class Asking(test_keras.keras.callbacks.Callback):
        asks = Asks(save=False)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            Asking.asks()

    model = classifier()
    fit(model, [LogclientCallback(project="stop", name="keras", quiet=True), Asking()], EPOCHS)
    assert model.stop_training
    request = granted(run_dir, "keras")
    steps = logclient.read(run_dir)["keras"].series("batch/loss").step
    assert request["step"] <= steps[-1] < request["step"] + 2 * test_keras.BATCHES


def test_keras_with_ranks_stops_after_an_epoch(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training of a rank ends where an epoch does, which all ranks reach after the same batch."""
    from logclient.integrations.keras import LogclientCallback
    from tests.integrations import test_keras
    from tests.integrations.test_keras import BATCHES, classifier, fit

    class Asking(test_keras.keras.callbacks.Callback):
        asks = Asks(save=False)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            Asking.asks()

    monkeypatch.setenv("LOGCLIENT_RANK", "0")
    fit(classifier(), [LogclientCallback(project="stop", name="keras", quiet=True), Asking()], EPOCHS)
    request = granted(run_dir, "keras")
    steps = logclient.read(run_dir)["keras"].series("batch/loss").step
    assert steps[-1] % BATCHES == 0
    assert request["step"] <= steps[-1] < request["step"] + BATCHES


def asking_digits() -> Any:
    """Return a Lightning module that asks for a stop at some step of its training."""
    from tests.integrations.lit import Digits

    class Asking(Digits):
        asks = Asks()

        def training_step(self, batch: Any, index: int) -> Any:
            Asking.asks()
            return super().training_step(batch, index)

    return Asking()


def test_lightning_stops_and_saves_after_the_step(run_dir: Path, tmp_path: Path) -> None:
    """`trainer.should_stop` after that step; a checkpoint lies beside those of the ModelCheckpoint."""
    pytest.importorskip("lightning", reason="needs Lightning")
    from logclient.integrations.lightning import LogclientLogger
    from tests.integrations.lit import checkpoint, trainer

    logger = LogclientLogger(project="stop", name="lightning", quiet=True)
    made = trainer(tmp_path, logger, max_epochs=EPOCHS, callbacks=[checkpoint(tmp_path)])
    made.fit(asking_digits())
    assert made.should_stop
    request = granted(run_dir, "lightning")
    steps = logclient.read(run_dir)["lightning"].series("loss").step
    assert steps[-1] == request["step"]
    assert (tmp_path / "kept" / f"logclient-step={request['step']}.ckpt").exists()


def test_lightning_without_a_checkpoint_callback_saves_nothing(run_dir: Path, tmp_path: Path) -> None:
    """Where the user wants no checkpoints, none is written."""
    pytest.importorskip("lightning", reason="needs Lightning")
    from logclient.integrations.lightning import LogclientLogger
    from tests.integrations.lit import trainer

    logger = LogclientLogger(project="stop", name="lightning", quiet=True)
    trainer(tmp_path, logger, max_epochs=EPOCHS, enable_checkpointing=False).fit(asking_digits())
    granted(run_dir, "lightning")
    assert not list(tmp_path.rglob("*.ckpt"))


def test_transformers_stops_and_saves_after_the_step(run_dir: Path, tmp_path: Path) -> None:
    """The Trainer's control: one process alone stops at the step, however seldom the Trainer logs."""
    pytest.importorskip("transformers", reason="needs Transformers")
    from transformers import TrainerCallback

    from logclient.integrations.transformers import LogclientCallback
    from tests.integrations.gpt import trainer

    class Asking(TrainerCallback):
        asks = Asks()

        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            Asking.asks()

    callback = LogclientCallback(project="stop", name="gpt", quiet=True)
    made = trainer(tmp_path, callback, Asking(), num_train_epochs=EPOCHS, evaluated=False)
    made.train()
    request = granted(run_dir, "gpt")
    assert made.state.global_step == request["step"]
    assert (tmp_path / "out" / f"checkpoint-{request['step']}").is_dir()


RANKS = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
from transformers import TrainerCallback
from logclient.integrations.transformers import LogclientCallback
from tests.integrations import test_stop
from tests.integrations.gpt import trainer

class Asking(TrainerCallback):
    asks = test_stop.Asks(at=25 if os.environ["RANK"] == "1" else -1)

    def on_step_begin(self, *args, **kwargs):
        Asking.asks()

made = trainer(Path(sys.argv[1]), LogclientCallback(project="stop", name="gpt", quiet=True), Asking(),
               num_train_epochs=test_stop.EPOCHS, evaluated=False, ddp_backend="gloo", logging_steps=7)
made.train()
Path(sys.argv[1], f"step{os.environ['RANK']}").write_text(str(made.state.global_step))
"""


def test_ranks_of_transformers_stop_after_the_same_step(run_dir: Path, tmp_path: Path) -> None:
    """Rank 0 alone logs, every 7th step: no rank leaves the other in the all-reduce of a step."""
    pytest.importorskip("transformers", reason="needs Transformers")
    from tools.collector import free_port

    shared = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "LOGCLIENT_RUN_ID": "ranks", "OMP_NUM_THREADS": "1"}
    root = str(Path(__file__).resolve().parents[2])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(tmp_path)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=root,
        )
        for rank in range(2)
    ]
    try:
        wait_until(lambda: all(rank.poll() is not None for rank in ranks), "both ranks end", 180)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0]
    steps = {int((tmp_path / f"step{rank}").read_text()) for rank in range(2)}
    assert len(steps) == 1
    (step,) = steps
    assert (tmp_path / "out" / f"checkpoint-{step}").is_dir()


def test_accelerate_leaves_it_to_the_loop(run_dir: Path, tmp_path: Path) -> None:
    """The tracker's run answers; a trigger of Accelerate's takes the answer to all processes."""
    pytest.importorskip("accelerate", reason="needs Accelerate")
    from accelerate import Accelerator

    from logclient.integrations.accelerate import LogclientTracker

    accelerator = Accelerator(
        cpu=True, log_with=LogclientTracker(project="stop", name="accelerate", quiet=True)
    )
    accelerator.init_trackers("stop")
    run = accelerator.get_tracker("logclient").tracker
    asks, step = Asks(save=False), 0
    while not accelerator.check_trigger():
        step += 1
        accelerator.log({"loss": 1.0}, step=step)
        asks()
        if run.should_stop():
            accelerator.set_trigger()
    assert granted(run_dir, "accelerate")["step"] == step
