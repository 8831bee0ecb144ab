"""Every setting: its default, its LOGCLIENT_* variable, its help. The only reader of the environment.

`Config` is frozen; `from_env` reads the variables once, at `init`. What the agent needs travels in the shm
directory (`shm_dir.py`), not in the environment.
"""

from __future__ import annotations

import os

from .errors import BadArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


class Setting:
    """Default, unit and meaning of one setting; the variable is LOGCLIENT_ + the name in capitals."""

    __slots__ = ("default", "help", "kind", "name")

    def __init__(self, name: str, default: Any, help: str) -> None:
        self.name = name
        self.default = default
        self.kind = type(default)
        self.help = help

    @property
    def variable(self) -> str:
        return "LOGCLIENT_" + self.name.upper()


SETTINGS = (
    # what `init` takes as arguments too
    Setting("project", "", "project of the run"),
    Setting("name", "", "name of the run; default: made from the id"),
    Setting("run_id", "", "id of the run; default: a new one"),
    Setting("group", "", "group of the run"),
    Setting("resume", "allow", "allow, never or must: may a run with this id exist already"),
    Setting("rank", -1, "rank of this process; default: as its launcher says"),
    Setting("mode", "online", "online (ship when a server is set), offline or disabled"),
    Setting("dir", "", "run folder; default ./logclient-runs of the working directory"),
    Setting(
        "server",
        "",
        "address of a collector: grpc://HOST[:PORT] or grpcs://HOST[:PORT] (TLS); default: none, or as the "
        "configuration file says",
    ),
    # the training process
    Setting("strict", False, "bad arguments of log() raise instead of being counted"),
    Setting("quiet", False, "no lines on the terminal at start and finish"),
    Setting("shm_dir", "", "folder instead of /dev/shm for lanes"),
    Setting(
        "lanes", 4, "rings of a process, 1 to 8: how many threads and handlers may be inside log() at once"
    ),
    # about 30 s at 1,000 records/s of 10 values; a restarted worker needs 1 s of it at 20,000
    Setting("lanes_bytes", 4 << 20, "shared memory of a process, at most, in bytes"),
    Setting(
        "media_bytes",
        32 << 20,
        "shared memory of a process for images and other media values, at most, in bytes; made with the first one",
    ),
    Setting("flush_timeout_s", 5.0, "seconds that flush() waits at most"),
    Setting("finish_timeout_s", 10.0, "seconds that finish() and the exit hook wait at most"),
    Setting("start_timeout_s", 2.0, "seconds that init() waits at most for the run folder to answer"),
    Setting(
        "ptrace",
        "agent",
        "agent or any (process of this user): which may read this process's stacks where kernel.yama.ptrace_scope is 1",
    ),
    Setting("trace", "", "packages, separated by commas, whose last calls are kept; see `run.trace`"),
    Setting(
        "python",
        "",
        "absolute path of a Python with this version of logclient, which runs the agent; default: the one that runs "
        "the program",
    ),
    Setting(
        "folder_errors", "fallback", "fallback or raise: what init() does when the run folder is unusable"
    ),
    Setting(
        "stop_file",
        "",
        "path of a file that asks for a stop when it appears: its first line is the reason, its owner is who asked",
    ),
    Setting(
        "remote_stop",
        "on",
        "on or off: are requests to stop or to save followed that come from a collector",
    ),
    Setting(
        "console", "off", "off or tee: does the run store what its owner writes to sys.stdout and sys.stderr"
    ),
    Setting(
        "console_bytes",
        1 << 20,
        "shared memory for what is captured of the output, from 65536 bytes on; the oldest is overwritten, counted",
    ),
    # the agent
    Setting(
        "console_disk_bytes",
        64 << 20,
        "disk of what is captured of a process's output, in bytes; beyond it 4096 bytes a second are stored",
    ),
    Setting(
        "poll_s",
        0.05,
        "half the seconds between two looks at the lanes while records come; at rest up to 2 s",
    ),
    Setting(
        "sync_s",
        0.8,
        "seconds after which what was logged is written and fsynced, at most; in jobs and containers 0.4 at most",
    ),
    Setting(
        "network_sync_s",
        5.0,
        "seconds after which what was logged is written and fsynced where the run folder is on a network file system",
    ),
    Setting("seal_s", 60.0, "age in seconds at which an open segment is sealed"),
    Setting("segment_bytes", 4 << 20, "size at which an open segment is sealed"),
    Setting(
        "spill_bytes", 64 << 20, "shared memory for segments that the disk does not take, at most, in bytes"
    ),
    Setting(
        "spool_dir",
        "",
        "folder (absolute) on a local disk for what a network folder does not take; default: TMPDIR, /var/tmp, /tmp",
    ),
    Setting(
        "spool_bytes",
        4 << 30,
        "local disk of a run on a node, at most, for what a network folder does not take, in bytes; 0: none",
    ),
    Setting(
        "disk_bytes", 16 << 30, "disk of a run on a node, at most; the oldest segments go first, counted"
    ),
    Setting(
        "media_disk_bytes",
        8 << 30,
        "disk of a run on a node for images and other media values, at most; the oldest go first, counted",
    ),
    Setting("stall_s", 5.0, "seconds without progress after which a worker is restarted"),
    Setting("restart_limit", 8, "worker deaths without progress after which the agent stops trying"),
    Setting(
        "leave_s",
        60.0,
        "in a scheduler step or container: seconds without progress after which an agent that no process needs leaves",
    ),
    Setting(
        "ship_leave_s",
        300.0,
        "seconds without anything acked by the collector after which an agent that no process needs leaves",
    ),
    Setting(
        "ship_rest_s",
        30.0,
        "seconds without a record after which the connection to the collector is closed until it is needed",
    ),
    Setting(
        "keep_bytes",
        1 << 30,
        "disk of a run on a node for what the collector has too, at most; beyond it the oldest of that goes first",
    ),
    Setting("linger_s", 10.0, "seconds that the agent waits for the cause of a process's end"),
    # the agent's observer: see "My training hangs"
    Setting("observe", "on", "on or off: does the agent watch whether the run gets on"),
    Setting(
        "system",
        "10",
        "seconds between two samples of CPU, memory, disk, network and GPUs, at least 1; or off",
    ),
    Setting(
        "capture",
        "on",
        "what the agent records of the program's environment: on, off, or with more than on, diff and env: `diff,env`",
    ),
    Setting("observe_s", 2.0, "seconds between two looks at the last steps of the run"),
    Setting("late_after_s", 10.0, "seconds without a record before which no rank is late"),
    Setting(
        "late_factor", 5.0, "times the longest of a rank's last gaps between records after which it is late"
    ),
    Setting(
        "stall_samples_s",
        5.0,
        "seconds between two of the three samples at least that must show no progress before a run is stalled",
    ),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_KINDS = {str: "a text", bool: "1, true, yes, 0, false or no", int: "a whole number", float: "a number"}
_CHOICES = {
    "resume": ("allow", "never", "must"),
    "mode": ("online", "offline", "disabled"),
    "folder_errors": ("fallback", "raise"),
    "remote_stop": ("on", "off"),
    "ptrace": ("agent", "any"),
    "observe": ("on", "off"),
    "console": ("off", "tee"),
}


# what cannot be cut: an id would be another one, and no path or address is longer
_MAX_BYTES = {
    "run_id": 512,
    "dir": 4095,
    "shm_dir": 4095,
    "spool_dir": 4095,
    "stop_file": 4095,
    "server": 1024,
}


class Config:
    """All settings of one run; attribute per `Setting`, never changed after it was made."""

    __slots__ = ("_values",)

    if TYPE_CHECKING:  # the names of SETTINGS: a test compares them
        _values: dict[str, Any]
        project: str
        name: str
        run_id: str
        group: str
        resume: str
        rank: int
        mode: str
        dir: str
        server: str
        strict: bool
        quiet: bool
        shm_dir: str
        lanes: int
        lanes_bytes: int
        media_bytes: int
        flush_timeout_s: float
        finish_timeout_s: float
        start_timeout_s: float
        ptrace: str
        trace: str
        python: str
        folder_errors: str
        stop_file: str
        remote_stop: str
        console: str
        console_bytes: int
        console_disk_bytes: int
        poll_s: float
        sync_s: float
        network_sync_s: float
        seal_s: float
        segment_bytes: int
        spill_bytes: int
        spool_dir: str
        spool_bytes: int
        disk_bytes: int
        media_disk_bytes: int
        stall_s: float
        restart_limit: int
        leave_s: float
        ship_leave_s: float
        ship_rest_s: float
        keep_bytes: int
        linger_s: float
        observe: str
        system: str
        capture: str
        observe_s: float
        late_after_s: float
        late_factor: float
        stall_samples_s: float

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """Raises `BadArgument` for an unknown name, a wrong type or a value out of range."""
        checked = {setting.name: setting.default for setting in SETTINGS}
        for name, value in (values or {}).items():
            checked[name] = _check(name, value)
        object.__setattr__(self, "_values", checked)

    if not TYPE_CHECKING:  # there a misspelt name is an error

        def __getattr__(self, name: str) -> Any:
            try:
                return self._values[name]
            except KeyError:
                raise AttributeError(name) from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"settings are frozen; pass {name}= to init()")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._values.items())

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Any]]]:
        return Config, (dict(self._values),)

    @classmethod
    def from_env(cls, **given: Any) -> Config:
        """Settings from LOGCLIENT_* variables; what is `given` and not None wins."""
        values: dict[str, Any] = {}
        for setting in SETTINGS:
            text = os.environ.get(setting.variable)
            if text is not None and text != "":
                values[setting.name] = _parse(setting, text)
        values.update((name, value) for name, value in given.items() if value is not None)
        return cls(values)


