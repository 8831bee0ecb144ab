"""Predictions of a fastai learner as a table: what `LogclientCallback(log_preds=...)` puts into the summary.

Runs in the training process, once when a training ends; reads from the device.

Invariants: other callbacks hear nothing of it, no random numbers are taken, no other rank is waited for.
"""

from __future__ import annotations

import random
from contextlib import contextmanager

import numpy as np
import torch
from fastai.data.load import DataLoader
from fastai.torch_core import get_model, to_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_WIDEST = 8  # numbers of one prediction that are listed


def table(learn: Any, count: int) -> dict[str, Any]:
    """The first `count` items of the validation set: index, target, prediction and highest activation of each."""
    model = get_model(learn.model)
    modes = [(module, module.training) for module in model.modules()]
    rows: list[list[Any]] = []
    with _same_random_numbers(), torch.no_grad():
        model.eval()
        try:
            for batch in _batches(learn.dls.valid, count):
                batch = to_device(batch, next(model.parameters()).device)
                inputs = getattr(learn.dls, "n_inp", 1 if len(batch) == 1 else len(batch) - 1)
                rows += _rows(learn, batch, inputs, model(*batch[:inputs]), len(rows))
                if len(rows) >= count:
                    break
        finally:
            for module, is_training in modes:
                module.training = is_training
    return {"columns": ["item", "target", "prediction", "activation"], "rows": rows[:count]}


def _batches(loader: Any, count: int) -> Iterable[Any]:
    if type(loader).__name__ == "DistributedDL":  # its own batches are agreed upon by all ranks
        loader = loader.dl
    if isinstance(loader, DataLoader):
        size = min(count, loader.bs or count)
        return loader.new(shuffle=False, drop_last=False, num_workers=0, bs=size)  # type: ignore[no-any-return]
    size = min(count, loader.batch_size or count)
    return torch.utils.data.DataLoader(loader.dataset, batch_size=size, collate_fn=loader.collate_fn)


def _rows(learn: Any, batch: Any, inputs: int, output: Any, first: int) -> list[list[Any]]:
    activation = getattr(learn.loss_func, "activation", None)
    decodes = getattr(learn.loss_func, "decodes", None)
    output = activation(output) if activation is not None else output
    targets = [_host(target) for target in batch[inputs:]]
    outputs = [_host(part) for part in (output if isinstance(output, (tuple, list)) else (output,))]
    decoded = [_host(decodes(output))] if decodes is not None and len(outputs) == 1 else outputs
    is_class = decodes is None and len(targets) == len(outputs) == 1
    if is_class and outputs[0].ndim == targets[0].ndim + 1 and not targets[0].is_floating_point():
        decoded = [outputs[0].argmax(1)]
    vocab = _vocab(learn.dls)
    return [
        [
            first + at,
            _show([target[at] for target in targets], vocab),
            _show([part[at] for part in decoded], vocab),
            float(outputs[0][at].max()) if len(outputs) == 1 else None,
        ]
        for at in range(len(outputs[0]))
    ]


def _host(value: Any) -> Any:
    return value.detach().as_subclass(torch.Tensor).cpu()


def _show(values: list[Any], vocab: Any) -> Any:
    """One item's targets or predictions: the name of a class, numbers, or how many numbers there are."""
    shown = [_show_one(value, vocab) for value in values]
    return shown[0] if len(shown) == 1 else shown


def _show_one(value: Any, vocab: Any) -> Any:
    if value.numel() == 1:
        number = value.item()
        is_index = vocab is not None and not value.is_floating_point() and 0 <= number < len(vocab)
        return str(vocab[int(number)]) if is_index else number
    if vocab is not None and value.dtype is torch.bool and value.numel() == len(vocab):
        return [str(vocab[at]) for at in value.nonzero().flatten().tolist()]
    if value.numel() <= _WIDEST:
        return value.flatten().tolist()
    return f"{value.numel()} numbers, {tuple(value.shape)}"


def _vocab(dls: Any) -> Any:
    """Names of the classes; where inputs have a vocabulary, too, the last one."""
    vocab = getattr(dls, "vocab", None)
    if vocab is None or not len(vocab):
        return None
    is_several = not isinstance(vocab[-1], str) and hasattr(vocab[-1], "__len__")
    return vocab[-1] if is_several else vocab


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """A loader takes some when it is made and when it is asked."""
    before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.random.set_rng_state(before[2])
