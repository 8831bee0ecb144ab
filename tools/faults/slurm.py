"""A SLURM of one's own on this machine: one node, a few partitions, gone without a trace afterwards.

    python -m tools.faults.slurm -- sh -c 'srun --overcommit -n2 hostname'

Needs root and the Debian packages slurm-wlm and munge. `config()` is what runs; the partitions:

    low      the default; preempted by `high` at once, and queued again
    grace    preempted by `high` after GRACE_S seconds of grace, and queued again
    cancel   preempted by `high` after GRACE_S seconds of grace, and ended for good
    high     preempts the others

The guard starts munged, slurmctld and slurmd, is the parent of all that their jobs leave behind, and kills that in
the end. Several can run side by side: ports, sockets, folders and job ids are each one's own.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.faults import guard, processes, shell
from tools.faults.fault import Fault

GRACE_S = 2
KILL_WAIT_S = 3  # between SIGTERM and SIGKILL
CPUS = 8  # that jobs may ask for, however many there are
START_S = 45.0
STOP_S = 10.0
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")


def _path() -> str:
    """Where programs are, daemons among them."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def why_not() -> str | None:
    """Why there can be no SLURM here; None where there can."""
    if os.getuid() != 0:
        return "needs root"
    missing = [program for program in _PROGRAMS if shutil.which(program, path=_path()) is None]
    return f"needs SLURM: no {', '.join(missing)} (apt-get install slurm-wlm munge)" if missing else None


def tracker() -> str:
    """How SLURM knows the processes of a step: `cgroup` where the freezer is there for it, else `linuxproc`."""
    freezer = "/sys/fs/cgroup/freezer"
    return "cgroup" if os.path.ismount(freezer) and os.access(freezer, os.W_OK) else "linuxproc"


