"""Starting, joining and ending runs in this process: which run, its shm directory, its agent, its exit hook.

Runs in the training process, in `init` and once per forked or spawned child. May make system calls; every wait
has a deadline. Never touches the run folder itself: its disk may be frozen, so the agent's launcher does.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from _thread import RLock

from .. import config as settings
from ..calls import recorder as _recorder  # noqa: F401 - now: later its disk may be frozen
from ..config import Config
from ..encode import about
from ..encode.nested_config import settings_of
from ..errors import BadArgument, FolderError, LogclientError
from ..guest.descriptors import is_none_left
from ..guest.held_signals import HeldSignals
from ..launching import launcher_variables as launchers
from ..launching import parent_run as parents
from ..notebook import rerun_cell as notebook
from ..null import NullRun
from ..run import Run
from ..shm import shm_dir as shm_dirs
from ..shm.notices import is_stderr_file, write_stderr
from ..shm.shm_dir import ShmDir
from ..spawn import agent as spawn
from ..spawn import lifetime
from ..spawn import starting as _starting  # noqa: F401 - now: later its disk may be frozen
from . import closing, dropped, handles, ptracer, tracing
from . import phases as _phases  # noqa: F401 - now: later its disk may be frozen
from .ending import at_exit, has_shell, patience_s  # now: at exit their disk may be frozen
from .session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_ALPHABET = "0123456789abcdefghijkmnpqrstuvwxyz"
_TRIES = 3
_MAX_PATH = 4095
_MAX_WORDS = 500
_LOCK_WAIT_S = 30.0
_SUPERVISOR_WAIT_S = 0.5  # where Yama is in force
_locks: dict[int, Any] = {}
_inits: dict[tuple[str, str], int] = {}  # (project, name) -> how many runs this rank got from its launcher
_hooked = False


class Attempt:
    """One call of `init`: it gives a run, or leaves nothing behind.

    Whoever calls `start` calls `undo` for whatever exception came before the run was handed over: a bad argument that
    shows late, an alarm, Ctrl-C. What a handler of the user's raises strikes at few points only (`held_signals.py`),
    and `undo` goes by what lies in the shm directory, so it needs no word from the code that was interrupted.
    """

    def __init__(self) -> None:
        self._session: Session | None = None  # made by this call
        self._shm_dir: ShmDir | None = None
        self._open_before = frozenset(handles.by_shm_dir)
        self._handed_on = settings.parent_shm_dir()
        self._ordinal: tuple[str, str] | None = None

    def start(
        self,
        project: str | None,
        *,
        config: Any,
        tags: Iterable[str],
        notes: str,
        alerts: Any,
        given: dict[str, Any],
    ) -> Run | NullRun:
        """Start or join a run, for `logclient.init`. `given` holds settings by name; None means: not given."""
        chosen = Config.from_env(project=project, **given)
        _check_tags(tags)
        config = _checked_facts(config, notes)
        rules = _checked_rules(alerts)
        tags, wrong_tags = about.tags_of(tags)
        notes, wrong_notes = about.cut("notes", notes, about.MAX_NOTES)
        chosen, wrong = _within_limits(chosen)
        wrong += [sentence for sentence in (wrong_tags, wrong_notes) if sentence]
        if chosen.mode == "disabled":
            return NullRun(chosen.project or "default", config, tags)
        if settings.is_agent():
            return _inert(chosen)
        with _OneAtATime(), HeldSignals():
            return self._start(chosen, config, {"tags": tags, "notes": notes}, rules, wrong)

    def _start(
        self,
        chosen: Config,
        config: Mapping[str, Any],
        described: dict[str, Any],
        rules: list[dict[str, Any]],
        wrong: list[str],
    ) -> Run | NullRun:
        dropped.let_go_durable()
        parent = parents.find(chosen)
        if parent is not None:
            return self._join(parent, chosen, config)
        if not chosen.run_id and has_shell():
            notebook.finish_earlier(handles.sessions(), chosen.project or "default", chosen.name)
        launch = launchers.find(settings.environment())
        run_id = chosen.run_id or self._id_of_launch(launch, chosen) or _new_id()
        facts = _facts(chosen, run_id) | {"alerts": rules}
        for _ in range(_TRIES):
            try:
                shm_dir = self._shm_dir = shm_dirs.make(chosen, shm_dirs.folder_name(run_id), facts)
            except OSError as error:
                return _without_memory(chosen, run_id, error)
            is_new = shm_dir.node == facts["node"]
            if not is_new and chosen.run_id and chosen.resume == "never":
                self._shm_dir = None  # it is another's
                raise BadArgument(
                    f"resume='never', but run {run_id!r} is open on this host and goes to {shm_dir.dir}"
                )
            if _is_open_here(handles.session_at(shm_dir.path)):
                return self._join(shm_dir, chosen, config)
            session = self._make(shm_dir, chosen, launch, is_owner=True)
            if os.path.isdir(shm_dir.path):
                break  # else the agent of an earlier attempt took the shm directory away in this moment
        if shm_dir.trouble:
            lies = f"shared memory lies in {os.path.dirname(shm_dir.path)} ({shm_dir.trouble})"
            session.notices.once("place", lies)
        start_facts = {
            "created_ns": facts["created_ns"],
            "host": os.uname().nodename,
            "python": sys.version.split()[0],
            "launch": None if launch is None else launch.facts(),
            "job": launchers.job(settings.environment()),
            "alerts": rules,
        }
        session.introduce(
            start_facts | {"program": _program(), "parent_run": parents.inherited_id()},
            name=shm_dir.name,
            group=chosen.group,
            **described,
        )
        for sentence in wrong:
            session.notices.once(sentence, sentence)
        run = Run(session)
        if config:
            run.config.update(config)
        if not is_new and chosen.dir and facts["dir"] != shm_dir.dir:
            session.notices.once(
                "dir", f"run {run_id} is open on this host and goes to {shm_dir.dir}, not to {facts['dir']}"
            )
        if not is_new and rules and rules != shm_dir.facts.get("alerts"):
            session.notices.once(
                "alerts", f"run {run_id} is open on this host with other rules for alerts: those go on"
            )
        if not is_new and (chosen.server or chosen.mode == "offline"):
            _compare_server(session, shm_dir, str(facts["server"]))
        _start_agent(session, shm_dir, chosen)
        ptracer.permit(session, _SUPERVISOR_WAIT_S)
        _keep(run, session)
        if chosen.trace:
            tracing.begin(session, chosen.trace)
        if chosen.console == "tee":
            from . import capture  # few runs ask for it

            capture.begin(session)
        settings.hand_on(parents.handle(shm_dir.path))
        return run

    def _join(self, shm_dir: ShmDir, chosen: Config, config: Mapping[str, Any]) -> Run:
        known, session = handles.find(shm_dir.path), handles.session_at(shm_dir.path)
        if known is not None and session is not None and _is_open_here(session):
            if 0 <= chosen.rank != session.rank:
                session.take_rank(chosen.rank)
            if config:
                known.config.update(config)
            return known
        self._shm_dir = shm_dir
        launch = launchers.find(settings.environment())
        session = self._make(shm_dir, chosen, launch, is_owner=False)
        session.page = shm_dir.page
        session.introduce({"created_ns": time.time_ns()})
        if not spawn.agent_lives(shm_dir):
            _call_agent(session, shm_dir, chosen, check_folder=False)
        ptracer.permit(session, _SUPERVISOR_WAIT_S)
        run = Run(session)
        _keep(run, session)
        if chosen.trace:
            tracing.begin(session, chosen.trace)
        if config:
            run.config.update(config)
        return run

    def _make(
        self, shm_dir: ShmDir, chosen: Config, launch: launchers.Launch | None, *, is_owner: bool
    ) -> Session:
        """The session, known to `undo` before it holds anything."""
        session = self._session = Session.__new__(Session)
        Session.__init__(session, shm_dir, chosen, is_owner=is_owner, rank=_rank(chosen, launch))
        return session

    def _id_of_launch(self, launch: launchers.Launch | None, chosen: Config) -> str | None:
        """The id that all ranks of a launch find; None for a process that is no rank of one."""
        if launch is None or not settings.take_rank(launch.digest):
            return None
        named = (chosen.project or "default", chosen.name)
        _inits[named] = ordinal = _inits.get(named, 0) + 1
        self._ordinal = named
        return launch.run_id(*named, ordinal)

    def undo(self) -> None:
        """Leave nothing behind. What a handler raises meanwhile goes for nothing: the first exception counts."""
        for _ in range(_TRIES):
            try:
                with HeldSignals():
                    self._undo()
                return
            except BaseException:  # noqa: BLE001 - see above
                continue

    def _undo(self) -> None:
        session, shm_dir = self._session, self._shm_dir
        if session is not None:
            self._session = None
            _abandon(session)
        if shm_dir is not None and shm_dir.path not in self._open_before:
            shm_dir.withdraw(os.getpid(), frozenset(), is_served=spawn.agent_lives(shm_dir))
            self._shm_dir = None
        if self._ordinal is not None:
            _inits[self._ordinal] -= 1
            self._ordinal = None
        if settings.parent_shm_dir() != self._handed_on:
            settings.hand_on(self._handed_on)


class _OneAtATime:
    """In the `with`, no other thread of this process is. A handler that interrupts this one may be."""

    __slots__ = ("_lock",)

    def __enter__(self) -> None:
        # by process: a forked child must not wait for a thread of its parent's
        lock = _locks.setdefault(os.getpid(), RLock())
        self._lock = lock if lock.acquire(timeout=_LOCK_WAIT_S) else None

    def __exit__(self, *exc: object) -> None:
        if self._lock is not None:
            self._lock.release()


def _facts(chosen: Config, run_id: str) -> dict[str, Any]:
    """Return the facts that the shm directory of a new run holds."""
    return {
        "version": 1,
        "run_id": run_id,
        "project": chosen.project or "default",
        "name": chosen.name or run_id,
        "dir": _absolute(chosen.dir or "logclient-runs"),
        "home": _usable(settings.home_folder()),
        "node": os.urandom(8).hex(),
        "resume": chosen.resume if chosen.run_id else "allow",
        "server": chosen.server if chosen.mode == "online" else "",
        "created_ns": time.time_ns(),
        "confined": lifetime.why()[:_MAX_WORDS],
        "settings": {**dict(chosen), "stop_file": chosen.stop_file and _absolute(chosen.stop_file)},
    }


def _inert(chosen: Config) -> NullRun:
    line = (
        "this process was started by an agent of logclient (LOGCLIENT_AGENT is set): nothing is logged in it"
    )
    if not chosen.quiet:
        write_stderr(line)
    return NullRun(chosen.project or "default", {}, (), closed=line)


def attach(path: str) -> Run | NullRun:
    """The run of a shm directory in this process: the open one, or a handle with lanes of its own."""
    run = handles.find(path)
    if run is not None and _is_open_here(handles.session_at(path)):
        return run
    shm_dir = shm_dirs.read(path)
    if shm_dir is None:
        return NullRun("", {}, (), closed="the run that this handle belongs to is over")
    if settings.is_agent():
        return _inert(Config.from_env())
    attempt = Attempt()
    with _OneAtATime():
        return attempt._join(shm_dir, Config.from_env(**_inherited_settings(shm_dir)), {})


def attach_to_parent() -> Run | NullRun | None:
    """The live run of a parent process, if there is one."""
    shm_dir = None if settings.is_agent() else parents.find(None)
    return None if shm_dir is None else attach(shm_dir.path)


def _is_open_here(session: Session | None) -> bool:
    """Has this process lanes in it? A forked child gets them now."""
    return session is not None and (session.pid == os.getpid() or not session.after_fork())


def _check_tags(tags: Any) -> None:
    try:
        iter(tags)
    except TypeError:
        raise BadArgument(f"tags={tags!r}: expected a list of texts") from None


def _checked_rules(alerts: Any) -> list[dict[str, Any]]:
    """Return the rules of `alerts` as the agent reads them."""
    if type(alerts) in (tuple, list) and not alerts:
        return []
    from ..shm import alert_rules  # few runs have any

    return alert_rules.checked(alerts)


def _within_limits(chosen: Config) -> tuple[Config, list[str]]:
    """The settings with names that are not too long, and a sentence for each that was cut."""
    values, sentences = dict(chosen), []
    for name in ("project", "name", "group"):
        values[name], sentence = about.cut(name, values[name], about.MAX_NAME)
        if sentence:
            sentences.append(sentence)
    return (Config(values), sentences) if sentences else (chosen, [])


def _checked_facts(config: Any, notes: Any) -> dict[Any, Any]:
    """Return the settings of `config` by name."""
    if not isinstance(notes, str):
        raise BadArgument(f"notes={notes!r}: expected a text")
    found = {} if config is None else settings_of(config)
    if found is None:
        raise BadArgument(
            f"config is a {type(config).__name__}: expected a dict of settings, or an object with named ones: "
            "a dataclass, a Namespace, one of attrs, pydantic or OmegaConf"
        )
    return found


def _keep(run: Run, session: Session) -> None:
    global _hooked
    if not _hooked:
        atexit.register(_at_exit)
        _hooked = True
    handles.note(run, session)


def _at_exit() -> None:
    state, begun = at_exit(), time.monotonic()
    for session in handles.sessions():
        if session.is_owner and session.pid == os.getpid():
            patience = patience_s(state, session.settings.finish_timeout_s)
            try:
                # all runs together wait as long as one
                closing.end(session, state, max(0.0, begun + patience - time.monotonic()))
            except KeyboardInterrupt:
                pass  # asked not to wait: the agent goes on with what is there
        else:
            session.counters.publish()
            session.release_maps()
            handles.forget(session)  # it goes with the process, whose end is what the agent sees
    try:
        dropped.end_all(begun, state)
    except KeyboardInterrupt:
        pass  # as above


def _start_agent(session: Session, shm_dir: ShmDir, chosen: Config) -> None:
    """Bring an agent to the shm directory, and hear what the run folder is like."""
    strict = chosen.folder_errors == "raise"
    session.writes_to_file = not chosen.quiet and is_stderr_file()
    trouble, is_first = None, is_none_left() or not spawn.agent_lives(shm_dir)
    if is_first:
        name = f"{os.urandom(8).hex()}.answer"
        trouble = spawn.start_agent(
            shm_dir,
            chosen.start_timeout_s,
            check_folder=True,
            answer=name,
            resume=chosen.resume if chosen.run_id else "allow",
            strict=strict,
        )
        answer = shm_dir.take_answer(name)
    else:
        answer = shm_dir.folder_answer()
    state, reason = answer.get("state", ""), answer.get("reason", "")
    if state in ("exists", "missing"):
        raise BadArgument(f"resume={chosen.resume!r}, but run {shm_dir.run_id!r} {reason}")
    if strict and state != "ok":
        if not state:
            reason = trouble or f"it does not answer within {chosen.start_timeout_s:g} s"
        raise FolderError(f"run folder {shm_dir.dir} cannot be used: {reason}")
    session.folder, session.page = answer, shm_dir.page
    line = shm_dir.where_it_goes(answer)
    if trouble or state != "ok":
        session.notices.once("agent" if trouble else "folder", trouble or line)
        session.write_notices()
    elif not chosen.quiet and session.rank in (None, 0):  # once is enough, also with hundreds of ranks
        write_stderr(line)
    if is_first and session.writes_to_file:
        spawn.write_to_stderr_file(trouble or line)


def _compare_server(session: Session, shm_dir: ShmDir, wanted: str) -> None:
    """An agent keeps to the server that it was started with: that of an earlier attempt may be another one."""
    there = shm_dir.server
    if there == wanted:
        return
    keeps = f"ships to {there}" if there else "was started without a server"
    then = f"`logclient sync --server {wanted}` takes it there" if wanted else "it is not offline"
    session.notices.once(
        "server", f"run {shm_dir.run_id} is open on this host with an agent that {keeps}: {then}"
    )


def _call_agent(session: Session, shm_dir: ShmDir, chosen: Config, *, check_folder: bool) -> None:
    trouble = spawn.start_agent(shm_dir, chosen.start_timeout_s, check_folder=check_folder)
    if trouble and session.notices.once("agent", trouble):
        session.write_notices()


def _abandon(session: Session) -> None:
    """The run must not start: an agent that has seen it forgets it. It may be half made."""
    if getattr(session, "lanes", None) is None:
        live = getattr(session, "live", None)
        if live is not None:
            live.release()
        return
    session.closed = "the run was not started"
    closing.close_lanes(session, 0.0)
    session.write("state", {"state": "abandoned", "by": "init"})
    closing.let_go(session)


def _usable(path: str | None) -> str | None:
    """A path that the kernel takes; `run.json`, which it goes into, is of bounded size."""
    return path if path is not None and len(os.fsencode(path)) <= _MAX_PATH else None


def _absolute(path: str) -> str:
    """Return the absolute path; empty where the working directory is gone."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return ""