def _parse(setting: Setting, text: str) -> Any:
    try:
        if setting.kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
                text.lower()
            ]
        return setting.kind(text)
    except (ValueError, KeyError):
        raise BadArgument(f"{setting.variable}={text!r}: expected {_KINDS[setting.kind]}") from None


_PARAMETERS = "project, name, id, config, group, tags, notes, resume, mode, dir, server, alerts"  # of `init`


def _check(name: str, value: Any) -> Any:
    setting = _BY_NAME.get(name)
    if setting is None:
        settings = ", ".join(sorted(_BY_NAME.keys() - {*_PARAMETERS.split(", "), "run_id"}))
        raise BadArgument(f"no setting is called {name!r}; there are: {_PARAMETERS}; and {settings}")
    if setting.kind is float and type(value) is int:
        value = float(value)
    if setting.kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if type(value) is not setting.kind:
        raise BadArgument(f"{name}={value!r}: expected {_KINDS[setting.kind]}, got {type(value).__name__}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise BadArgument(f"{name}={value!r}: expected one of {', '.join(_CHOICES[name])}")
    most = _MAX_BYTES.get(name)
    if most is not None and len(value.encode("utf-8", "surrogatepass")) > most:
        raise BadArgument(
            f"{name}={value[:40]!r}...: {len(value):,} characters, and at most {most:,} bytes are taken"
        )
    if name == "server" and value:
        _check_server(value)
    if name == "system":
        _check_system(value)
    if name == "capture" and capture_of(value) is None:
        raise BadArgument(f"capture={value!r}: expected on, off, diff, env, or diff,env")
    if name == "run_id" and not _is_id(value):
        raise BadArgument(
            f"run_id={value!r}: control characters and halves of surrogate pairs are in no id; choose another one"
        )
    least = -1 if name == "rank" else 0
    if setting.kind in (int, float) and not least <= value < 1 << (30 if name == "rank" else 60):
        raise BadArgument(f"{name}={value!r}: expected a number from 0 on that is not infinite")
    if name == "lanes" and not 1 <= value <= 8:
        raise BadArgument(f"lanes={value}: expected 1 to 8")
    return value


def _is_id(text: str) -> bool:
    """Can a collector take it? By the rule of `collector/limits.py`."""
    return not any(ord(char) < 32 or 127 <= ord(char) < 160 or 0xD800 <= ord(char) < 0xE000 for char in text)


def system_s(text: str) -> float:
    """Return the seconds between two samples of the host that this setting asks for; 0 for none, 10 for no sense."""
    try:
        return 0.0 if text == "off" else min(86400.0, max(1.0, float(text)))
    except ValueError:
        return 10.0


def capture_of(text: str) -> frozenset[str] | None:
    """Return what this setting asks for, of on, diff and env; empty: off. None where it makes no sense."""
    words = frozenset(each.strip() for each in text.split(","))
    if words == {"off"}:
        return frozenset()
    return words | {"on"} if words <= {"on", "diff", "env"} else None


def _check_system(text: str) -> None:
    try:
        is_good = text == "off" or 1 <= float(text) <= 86400
    except ValueError:
        is_good = False
    if not is_good:
        raise BadArgument(f"system={text!r}: expected off, or seconds from 1 to 86400")


def _check_server(address: str) -> None:
    """Only what is wrong at first sight: the agent, which finds and asks the server, knows the rest."""
    scheme, found, authority = address.strip().rpartition("://")
    host, _, port = (
        authority.rstrip("/").rpartition(":")
        if authority.rfind(":") > authority.rfind("]")
        else (authority, "", "")
    )
    if "@" in address:  # not shown: what is before it may be a password
        raise BadArgument(
            "server: no user or password in the address, or others could read it; put the token into LOGCLIENT_TOKEN"
        )
    is_port = not port or (port.isdecimal() and port.isascii() and 0 < int(port) < 1 << 16)
    is_host = host.strip("[]/") and not any(c.isspace() or c in "/?#" for c in host.rstrip("/"))
    if (found and scheme.lower() not in ("grpc", "grpcs")) or not is_host or not is_port:
        raise BadArgument(f"server={address!r}: expected grpc://HOST:PORT, or grpcs://HOST:PORT with TLS")


# handed to children so that they find the run of their parent; not a setting
_PARENT = "LOGCLIENT_PARENT"
# handed to children so that none of them takes itself for the rank that one of its ancestors is; not a setting
_RANK_TAKEN = "LOGCLIENT_RANK_TAKEN"


def parent_shm_dir() -> str | None:
    """The run that a parent process handed on, if any: `<owner's PID>-<its start>-<PID namespace>:<shm directory>`."""
    return os.environ.get(_PARENT) or None


def hand_on(handle: str | None) -> None:
    """Let child processes started from now on find this run (None: no longer)."""
    if handle is None:
        os.environ.pop(_PARENT, None)
    else:
        os.environ[_PARENT] = handle


def environment() -> Mapping[str, str]:
    """All variables as they are now, for `launchers.py` and `lifetime.py`; to be read only."""
    return os.environ


def take_rank(launch: str) -> bool:
    """Be the rank of this launch that the variables tell of; False where an ancestor is that already."""
    holder = os.environ.get(_RANK_TAKEN, "").partition(":")
    if holder[0] == launch and holder[2] != str(os.getpid()):
        return False
    os.environ[_RANK_TAKEN] = f"{launch}:{os.getpid()}"
    return True


# names one call of `logclient.launch` for its ranks; not a setting
_LAUNCH = "LOGCLIENT_LAUNCH"


def rank_environments(launch: str, size: int, free_port: Callable[[], int]) -> list[dict[str, str]]:
    """The variables of each rank of a launch on this machine: as they are here now, and who it is."""
    shared = {**os.environ, _LAUNCH: launch, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    shared.pop("LOGCLIENT_RANK", None)  # that of this process
    # what is set in a rank of another launch is the port of that one
    if "MASTER_PORT" not in shared or _LAUNCH in os.environ:
        shared["MASTER_PORT"] = str(free_port())
    shared.setdefault("MASTER_ADDR", "127.0.0.1")
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def become_rank(variables: Mapping[str, str]) -> None:
    """In a new rank: these variables and no others. What a fork server started with may be long out of date."""
    for name in set(os.environ).difference(variables):
        del os.environ[name]
    os.environ.update(variables)


def fail_points() -> str:
    """Crash points armed by a test; see logclient_backend/failpoint.py."""
    return os.environ.get("LOGCLIENT_FAILPOINTS", "")


def server_variable() -> str:
    """The collector that the environment names; empty: none."""
    return os.environ.get("LOGCLIENT_SERVER", "").strip()


def token_variable() -> str:
    """The token for it. No setting: settings are written into the shm directory, and shown."""
    return os.environ.get("LOGCLIENT_TOKEN", "")


def silence_grpc() -> None:
    """In a process of ours: grpc writes no lines of its own to standard error, unless somebody wants them."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def config_file() -> str | None:
    """Return the path of this user's file with server and token; see logclient_backend/wire/credentials.py."""
    base = _users_base("XDG_CONFIG_HOME", ".config")
    return base and os.path.join(base, "logclient", "config.toml")


def alerts_file() -> str | None:
    """Return the path of the file that says where alerts go; see logclient_backend/alerts/targets.py."""
    base = _users_base("XDG_CONFIG_HOME", ".config")
    return os.environ.get("LOGCLIENT_ALERTS") or (base and os.path.join(base, "logclient", "alerts.toml"))


def home_folder() -> str | None:
    """Return the folder for data of this user that is used when the run folder cannot be."""
    base = _users_base("XDG_DATA_HOME", ".local", "share")
    return base and os.path.join(base, "logclient-runs")


def _users_base(variable: str, *below_home: str) -> str | None:
    """Return the folder that the variable names, else that folder of the user's home; None for a user without one."""
    base = os.environ.get(variable, "")
    if os.path.isabs(base):
        return base
    home = os.path.expanduser("~") if os.environ.get("HOME") != "" else ""  # set to nothing it would mean "/"
    return os.path.join(home, *below_home) if os.path.isabs(home) else None


def temporary_folders() -> list[str]:
    """Return folders that may hold large files for a while."""
    return [os.environ.get("TMPDIR", ""), "/var/tmp", "/tmp"]


# in the environment of an agent and of all that it starts: no run begins there; not a setting
_AGENT = "LOGCLIENT_AGENT"
# what the trainer's interpreter, its tracers and debuggers, or its frozen form go by
_NOT_FOR_AGENT = (
    *(
        "PYTHON",
        "COVERAGE_",
        "COV_CORE_",
        "PYDEVD_",
        "DEBUGPY_",
        "PYCHARM_",
        "SCALENE_",
        "VIZTRACER_",
        "AUSTIN_",
    ),
    *("MEMRAY_", "LD_AUDIT", "LD_PRELOAD", "_PYI_", "_MEIPASS2", _PARENT, _RANK_TAKEN, _AGENT),
)
# where this interpreter and the user's own packages are found, and what is written to disk beside modules
_FOR_AGENT = (
    *("PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE", "PYTHONUTF8"),
    *("PYTHONCOERCECLOCALE", "PYTHONHASHSEED"),
)
# By default glibc returns memory after each look at the lanes and asks for it again at the next one, so that its pages
# have to be made again: a twentieth of the agent's CPU. Up to these limits, in bytes, it keeps what was freed.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "4194304", "MALLOC_MMAP_THRESHOLD_": "4194304"}
_OF_THIS_PYTHON = ("PYTHONHOME", "PYTHONPLATLIBDIR")


def agent_environment(folders: list[str], *, is_same: bool, is_frozen: bool = False) -> dict[str, str]:
    """The agent's environment. `folders` come before the standard library on its path.

    `is_same`: it runs the interpreter that runs here. `is_frozen`: this program is frozen, and its libraries are not
    for others.
    """
    kept = (*_FOR_AGENT, *_OF_THIS_PYTHON) if is_same else _FOR_AGENT
    made = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(_NOT_FOR_AGENT)
    }
    if is_frozen:
        made["PYINSTALLER_RESET_ENVIRONMENT"] = "1"
        before = made.pop("LD_LIBRARY_PATH_ORIG", None)
        made.pop("LD_LIBRARY_PATH", None)  # it leads into the program
        if before is not None:
            made["LD_LIBRARY_PATH"] = before
    if folders:
        made["PYTHONPATH"] = os.pathsep.join(folders)
    return {**_MALLOC, **made, _AGENT: "1"}


def variables_of_program() -> dict[str, str]:
    """In an agent: the variables of the program that started it, as they were then, but for those kept from agents."""
    ours = (*_MALLOC, _AGENT, "PYTHONPATH", "PYINSTALLER_RESET_ENVIRONMENT")
    return {name: value for name, value in os.environ.items() if name not in ours}


def is_agent() -> bool:
    """Was this process started as an agent, or by one?"""
    return bool(os.environ.get(_AGENT))


def python_variable() -> str:
    """The Python that may run the agent, where the environment names one."""
    return os.environ.get("LOGCLIENT_PYTHON", "")


def path_folders() -> list[str]:
    """The absolute folders in which this user's commands are found."""
    return [path for path in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(path)]


def frozen_program() -> str:
    """The file that a one-file program of Nuitka's was started from; empty elsewhere."""
    return os.environ.get("NUITKA_ONEFILE_BINARY", "")
