"""Shared by all integrations: the guard around their hooks, and the tie of a callback to its run.

Runs in the training process, in whatever hook the framework calls.

Invariants:

- a failure of ours ends no training: it is swallowed, counted as a refused record, and said once per hook. What a
  signal handler raises, what is injected into the thread, the framework's control exceptions (`Guarded._passes`) and
  our own answers to bad arguments (`LogclientError`) pass through;
- switched off (`mode="disabled"`, a copy that belongs to no run here), a hook returns at once;
- a copy, pickled or deep, takes along what `Guarded._kept` names and the address of its run: no file, lock, tensor or
  run. Where it is used in a child of the process it comes from, while the run is live, it logs to that run; anywhere
  else it is inert, and says so once;
- a callback logs to a run that the user began; else it begins one of its own, for all of its trainings. Of several
  callbacks of one class in one training, one logs; trainings that follow each other in a run count on (`of_run`),
  whichever callbacks they have;
- in a search (`searches.py`) each trial has a run, in the search's group, also where one callback serves them all;
- only the run that a callback started itself is the callback's to finish.

A callback is `class LogclientCallback(guard.Guarded, TheirCallback)`: its `__init__` has every argument of
`logclient.init` by name, so that command lines and configuration files find them, and begins with
`self._tie = guard.Tie(run, guard.given(locals()))`; the hook that begins a training is decorated with
`@guard.opening` and calls `self._open()`; every other hook is decorated with `@guard.hook`.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections import deque
from functools import wraps
from weakref import WeakKeyDictionary, WeakSet, ref

import logclient
from logclient.config import environment
from logclient.errors import LogclientError
from logclient.guest import dynamo, foreign
from logclient.integrations import searches
from logclient.null import NullRun, count_refused
from logclient.run import Run, session_of, why_closed
from logclient.session import current_run
from logclient.session.ending import INTERRUPTED_S
from logclient.shm.notices import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    Kind = TypeVar("Kind")
    Method = TypeVar("Method", bound=Callable[..., Any])

# where the exceptions come from that C code, called in our frames, raises: no other frame tells
_KNOWN = frozenset({"builtins", "jax", "jaxlib", "keras", "numpy", "tensorflow", "torch", "torch_xla"})
_MAX_FITS = 200  # that the config lists
# what was said while there was no run to keep it: by hook, and by class of what is a copy
_warned: set[str] = set()
_begun: WeakSet[Run | NullRun] = WeakSet()  # runs that a callback started
_of_runs: WeakKeyDictionary[Run | NullRun, dict[Any, Any]] = WeakKeyDictionary()
# newest trainings: what their callbacks are given, and, weakly, the callback that logs it
_trainings: deque[tuple[object, ref[Guarded]]] = deque(maxlen=16)


# what `logclient.init` names: every constructor has them, too, and a test compares the two
ARGUMENTS = (
    *("project", "name", "id", "config", "group", "tags", "notes", "resume", "mode", "dir", "server"),
    "alerts",
)


def keep_apart(runs: WeakSet[Run | NullRun]) -> None:
    """Let no callback that begins a training now join these runs, which callbacks started."""
    _begun.update(runs)


def share(runs: WeakSet[Run | NullRun]) -> None:
    """Let callbacks join these runs, although a callback started them: at the user's own call."""
    _begun.difference_update(runs)


