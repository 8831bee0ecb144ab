"""Lightning: `Trainer(logger=LogclientLogger(project="digits"))`, for `lightning` and `pytorch_lightning`.

Runs in the training process, in whatever process of a strategy calls it.

Invariants:

- the run begins where the logger is made, in the process that starts the others: those of `ddp` (which run the script
  again), `ddp_spawn` (which get a pickled logger) and `ddp_fork` find it as children do, and log to it;
- each process logs what it is given, with its rank; hyper-parameters and checkpoints are noted by rank 0;
- the end of `fit` or `test` (`finalize`) does not end the run: what comes next lands in it, too. A run that the logger
  started ends with the process, or where somebody finishes it; what is logged afterwards is counted as refused;
- a request to stop or to save is followed where Lightning logs after a step: on all ranks after the same one;
- steps count on over the trainings in a run: each trainer begins at 0, unless it resumes from a checkpoint. Lightning
  calls `log_graph` where it begins to fit, validate or test, and by the model the trainer is known there.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist
from lightning_utilities.core import rank_zero

import logclient
from logclient import NullRun, Run
from logclient.integrations import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import Logger

elif (
    "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
):  # one of them is seconds of import
    from pytorch_lightning.loggers import Logger
else:
    try:
        from lightning.pytorch.loggers import Logger
    except ImportError:
        from pytorch_lightning.loggers import Logger

__all__ = ["LogclientLogger"]

_FOLDER = "lightning_logs"  # as Lightning's own loggers have it


class LogclientLogger(guard.Guarded, Logger):
    """Logs a training to `run`, else to the current run, else to one that it starts.

    ::

        logger = LogclientLogger(project="digits", name="mlp")
        trainer = Trainer(logger=logger, log_every_n_steps=10)

    `prefix` stands before each key. `save_dir` is the folder where Lightning puts checkpoints, profiles and the
    configuration of a `LightningCLI` (default: `lightning_logs/<run id>`). With `all_ranks=False` rank 0 alone logs
    metrics. All other arguments are those of `logclient.init`. Raises `BadArgument` for arguments that make no sense;
    no other method ever raises.
    """

    _kept = ("_all_ranks", "_folder", "_next_step", "_prefix", "_save_dir", "_unnamed")
    _all_ranks = True
    _folder = _FOLDER
    _next_step = 0  # for metrics without a step
    _offset = 0  # steps of the run before those of the trainer
    _prefix = ""
    _save_dir = ""
    _trainer: ref[Any] | None = None  # of the newest training
    _unnamed = "0"  # stands for the id of a run where there is none

    def __init__(
        self,
        run: Run | NullRun | None = None,
        *,
        prefix: str = "",
        save_dir: str | os.PathLike[str] | None = None,
        all_ranks: bool = True,
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
        self._all_ranks = all_ranks
        self._prefix = prefix
        self._save_dir = "" if save_dir is None else str(save_dir)
        self._find_folder()
        self._begin()

    @guard.opening
    def _find_folder(self) -> None:
        """Note where the default folder is now: a program may change its working directory later."""
        self._unnamed = os.urandom(4).hex()
        self._folder = os.path.abspath(_FOLDER)

    @guard.opening
    def _begin(self) -> Run | NullRun:
        return self._open()

    # ---- what Lightning asks -----------------------------------------------------------------------------

    @property
    def experiment(self) -> Run | NullRun:
        """The run, to log to it directly: `self.logger.experiment.log(step, {"loss": loss})` reads no tensor."""
        return self._found() or NullRun("", {}, ())

    @guard.hook
    def _found(self) -> Run | NullRun | None:
        return self._here()

    @property
    def name(self) -> str:
        """The project."""
        return self.experiment.project or "logclient"

    @property
    def version(self) -> str:
        """The id of the run; a logger that is switched off makes one up, so that no two trainings share a folder."""
        return self.experiment.id or self._unnamed

    @property
    def save_dir(self) -> str:
        """The folder for the files of this run: the one given, else `lightning_logs/<run id>`.

        It is also `trainer.log_dir`, which belongs to one run: `LightningCLI` refuses to overwrite a `config.yaml`.
        """
        return self._save_dir or os.path.join(self._folder, self.version.replace(os.sep, "_"))

    @guard.hook
    def watch(self, model: Any, every: int = 100, **options: Any) -> None:
        """`logclient.watch` with this logger's run; to be called where the training begins, as in `on_fit_start`."""
        logclient.watch(model, every, run=self._here(), **options)

    # ---- what Lightning tells ----------------------------------------------------------------------------

    @guard.hook
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log to the run; without a `step`, at the one after the last."""
        if not metrics:
            return
        if self._prefix:
            metrics = {self._prefix + key: value for key, value in metrics.items()}
        run = self._here()
        if step is None:
            step = self._next_step
        elif self._offset and hasattr(step, "__index__"):  # anything else is refused, and counted
            step += self._offset
        if self._all_ranks or _is_rank_zero():
            self._log(run, step, metrics)
        self._next_step = guard.step_after(step, self._next_step)
        self._follow(run, step)

    def log_image(self, key: str, images: Sequence[Any], step: int | None = None, **options: Any) -> None:
        """Log images under a key, and further ones under `<key>/1` and so on; `caption` is a list, one for each."""
        captions = list(options.get("caption") or ())
        found = {
            f"{key}/{at}" if at else key: logclient.Image(image, captions[at] if at < len(captions) else None)
            for at, image in enumerate(images)
        }
        self.log_metrics(found, step)

    def log_table(
        self,
        key: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table: rows under columns, or a pandas DataFrame."""
        rows = dataframe if dataframe is not None else data or ()
        self.log_metrics({key: logclient.Table(rows, columns)}, step)

    def log_text(
        self,
        key: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log texts as a table."""
        self.log_table(key, columns, data, dataframe, step)

    def _log(self, run: Run | NullRun, step: int, metrics: Mapping[str, Any]) -> None:
        if dist.is_available() and dist.is_initialized():  # a run begun before that does not know its rank
            run.as_rank(dist.get_rank()).log(step, metrics)
        else:
            run.log(step, metrics)

    def _follow(self, run: Run | NullRun, step: int) -> None:
        """Save or stop, where somebody asked for it and the trainer is just after a step."""
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None or not trainer.training:
            return
        saver = trainer.checkpoint_callback
        if run.should_save(step) and saver is not None and saver.dirpath:
            # all ranks do, as `save_checkpoint` wants it
            trainer.save_checkpoint(os.path.join(saver.dirpath, f"logclient-step={step}.ckpt"))
        if run.should_stop(step):
            trainer.should_stop = True

    @guard.hook
    def log_hyperparams(
        self, params: Mapping[str, Any] | Namespace, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """Store them in the run's config, and `metrics` in its summary."""
        run = self._open()  # Lightning's first call of a training: it may be another trial's
        if not _is_rank_zero() or self._off:
            return
        run.config.update(vars(params) if isinstance(params, Namespace) else params)
        if metrics:
            run.summary.update(metrics)

    @guard.hook
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Find the run, and where its steps go on: Lightning calls this where it begins to fit, validate or test."""
        run, trainer = self._open(), getattr(model, "_trainer", None)
        if self._off or trainer is None:
            return
        self._trainer = ref(trainer)
        is_fit = trainer.state.fn == "fit"
        self._offset = guard.of_run(run, _Steps).begin(trainer, is_fit and trainer.ckpt_path is not None)
        if is_fit and _is_rank_zero():
            first = self._offset + _steps_of(trainer)
            guard.add_fit(run, {"first_step": first, "epochs": trainer.max_epochs})

    @guard.hook
    def finalize(self, status: str) -> None:
        """Note how far the trainers came, before they may be gone."""
        guard.of_run(self._here(), _Steps).count()

    @guard.hook
    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Note in the run's summary, under `checkpoint`, which files there are, and which is the best."""
        if not _is_rank_zero():
            return
        told = checkpoint_callback
        notes: dict[str, Any] = {
            "best": told.best_model_path,
            "last": told.last_model_path,
            "kept": list(told.best_k_models),
            "monitor": told.monitor,
            "mode": told.mode,
            "step": told._last_global_step_saved,
        }
        score = told.best_model_score
        if score is not None and score.device.type == "cpu":  # else reading it would be a wait
            notes["score"] = score
        self._here().summary["checkpoint"] = notes


class _Steps:
    """Number of steps that the trainings of a run took so far, whichever loggers they have."""

    def __init__(self) -> None:
        self._done = 0
        self._newest = 0  # offset of the newest training
        # trainer -> offset of its steps, and how far it was seen to come
        self._trainers: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()

    def begin(self, trainer: Any, is_resumed: bool) -> int:
        """Return the offset of this trainer's steps; those of one that resumes from a checkpoint stay as they are."""
        offset, came = self._trainers.get(trainer, (None, 0))
        at = _steps_of(trainer)
        self.count()
        if offset is None or at < came:
            offset = self._newest if is_resumed else self._done
        self._newest = offset
        self._trainers[trainer] = offset, at
        return offset

    def count(self) -> None:
        """See how far the trainers came."""
        for trainer, (offset, came) in list(self._trainers.items()):
            came = max(came, _steps_of(trainer))
            self._trainers[trainer] = offset, came
            self._done = max(self._done, offset + came)


def _steps_of(trainer: Any) -> int:
    """Return the step as Lightning counts it for loggers."""
    loop = getattr(trainer.fit_loop, "epoch_loop", None)
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


def _is_rank_zero() -> bool:
    """Is this rank 0, by the rule of Lightning's own loggers?"""
    return bool(getattr(rank_zero.rank_zero_only, "rank", 0) == 0)
