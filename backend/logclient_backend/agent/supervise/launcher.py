"""First process of an agent: asks about the run folder, leaves a supervisor behind, then exits.

Started by `logclient.spawn.agent`, which waits for its end. Afterwards the supervisor is nobody's child: not in the
user's `os.wait()`, not in a launcher's process tree, in a session of its own.

Invariants:

- it ends within its time, also when the disk of the run folder, of the config file or of the file of alerts does not
  answer: what may hang there is done in throw-away children, which are left behind;
- where the run must not start, there is no supervisor.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from logclient.config import alerts_file, temporary_folders
from logclient.shm import layout, modes
from logclient.shm import shm_dir as shm_dirs
from logclient.shm.regular import read_object
from logclient.shm.shm_dir import ShmDir
from logclient.spawn import reap

from ..host import process_handle
from ..host.json_file import write_json
from ..host.status import StatusPage

if TYPE_CHECKING:
    from ...wire.address import Address

FOLDER_WAIT_S = 1.5
_SERVER_SHARE = 4  # 1/4 of the time of `init` at most is for the config file that may name a server
_TARGETS_S = 0.1  # for the file that says where alerts go, beyond the time for the folder
_LEFT_S = 0.3  # of the time of `init`, for what comes after the look at the folder
_MAX_FDS = 1 << 16
# meant for the trainer, whose process group they may reach
_NOT_FOR_US = (
    *(signal.SIGINT, signal.SIGHUP, signal.SIGTERM),
    *(signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2),
)


def main(arguments: list[str]) -> int:
    """`agent SHM_DIR` and what `Options` names; see `logclient.spawn.agent`."""
    options = _parse(arguments)
    if options is None:
        return 2
    # what the trainer's libraries left inheritable is not ours to hold open
    os.closerange(3, _MAX_FDS)
    _take_name()
    process_handle.watch_from_now_on(int(options.trainer or 0))  # it may end before a worker looks at it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # may be ignored; the others are seen to in the supervisor
    os.chdir("/")
    os.umask(0o077)
    shm_dir = shm_dirs.read(options.shm_dir)
    if shm_dir is None:
        return 3
    os.umask(modes.umask_of(shm_dir.facts))
    targets = _begin(_look_for_targets)
    may_start = _prepare(shm_dir, options)
    # not known: a disk that does not answer
    has_targets = _code(targets, time.monotonic() + _TARGETS_S) in (0, None)
    if may_start and (_fork_away() if options.stays else os.fork() == 0):
        _become_supervisor(shm_dir, has_targets)
    _answer(shm_dir, options)
    if may_start and options.stays:
        os._exit(0)  # a fork of the first process
    return 0


def _prepare(shm_dir: ShmDir, options: Options) -> bool:
    """Have the run folder looked at; False where the run must not start, and `init` raises."""
    if options.answer:
        until = time.monotonic() + _time_left(options) / _SERVER_SHARE
        server = _begin(lambda: _ask_about_server(shm_dir)) if _may_have_server(shm_dir) else 0
        found = _ask_about_folder(shm_dir, options)
        if server:
            _is_done(server, until)
        if found.get("state") in ("exists", "missing", "refused") or (options.strict and not found):
            return False
    _announce(shm_dir)
    return True


def _answer(shm_dir: ShmDir, options: Options) -> None:
    """Leave a file in the shm directory: the trainer, whose child we are not, cannot ask for our exit code."""
    if options.end:
        with suppress(OSError):
            modes.publish(shm_dir.file(options.end), b"")


def _fork_away() -> bool:
    """Fork a process that is nobody's child; True in this one, False in that.

    The first process of a frozen program stays: when it ends, the files that it was unpacked into go.
    """
    child = os.fork()
    if child == 0:
        if os.fork():
            os._exit(0)
        return False
    os.waitpid(child, 0)
    return True


def _announce(shm_dir: ShmDir) -> None:
    """The page may hold the last beat of a dead agent: whoever looks for one must not take it for ours."""
    try:
        page = StatusPage(shm_dir.file("agent.status"))
    except OSError:
        return
    page.words[layout.AGENT_GAVE_UP] = 0
    page.beat(layout.AGENT_CALLED_NS)


def _take_name() -> None:
    """Inherited by all that is forked from here: what `ps` shows, and a trainer that gets orphans knows us by."""
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(reap.NAME.encode())
    except OSError:
        pass


class Options(NamedTuple):
    """Options of the command line."""

    shm_dir: str
    trainer: str = ""  # PID of who starts us
    answer: str = ""  # file in the shm directory for what the run folder is like; empty: nobody asks
    until: str = ""  # monotonic time at which `init` waits no longer
    resume: str = "allow"
    strict: bool = False
    end: str = ""  # file in the shm directory that says that we are done
    stays: bool = False  # the first process becomes the supervisor


def _parse(arguments: list[str]) -> Options | None:
    given: dict[str, Any] = {}
    for word in arguments[1:]:
        name, _, value = word.removeprefix("--").partition("=")
        if name not in Options._fields[1:]:
            return None
        given[name] = value or True
    return Options(arguments[0], **given) if arguments else None


def _become_supervisor(shm_dir: ShmDir, has_targets: bool) -> None:
    code = 1
    try:
        _lead_session()
        for number in _NOT_FOR_US:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        from .supervisor import Supervisor

        code = Supervisor(shm_dir, sends_alerts=has_targets).run()
    finally:
        _leave_no_empty_folder(shm_dir)
        os._exit(code)


def _lead_session() -> None:
    """A new session, away from the trainer's terminal and process group."""
    try:
        os.setsid()
    except PermissionError:
        pass  # started as the leader of one