def _without_memory(chosen: Config, run_id: str, error: OSError) -> NullRun:
    where = ", ".join(shm_dirs.shm_roots(chosen))
    line = f"no shared memory for run {run_id} in {where} ({error.strerror or error}); nothing is logged"
    if chosen.folder_errors == "raise":
        raise LogclientError(line) from error
    if not chosen.quiet and not write_stderr(line):
        spawn.write_to_stderr_file(line)
    return NullRun(chosen.project or "default", {}, (), closed=line)


def _rank(chosen: Config, launch: launchers.Launch | None) -> int | None:
    return chosen.rank if chosen.rank >= 0 else launchers.rank_of(settings.environment(), launch)


def _inherited_settings(shm_dir: ShmDir) -> dict[str, Any]:
    names = (
        "lanes",
        "lanes_bytes",
        "strict",
        "quiet",
        "shm_dir",
        "flush_timeout_s",
        "finish_timeout_s",
        "stall_s",
        "ptrace",
        "trace",
    )
    return {name: shm_dir.settings[name] for name in names if name in shm_dir.settings}


def _new_id() -> str:
    """Sorts by time, and never repeats."""
    noise = int.from_bytes(os.urandom(8), "little")
    tail = ""
    for _ in range(8):
        noise, digit = divmod(noise, len(_ALPHABET))
        tail += _ALPHABET[digit]
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + tail


def _program() -> str:
    main = sys.modules.get("__main__")
    return str(getattr(main, "__file__", "") or "")
