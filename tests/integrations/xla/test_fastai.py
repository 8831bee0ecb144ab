"""fastai on XLA devices: the batches of a training, from one device and from a thread per device."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

with warnings.catch_warnings():  # fastai's own imports warn
    warnings.simplefilter("ignore")
    from fastai.basics import Callback, DataLoader, DataLoaders, Learner, MSELossFlat

from logclient.integrations.xla import LogclientXLACallback
from tests.lanes import opened

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ROWS, BATCH, EPOCHS = 64, 16, 2


def learner(callback: Any, *others: Any) -> Learner:
    x = torch.linspace(-1, 1, ROWS)[:, None]
    data = TensorDataset(x, 3 * x)
    loader = DataLoader(data, bs=BATCH, shuffle=False, num_workers=0)
    dls = DataLoaders(loader, DataLoader(data, bs=BATCH, num_workers=0), device=torch.device("xla"))
    return Learner(dls, torch.nn.Linear(1, 1), MSELossFlat(), cbs=[callback, *others])


class Reference(Callback):
    """Reads each loss and waits for it."""

    order = 90

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_batch(self) -> None:
        if self.training:
            self.losses.append(self.learn.loss.item())


def test_batches_of_a_training_have_their_loss(run_dir: Path) -> None:
    """One device: each batch its own loss, hyper-parameters and epoch; each epoch the Recorder's values; config."""
    reference = Reference()
    with opened() as (run, file):
        callback = LogclientXLACallback(run, sync=True)
        learn = learner(callback, reference)
        with learn.no_logging():
            learn.fit(EPOCHS, 0.1)
        assert callback.flush(60)
        records = file.read()
        status = run.status()
        config = dict(run.config)
    batches = [record for record in records if "batch/loss" in record.values]
    epochs = [record for record in records if "epoch/valid_loss" in record.values]
    assert [record.step for record in batches] == list(range(1, EPOCHS * ROWS // BATCH + 1))
    assert [record.values["batch/loss"] for record in batches] == reference.losses
    assert all(record.values["batch/lr"] == 0.1 for record in batches) and len(epochs) == EPOCHS
    assert {record.rank for record in records} == {0}
    assert (status["refused"], status["left_out"]) == (0, 0) and status["notices"] == []
    assert config["learner"]["parameters"] == 2 and len(config["fits"]) == 1


def test_learner_pickled_with_it_holds_nothing_of_ours(run_dir: Path) -> None:
    """In its place is a plain callback of fastai's; the learner goes on logging."""
    with opened() as (run, file):
        callback = LogclientXLACallback(run, sync=True)
        learn = learner(callback)
        copy = pickle.loads(pickle.dumps(callback))
        assert type(copy) is Callback
        with learn.no_logging():
            learn.fit(1)
            learn.remove_cb(callback)
            learn.fit(1)
        assert callback.learn is None and callback.flush(60)
        assert len([record for record in file.read() if "batch/loss" in record.values]) == ROWS // BATCH


@pytest.mark.parametrize("fault", ["log", "_run", "_log_batch"])
def test_failure_of_ours_ends_no_training(fault: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case R2-38: the training goes on to its end, other callbacks too; what is lost is counted."""
    reference = Reference()

    def fail(*args: object) -> None:
        raise KeyError("of ours")

    with opened() as (run, _):
        callback = LogclientXLACallback(run, sync=True)
        learn = learner(callback, reference)
        inner = callback._threads().inner
        monkeypatch.setattr(type(inner), fault, fail, raising=False)
        if fault == "log":
            monkeypatch.setattr(callback, "_thread", fail)
        with learn.no_logging():
            learn.fit(1)
        assert len(reference.losses) == ROWS // BATCH
        assert run.status()["refused"] >= ROWS // BATCH
