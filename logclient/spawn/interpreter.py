"""Finds the program that may run the agent: a Python that has our package, or a frozen program's own second entry.

Runs in the training process, at `init` (and in the first `log()` of a forked child when no agent lives), and in
`logclient doctor`.

`sys.executable` is a Python in programs that a Python runs. In a frozen program (PyInstaller, cx_Freeze, Nuitka) and
where Python is embedded (uWSGI, a game engine, a C program) it may be the program itself: to start that with the
agent's arguments would be to start the training again.

Invariants:

- only a file that is named like a Python is ever started; a frozen program is started only if it has called
  `logclient.freeze_support`;
- a Python is taken without a question only if this very process runs it. Any other one is asked first, with a
  deadline, whether it has this version of our package; one that nobody named must also be of the same version and ABI;
- the answer is kept: a program that starts many runs asks once.
"""

from __future__ import annotations

import os
import select
import sys
import time

from .. import config
from ..guest.stdlib import folder_of
from . import detached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "docs/where-it-runs.md, Frozen and embedded programs"
ENTRY = "--logclient-agent"  # first argument of a frozen program that shall be the agent
_NAMES = ("python", "pypy", "graalpy")
_SUFFIXES = ("", "d", "m", "dm", "t", "td", "w", "-dbg", "-intel64")
_MAX_ASKED = 6  # Pythons that nobody named
_ANSWER = b"logclient"
_MAX_ANSWER = 4096
_PROBE = """
import sys
own = 1
try:
    import logclient_backend
except ImportError:
    own = 0
    with open(sys.argv[1], "rb") as file:
        sys.path += [path.decode("utf-8", "surrogateescape") for path in file.read().split(b"\\0") if path]
from importlib.util import find_spec
import logclient
if not find_spec("logclient_backend.agent.supervise.launcher") or not find_spec("zstandard"):
    raise ImportError("parts of it are missing")
print("logclient", logclient.__version__, sys.implementation.cache_tag + getattr(sys, "abiflags", ""), own)
"""
_RUN = """
import sys
with open(sys.argv[2] + "/agent.path", "rb") as file:
    sys.path += [path.decode("utf-8", "surrogateescape") for path in file.read().split(b"\\0") if path]
from logclient_backend.__main__ import main
sys.exit(main())
"""


class Starter:
    """A way to start the agent: `words` come before its arguments, `added` and `dropped` belong to its environment."""

    __slots__ = ("folders", "is_entry", "knows_paths", "words")

    def __init__(
        self,
        words: list[str],
        *,
        folders: list[str] | None = None,
        knows_paths: bool = False,
        is_entry: bool = False,
    ) -> None:
        self.words = words
        self.folders = folders or []  # where our packages lie: before all others on its path
        self.knows_paths = knows_paths  # modules of this process may be loaded there
        self.is_entry = is_entry  # this program itself, frozen

    def environment(self) -> dict[str, str]:
        """The agent's."""
        is_same = self.words[0] == sys.executable
        return config.agent_environment(self.folders, is_same=is_same, is_frozen=is_frozen())

    @property
    def program(self) -> str:
        return self.words[0]


class NoInterpreter(Exception):
    """No program can run the agent; the text says why and what to do."""


_found: dict[str, Starter | NoInterpreter] = {}  # by the setting `python`
_has_entry = False


def note_entry() -> None:
    """The frozen program calls `freeze_support`: started with `ENTRY` it is the agent."""
    global _has_entry
    _has_entry = True
    _found.clear()


def is_frozen() -> bool:
    """Is this a program with Python and modules inside, which no other Python can load?"""
    if getattr(sys, "frozen", False) or getattr(sys, "oxidized", False) or hasattr(sys, "_MEIPASS"):
        return True
    compiled = getattr(sys.modules.get("__main__"), "__compiled__", None)  # Nuitka
    return compiled is not None and bool(getattr(compiled, "standalone", True))


