"""`wandb.init`: a new run, or the one that is open; which run it is decides logclient.

Runs in the training process.

Invariants:

- arguments are looked at before a run is made: one that makes no sense raises, and leaves nothing behind;
- a program that ends without `finish` has its open rows and summaries stored, before the run's own exit hook;
- a forked child begins with no open row: that is its parent's.
"""

from __future__ import annotations

import atexit
import os
import threading

import logclient
from logclient.compat import stand_ins as inert
from logclient.compat.config_and_summary import Config, as_dict, entries_of, of_file
from logclient.errors import BadArgument
from logclient.null import NullRun
from logclient.session.ending import has_shell

from . import sync_tensorboard as events
from . import util
from .current import here
from .running import Run
from .settings import Chosen, Settings, is_set, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_MODES = {"dryrun": "offline", "shared": "online", "run": "online"}
_RESUMES = {"allow": "allow", "auto": "allow", "true": "allow", "must": "must", "never": "never"}
_KEEPS = (
    "none",
    "false",
    "default",
    "return_previous",
)  # values of `reinit` that give the run that is open
_DEFAULTS = "config-defaults.yaml"  # is read where it lies in the working directory
_LOOK_S = 30.0  # at most, at an earlier attempt of a run


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    id: str | None = None,
    name: str | None = None,
    notes: str | None = None,
    tags: Iterable[str] | str | None = None,
    config: Any = None,
    config_exclude_keys: Iterable[str] | None = None,
    config_include_keys: Iterable[str] | None = None,
    allow_val_change: bool | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: bool | None = None,
    reinit: bool | str | None = None,
    resume: bool | str | None = None,
    sync_tensorboard: bool | None = None,
    settings: Any = None,
    **others: Any,
) -> Run:
    """Start a run and make it `wandb.run`; where there is one already, that one, unless `reinit` says otherwise.

    `reinit` is "return_previous" (False), "finish_previous" (True) or "create_new", which leaves `wandb.run` as it is.
    `config` is a dict, an object with attributes, or the path of a YAML file. `entity` is kept with the process only,
    `job_type` becomes a tag. What is not given here is taken from `settings`, then from WANDB_PROJECT, WANDB_NAME,
    WANDB_RUN_ID, WANDB_NOTES, WANDB_TAGS, WANDB_RUN_GROUP, WANDB_JOB_TYPE, WANDB_MODE, WANDB_DIR, WANDB_RESUME and
    WANDB_ENTITY. Raises `BadArgument` for arguments that make no sense.
    """
    chosen = Chosen(settings)
    how = str(chosen(reinit, "", "reinit")).lower()
    if how in ("none", "default") and has_shell():
        how = "finish_previous"  # a cell that is run again
    is_of_trial = here.trial is None or here.run is None or here.run.logclient_sweep == here.trial.sweep
    if here.run is not None and how != "create_new":
        if how in _KEEPS and is_of_trial:
            return _open_run(here.run, bool(project or name or id or config))
        here.run.finish()
    given, lines = _config(config, config_include_keys, config_exclude_keys)
    job = str(chosen(job_type, "WANDB_JOB_TYPE", "run_job_type") or "")
    arguments, more = _arguments(
        chosen, {"id": id, "name": name, "group": group, "mode": mode, "dir": dir, "resume": resume}
    )
    if how == "create_new" and here.open and not arguments["id"]:
        arguments["id"] = (
            f"{util.generate_id()}{util.generate_id()}"  # else a notebook would end the other one
        )
    in_project = here.trial.project if here.trial is not None else None
    made = logclient.init(
        in_project or chosen(project, "WANDB_PROJECT", "project"),
        tags=[*_texts(chosen(tags, "WANDB_TAGS", "run_tags")), *([job] if job else ())],
        notes=str(chosen(notes, "WANDB_NOTES", "run_notes") or ""),
        **arguments,
    )
    try:
        first, is_resumed = _next_step(made) if arguments["resume"] in ("allow", "must") else (0, False)
        mine = here.config if here.run is None else Config({})
        mine.bind(made.config)
        run = _keep(Run(made, mine, str(chosen(entity, "WANDB_ENTITY", "entity") or ""), job, first))
    except BaseException:  # Ctrl-C while it looks at an earlier attempt
        made.finish(0.0, state="failed")
        raise
    run.logclient_resumed = is_resumed
    run.logclient_settings = Settings(
        **plain(settings), run_id=run.id, project=run.project, mode=arguments["mode"]
    )
    if how != "create_new" or here.run is None:
        here.become(run)
    mine.update(given, allow_val_change=True)
    if here.trial is not None:
        here.trial.take(run)
    if sync_tensorboard or others.pop("tensorboard", None) or here.take_events:
        events.take(run)
    lines += [f"wandb.init({name}=...) is not there: it does nothing" for name in others if others[name]]
    for line in [*lines, *more]:
        inert.warn(made, line)
    return run


