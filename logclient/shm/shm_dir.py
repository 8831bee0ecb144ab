"""The shm directory: one folder on tmpfs per run and node, where its processes and its agent find each other.

Runs in the training process at `init`, and in the agent and the command line, which read it.

::

    /dev/shm/logclient-<uid>/<folder>/      0700, accepted only if lstat says: ours, a folder, no link
        run.json                            what the agent must know: ids, run folder, settings, budget
        agent.lock  agent.status            election; status page (layout.AGENT_ words)
        refused                             what processes without lanes refused (refusals.py)
        <process>.lanes  <process>.live     one pair per process incarnation
        <process>.<kind>.<n>.block          a document larger than its slot
        <writer>-<number>.wal               segments that are not yet on disk
        server.json                         the server given to `init`, else that of the config file; its page if known
        agent.path                          folders of the trainer's modules, for the agent
        say                                 a line for standard error, where that is a file
        environment.json                    what the program runs in, as a child of the agent found it
        <id>.request                        somebody asks for a stop or a save (`stop_requests.py`)
        <process of the agent>.wake         named pipes that end its pauses (`wake.py`); made by the agent

Invariants:

- `run.json` is written once, whole, by whoever made the folder; there is no handshake;
- containers that share the mount have a directory each, also for the same run (the second: `<folder>.<PID namespace>`):
  an agent ends with its container, and must not be the one that another container relies on.
"""

from __future__ import annotations

import errno
import os
import time

from ..guest import stdlib
from ..guest.digest import blake2b
from . import layout, modes, refusals
from .modes import is_ours
from .proc import pid_namespace, start_ticks, umask
from .regular import open_regular, read_object, read_start
from .run_page import page_of_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..config import Config

SHARE = 8  # a run takes at most 1/8 of what is free: data loaders need that mount
LANES_FLOOR = 256 << 10
MIN_LANES = 64 << 10  # where the run has its share: for a process that would get none
_MIN_FREE = SHARE * (LANES_FLOOR + (32 << 10))  # one process with the floor, and our small files
_ATTEMPTS = 8
GONE = ".gone-"  # prefix of the name of a shm directory that is being removed
SERVER = "server.json"
AGENT_PATH = "agent.path"  # file with the folders in which the agent finds modules, a zero byte between two


class ShmDir:
    """One shm directory; `facts` is what `run.json` holds."""

    __slots__ = ("facts", "path", "trouble")

    if (
        TYPE_CHECKING
    ):  # keys of `facts`; a file of another program's may hold anything, so readers convert them
        run_id: str
        project: str
        name: str
        dir: str
        home: str
        node: str
        resume: str
        created_ns: int
        budget_bytes: int
        settings: dict[str, Any]

    def __init__(self, path: str, facts: dict[str, Any]) -> None:
        self.path = path
        self.facts = facts
        self.trouble = ""  # why it lies in no better folder

    if not TYPE_CHECKING:  # there a misspelt name is an error

        def __getattr__(self, name: str) -> Any:
            try:
                return self.facts[name]
            except KeyError:
                raise AttributeError(name) from None

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def folder_answer(self) -> dict[str, Any]:
        """Return the launcher's answer about the run folder: state, dir, reason; empty before it has answered."""
        return _read_facts(self.file("folder.json")) or {}

    def take_answer(self, name: str) -> dict[str, Any]:
        """Remove and return the answer to this request, reasons not to start included; empty: none came in time."""
        path = self.file(name)
        found = _read_facts(path)
        modes.remove(path)
        return found or {}

    @property
    def server(self) -> str:
        """The collector's address: the one given to `init`, else that of the config file; empty where there is none."""
        return str(self.facts.get("server") or (_read_facts(self.file(SERVER)) or {}).get("server") or "")

    @property
    def page(self) -> str:
        """The address of the collector's page, where it was known when the run began; else empty."""
        found = _read_facts(self.file(SERVER)) or {}
        return str(found.get("page") or "")

    @property
    def shown(self) -> str:
        """The run, as lines for people name it: without its id twice where it has no name."""
        return f"run {self.name}" if self.name == self.run_id else f"run {self.name} ({self.run_id})"

    def where_it_goes(self, answer: dict[str, Any]) -> str:
        """Return one line for the user about that answer."""
        run = self.shown
        wanted = self.dir or "./logclient-runs"
        state, where = answer.get("state"), answer.get("dir")
        server = f" -> {self.server}" if self.server else ""
        page = page_of_run(self.page, str(self.run_id))
        page = f"; page: {page}" if page else ""
        if state == "ok":
            made = f" (made: {answer['made']} was not there)" if answer.get("made") else ""
            network = f" ({answer['network']}: a network file system)" if answer.get("network") else ""
            return f"{run} goes to {where}{made}{network}{server}{page}"
        if not state:
            return f"run folder {wanted} does not answer: {run} is in shared memory until it does{server}"
        cannot = f"run folder {wanted} cannot be used ({answer.get('reason')})"
        if state == "fallback":
            return f"{cannot}: {run} goes to {where}{server}{page}"
        kept = f"{cannot}: {run} is in shared memory only{server}"
        return f"{kept}; `logclient recover --dir FOLDER` stores it, before a reboot"

    def withdraw(self, pid: int, keep: frozenset[str], *, is_served: bool) -> None:
        """The run did not start: remove what this process left, and the directory unless another process is in it.

        `keep` are lane files of this process that belong to a run. An agent that serves it (`is_served`)
        removes it itself, once the lanes in it are given up.
        """
        try:
            own = [
                name for name in os.listdir(self.path) if name not in keep and _is_of(self.file(name), pid)
            ]
            if is_served:
                for name in own:
                    _give_up(self.file(name))
                return
            for name in own:
                stem = name.partition(".")[0]
                _remove(self.path, lambda name, stem=stem: name.startswith(stem))  # type: ignore[misc]
            if _has_lanes(self.path):
                return
            aside = os.path.join(os.path.dirname(self.path), f"{GONE}{os.urandom(6).hex()}")
            os.rename(self.path, aside)  # from here on nobody can come in by this path
            if _has_lanes(aside):
                os.rename(aside, self.path)
                return
            _remove_whole(aside)
            os.rmdir(os.path.dirname(self.path))
        except OSError:
            pass  # an agent was faster, or other runs are there

    def taken_bytes(self, of: str = "") -> int:
        """Shared memory that this run takes on this node now; only that of files with `of` in their names."""
        total = 0
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    if of not in entry.name:
                        continue
                    try:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                    except OSError:
                        continue  # gone or renamed meanwhile
        except OSError:
            pass
        return total