def find(named: str, paths: str, deadline: float) -> Starter:
    """Return the way to start the agent. Raises `NoInterpreter`.

    `named` is the setting `python`, `paths` a file with folders of modules.
    """
    known = _found.get(named)
    if known is None:
        try:
            known = _find(named, paths, deadline)
        except NoInterpreter as why:
            known = why
        _found[named] = known
    if isinstance(known, NoInterpreter):
        raise NoInterpreter(str(known))
    return known


def _find(named: str, paths: str, deadline: float) -> Starter:
    if named:
        return _named(named, paths, deadline)
    if is_frozen() and _has_entry:
        return Starter([_this_program(), ENTRY], is_entry=True)
    if runs_here(sys.executable):
        return _running()
    return _searched(paths, deadline)


def _this_program() -> str:
    """The file to start this frozen program by."""
    if found := config.frozen_program():
        return found
    try:
        path = os.readlink("/proc/self/exe")
    except OSError:
        path = os.path.abspath(sys.executable)
    return path


def _running() -> Starter:
    words = [sys.executable, "-P", "-m", "logclient_backend"]
    return Starter(words, folders=_our_folders(), knows_paths=True)


def _named(path: str, paths: str, deadline: float) -> Starter:
    if not os.path.isabs(path):
        raise NoInterpreter(
            f"LOGCLIENT_PYTHON={path!r}: expected the absolute path of a Python: no agent can be started"
        )
    if path == sys.executable and runs_here(path):
        return _running()
    found = _ask(path, paths, deadline, any_version=True)
    if isinstance(found, Starter):
        return found
    raise NoInterpreter(f"LOGCLIENT_PYTHON={path!r} cannot run the agent ({found}): no agent can be started")


def _searched(paths: str, deadline: float) -> Starter:
    reasons = []
    for path in _candidates():
        found = _ask(path, paths, deadline, any_version=False)
        if isinstance(found, Starter):
            return found
        reasons.append(f"{path}: {found}")
    kind = "frozen and does not call logclient.freeze_support()" if is_frozen() else "no plain Python"
    asked = f" ({'; '.join(reasons)})" if reasons else ""
    raise NoInterpreter(
        f"no agent can be started: this program is {kind}, and no Python was found that has "
        f"logclient {_version()}{asked}; set LOGCLIENT_PYTHON to one (see {PAGE})"
    )


def runs_here(path: str | None) -> bool:
    """Is that the Python which runs this process, and not a program that Python is embedded in?"""
    if not path or not is_python_name(path) or is_frozen() or not getattr(sys, "orig_argv", ()):
        return False
    try:
        return os.path.samestat(os.stat(path), os.stat("/proc/self/exe"))
    except OSError:
        return False


def is_python_name(path: str) -> bool:
    """Is the file, or what it is a link to, named like a Python?"""
    return any(_is_python(os.path.basename(name)) for name in (path, os.path.realpath(path)))


def _is_python(name: str) -> bool:
    kind = next((kind for kind in _NAMES if name.startswith(kind)), None)
    return kind is not None and name[len(kind) :].lstrip("0123456789.") in _SUFFIXES


