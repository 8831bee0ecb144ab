"""Experiment logging that can never stall a training run.

::

    import logclient

    run = logclient.init(project="digits", name="mlp", config={"lr": 1e-3})
    for step, batch in enumerate(loader):
        logclient.log(step, {"train/loss": train(batch)})
    run.finish()

`log` copies into shared memory and returns; a separate agent does everything else. `__all__` is the whole
public interface.
"""

from __future__ import annotations

from . import facts, run
from .errors import (
    BadArgument,
    Corrupt,
    FolderError,
    LogclientError,
    NoRun,
    RankFailed,
    RankTimeout,
    Unsupported,
)
from .guest import dynamo
from .null import NullRun
from .run import Run
from .session import current_run, sections

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    from .encode.media_values import Audio, Figure, File, Histogram, Html, Image, Markdown, Table, Text, Video
    from .reading import Runs
    from .session.phases import Phase
    from .session.sections import Section
    from .typed import AgentStatus, DeviceStatus, MediaStatus, ServerStatus, Status

    T = TypeVar("T")

__version__ = "0.1.0"
_MEDIA = ("Audio", "Figure", "File", "Histogram", "Html", "Image", "Markdown", "Table", "Text", "Video")
_TYPES = ("AgentStatus", "DeviceStatus", "MediaStatus", "ServerStatus", "Status")
__all__ = [
    "AgentStatus",
    "Audio",
    "BadArgument",
    "Corrupt",
    "DeviceStatus",
    "Figure",
    "File",
    "FolderError",
    "Histogram",
    "Html",
    "Image",
    "LogclientError",
    "Markdown",
    "MediaStatus",
    "NoRun",
    "NullRun",
    "RankFailed",
    "RankTimeout",
    "Run",
    "ServerStatus",
    "Status",
    "Table",
    "Text",
    "Unsupported",
    "Video",
    "alert",
    "edit",
    "fingerprint",
    "finish",
    "flush",
    "freeze_support",
    "init",
    "launch",
    "log",
    "progress",
    "read",
    "section",
    "should_save",
    "should_stop",
    "status",
    "trace",
    "unwatch",
    "watch",
]

_run: Run | NullRun | None = None


def init(
    project: str | None = None,
    *,
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
) -> Run | NullRun:
    """Start a run, or join the live one of a parent process, and make it the current one.

    Every argument and any further setting can come from a `LOGCLIENT_*` variable; arguments win. `config` is a dict of
    settings, or an object that has some: a dataclass, a Namespace, one of attrs, pydantic or OmegaConf. `resume` tells
    whether a run with this `id` may exist: allow, never, must. `mode` is online, offline or disabled. `dir` is the
    run folder (default ./logclient-runs); where it cannot be written, another one is used and said so, or with
    `folder_errors="raise"` a `FolderError` is raised. `alerts` are rules, such as "loss > 10" or "nonfinite train/*":
    docs/alerts.md. Raises `BadArgument` for arguments that make no sense.
    """
    global _run
    from .session.start import Attempt

    given = {
        "name": name,
        "run_id": id,
        "group": group,
        "resume": resume,
        "mode": mode,
        "dir": dir,
        "server": server,
    }
    attempt = Attempt()
    try:
        _run = made = attempt.start(
            project, config=config, tags=tags, notes=notes, alerts=alerts, given={**given, **settings}
        )
        return made  # no call from the end of the last one to here: no handler comes between
    except BaseException:
        attempt.undo()
        raise


def log(step: int, metrics: Mapping[str, Any]) -> None:
    """Log to the current run; see `Run.log`. Without one, counted and said once."""
    if _run is not None:
        _run.log(step, metrics)
    else:
        _current().log(step, metrics)


def alert(title: str, text: str = "", level: str = "info") -> None:
    """Store a message for whoever looks at the current run, and deliver it; see `Run.alert`."""
    _current().alert(title, text, level)


def progress(expect_next_s: float = 600.0, what: str = "") -> Phase:
    """Declare that the next record of the current run may take that long; see `Run.progress`."""
    return _current().progress(expect_next_s, what)


def should_stop(step: int | None = None) -> bool:
    """Has somebody asked for a stop of the current run, and is this the step for it? See `Run.should_stop`."""
    return (_current() if _run is None else _run).should_stop(step)


def should_save(step: int | None = None) -> bool:
    """Has somebody asked for a checkpoint of the current run? True once for each request; see `Run.should_save`."""
    return (_current() if _run is None else _run).should_save(step)


def section(name: str) -> Section:
    """Return a section of the current run's process, a context manager; see `Run.section`."""
    return (_current() if _run is None else _run).section(name)


def trace(include: Iterable[str], exclude: Iterable[str] = ()) -> bool:
    """Keep the last calls into these packages, for `logclient why`; see `Run.trace`."""
    return _current().trace(include, exclude)


def flush(timeout_s: float | None = None) -> bool:
    """Wait until what was logged is on disk; see `Run.flush`."""
    return _current().flush(timeout_s)


def finish(timeout_s: float | None = None, *, state: str = "finished") -> bool:
    """End the current run; see `Run.finish`."""
    return _current().finish(timeout_s, state=state)


def status() -> Status:
    """Counts and agent health of the current run; see `Run.status`."""
    return _current().status()