def _open_run(run: Run, is_asked: bool) -> Run:
    if is_asked:
        inert.warn(
            run.logclient_run,
            "wandb.init while a run is open gives that run and takes no arguments: "
            "call wandb.finish() before, or pass reinit=True",
        )
    return run


def _arguments(chosen: Chosen, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of `logclient.init` besides project, tags and notes; and sentences for the user."""
    lines = []
    run_id = chosen(given["id"], "WANDB_RUN_ID", "run_id")
    word = str(chosen(given["resume"], "WANDB_RESUME", "resume") or "").lower()
    if word in _RESUMES and not run_id and word != "never":
        lines.append(
            f"wandb.init(resume={given['resume']!r}) without an id begins a new run: pass id= to go on with one"
        )
    mode = chosen(given["mode"], "WANDB_MODE", "mode")
    if is_set("WANDB_DISABLED"):
        mode = "disabled"
    folder = chosen(given["dir"], "WANDB_DIR", "root_dir")
    group = chosen(given["group"], "WANDB_RUN_GROUP", "run_group")
    name = chosen(given["name"], "WANDB_NAME", "run_name")
    if here.trial is not None:
        group, name = group or here.trial.sweep, name or here.trial.name
    arguments = {
        "id": None if run_id is None else str(run_id),
        "name": None if name is None else str(name),
        "group": None if group is None else str(group),
        "mode": _MODES.get(str(mode).lower(), mode),
        "resume": _RESUMES.get(word) if run_id else None,
        "dir": os.path.join(os.fspath(folder), "logclient-runs") if folder else None,
    }
    return arguments | ({"quiet": True} if is_set("WANDB_SILENT") else {}), lines


def _config(
    config: Any, include: Iterable[str] | None, exclude: Iterable[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """The entries that an `init` begins with, and what is to be said about them."""
    lines = []
    defaults: dict[str, Any] = {}
    given: dict[str, Any] = {}
    if os.path.isfile(_DEFAULTS):
        defaults, line = of_file(_DEFAULTS)
        lines.append(line)
    if isinstance(config, (str, os.PathLike)):
        given, line = of_file(os.fspath(config))
        lines.append(line)
    else:
        given = as_dict(config)
    if include:
        given = {key: given[key] for key in given if key in set(include)}
    elif exclude:
        given = {key: given[key] for key in given if key not in set(exclude)}
    return {**defaults, **given}, [line for line in lines if line]


def _texts(given: Any) -> list[str]:
    if isinstance(given, str):
        return [text for text in given.split(",") if text]
    try:
        return [str(each) for each in given or ()]
    except TypeError:
        raise BadArgument(f"tags={given!r}: expected a list of texts") from None


def adopt(made: Any, config: dict[str, Any], entity: str, job_type: str, step: int) -> Run:
    """A run that came from another process, pickled; the current one here, unless there is one."""
    for run in here.open:
        if run.logclient_run is made:
            return run
    mine = here.config if here.run is None else Config({})
    entries_of(mine).update(config)
    mine.__dict__["_store"] = made.config
    run = _keep(Run(made, mine, entity, job_type, step))
    if here.run is None:
        here.become(run)
    return run


def _keep(run: Run) -> Run:
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)  # behind the run's own, hence called before it
    here.open.append(run)
    return run


def _next_step(made: logclient.Run | NullRun) -> tuple[int, bool]:
    """The step behind those of an earlier attempt, and whether there was one; 0 where it cannot be read in time."""
    found: list[int | str] = []

    def look() -> None:
        try:
            earlier = logclient.read(made.dir)[made.id]
            keys = earlier.keys()
            steps = earlier.series(keys).step.tolist() if keys else []
            found.append(int(steps[-1]) + 1 if len(steps) else 0)
        except logclient.NoRun:
            found.append(0)
        except Exception as error:  # noqa: BLE001 - no numpy, a damaged folder: said below
            found.append(f"{type(error).__name__}: {error}")

    if isinstance(made, NullRun):
        return 0, False
    thread = threading.Thread(target=look, daemon=True)  # the disk may be frozen
    thread.start()
    thread.join(_LOOK_S)
    first = found[0] if found else "its folder does not answer"
    if isinstance(first, int):
        return first, first > 0
    inert.warn(made, f"steps begin at 0 again, those of the run's earlier attempts cannot be read ({first})")
    return 0, False


def _at_exit() -> None:
    for run in tuple(here.open):
        run.logclient_store()


def _after_fork() -> None:
    for run in here.open:
        run.logclient_history.forget_row()


os.register_at_fork(after_in_child=_after_fork)
