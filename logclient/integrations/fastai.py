"""fastai: `Learner(..., cbs=LogclientCallback())` logs each training batch and each epoch.

Runs in the training process, in the hooks that fastai calls. What is logged under which key, and what counts as a
training, stands in docs/integrations/fastai.md.

Invariants:

- only a training logs: the run is looked for (or started) at its first epoch, so that `lr_find`, `validate`,
  `get_preds` and `predict` start none;
- no value is read here, device tensors go to `Run.log` as they are; but for predictions, where they are asked for;
- the training is the same with and without it: no random numbers are taken, no other callback's events are caused;
- a request to stop or to save is followed after a training batch, on all ranks after the same one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from fastai.callback.core import (
    Callback,
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    CancelStepException,
    CancelTrainException,
    CancelValidException,
)
from fastai.learner import Recorder
from fastai.torch_core import get_model, rank_distrib

from logclient import NullRun, Run
from logclient.integrations import fastai_predictions, guard

_PREDICTIONS = 36  # rows, unless a number is given


class LogclientCallback(guard.Guarded, Callback):  # fastai has no types
    """Logs a `Learner`'s training to a logclient run.

    `run` is the run to log to; default is the current one, else one that is started with the other arguments, which
    are those of `logclient.init`, when a training begins. `log_model`: True, or a name as for `Learner.save`: save the
    model when a training ends, and note the file in the run's summary. `log_preds`: True, or a number of items: put
    targets and predictions of the first items of the validation set into the summary when a training ends.

    Raises nothing in a training but `BadArgument` for settings that make no sense, at its begin.
    """

    order = Recorder.order + 1
    run: bool  # fastai's switch
    remove_on_fetch = True  # as Recorder: predictions for another callback are no part of the training
    _passes = (
        CancelBackwardException,
        CancelBatchException,
        CancelEpochException,
        CancelFitException,
        CancelStepException,
        CancelTrainException,
        CancelValidException,
    )
    _kept = ("_log_model", "_log_preds", "learn")

    def __init__(
        self,
        run: Run | NullRun | None = None,
        *,
        log_model: bool | str | os.PathLike[str] = False,
        log_preds: bool | int = False,
        project: str | None = None,
        name: str | None = None,
        id: str | None = None,
        config: Any = None,
        group: str | None = None,
        tags: Iterable[str] = (),
        notes: str = "",
        resume: str | None = None,
        mode: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        server: str | None = None,
        alerts: Iterable[str | dict[str, Any]] = (),
        **settings: Any,
    ) -> None:
        self._tie = guard.Tie(run, guard.given(locals()))
        super().__init__()
        self._log_model = log_model
        self._log_preds = _PREDICTIONS if log_preds is True else int(log_preds)
        self._progress = _Progress()

    def __call__(self, event_name: str) -> None:
        """Call the hook of an event, and nothing where there is none.

        fastai's own looks such an event up in the learner and its model, ten times a batch, and gives exceptions that
        pass through another text."""
        method = getattr(type(self), event_name, None)
        if method is not None and self.run:
            method(self)
        if event_name == "after_fit":
            self.run = True  # switched off is for one training

    def __setattr__(self, name: str, value: object) -> None:
        """Without fastai's look for the same name in the learner and its model."""
        if name == "order":
            value = max(value, type(self).order)  # the Recorder's values come first
        object.__setattr__(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Exported or saved with its learner nothing of it is left, so that loading needs no logclient."""
        if self.learn is not None and not guard.is_spawning():
            return Callback, ()
        return super().__reduce_ex__(protocol)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._progress = _Progress()

    # ---- a training -------------------------------------------------------------------------------------

    @guard.opening
    def before_fit(self) -> None:
        """Begin a training, or a validation or prediction, for which fastai calls this, too."""
        self._progress.enter()
        self._off = _is_trial(self.learn) or self._is_second()

    @guard.opening
    def before_train(self) -> None:
        progress, learn = self._progress, self.learn
        begins = not progress.is_training and not self._off
        if begins:
            run = self._open(other=self._other())
            if not self._off and self._is_second():
                self._second()
        if self._off:
            return
        if begins:
            progress.begin(self._counts(run))
        counts = progress.counts
        if not counts.step and learn.epoch:  # a training that goes on in a new process: fit(start_epoch=...)
            counts.step = learn.epoch * len(learn.dl)
        progress.trained = True
        progress.is_new(learn.loss)  # of no batch of this epoch
        if begins and not rank_distrib():
            self._describe()

    @guard.hook
    def after_batch(self) -> None:
        learn, progress = self.learn, self._progress
        if not learn.training or not progress.is_training:
            return
        progress.counts.step += 1
        if progress.is_new(learn.loss):  # else the batch was cancelled before it had one
            recorder = getattr(learn, "recorder", None)
            self._log_batch({} if recorder is None else {"batch/smooth_loss": _one(learn.smooth_loss)})
        self._follow(progress.counts.step)

    def _follow(self, step: int) -> None:
        """Save or stop, where somebody asked for it."""
        run = self._run()
        if run.should_save(step):
            self._save_asked(step)
        if run.should_stop(step):
            raise CancelFitException

    def _save_asked(self, step: int) -> None:
        """Save as a SaveModelCallback does, where there is one, under a name of its own."""
        saver = getattr(self.learn, "save_model", None)
        if saver is not None and hasattr(saver, "fname"):
            self.learn.save(f"{saver.fname}-step-{step}", with_opt=getattr(saver, "with_opt", True))

    def _log_missed(self) -> None:
        """The last batch, where a callback that came before us cancelled the rest in its `after_batch`."""
        learn, progress = self.learn, self._progress
        if progress.is_training and learn.training and progress.is_new(learn.loss):
            progress.counts.step += 1
            self._log_batch({})

    def _log_batch(self, row: dict[str, Any]) -> None:
        learn, progress = self.learn, self._progress
        progress.counts.epoch = progress.first_epoch + learn.epoch + (learn.iter + 1) / learn.n_iter
        row["batch/loss"] = _one(learn.loss)
        row["epoch"] = progress.counts.epoch
        groups = learn.opt.hypers
        for number, hypers in enumerate(groups):
            suffix = f"_{number}" if len(groups) > 1 else ""
            for name, value in hypers.items():
                if isinstance(value, (int, float, torch.Tensor)) and type(value) is not bool:
                    row[f"batch/{name}{suffix}"] = value
        run = self._run()
        run.log(progress.counts.step, row)

    @guard.hook
    def after_train(self) -> None:
        self._log_missed()

    @guard.hook
    def before_validate(self) -> None:
        self._progress.validated = True

    @guard.hook
    def after_epoch(self) -> None:
        self._log_missed()
        self._log_epoch()

    @guard.opening
    def after_fit(self) -> None:
        """Called where the training was cancelled, too, maybe by a callback that came before us."""
        progress = self._progress
        if progress.is_outer:  # what ends is no training; the one that it was called from goes on
            progress.is_training, progress.is_outer = True, False
            self._off = self._tie.is_off
            return
        if not progress.is_training:
            return
        try:
            self._log_missed()
            self._log_epoch()
        finally:
            progress.is_training = False
            if not rank_distrib():
                self._save_model()
                self._log_predictions()

    def _log_epoch(self) -> None:
        """Log the Recorder's values of this epoch that were not logged."""
        progress, recorder = self._progress, getattr(self.learn, "recorder", None)
        trained, validated = progress.trained, progress.validated
        progress.trained = progress.validated = False
        run = self._run()
        if recorder is None or not recorder.values or recorder.values[-1] is progress.values:
            return
        progress.values = recorder.values[-1]
        if run is None or (not progress.is_training and guard.is_over(run)):
            return
        names = _names(recorder, trained, validated)
        prefix = "epoch" if progress.is_training else "validate"
        row: dict[str, Any] = {}
        for name, value in zip(names, progress.values, strict=False):
            if value is not None:
                row[_free(f"{prefix}/{name}", row)] = value
        if row:
            run.log(progress.counts.step, row)

    def _run(self) -> Any:
        return self._tie.run

    def _counts(self, run: Run | NullRun) -> _Counts:
        return guard.of_run(run, _Counts)

    def _other(self) -> LogclientCallback | None:
        """Return a callback that logs this training already."""
        for cb in self.learn.cbs.sorted("order"):
            if not isinstance(cb, LogclientCallback) or cb is self:
                continue
            if cb.run and not cb._off and cb._progress.is_training:
                return cb
        return None

    def _is_second(self) -> bool:
        """Is this a second callback that logs this learner to one run? A cell that adds one may be run again."""
        run = self._tie.run
        for cb in self.learn.cbs.sorted("order") if run is not None else ():
            if cb is self:
                return False
            if isinstance(cb, LogclientCallback) and cb.run and cb._tie.run is run:
                return True
        return False

    # ---- what is noted once -----------------------------------------------------------------------------

    def _describe(self) -> None:
        """Config of the learner, and one entry for each training."""
        learn, progress = self.learn, self._progress
        run = self._run()
        hypers = learn.opt.hypers
        fit = {
            "epochs": learn.n_epoch,
            "first_step": progress.counts.step + 1,
            "lr": [_plain(group.get("lr")) for group in hypers],
            "wd": [_plain(group.get("wd")) for group in hypers],
            "frozen_groups": getattr(learn.opt, "frozen_idx", 0),
            "callbacks": {type(cb).__name__: _arguments(cb) for cb in learn.cbs if cb is not self},
        }
        guard.add_fit(run, fit, learner=_describe(learn))

    @guard.hook
    def _save_model(self) -> None:
        """Save the model and note its file; where a SaveModelCallback writes one, note that."""
        if not self._log_model:
            return
        learn, run = self.learn, self._run()
        saver = getattr(learn, "save_model", None)
        if saver is not None and hasattr(saver, "last_saved_path"):
            path = saver.last_saved_path
            if saver.at_end or path is None:  # it saves after us
                path = learn.path / learn.model_dir / f"{saver.fname}.pth"
        else:
            name = f"logclient-{run.id}" if self._log_model is True else self._log_model
            path = learn.save(name)
        noted = {"file": os.path.abspath(path), "step": self._progress.counts.step}
        if os.path.exists(path):
            noted["bytes"] = os.path.getsize(path)
        run.summary["model"] = noted

    @guard.hook
    def _log_predictions(self) -> None:
        if self._log_preds:
            table = fastai_predictions.table(self.learn, self._log_preds)
            self._run().summary["predictions"] = {"step": self._progress.counts.step, **table}


class _Counts:
    """Training batches and epochs so far, over all trainings of a run."""

    __slots__ = ("epoch", "step")

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0.0


class _Progress:
    """Position of the learner in its training."""

    __slots__ = (
        "counts",
        "first_epoch",
        "is_outer",
        "is_training",
        "seen",
        "trained",
        "validated",
        "values",
    )

    def __init__(self) -> None:
        self.counts = _Counts()
        self.first_epoch = 0.0  # epochs of earlier trainings
        self.is_training = False
        self.values: Any = None  # the Recorder's of an epoch that were looked at last
        self.enter()

    def enter(self) -> None:
        """Between `before_fit` and the first training epoch.

        A training that is not over either calls `validate` or `get_preds` in a hook, or was interrupted.
        """
        self.is_outer, self.is_training = self.is_training, False
        self.seen = 0  # id of the last loss
        self.trained = self.validated = False  # in this epoch

    def begin(self, counts: _Counts) -> None:
        self.is_training, self.is_outer = True, False
        self.counts = counts
        self.first_epoch = counts.epoch

    def is_new(self, loss: Any) -> bool:
        """Is there a loss that was not seen? Known by its id: a reference would keep its graph alive."""
        seen, self.seen = self.seen, id(loss)
        return loss is not None and seen != self.seen


def _is_trial(learn: Any) -> bool:
    """`lr_find`, or predictions."""
    schedule = sys.modules.get("fastai.callback.schedule")  # where nobody imported it, there is no `lr_find`
    finder = getattr(schedule, "LRFinder", None)
    return hasattr(learn, "gather_preds") or (
        finder is not None and any(isinstance(cb, finder) for cb in learn.cbs)
    )


def _one(loss: Any) -> Any:
    """A loss as one number: of items that were not reduced their mean; on a device a tensor, which `Run.log` reads.

    fastai's own tensor types take part in each call, at some 20 us, unless they are kept from it.
    """
    if not isinstance(loss, torch.Tensor):
        return loss
    with torch._C.DisableTorchFunctionSubclass():
        if loss.numel() != 1:
            loss = loss.detach().mean()
        return loss.item() if loss.is_cpu else loss.detach().as_subclass(torch.Tensor)


def _names(recorder: Any, trained: bool, validated: bool) -> list[str]:
    """Return the names of the Recorder's values of an epoch: it leaves out a part that was cancelled or did not run."""
    names = list(recorder.metric_names)[1:]
    metrics = len(recorder.learn.metrics)
    in_training = 1 + (metrics if recorder.train_metrics else 0)
    in_validation = 1 + metrics if recorder.valid_metrics else 0
    train = names[:in_training] if trained and not recorder.cancel_train else []
    valid = names[in_training : in_training + in_validation]
    return train + (valid if validated and not recorder.cancel_valid else [])


def _free(name: str, row: dict[str, Any]) -> str:
    """Two metrics may have one name."""
    number, free = 1, name
    while free in row:
        number += 1
        free = f"{name}_{number}"
    return free


# ---- config -----------------------------------------------------------------------------------------------


def _describe(learn: Any) -> dict[str, Any]:
    dls, model = learn.dls, get_model(learn.model)
    parameters = list(model.parameters())
    return {
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "loss_func": _plain(learn.loss_func),
        "metrics": [metric.name for metric in learn.metrics],
        "batch_size": _plain(getattr(dls.train, "bs", getattr(dls.train, "batch_size", None))),
        "train_batches": len(dls.train),
        "train_items": _length(dls, 0),
        "valid_items": _length(dls, 1),
        "device": str(getattr(dls, "device", None)),
        **{
            name: _plain(getattr(learn, name, None))
            for name in ("opt_func", "lr", "wd", "moms", "splitter", "wd_bn_bias", "train_bn")
        },
    }


def _length(dls: Any, number: int) -> int | None:
    try:
        return len(dls[number].dataset)
    except (AttributeError, IndexError, TypeError):  # no such set, or one without a length
        return None


def _arguments(cb: Any) -> dict[str, Any]:
    """Return the arguments of its constructor, where fastai stored them."""
    return {name: _plain(value) for name, value in getattr(cb, "__stored_args__", {}).items()}


def _plain(value: Any) -> Any:
    """Settings as they are; of anything else its name: the text of an object may be long, or a wait for a device."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:100]]
    if isinstance(value, slice):
        return [_plain(value.start), _plain(value.stop)]
    function = getattr(value, "func", value)  # of a partial
    return getattr(function, "__name__", type(function).__name__)
