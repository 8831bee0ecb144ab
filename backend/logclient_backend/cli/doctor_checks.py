"""The single checks of `logclient doctor`.

Each returns findings; none raises, waits without a limit, or changes anything but a probe file.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from logclient.config import Config
from logclient.shm.owner import ForkMark, PidMark
from logclient.shm.proc import entry_of, name_of, pid_namespace, start_ticks
from logclient.shm.shm_dir import LANES_FLOOR, SHARE, shm_roots
from logclient.spawn import lifetime

from ..agent.host.process_handle import Watch
from ..agent.output.mounts import is_network, mount_of
from ..runs import live
from .text import duration, plural, size

PROBE_S = 3.0  # what does not answer by then would stall a writer too
SLOW_S = 0.2
_RECORD_BYTES = 128  # a record of ten floats in a lane
_FRAME_RATE = 1000
_USUAL_INITS = ("systemd", "init", "launchd", "openrc-init", "runit", "s6-svscan")
_MEMORY = ("tmpfs", "ramfs", "devtmpfs")

Check = Callable[[], list["Finding"]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `level`: ok, note (worth knowing), do (something needs doing)."""

    subject: str
    level: str
    text: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def all_checks(dir: str) -> list[Check]:
    """In the order in which they are shown."""
    return [
        shared_memory,
        left_behind,
        partial(file_system, dir),
        partial(disk_speed, dir),
        agent_starts,
        agent_outlives,
        observing,
        exit_information,
        fork_mark,
        versions,
    ]


# ---- memory -----------------------------------------------------------------------------------------------