class Slurm(Fault):
    """`with Slurm() as slurm:` a SLURM that takes jobs; `slurm.env` is what its commands need."""

    kind = "slurm"

    def __init__(self, tracked_by: str | None = None) -> None:
        self.tracked_by = tracked_by or tracker()
        super().__init__(tracked_by=self.tracked_by)

    @property
    def env(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**inherited, "SLURM_CONF": str(self.path / "slurm.conf"), "PATH": _path()}

    def call(self, *words: str, cwd: Path | None = None, timeout_s: float = 60.0) -> str:
        """Run one of its commands; what it says. Raises where it fails."""
        done = subprocess.run(
            words,
            cwd=cwd,
            env=self.env,
            timeout=timeout_s,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def submit(self, *words: str, cwd: Path) -> int:
        """`sbatch` these words; the job's id."""
        return int(self.call("sbatch", "--parsable", *words, cwd=cwd).partition(";")[0])

    def job(self, job: int | str) -> dict[str, str]:
        """What `scontrol` knows of a job, by the names it uses; empty for one that it has forgotten."""
        try:
            line = self.call("scontrol", "show", "job", "-o", str(job)).splitlines()[0]
        except RuntimeError:
            return {}
        return dict(word.split("=", 1) for word in line.split() if "=" in word)

    def wait(self, job: int | str, *states: str, deadline_s: float = 60.0) -> dict[str, str]:
        """Until the job is in one of these states (default: over)."""

        def found() -> dict[str, str]:
            facts = self.job(job)
            return facts if facts.get("JobState", "") in (states or _OVER) else {}

        return processes.wait_until(found, deadline_s, 0.1, f"job {job} {' or '.join(states or _OVER)}")

    def start_now(self, job: int) -> None:
        """A job that was queued again need not wait its two minutes; until it runs."""
        self.wait(job, "PENDING")

        def runs() -> bool:
            facts = self.job(job)
            if facts["JobState"] == "PENDING" and facts["Reason"] == "BeginTime":
                self.call("scontrol", "update", f"JobId={job}", "StartTime=now")
            return facts["JobState"] == "RUNNING"

        processes.wait_until(runs, 60, 0.3, f"job {job} runs again")


class Holder(guard.Holder):
    """The guard's side."""

    def __init__(self, base: Path, tracked_by: str) -> None:
        super().__init__(base)
        self._tracked_by = tracked_by
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._node = f"n{secrets.token_hex(4)}"  # names the folder of its cgroups
        self._env = {**os.environ, "SLURM_CONF": str(base / "slurm.conf"), "PATH": _path()}

    def open(self) -> dict[str, Any]:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.base.chmod(0o755)
        key = self.base / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        for folder in ("state", "spool"):
            (self.base / folder).mkdir(mode=0o755)
        (self.base / "slurm.conf").write_text(config(self.base, self._node, self._tracked_by))
        (self.base / "cgroup.conf").write_text("CgroupAutomount=no\nConstrainCores=no\n")
        own = {name: self.base / f"munge.{name}" for name in ("log", "pid", "seed")}
        files = [f"--{name}-file={path}" for name, path in own.items()]
        self._start(
            "munged", "-F", "--force", "-S", str(self.base / "munge.socket"), f"--key-file={key}", *files
        )
        self._wait(lambda: (self.base / "munge.socket").exists(), "munged listens")
        self._start("slurmctld", "-D", "-c")
        self._start("slurmd", "-D", "-N", self._node)
        self._wait(lambda: b"idle" in self._ask("sinfo", "-h", "-p", "low", "-o", "%t"), "its node is idle")
        return {"path": str(self.base)}

    def tick(self) -> None:
        self._reap()

    def close(self) -> list[str]:
        if len(self._daemons) == len(("munged", "slurmctld", "slurmd")):
            self._ask("scancel", "--user=root", "--signal=KILL", "--full")
            self._ask("scancel", "--user=root")
        deadline = time.monotonic() + STOP_S
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        left = self._kill_what_is_left()
        for folder in Path("/sys/fs/cgroup").glob(f"*/slurm_{self._node}"):
            _remove_cgroups(folder)
        return [*left, *super().close()]

    def _start(self, *words: str) -> None:
        with open(self.base / f"{words[0]}.out", "wb") as out:
            self._daemons.append(
                subprocess.Popen(
                    words,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                    preexec_fn=_become_daemon,
                )
            )

    def _ask(self, *words: str) -> bytes:
        try:
            done = subprocess.run(words, env=self._env, timeout=STOP_S, capture_output=True, check=False)
        except subprocess.TimeoutExpired:
            return b""
        return done.stdout

    def _wait(self, condition: Any, what: str) -> None:
        def found() -> bool:
            for daemon in self._daemons:
                if daemon.poll() is not None:
                    name = Path(daemon.args[0]).name  # type: ignore[index, arg-type]
                    said = (self.base / f"{name}.out").read_text(errors="replace")
                    raise RuntimeError(f"{name} ended with {daemon.returncode}: {said[-2000:]}")
            return bool(condition())

        processes.wait_until(found, START_S, 0.05, what)

    def _reap(self) -> None:
        """Whoever was left to us and has ended, but for the daemons, whose end `Popen` wants to see."""
        ours = {daemon.pid for daemon in self._daemons}
        for pid in processes.children_of(os.getpid()):
            if pid not in ours and processes.state_of(pid) == "Z":
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass  # somebody else's

    def _kill_what_is_left(self) -> list[str]:
        deadline = time.monotonic() + STOP_S
        while left := processes.children_of(os.getpid()):
            if time.monotonic() > deadline:
                return [f"Processes {left} of jobs outlive SIGKILL."]
            for pid in left:
                processes.send(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.02)
        return []


def _become_daemon() -> None:
    """It ends with the guard, and its jobs do not inherit which signals the guard ignores."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def config(base: Path, node: str, tracked_by: str) -> str:
    """The slurm.conf."""
    ports = _free_ports(2)
    return f"""
ClusterName=logclient
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge.socket
CredType=cred/munge
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.log
ProctrackType=proctrack/{tracked_by}
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
PropagateResourceLimits=NONE
KillWait={KILL_WAIT_S}
FirstJobId={secrets.randbelow(30_000_000) + 1000}
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=2000
PartitionName=low Nodes={node} Default=YES PriorityTier=1 PreemptMode=REQUEUE
PartitionName=grace Nodes={node} PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_S}
PartitionName=cancel Nodes={node} PriorityTier=1 PreemptMode=CANCEL GraceTime={GRACE_S}
PartitionName=high Nodes={node} PriorityTier=10 PreemptMode=OFF
"""


def _free_ports(count: int) -> list[int]:
    """Free a moment ago; where somebody else is faster, the daemon ends and says so."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def _remove_cgroups(folder: Path) -> None:
    for inner, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(inner)
        except OSError:
            pass  # a process in it is only just ending: told by its own


def main(arguments: list[str] | None = None) -> int:
    parser = shell.parser("slurm", "Run a command with a SLURM of its own. Needs root.")
    given = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(reason)
    with Slurm() as slurm:
        os.environ.update(slurm.env)
        return shell.run(slurm, given, begin=lambda: None, end=lambda: None)


if __name__ == "__main__":
    sys.exit(main())
