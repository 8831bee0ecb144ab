"""`from logclient.compat.tensorboard import SummaryWriter`: TensorBoard's writer, whose scalars and texts are logged.

Runs in the training process. The class is that of torch.utils.tensorboard, else that of tensorboardX, so event files
are written as ever; where neither is installed there are none, and the API is the same (`_NoFiles`).

Invariants:

- a writer logs to the run that is open (`logclient.init`, `wandb.init`); where there is none it begins one with the
  name of its folder: a folder is a run, as in TensorBoard. `close` ends a run that a writer has begun;
- steps and values are those of the event file (`tensorboard_tap.py`); nothing here ends a training.
"""

from __future__ import annotations

import os
import time
from importlib import import_module

import logclient
from logclient.run import Run, why_closed
from logclient.session import current_run

from . import tensorboard_tap as tap
from .stand_ins import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any

    from logclient.null import NullRun

__all__ = ["SummaryWriter"]


class _NoFiles:
    """The API of a SummaryWriter without event files: scalars, texts and hyperparameters are logged, else counted."""

    def __init__(
        self,
        log_dir: Any = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        self.log_dir = str(log_dir) if log_dir else os.path.join("runs", _usual_name() + comment)
        self.file_writer = self.all_writers = None

    def get_logdir(self) -> str:
        return self.log_dir

    def _take(self, function: Callable[..., None], *arguments: Any) -> None:
        mine = getattr(self, tap.MARK)()
        tap.guarded(mine, function, mine, *arguments)

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._take(_log, tag, scalar_value, global_step)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, walltime: Any = None
    ) -> None:
        for tag, value in tag_scalar_dict.items():
            self._take(_log, f"{main_tag}/{tag}", value, global_step)

    def add_text(self, tag: str, text_string: Any, global_step: Any = None, walltime: Any = None) -> None:
        self._take(_log, tag, tap.text_of(str(text_string)), global_step)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: Any = None,
        dataformats: str = "CHW",
        **kwargs: Any,
    ) -> None:
        layout = dataformats if dataformats in ("CHW", "HWC") else None
        self._take(_log, tag, logclient.Image(img_tensor, layout=layout), global_step)

    def add_histogram(
        self, tag: str, values: Any, global_step: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        self._take(_log, tag, logclient.Histogram(values), global_step)

    def add_figure(self, tag: str, figure: Any, global_step: Any = None, *args: Any, **kwargs: Any) -> None:
        self._take(_log, tag, logclient.Figure(figure), global_step)

    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Any = None,
        run_name: Any = None,
        global_step: Any = None,
    ) -> None:
        self._take(tap.Tap.describe, hparam_dict, metric_dict)
        for tag, value in metric_dict.items():
            self._take(_log, tag, value, global_step)

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        kind = name.removeprefix("add_").replace("_", " ")
        return lambda *args, **kwargs: self._take(tap.Tap.leave_out, kind)


def _log(mine: tap.Tap, tag: Any, value: Any, step: Any) -> None:
    mine.log(0 if step is None else int(step), str(tag), value)


def _found() -> Any:
    """The class of whichever library is there, and its name."""
    for name in tap.MODULES:
        try:
            return import_module(name).SummaryWriter
        except ImportError:
            continue
    return _NoFiles


def _usual_name() -> str:
    return time.strftime("%b%d_%H-%M-%S_") + os.uname().nodename


_Base: Any = _found()
_begun: dict[str, Run | NullRun] = {}  # folder -> the run that a writer has begun for it


def _open_run(folder: str) -> Run | NullRun | None:
    """The run of this folder, or one that is open and belongs to no other folder."""
    mine = _begun.get(os.path.abspath(folder))
    if mine is not None and not why_closed(mine):
        return mine
    current = current_run.get()
    return None if current in _begun.values() else current