def shared_memory() -> list[Finding]:
    """The mount that lanes would be on, and what a run would get of it."""
    subject = "shared memory"
    config = Config.from_env()
    root = next((path for path in shm_roots(config) if os.access(path, os.W_OK | os.X_OK)), None)
    if root is None:
        tried = ", ".join(shm_roots(config))
        return [
            Finding(
                subject,
                "do",
                f"none of {tried} can be written",
                "mount a tmpfs, and set LOGCLIENT_SHM_DIR to it",
            )
        ]
    kind = mount_of(root)[1]
    found = os.statvfs(root)
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    budget = free // SHARE
    lanes = max(LANES_FLOOR, min(config.lanes_bytes, budget // 4))
    spill = min(config.spill_bytes, budget // 2)
    what = f"{root}: {kind}, {size(free)} free of {size(total)}"
    gets = (
        f"a run may take {size(budget)} (1/{SHARE} of what is free): {size(lanes)} of lanes a process, about "
        f"{duration(lanes * 3 / 4 / _RECORD_BYTES / _FRAME_RATE)} of {_FRAME_RATE:,} records/s of 10 values, and "
        f"{size(spill)} while a disk hangs"
    )
    if budget < LANES_FLOOR:
        advice = "make room, or give the container more: docker run --shm-size=1g, or an emptyDir with medium: Memory"
        return [Finding(subject, "do", f"{what}: too little, nothing would be logged", advice)]
    findings = []
    if kind not in _MEMORY:
        advice = "mount a tmpfs on /dev/shm; on a disk, a disk that hangs can stall log()"
        findings.append(Finding(subject, "do", f"{what}: this is no memory", advice))
    elif lanes < config.lanes_bytes or spill < config.spill_bytes:
        advice = (
            "for longer outages give it more: docker run --shm-size=1g, or an emptyDir with medium: Memory"
        )
        findings.append(Finding(subject, "do", f"{what}: a run gets less than its settings ask for", advice))
    else:
        findings.append(Finding(subject, "ok", what))
    if root != "/dev/shm" and not config.shm_dir:
        findings.append(Finding(subject, "note", f"/dev/shm cannot be written: {root} is taken instead"))
    findings.append(Finding(subject, "note", gets))
    return findings


def left_behind() -> list[Finding]:
    """Runs that wait in shared memory for somebody."""
    subject = "live runs"
    told = [(live_dir, live_dir.agent()["state"], live_dir.dir) for live_dir in live.scan()]
    told = [each for each in told if each[0].is_there]  # what an agent leaves meanwhile is stored
    live_dirs = [live_dir for live_dir, _, _ in told]
    alone = [live_dir for live_dir, state, _ in told if state in ("gone", "gave up")]
    homeless = [live_dir for live_dir, _, dir in told if not dir]
    findings = []
    if alone:
        text = f"{plural(len(alone), 'run')} in shared memory without an agent: {_names(alone)}"
        findings.append(Finding(subject, "do", text, "logclient recover"))
    if homeless:
        text = f"{plural(len(homeless), 'run')} in shared memory only, lost with a reboot: {_names(homeless)}"
        findings.append(Finding(subject, "do", text, "logclient recover --dir FOLDER"))
    if not findings:
        text = (
            f"{plural(len(live_dirs), 'live run')}, each with an agent" if live_dirs else "none on this host"
        )
        findings.append(Finding(subject, "ok", text))
    return findings


def _names(live_dirs: list[live.LiveShmDir]) -> str:
    names = [live_dir.name for live_dir in live_dirs[:5]]
    return ", ".join(names) + (f" and {len(live_dirs) - 5} more" if len(live_dirs) > 5 else "")


# ---- disk -------------------------------------------------------------------------------------------------


def file_system(dir: str) -> list[Finding]:
    """Check where runs would be stored, and whether that outlives the job."""
    subject = "run folder"
    point, kind, source = mount_of(dir)
    where = f"{dir}: {kind}, mounted on {point}"
    if is_network(kind):
        text = f"{where}: a network file system, or one that may behave like it"
        text += f"; what is logged is copied there every {Config.from_env().network_sync_s:g} s"
        advice = (
            "it may hang for minutes; logging goes on, as long as the spill has room (LOGCLIENT_SPILL_BYTES)"
        )
        return [Finding(subject, "note", text, advice)]
    if kind in _MEMORY:
        return [
            Finding(
                subject,
                "do",
                f"{where}: gone with the next reboot",
                "choose a disk: --dir, LOGCLIENT_DIR or init(dir=...)",
            )
        ]
    if dir.startswith(("/tmp/", "/var/tmp/")):
        return [
            Finding(
                subject,
                "do",
                f"{where}: temporary folders are cleared",
                "choose another: LOGCLIENT_DIR or init(dir=...)",
            )
        ]
    if kind == "overlay":
        text = f"{where}: the container's own layer, gone with it"
        return [Finding(subject, "do", text, "mount a volume, and point LOGCLIENT_DIR at a folder on it")]
    return [Finding(subject, "ok", f"{where} ({source})")]


_PROBE = """
import json, os, sys, time
dir = sys.argv[1]
while not os.path.isdir(dir) and dir != "/":
    dir = os.path.dirname(dir)
path = os.path.join(dir, f".logclient-probe-{os.urandom(6).hex()}")
started = time.monotonic()
try:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        times = []
        for _ in range(5):
            at = time.monotonic()
            os.write(fd, bytes(16384))
            os.fsync(fd)
            times.append(time.monotonic() - at)
    finally:
        os.close(fd)
        os.unlink(path)
    free = os.statvfs(dir)
    print(json.dumps({"dir": dir, "times": times, "free": free.f_bavail * free.f_frsize}))
except OSError as error:
    print(json.dumps({"dir": dir, "error": error.strerror}))
"""


def disk_speed(dir: str) -> list[Finding]:
    """Write and fsync, in a process that is left behind if it hangs."""
    subject = "disk"
    child = subprocess.Popen(
        [sys.executable, "-I", "-c", _PROBE, dir],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        out, _ = child.communicate(timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        child.kill()  # in state D it stays until the disk answers; nobody waits for it
        advice = "find out why before a long run; what is logged meanwhile waits in shared memory"
        return [Finding(subject, "do", f"{dir} did not answer within {PROBE_S:g} s", advice)]
    try:
        found = json.loads(out)
    except ValueError:
        return [
            Finding(subject, "do", "the probe of the run folder failed", "try to write a file there by hand")
        ]
    if "error" in found:
        advice = "make it writable, or choose another: LOGCLIENT_DIR or init(dir=...); else runs go to your home folder"
        return [Finding(subject, "do", f"{found['dir']} cannot be written: {found['error']}", advice)]
    slowest, middle = max(found["times"]), sorted(found["times"])[2]
    text = f"write and fsync of 16 KiB in {found['dir']}: {_ms(middle)}, slowest {_ms(slowest)}"
    text += f"; {size(found['free'])} free"
    if found["free"] < 1 << 30:
        return [Finding(subject, "do", text, "less than 1 GiB is left: make room")]
    if slowest > SLOW_S:
        return [
            Finding(
                subject,
                "note",
                text,
                "slow, which costs training nothing: it only delays when records are durable",
            )
        ]
    return [Finding(subject, "ok", text)]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


# ---- the agent --------------------------------------------------------------------------------------------


def agent_starts() -> list[Finding]:
    """Does this interpreter run the agent's module at all? Without a shm directory it leaves with code 2."""
    subject = "agent"
    if not sys.executable:
        advice = "start Python by its path: the agent is started with the same interpreter"
        return [Finding(subject, "do", "sys.executable is empty: no agent can be started", advice)]
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "logclient_backend", "agent"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [
            Finding(
                subject,
                "do",
                f"{sys.executable} does not start the agent: {error}",
                "install logclient in it",
            )
        ]
    if done.returncode != 2:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        text = f"{sys.executable} does not start the agent: {''.join(last) or f'it ended with {done.returncode}'}"
        return [
            Finding(
                subject, "do", text, "install logclient, with all it needs, in this interpreter's environment"
            )
        ]
    return [Finding(subject, "ok", f"starts with {sys.executable} in {_ms(time.monotonic() - started)}")]


def agent_outlives() -> list[Finding]:
    """May the agent finish its work after the trainer is gone?"""
    subject = "agent's life"
    confinement = lifetime.why()
    if confinement:
        advice = (
            "where its processes end with the trainer, so does the agent: all but the last 0.5 s are in the run folder "
            "then, if its disk answers; finish() and the exit hook wait until all is"
        )
        return [Finding(subject, "note", f"this is {confinement}", advice)]
    first = name_of(entry_of(1))
    if first and first not in _USUAL_INITS:
        text = (
            f"PID 1 is {first!r}, no usual init: a small machine, or a container that shares its host's PIDs"
        )
        advice = "the agent outlives its trainer as long as this machine's PID 1 lives"
        return [Finding(subject, "note", text, advice)]
    text = "no container, scheduler step, service or PID namespace is seen: the agent outlives its trainer"
    return [Finding(subject, "ok", text)]


def _status_field(name: str) -> str:
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return ""


# ---- what can be seen of other processes --------------------------------------------------------------------


def observing() -> list[Finding]:
    """May stacks of a hanging trainer be taken?"""
    subject = "observing"
    findings = []
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    privileged = bool(int(_status_field("CapEff") or "0", 16) >> 19 & 1)
    if scope == 0 or privileged:
        why = (
            "CAP_SYS_PTRACE" if privileged and scope else "processes of the same user may look at each other"
        )
        findings.append(Finding(subject, "ok", f"stacks of a hanging trainer can be taken ({why})"))
    elif scope == 1:
        text = "kernel.yama.ptrace_scope is 1: only a parent may look at its child"
        findings.append(
            Finding(subject, "note", text, "stacks by hand: sudo py-spy dump --nonblocking --pid PID")
        )
    else:
        text = f"kernel.yama.ptrace_scope is {scope}: stacks of a hanging trainer cannot be taken"
        findings.append(
            Finding(subject, "note", text, "an administrator can set kernel.yama.ptrace_scope to 1 or 0")
        )
    path = shutil.which("py-spy")
    if path:
        findings.append(Finding(subject, "ok", f"py-spy is {path}"))
    else:
        findings.append(
            Finding(
                subject,
                "note",
                "py-spy is not installed",
                "pip install py-spy, to see where a hanging trainer is",
            )
        )
    return findings


def exit_information() -> list[Finding]:
    """Is the exit code of a process that somebody else reaped still to be had? Tried on a child."""
    subject = "exit codes"
    child = os.fork()
    if child == 0:
        os._exit(7)
    watch = Watch(child, start_ticks(child))
    os.waitpid(child, 0)
    cause = watch.cause() if watch.is_open else None
    watch.close()
    if cause is not None and cause.exit_code == 7:
        return [Finding(subject, "ok", "the kernel tells how a process ended after it was reaped (pidfd)")]
    text = "the kernel does not tell how a process ended once it was reaped (Linux 6.15 and later do)"
    advice = "a run that dies without an exception may be shown as lost, without exit code or signal"
    return [Finding(subject, "note", text, advice)]


def fork_mark() -> list[Finding]:
    """Check how forked children are noticed."""
    subject = "forks"
    if isinstance(ForkMark().page, PidMark):
        text = "the kernel has no pages that are wiped on fork: each log() asks for its PID, some 50 ns"
        return [Finding(subject, "note", text)]
    return [Finding(subject, "ok", "forked children are noticed without a system call")]


def versions() -> list[Finding]:
    """Return the versions to name in a report."""
    from importlib.metadata import PackageNotFoundError, version

    names = []
    for name in ("logclient", "zstandard"):
        try:
            names.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            names.append(f"{name} (not installed as a package)")
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"{', '.join(names)}, Python {python}, Linux {os.uname().release}, page size {mmap.PAGESIZE}"
    return [Finding("versions", "ok", f"{text}, PID namespace {pid_namespace()}")]