def shm_roots(config: Config) -> list[str]:
    """Folders that may hold shm directories, best first."""
    found = [os.path.abspath(config.shm_dir)] if config.shm_dir else []
    found += [path for path in ("/dev/shm",) if path not in found]
    runtime = f"/run/user/{os.geteuid()}"
    if os.path.isdir(runtime):
        found.append(runtime)
    found.append("/tmp")  # slower after a crash, and not ours: every folder in it is checked like the others
    return found


def bases(config: Config) -> Iterator[str]:
    """Existing folders of this user in which shm directories lie."""
    for root in shm_roots(config):
        yield from bases_in(root)


def bases_in(root: str, kind: str = "logclient") -> Iterator[str]:
    """The folders of this user that `make_base` made there."""
    prefix = f"{kind}-{os.geteuid()}"
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return
    for name in names:
        if name == prefix or name.startswith(prefix + "-"):
            path = os.path.join(root, name)
            if is_ours(path):
                yield path


def make_base(root: str, kind: str = "logclient") -> str:
    """The folder of this user in `root`: made, or ours already, else a fresh name. Raises OSError."""
    name = f"{kind}-{os.geteuid()}"
    path = os.path.join(root, name)
    for _ in range(8):
        is_new = modes.make_folder(path)
        if is_ours(path):
            return path
        if is_new:  # a file system that gives it another owner or mode: so would be the next one
            modes.remove_if_empty(path)
            break
        others = [other for other in sorted(os.listdir(root)) if other.startswith(f"{name}-")]
        ours = [os.path.join(root, other) for other in others]
        for other in ours:
            modes.mend(other)
        path = next(filter(is_ours, ours), os.path.join(root, f"{name}-{os.urandom(4).hex()}"))
    raise OSError(errno.EACCES, "no folder of our own can be made", root)


def find(config: Config, folder: str) -> ShmDir | None:
    """The shm directory of a run folder name on this node, if there is one."""
    for base in bases(config):
        shm_dir = read(os.path.join(base, folder))
        if shm_dir is not None:
            return shm_dir
    return None


def read(path: str) -> ShmDir | None:
    """The shm directory at `path`; None where it is none, or not ours."""
    facts = _read_facts(os.path.join(path, "run.json")) if is_ours(path) else None
    return None if facts is None else ShmDir(path, facts)


def _read_facts(path: str) -> dict[str, Any] | None:
    return read_object(path, max_bytes=1 << 20)


