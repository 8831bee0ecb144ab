"""A Lightning module and a trainer without noise, for the tests of the logger."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional

from tests.integrations.digits import digits

for _name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(_name).setLevel(logging.ERROR)


class Digits(L.LightningModule):
    """Logs `loss` per step, `val_loss` per epoch and, where asked, per validation step."""

    def __init__(self, lr: float = 0.1, width: int = 10, each_val_step: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(64, width)
        self.each_val_step = each_val_step

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def _loss(self, batch: Any) -> Any:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self._loss(batch), on_step=self.each_val_step, on_epoch=True)

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_loss", self._loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])

    def train_dataloader(self) -> Any:
        return digits(256)

    def val_dataloader(self) -> Any:
        return digits(64, first=300)

    def test_dataloader(self) -> Any:
        return digits(64, first=400)


def trainer(folder: Path, logger: Any, **settings: Any) -> L.Trainer:
    """On the CPU, quiet; 8 steps an epoch."""
    usual: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": str(folder),
    }
    return L.Trainer(logger=logger, **{**usual, **settings})


def checkpoint(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(folder / "kept", monitor="val_loss", save_last=True, filename="{epoch}")