class SummaryWriter(_Base):
    """A SummaryWriter that logs to a run of logclient as well.

    Takes the arguments of torch's and of tensorboardX's; `run` is the run to log to. With `write_to_disk=False` there
    are no event files.
    """

    def __init__(
        self,
        log_dir: Any = None,
        comment: str = "",
        *args: Any,
        logdir: Any = None,
        write_to_disk: bool = True,
        run: Run | NullRun | None = None,
        **kwargs: Any,
    ) -> None:
        folder = log_dir or logdir or os.path.join("runs", _usual_name() + (comment or ""))
        tap.watch()
        self._logclient_run = run
        self._logclient_own: Run | None = None  # the run that this writer has begun
        self._logclient_to: tap.Tap | None = None
        self._logclient_folder = str(folder)
        self._logclient_tap = self._logclient_find
        self._has_files = write_to_disk and args[4:5] != (False,) and _Base is not _NoFiles
        mine = self._logclient_find()
        if (args[0] if args else kwargs.get("purge_step")) is not None:
            warn(mine.run, tap.PURGE)
        kwargs = {name: value for name, value in kwargs.items() if name in _SETTINGS}
        super().__init__(folder, "", *args[:4], **kwargs)
        self.log_dir = self.logdir = folder

    def _logclient_find(self) -> tap.Tap:
        """Return the run that events go to now: the one given, the one that is open, or one of this writer's own."""
        run = self._logclient_run or self._logclient_own or _open_run(self._logclient_folder)
        if run is None or (isinstance(run, Run) and why_closed(run)):
            run = self._logclient_begin()
        if self._logclient_to is None or self._logclient_to.run is not run:
            self._logclient_to = tap.of_run(run)
        return self._logclient_to

    def _logclient_begin(self) -> Run | NullRun:
        before, name = self._logclient_own, os.path.basename(self._logclient_folder.rstrip("/"))
        made = logclient.init(name=name or None, id=None if before is None else before.id)
        self._logclient_own = made if isinstance(made, Run) else None
        self._logclient_run = None if isinstance(made, Run) else made
        _begun[os.path.abspath(self._logclient_folder)] = made
        return made

    def get_logdir(self) -> str:
        """The folder of the event files."""
        return self._logclient_folder

    def _get_file_writer(self) -> Any:
        writer = super()._get_file_writer() if self._has_files else self._logclient_without_files()
        writer.__dict__.setdefault(tap.MARK, self._logclient_find)
        return writer

    def _logclient_without_files(self) -> Any:
        writer: Any = self.__dict__.get("file_writer")
        if writer is None:
            writer = self.file_writer = _Nowhere(self._logclient_folder)
            self.all_writers = {self._logclient_folder: writer}
        return writer

    def add_scalars(self, main_tag: Any, tag_scalar_dict: Any, *args: Any, **kwargs: Any) -> None:
        if self._has_files or _Base is _NoFiles:
            super().add_scalars(main_tag, tag_scalar_dict, *args, **kwargs)
            return
        for tag, value in tag_scalar_dict.items():
            self.add_scalar(f"{main_tag}/{tag}", value, *args, **kwargs)

    def add_hparams(self, hparam_dict: Any, metric_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if self._has_files or _Base is _NoFiles:
            return super().add_hparams(hparam_dict, metric_dict, *args, **kwargs)
        mine = self._logclient_find()
        tap.guarded(mine, mine.describe, hparam_dict, metric_dict)
        for tag, value in metric_dict.items():
            self.add_scalar(tag, value, kwargs.get("global_step"))

    def close(self) -> None:
        """Close the event file, and end the run that this writer has begun."""
        super().close()
        if self._logclient_own is not None:
            self._logclient_own.finish()


_SETTINGS = ("purge_step", "max_queue", "flush_secs", "filename_suffix")


class _Nowhere:
    """A file writer without a file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get_logdir(self) -> str:
        return self._folder

    def add_event(self, event: Any, step: Any = None, walltime: Any = None) -> None:
        event.wall_time = time.time() if walltime is None else walltime
        if step is not None:
            event.step = int(step)

    def add_summary(self, summary: Any, global_step: Any = None, walltime: Any = None) -> None:
        self.add_event(tap.Event(summary), global_step, walltime)

    def add_graph(self, graph_profile: Any, walltime: Any = None) -> None:
        self.add_event(tap.Event(None, graph=True))

    add_onnx_graph = add_openvino_graph = add_graph

    def flush(self) -> None:
        """There is nothing to flush."""

    close = reopen = flush


_Nowhere.add_event = tap.with_events(_Nowhere.add_event)  # type: ignore[method-assign]