def _candidates() -> Iterator[str]:
    """Pythons of this host that may do, best first: of this environment, what it was made from, those in PATH."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    names = [f"python{version}", "python3", "python"]
    given = [sys.executable, getattr(sys, "_base_executable", "")]
    folders = [os.path.join(p, "bin") for p in (sys.prefix, sys.exec_prefix, sys.base_prefix) if p]
    folders += config.path_folders()
    seen: list[os.stat_result] = []
    for path in [*given, *(os.path.join(folder, name) for folder in folders for name in names)]:
        if len(seen) > _MAX_ASKED or not path or not os.path.isabs(path) or not is_python_name(path):
            continue
        try:
            found = os.stat(path)
        except OSError:
            continue
        # a virtual environment's Python is a link to that which it was made from, and finds other modules
        is_known = any(os.path.samestat(found, other) for other in seen) and not _is_of_environment(path)
        if not is_known and os.access(path, os.X_OK) and not _is_this_program(found):
            seen.append(found)
            yield path


def _is_of_environment(path: str) -> bool:
    return os.path.exists(os.path.join(os.path.dirname(os.path.dirname(path)), "pyvenv.cfg"))


def _is_this_program(found: os.stat_result) -> bool:
    """The frozen or embedding program, whatever it is called."""
    try:
        is_it = os.path.samestat(found, os.stat("/proc/self/exe"))
    except OSError:
        return True  # it cannot be told
    return is_it and (is_frozen() or not getattr(sys, "orig_argv", ()))


def _ask(path: str, paths: str, deadline: float, *, any_version: bool) -> Starter | str:
    """Ask that Python whether it can run the agent; the way to start it, or the reason why it cannot."""
    if not is_python_name(path):
        return "its name is not that of a Python"
    try:
        answer = _output([path, "-P", "-c", _PROBE, paths], deadline)
    except OSError as error:
        return error.strerror or str(error)
    if answer is None:
        return "it did not answer in time"
    kind, version, abi, own = (*answer.split(), *[b""] * 4)[:4]
    if kind != _ANSWER:
        return f"logclient {_version()} is not installed there"
    if version.decode() != _version():
        return f"it has logclient {version.decode()}, and this is {_version()}"
    is_same = abi.decode() == sys.implementation.cache_tag + getattr(sys, "abiflags", "")
    if not is_same and not (any_version and own == b"1"):
        return f"it is {abi.decode()}, and this is {sys.implementation.cache_tag}"
    knows_paths = is_same and not is_frozen()
    if own == b"1":
        return Starter([path, "-P", "-m", "logclient_backend"], knows_paths=knows_paths)
    if not knows_paths:
        return f"logclient {_version()} is not installed there"
    return Starter([path, "-P", "-c", _RUN], knows_paths=True)


def _output(words: list[str], deadline: float) -> bytes | None:
    """Return the standard output of a program; None where it does not end in time. Raises OSError."""
    ours, theirs = os.pipe()
    try:
        try:
            pid = detached.start(words, _environment(), {1: theirs})
        finally:
            os.close(theirs)
        if not pid:
            raise OSError(0, "it cannot be asked without ctypes")
        text = _read(ours, deadline)
        if text is None:
            _kill(pid)
        return text
    finally:
        os.close(ours)


def _environment() -> dict[str, str]:
    return config.agent_environment([], is_same=False, is_frozen=is_frozen())


def _read(fd: int, deadline: float) -> bytes | None:
    """Read until the end; None where that does not come in time."""
    text, poll = b"", select.poll()
    poll.register(fd, select.POLLIN)
    while len(text) < _MAX_ANSWER:
        left_ms = 1000 * (deadline - time.monotonic())
        if left_ms <= 0 or not poll.poll(left_ms):
            return None
        part = os.read(fd, _MAX_ANSWER)
        if not part:
            break
        text += part
    return text


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except OSError:
        pass


def module_folders() -> list[str]:
    """Return the folders in which this process finds modules, ours included; the script's own folder comes last."""
    if is_frozen():
        return []  # they lie in the program
    users = [path for path in sys.path[1:] + sys.path[:1] if isinstance(path, str) and os.path.isabs(path)]
    return [*users, *(folder for folder in _folders() if folder not in users)]


def _our_folders() -> list[str]:
    """Folders that must come first on the agent's path; site-packages is there already, and must not."""
    return [
        folder for folder in _folders() if os.path.basename(folder) not in ("site-packages", "dist-packages")
    ]


def _folders() -> list[str]:
    folders: list[str] = []
    for name in ("logclient", "logclient_backend"):
        folder = folder_of(name)
        if folder and folder not in folders:
            folders.append(folder)
    return folders


def _version() -> str:
    return str(sys.modules[__package__.partition(".")[0]].__version__)