def make(config: Config, folder: str, facts: dict[str, Any]) -> ShmDir:
    """Make (or join, if another process was first) the shm directory of a run. Raises OSError."""
    trouble: list[OSError] = []
    for root in shm_roots(config):
        for attempt in range(_ATTEMPTS):
            try:
                found = _make_in(root, folder, facts)
            except FileNotFoundError as error:
                if (
                    os.path.isdir(root) and attempt < _ATTEMPTS - 1
                ):  # an agent that left removed our folder just now
                    continue
                trouble.append(error)
            except OSError as error:
                trouble.append(error)
            else:
                found.trouble = "; ".join(f"{error.filename}: {error.strerror}" for error in trouble)
                return found
            break
    raise trouble[0] if trouble else OSError(errno.ENOENT, "no place for shared memory", folder)


def _make_in(root: str, folder: str, facts: dict[str, Any]) -> ShmDir:
    here = facts["pid_namespace"] = pid_namespace()
    facts["umask"] = umask()  # decides who may read the run folder
    path = os.path.join(make_base(root), folder)
    modes.make_folder(path)
    present = read(path) or _fill(root, path, facts)
    if present.facts.get("pid_namespace", here) != here and "." not in folder:
        return _make_in(root, f"{folder}.{here}", facts)
    return present


def _fill(root: str, path: str, facts: dict[str, Any]) -> ShmDir:
    """Write the first files of a shm directory; of several processes at it, in any PID namespace, one counts."""
    json = stdlib.load("json")

    free = os.statvfs(path)
    free_bytes = free.f_bavail * free.f_frsize
    if free_bytes < _MIN_FREE:
        modes.remove_if_empty(path)
        raise OSError(errno.ENOSPC, f"{free_bytes:,} bytes are free, {_MIN_FREE:,} are needed", root)
    facts["budget_bytes"] = free_bytes // SHARE
    page = memoryview(bytearray(layout.STATUS_BYTES)).cast("Q")
    page[layout.AGENT_CALLED_NS] = time.monotonic_ns()  # whoever makes the directory calls for an agent
    modes.publish_first(os.path.join(path, "agent.status"), page.tobytes())
    modes.publish_first(os.path.join(path, refusals.NAME), bytes(refusals.BYTES))
    # last: it shows the directory to others
    modes.publish_first(os.path.join(path, "run.json"), json.dumps(facts).encode())
    return read(path) or ShmDir(path, facts)


def _has_lanes(folder: str) -> bool:
    return any(name.removesuffix(modes.MAKING).endswith(".lanes") for name in os.listdir(folder))


def _remove(folder: str, wanted: Callable[[str], bool]) -> None:
    for name in os.listdir(folder):
        if wanted(name):
            os.unlink(os.path.join(folder, name))


def _remove_whole(folder: str) -> None:
    """With all that is in it, and what a launcher that was on its way leaves there meanwhile."""
    for attempt in range(_ATTEMPTS):
        try:
            _remove(folder, lambda name: True)
            os.rmdir(folder)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == _ATTEMPTS - 1:
                raise


def _is_of(path: str, pid: int) -> bool:
    """A lane file of that process, seen or in the making?"""
    if not path.removesuffix(modes.MAKING).endswith(".lanes"):
        return False
    try:
        head = read_start(path, 8 * (layout.FILE_START_TICKS + 1))
    except OSError:
        return False
    if len(head) < 8 * (layout.FILE_START_TICKS + 1):
        return False
    words = memoryview(head).cast("Q")
    is_it = (words[layout.FILE_PID], words[layout.FILE_START_TICKS]) == (pid, start_ticks(pid))
    return words[layout.FILE_MAGIC] == layout.MAGIC and is_it


def _give_up(path: str) -> None:
    """Nothing more comes from the process of this lane file."""
    if path.endswith(modes.MAKING):
        os.unlink(path)
        return
    fd = open_regular(path, os.O_WRONLY)
    try:
        os.pwrite(fd, layout.STATE_FINISHED.to_bytes(8, "little"), 8 * layout.STATE)
    finally:
        os.close(fd)


_DEVICE_NAMES = ("con", "prn", "aux", "nul", "com1", "lpt1")


def folder_name(run_id: str) -> str:
    """The folder of a run: its id where that is a harmless name, else an opaque one; the id is kept in documents."""
    harmless = (
        0 < len(run_id) <= 64
        and run_id.isascii()
        and run_id == run_id.lower()
        and all(c.isalnum() or c in "-_" for c in run_id)
        and run_id[0].isalnum()
        and run_id not in _DEVICE_NAMES
        and not run_id.startswith("id-")
    )
    if harmless:
        return run_id
    return "id-" + blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