def _leave_no_empty_folder(shm_dir: ShmDir) -> None:
    """An `init` that raised is no run: the folder that was made for it goes, if that is all there is of it."""
    from ..output.probe import forget

    try:
        if not os.path.exists(shm_dir.file("run.json")):
            forget(shm_dir)
    except OSError:
        return


def _ask_about_folder(shm_dir: ShmDir, options: Options) -> dict[str, Any]:
    """The answer; empty where the folder gives none in time."""

    def ask() -> None:
        from ..output.probe import Wish, write_answer

        write_answer(shm_dir, Wish(options.resume, options.strict), options.answer)
        _bring_spools_home(shm_dir)

    wait_s = min(FOLDER_WAIT_S, _time_left(options) - _LEFT_S)
    if not _is_done(_begin(ask), time.monotonic() + wait_s):
        return {}
    return read_object(shm_dir.file(options.answer)) or {}


def _bring_spools_home(shm_dir: ShmDir) -> None:
    """Bring segments that dead agents left on local disks to their network folders, in a process that may hang."""
    from ..output.probe import SPOOL

    if os.fork():
        return
    try:
        os.setsid()
        given = shm_dir.facts.get("settings")
        spool_dir = str(given.get("spool_dir") or "") if isinstance(given, dict) else ""
        if any(
            any(shm_dirs.bases_in(folder, SPOOL)) for folder in (spool_dir, *temporary_folders()) if folder
        ):
            from ..output.spool import bring_all_home  # not before: it loads much, and there is rarely any

            bring_all_home(spool_dir)
    finally:
        os._exit(0)


def _time_left(options: Options) -> float:
    """Seconds for which `init` still waits."""
    return float(options.until) - time.monotonic() if options.until else FOLDER_WAIT_S


def _may_have_server(shm_dir: ShmDir) -> bool:
    given = shm_dir.facts.get("settings")
    mode = given.get("mode", "online") if isinstance(given, dict) else "online"
    return bool(mode == "online")


def _ask_about_server(shm_dir: ShmDir) -> None:
    """Leave in the shm directory which server the config file names, and where its page is, if that is known.

    Nothing where there is none, or no usable file.
    """
    from logclient.errors import BadArgument

    from ...wire import known_pages
    from ...wire.address import parse

    given = str(shm_dir.facts.get("server") or "")
    try:
        address = parse(given) if given else _configured()
    except BadArgument:
        return  # the process that ships says what is wrong, to status()
    if address is not None:
        found = {"server": str(address), "page": known_pages.find(address)}
        write_json(shm_dir.file(shm_dirs.SERVER), found)


def _configured() -> Address | None:
    from ...wire import credentials

    access = credentials.find()
    return None if access is None else access.address


def _look_for_targets() -> None:
    """Raise OSError where there is no file that says where alerts go."""
    os.stat(alerts_file() or "")


def _begin(work: Callable[[], object]) -> int:
    """Do what may hang in a child; its PID."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def _is_done(child: int, deadline: float) -> bool:
    """Has it ended by then, and that is looked at once at least? One that has not is left behind."""
    return _code(child, deadline) is not None


def _code(child: int, deadline: float) -> int | None:
    """Return the exit code of a child; None where it has not ended by then."""
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
