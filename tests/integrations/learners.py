"""Small fastai learners on scikit-learn's data, and a callback that cancels trainings."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

with warnings.catch_warnings():  # fastai's own imports warn
    warnings.simplefilter("ignore")
    from fastai.tabular.all import (
        Callback,
        Categorify,
        CrossEntropyLossFlat,
        DataLoader,
        DataLoaders,
        Learner,
        Normalize,
        ProgressCallback,
        TabularDataLoaders,
        accuracy,
        noop,
        tabular_learner,
    )

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.utils.data import TensorDataset

BATCHES = 5  # of one epoch of `digits_learner`


def digits_loaders() -> Any:
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x[:480], dtype=torch.float32) / 16, torch.tensor(y[:480])
    train, valid = TensorDataset(x[:320], y[:320]), TensorDataset(x[320:], y[320:])
    return DataLoaders(DataLoader(train, bs=64, shuffle=True), DataLoader(valid, bs=64), device="cpu")


def digits_learner(folder: Path, cbs: Any, **arguments: Any) -> Any:
    """Classifies digits; 5 batches an epoch; one parameter group."""
    torch.manual_seed(3)
    made = Learner(
        digits_loaders(),
        nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)),
        **{"loss_func": CrossEntropyLossFlat(), "metrics": accuracy, "path": folder, "cbs": cbs, **arguments},
    )
    return _quiet(made)


def cancer_learner(folder: Path) -> Any:
    data = load_breast_cancer(as_frame=True)
    frame: Any = data.frame.sample(240, random_state=0).reset_index(drop=True)
    frame["target"] = frame["target"].map({0: "malignant", 1: "benign"})
    names = list(data.feature_names)[:6]
    dls = TabularDataLoaders.from_df(
        frame,
        procs=[Categorify, Normalize],
        cont_names=names,
        y_names="target",
        valid_idx=range(180, 240),
        bs=60,
    )
    return _quiet(tabular_learner(dls, layers=[8], metrics=accuracy, path=folder))


def _quiet(learn: Any) -> Any:
    learn.logger = noop
    return learn.remove_cb(ProgressCallback)


class Raise(Callback):
    """Raises at one event, the `at`-th time of it."""

    def __init__(self, event: str, error: BaseException, at: int = 1, order: int = 0) -> None:
        self.error, self.left, self.order = error, at, order
        setattr(self, event, self.strike)

    def strike(self) -> None:
        self.left -= 1
        if not self.left:
            raise self.error