def launch(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    nprocs: int = 1,
    start_method: str = "spawn",
    *,
    timeout_s: float | None = None,
    grace_s: float = 10.0,
) -> list[T]:
    """Run `fn(*args)` in `nprocs` processes on this machine, all in one run, and return what each returned, by rank.

    Each finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment. `fn` may
    be any function: of a notebook, of the script itself (which needs no `__main__` guard and is not run again), a
    lambda. `start_method` is spawn, fork or forkserver. What a rank raises is raised here, and the other ranks are
    stopped, by SIGTERM and after `grace_s` by SIGKILL. A rank that is killed or leaves early raises `RankFailed`;
    ranks that have not ended after `timeout_s`, if given, are stopped and raise `RankTimeout`.
    """
    from .launching.launch import launch as start_ranks

    return start_ranks(fn, args, nprocs, start_method, timeout_s, grace_s)


def freeze_support() -> None:
    """Be the agent, where a frozen program was started to be that; else return.

    Call it first in the main module of a program that is made with PyInstaller, cx_Freeze or Nuitka: before
    `multiprocessing.freeze_support()`, and before arguments are looked at. The agent of such a program runs in the
    program itself. Does nothing where a Python runs the program.
    """
    from .spawn.frozen_program import enter

    enter()


def read(path_or_url: str | os.PathLike[str], *, token: str | None = None) -> Runs:
    """The runs of a folder, or of a server (`http://host:port` or `grpc://host:port`), as numpy arrays.

    ::

        run = logclient.read("logclient-runs")["mlp"]
        loss = run.series("loss")          # .step, .value, .time, .rank, .stream: all points, none reduced
        run.frame(["loss", "val"])         # pandas, over the union of their steps
        run.series("loss", buckets=2000)   # lowest and highest value of ranges of steps, marked so

        runs = logclient.read("logclient-runs").where("config.lr < 0.1", group="seeds")
        runs.table("loss")                 # pandas: config, summary, last, min and max of the key, a row per run
        runs.band("loss")                  # mean, range and quantiles over the runs

    `token` is the server's; default LOGCLIENT_TOKEN, else the config file's. Needs numpy.
    """
    from .reading import open_runs

    return open_runs(path_or_url, token)


def edit(
    run: str,
    *,
    where: str | os.PathLike[str] | None = None,
    name: str | None = None,
    group: str | None = None,
    notes: str | None = None,
    tags: Iterable[str] = (),
    untag: Iterable[str] = (),
    undo: Iterable[str] = (),
    token: str | None = None,
) -> dict[str, Any]:
    """Edit the name, group, notes or tags of a stored run, also of a live one, and return what holds then.

    `run` is an id, a unique part of one, or a name; `where` a folder of runs or the address of a server, as for `read`
    (default LOGCLIENT_DIR, else ./logclient-runs). `tags` are added, `untag` taken away. An edit covers what the run's
    program has set until it is undone: `undo=["name"]`, of name, group, notes and tags. State and points never change.
    The answer has `id`, `name`, `group`, `notes`, `tags`, `edits` (who and when) and `unedited`. See docs/editing.md.
    """
    from .reading import edit_run

    lists = {
        field: (given,) if isinstance(given, str) else tuple(given)
        for field, given in (("tags", tags), ("untag", untag), ("undo", undo))
    }
    return edit_run(where, run, token, {"name": name, "group": group, "notes": notes, **lists})


def watch(
    model: Any,
    every: int = 100,
    *,
    gradients: bool = True,
    parameters: bool = True,
    histograms: bool = False,
    step: Callable[[], int] | None = None,
    run: Run | NullRun | None = None,
) -> None:
    """Log norms of a torch module's gradients and trained parameters, at the first and each `every`-th backward pass.

    Keys are `grad/<name>/norm` and `param/<name>/norm`, over all of them `grad/norm` and `param/norm`; with
    `histograms` also `grad/<name>/share/1e-3`: of its elements, the share whose size is in 1e-3 to 1e-2. They are
    computed on the device, at the end of the backward pass, and read without waiting. The step is what `step()` gives,
    else the number of backward passes before this one. `run` is where they go, default the run that is current then.

    To be called on the module that is trained, wrapped by DDP or torch.compile or not, by any ranks; again to change
    `every`. What is no module, or an `every` that is no int from 1 on, is said once and nothing is watched; in strict
    mode that is a `BadArgument`.
    """
    from .watching.norms import watch as start

    start(model, every, gradients, parameters, histograms, step, _current if run is None else lambda: run)


def fingerprint(
    params: Any,
    every: int = 100,
    *,
    replicas: str = "all",
    step: Callable[[], int] | None = None,
) -> None:
    """Log sums by which replicas are compared, to the run that is current now; see `Run.fingerprint`."""
    _current().fingerprint(params, every, replicas=replicas, step=step)


def unwatch(model: Any = None) -> None:
    """End what `watch` and `fingerprint` began, for this module or for all and for tensors, too."""
    from .watching.passes import unwatch as end

    end(model)


def __getattr__(name: str) -> Any:
    """The types of `status()` and the media values, loaded when somebody asks for one: `typing` costs an import."""
    if name in _TYPES:
        from . import typed

        return getattr(typed, name)
    if name in _MEDIA:
        from .encode import media_values

        return getattr(media_values, name)
    raise AttributeError(f"module 'logclient' has no attribute {name!r}")


def _current() -> Run | NullRun:
    """The current run; in a process that never called `init`, the live run of its parent, as soon as there is one."""
    global _run
    if _run is None:
        _run = current_run.find()
    return current_run.stand_in() if _run is None else _run


current_run.get, current_run.get_or_stand_in = (lambda: _run), _current
dynamo.keep_out(alert, init, log, section, trace, flush, finish, status, launch, read, edit, watch, unwatch)
dynamo.keep_out(fingerprint, should_stop, should_save, run.Logger, Run, run.RankedRun, NullRun, facts.Facts)
dynamo.keep_out(sections.Section)
dynamo.watch_for_torch()
