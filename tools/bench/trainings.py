"""One framework's training with and without our callback, in turns: the process that `callbacks.py` starts.

    python tools/bench/trainings.py NAME --pairs N       (prints one JSON object)
    python tools/bench/trainings.py NAME --imports N

A training is 100 steps of a small model that sleeps 2 ms, in 4 epochs. Its pace is that of the model's calls, from the
first to the last, so that all between two steps counts, and the start of a framework does not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

STEP_S = 0.002
EPOCHS, BATCHES, BATCH, WIDTH = 4, 25, 4, 8
STEPS = EPOCHS * BATCHES
# what users of each import before our integration, and more of it than that needs
FRAMEWORKS = {
    "accelerate": ("accelerate",),
    "fastai": ("fastai.basics", "fastai.callback.all"),
    "keras": ("keras",),
    "lightning": ("lightning",),
    "transformers": ("transformers", "transformers.trainer"),
}
os.environ.update(KERAS_BACKEND="torch", HF_HUB_OFFLINE="1")

calls: list[float] = []  # of the model in this training


def step() -> None:
    """What the model does beside its arithmetic."""
    calls.append(time.perf_counter())
    time.sleep(STEP_S)


def torch_model() -> Any:
    import torch

    class Model(torch.nn.Module):
        """Gives the loss where it gets labels, as Transformers wants it."""

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(WIDTH, 1)

        def forward(self, x: Any, labels: Any = None) -> Any:
            step()
            found = self.net(x)
            if labels is None:
                return found
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    return Model()


def torch_data() -> Any:
    import torch

    x = torch.randn(BATCHES * BATCH, WIDTH)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


# ---- one training each: begun with or without our callback ------------------------------------------------------


def accelerate() -> Callable[[bool], None]:
    import torch
    from accelerate import Accelerator

    from logclient.integrations.accelerate import LogclientTracker

    def train(ours: bool) -> None:
        accelerator = Accelerator(cpu=True, log_with=LogclientTracker() if ours else None)
        accelerator.init_trackers("bench")
        model = torch_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(torch_data(), batch_size=BATCH)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in range(EPOCHS):
            for x, labels in loader:
                loss = model(x, labels)["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.log({"loss": loss}, step=epoch)

    return train


def fastai() -> Callable[[bool], None]:
    from fastai.basics import DataLoader, DataLoaders, Learner, MSELossFlat

    from logclient.integrations.fastai import LogclientCallback

    def train(ours: bool) -> None:
        data = torch_data()
        loaders = DataLoaders(DataLoader(data, bs=BATCH), DataLoader(data, bs=BATCHES * BATCH), device="cpu")
        cbs = [LogclientCallback()] if ours else []
        learn = Learner(loaders, torch_model(), loss_func=MSELossFlat(), cbs=cbs)
        with learn.no_bar(), learn.no_logging():
            learn.fit(EPOCHS)

    import fastai.callback.all  # noqa: F401  # gives Learner its `no_bar`

    return train


def keras() -> Callable[[bool], None]:
    import keras as framework
    import numpy as np

    from logclient.integrations.keras import LogclientCallback

    class Slow(framework.layers.Layer):  # Keras has no types
        def call(self, x: Any) -> Any:
            step()
            return x

    def train(ours: bool) -> None:
        x = np.random.rand(BATCHES * BATCH, WIDTH).astype("float32")
        model = framework.Sequential([framework.Input((WIDTH,)), Slow(), framework.layers.Dense(1)])
        model.compile("sgd", "mse")
        calls.clear()  # of building
        callbacks = [LogclientCallback()] if ours else []
        model.fit(x, x.sum(1), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)

    return train


def lightning() -> Callable[[bool], None]:
    import lightning as framework
    import torch

    from logclient.integrations.lightning import LogclientLogger

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch_model()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(*batch)["loss"]
            self.log("loss", loss, on_step=False, on_epoch=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def train(ours: bool) -> None:
        trainer = framework.Trainer(
            accelerator="cpu",
            max_epochs=EPOCHS,
            logger=LogclientLogger() if ours else False,
            log_every_n_steps=10,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(torch_data(), batch_size=BATCH))

    return train


def transformers() -> Callable[[bool], None]:
    import transformers as framework

    from logclient.integrations.transformers import LogclientCallback

    framework.logging.set_verbosity_error()
    folder = tempfile.mkdtemp(prefix="logclient-bench-")

    def train(ours: bool) -> None:
        arguments = framework.TrainingArguments(
            output_dir=folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            logging_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        rows: Any = [{"x": x, "labels": labels} for x, labels in torch_data()]
        callbacks: Any = [LogclientCallback()] if ours else []
        trainer = framework.Trainer(torch_model(), arguments, train_dataset=rows, callbacks=callbacks)
        trainer.remove_callback(framework.PrinterCallback)
        trainer.train()
        os.rmdir(folder)

    return train


# records that a training has something for: of each epoch, in fastai and Keras of each batch, too
ROWS = {"accelerate": EPOCHS, "lightning": EPOCHS, "transformers": EPOCHS}
ROWS |= dict.fromkeys(("fastai", "keras"), STEPS + EPOCHS)
TRAININGS = {each.__name__: each for each in (accelerate, fastai, keras, lightning, transformers)}


def run_pairs(name: str, pairs: int) -> dict[str, Any]:
    """Seconds per step, (without, with), pair by pair; rows too many or too few; sockets that were made."""
    import logclient

    train = TRAININGS[name]()
    run = logclient.init("bench")
    sockets: list[str] = []
    found: list[tuple[float, float]] = []
    surplus = 0
    sys.addaudithook(lambda event, _: sockets.append(event) if event.startswith("socket.") else None)
    for pair in range(-1, pairs):
        took = {}
        for ours in (False, True) if pair % 2 else (True, False):
            calls.clear()
            before = run.status()["accepted"]
            train(ours)
            took[ours] = (calls[-1] - calls[0]) / (len(calls) - 1)
            surplus += run.status()["accepted"] - before - ROWS[name] * ours
        if pair >= 0:
            found.append((took[False], took[True]))
        else:  # what the framework looks for at first
            sockets.clear()
    status = run.status()
    run.finish(20)
    return {
        "pairs": found,
        "surplus": surplus,
        "sockets": sockets,
        "server": run.status()["server"]["state"],
        "refused": status["refused"],
        "notices": status["notices"],
    }


def time_imports(name: str, count: int) -> list[list[float]]:
    """CPU seconds of `import logclient` and of the integration, in processes that have the framework."""
    for module in FRAMEWORKS[name]:
        importlib.import_module(module)
    found = []
    for _ in range(count + 1):
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            times = [time.process_time()]
            for module in ("logclient", f"logclient.integrations.{name}"):
                importlib.import_module(module)
                times.append(time.process_time())
            os.write(writable, json.dumps([times[1] - times[0], times[2] - times[1]]).encode())
            os._exit(0)
        os.close(writable)
        with open(readable) as pipe:
            found.append(json.loads(pipe.read()))
        os.waitpid(pid, 0)
    return found[1:]  # the first one may have compiled them


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(TRAININGS))
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--imports", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    answer = {
        "imports": time_imports(given.name, given.imports) if given.imports else [],
        **(run_pairs(given.name, given.pairs) if given.pairs else {}),
    }
    print(json.dumps(answer))