def given(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `logclient.init` that a constructor was given: `names` are its `locals()`."""
    named = {name: names[name] for name in ARGUMENTS}
    said: dict[str, Any] = {
        name: value for name, value in named.items() if not (value is None or _is_empty(value))
    }
    return {**said, **names["settings"]}


def _is_empty(value: Any) -> bool:
    """Is it the default of `notes`, `tags` or `alerts`? Asks no object of the user's, whose `==` may be anything."""
    return type(value) in (str, tuple) and not value


def hook(method: Method) -> Method:
    """A method of a `Guarded` that the framework calls: returns None where it is switched off or where we failed."""

    @wraps(method)  # frameworks look at the signature, through `__wrapped__`
    def guarded(self: Guarded, *args: Any, **kwargs: Any) -> Any:
        try:
            if self._off:
                return None
            return method(self, *args, **kwargs)
        except BaseException as error:
            if not _swallow(self, method.__name__, error):
                raise
        return None

    dynamo.keep_out(guarded)
    return guarded  # type: ignore[return-value]


def opening(method: Method) -> Method:
    """Like `hook`, for the one that finds out which run it is: called where the callback was switched off, too."""

    @wraps(method)
    def guarded(self: Guarded, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            if not _swallow(self, method.__name__, error):
                raise
        return None

    dynamo.keep_out(guarded)
    return guarded  # type: ignore[return-value]


def failed(who: object, where: str, error: Exception) -> None:
    """Count and say, once per `where`, a failure of ours that was swallowed."""
    name = f"{type(who).__name__}.{where}"
    why = f"{name} failed, the training goes on without it: {type(error).__name__}: {_text(error)}"
    tie = getattr(who, "__dict__", {}).get("_tie")
    run = tie.run if type(tie) is Tie else None
    if run is None:
        run = current_run.get()
    if isinstance(run, Run):
        session_of(run).refuse(f"in {name}", why)
        return
    count_refused(run or current_run.stand_in())
    if name not in _warned:
        _warned.add(name)
        write_stderr(why)


class Guarded:
    """Base of callbacks and loggers, named before the framework's own base."""

    _off = False
    _passes: tuple[type[BaseException], ...] = ()  # the framework's control exceptions
    _kept: tuple[str, ...] = ()  # attributes that a copy takes along; the rest is as the class has it
    _instead = "make a new one, or begin the run before it is copied"  # of a copy
    _tie: Tie

    def _open(self, training: object = None, other: Guarded | None = None) -> Run | NullRun:
        """The run to log to, now that a training begins; tells whether hooks are switched off.

        `training`: something that all callbacks of one training are given, so that one of them logs it. `other`: a
        callback that logs this training, where that is known without it.
        """
        if training is not None:
            other = next((who for who in _logging(training) if type(who) is type(self)), None)
        run = self._tie.open(None if other is None or other is self else other._tie.run)
        self._off = self._tie.is_off
        name = type(self).__name__
        if self._off and self._tie.is_copy and name not in _warned:
            _warned.add(name)
            write_stderr(
                f"{name}: a copy whose run is not open in a parent of this process logs nothing: {self._instead}"
            )
        if not self._off and training is not None:
            if of_run(run, _Leader, type(self)).leads(self, training):
                _trainings.append((training, ref(self)))
            else:
                self._second()
        return run

    def _here(self, training: object = None) -> Run | NullRun:
        """The run, found now where no training began before, in a copy, or in another trial of a search."""
        run = self._tie.run
        return self._open(training) if run is None or self._tie.is_past() else run

    def _second(self) -> None:
        """Another one of this class logs this training to this run."""
        self._off = True
        run, name = self._tie.run, type(self).__name__
        line = f"{name} is there twice in a training: one of them logs it"
        if isinstance(run, Run):
            session_of(run).warn_once(f"twice {name}", line)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__
        return {name: state[name] for name in ("_tie", *self._kept) if name in state}


class Tie:
    """The run of a callback: the one given, else the user's current one, else one that it starts.

    A run that another callback started is joined only where both log the same training.
    """

    __slots__ = ("_copied", "_given", "_made_in", "_settings", "_trial", "run", "started")

    def __init__(self, run: Run | NullRun | None = None, settings: Mapping[str, Any] | None = None) -> None:
        """`settings` are arguments of `logclient.init`, used where a run has to be started."""
        self._given = run
        self._settings = dict(settings or {})
        self._copied: tuple[int, str] | None = (
            None  # of a copy: PID of the process and shm directory of the run
        )
        trial = None if run is not None else searches.current()
        self._made_in = None if trial is None else trial.key
        self._trial: tuple[Any, ...] | None = None  # that the run belongs to
        self.run: Run | NullRun | None = run
        self.started = False  # by us, so that it is ours to finish

    def open(self, other: Run | NullRun | None = None) -> Run | NullRun:
        """The run, the same one as long as it is open and the trial of a search does not change.

        `other`: the run that another callback logs this training to. Raises `BadArgument` for settings that make no
        sense.
        """
        if self._given is None:
            trial = searches.current()
            if not self._is_right(trial):
                self.run, self.started = self._find(trial, other)
                self._trial = None if trial is None else trial.key
            if trial is not None and self.started and self.run is not None:
                _describe_trial(self.run, trial)
        return self.run  # type: ignore[return-value]

    def is_past(self) -> bool:
        """Does this thread run in another trial than the run belongs to? Not in one that no search is known to call."""
        if not self.started or self._settings.get("id"):
            return False
        trial = searches.current()
        return trial is not None and trial.key != self._trial

    def _is_right(self, trial: searches.Trial | None) -> bool:
        """Can the run go on? One that was started for another trial of a search is finished."""
        run = self.run
        if not isinstance(run, Run) or is_over(run):
            return False
        key = None if trial is None else trial.key
        if not self.started or key == self._trial or self._settings.get("id"):
            return True
        run.finish(min(session_of(run).settings.finish_timeout_s, INTERRUPTED_S))
        return False

    def _find(self, trial: searches.Trial | None, other: Run | NullRun | None) -> tuple[Run | NullRun, bool]:
        if self._copied is not None and (trial is None or not trial.dir):
            return _follow(*self._copied), False
        run = current()
        if run is not None and self._may_join(run, other):
            return run, False
        made = logclient.init(**(self._settings if trial is None else self._of_trial(trial)))
        if made is run:
            return made, False  # its id was given
        _begun.add(made)
        return made, True

    def _may_join(self, run: Run | NullRun, other: Run | NullRun | None) -> bool:
        """A run that the user began is meant for all; another callback's, in one training, if none else is named."""
        known = {"project": run.project, "name": run.name, "id": run.id}
        is_named = all(self._settings.get(key) in (None, "", known[key]) for key in known)
        return run not in _begun or (is_named and (run is other or _is_script_of_ddp()))

    def _of_trial(self, trial: searches.Trial) -> dict[str, Any]:
        """The settings for a trial's run: in the search's group, and named apart where one callback serves them all."""
        settings, known = dict(self._settings), environment()
        if not settings.get("group") and not known.get("LOGCLIENT_GROUP"):
            settings["group"] = trial.search()
        if settings.get("name") and self._made_in != trial.key:
            settings["name"] = f"{settings['name']}-{trial.label}"
        if trial.dir:  # the working directory is the trial's, and goes
            folder = settings.get("dir") or known.get("LOGCLIENT_DIR") or "logclient-runs"
            settings["dir"] = os.path.join(trial.dir, folder)
        return settings

    @property
    def is_copy(self) -> bool:
        """A copy that is to log, where its run is."""
        disabled = "disabled" in (self._settings.get("mode"), environment().get("LOGCLIENT_MODE"))
        return self._copied is not None and not disabled

    @property
    def is_off(self) -> bool:
        """Nothing is to be logged: mode="disabled", or a copy without a run here."""
        return isinstance(self.run, NullRun) and not why_closed(self.run)

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: value for name, value in self._settings.items() if _is_plain(value)}
        if isinstance(self._settings.get("dir"), os.PathLike):
            kept["dir"] = os.fspath(self._settings["dir"])
        if self._copied is not None:
            return _copy, (*self._copied, kept)
        run = current_run.get() if self.run is None else self.run  # copied before a training began
        path = session_of(run).shm_dir.path if isinstance(run, Run) else ""
        return _copy, (os.getpid(), path, kept | {"mode": "disabled"} if self.is_off else kept)


class _Leader:
    """The callback that logs a training, where there are several."""

    __slots__ = ("_training", "_who")

    def __init__(self) -> None:
        self._training: object = None
        self._who: Any = None  # a weak reference

    def leads(self, who: Guarded, training: object) -> bool:
        """The first one that asks; another one, once that one is gone."""
        leader = None if self._who is None else self._who()
        if training is not self._training or leader is None:
            self._training, self._who, leader = training, ref(who), who
        return leader is who


def of_run(run: Run | NullRun, kind: type[Kind], part: object = None) -> Kind:
    """Return the object that callbacks which log to this run share here: one `kind()`, or one for each `part`."""
    known = _of_runs.setdefault(run, {})
    return known.setdefault((kind, part), kind())  # type: ignore[no-any-return]


def add_fit(run: Run | NullRun, fit: Mapping[str, Any], **facts: Any) -> None:
    """Store facts in the run's config, and a training behind the others under `fits`, with the trial that it is."""
    trial = searches.current()
    if trial is not None and fit.get("trial") is None:
        fit = {**fit, "trial": trial.label if trial.number is None else trial.number}
    fits = [dict(each) for each in run.config.get("fits", ())][: _MAX_FITS - 1]
    run.config.update({**facts, "fits": [*fits, fit]})


def current() -> Run | NullRun | None:
    """The open run of this process, or the live one of a parent; None where `logclient.init` would start one."""
    run = current_run.get()
    if run is None or is_over(run):
        return current_run.find()
    return run


def is_spawning() -> bool:
    """Is this a pickle on its way into a process that is just being started?"""
    for name in ("multiprocessing.context", "multiprocess.context"):
        module = sys.modules.get(name)
        if module is not None and module.get_spawning_popen() is not None:
            return True
    return False


def _swallow(who: Guarded, where: str, error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(error, who._passes) or not _is_own(error):
        return False
    try:
        failed(who, where, error)
    except LogclientError:
        raise  # strict mode
    except Exception as second:
        if not _is_own(second):
            raise
        count_refused(current_run.stand_in())
    return True


def _is_own(error: Exception) -> bool:
    if foreign.is_own(error):
        return True
    kind = type(error)
    is_known = kind.__module__.partition(".")[0] in _KNOWN
    return is_known and not isinstance(error, LogclientError) and not foreign.is_users(error)


def step_after(step: Any, otherwise: int) -> Any:
    """For what is logged without a step; what is no step was refused, and counted, by `Run.log`."""
    return step + 1 if hasattr(step, "__index__") else otherwise


def is_over(run: Run | NullRun) -> bool:
    """Was it finished?"""
    return isinstance(run, Run) and bool(why_closed(run))


def _copy(pid: int, path: str, settings: dict[str, Any]) -> Tie:
    tie = Tie(None, settings)
    tie._copied = pid, path
    return tie


def _is_script_of_ddp() -> bool:
    """Do several processes run this script, which Lightning started from a first one?

    A child knows the run that was open then, and none that the first process begins later: all log to that one.
    """
    known = environment()
    return "LOCAL_RANK" in known and "RANK" not in known  # every launcher sets both


def _is_plain(value: Any) -> bool:
    """Can any process take it out of a pickle?"""
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True


def _logging(training: object) -> list[Guarded]:
    """Return the callbacks that log this training."""
    found = [who() for known, who in tuple(_trainings) if known is training]
    return [who for who in found if who is not None and not who._off]


def _describe_trial(run: Run | NullRun, trial: searches.Trial) -> None:
    """Store the trial in the run's config; some parameters are drawn only after the run began."""
    facts = trial.facts()
    if run.config.get("trial") != facts:
        run.config.update({"trial": facts})


def _follow(pid: int, path: str) -> Run | NullRun:
    """The run of a copy: found in a child of the process that it was made in, as long as the run is live."""
    if path and pid != os.getpid():
        from logclient.launching import (
            parent_run as parents,  # with what `init` needs: nothing that an import should pay
        )
        from logclient.session.start import attach

        shm_dir = parents.find(None)
        if shm_dir is not None and shm_dir.path == path:
            return attach(path)
    return NullRun("", {}, ())


def _text(error: Exception) -> str:
    try:
        return str(foreign.call(str, error))[:300]
    except foreign.Failed:
        return "(its text fails, too)"
