"""Does this process live in a place that ends with the trainer, and the agent with it?

Runs in the training process at `init`, and in the agent and the command line, which ask for the place that they are
in themselves. Reads the environment, /proc, and whether two files are there; starts nothing and waits for nothing.

Invariant: where it cannot be told, the place counts as one that stays: the agent then does all that it can.
"""

from __future__ import annotations

import os

from .. import config
from ..shm import proc

# of the kernel's first namespaces: include/linux/proc_ns.h
_INITIAL = {"cgroup": 0xEFFF_FFFB, "pid": 0xEFFF_FFFC, "uts": 0xEFFF_FFFE, "ipc": 0xEFFF_FFFF}
_JOBS = {
    "SLURM_JOB_ID": "SLURM job",
    "PBS_JOBID": "PBS job",
    "LSB_JOBID": "LSF job",
    "FLUX_JOB_ID": "Flux job",
    "COBALT_JOBID": "Cobalt job",
    "OAR_JOB_ID": "OAR job",
    "_CONDOR_JOB_AD": "HTCondor job",
}
_MARKS = ("/.dockerenv", "/run/.containerenv")  # left by docker and podman in what they start
_CONTAINER_GROUPS = ("docker", "containerd", "libpod", "kubepods", "crio-", "/lxc/")


def why() -> str:
    """In words, which such place it is; empty: none, so the agent outlives the trainer."""
    return _job() or _pod() or _pid_namespace() or _control_group() or _container()


def _job() -> str:
    found = config.environment()
    job = next((variable for variable in _JOBS if found.get(variable)), None)
    if job is not None:
        step = found.get("SLURM_STEP_ID") if job == "SLURM_JOB_ID" else None
        return f"{_JOBS[job]} {found[job]}" + (f", step {step}" if step else "")
    if found.get("JOB_ID") and found.get("SGE_TASK_ID"):
        return f"Grid Engine job {found['JOB_ID']}"
    return ""


def _pod() -> str:
    return "a Kubernetes pod" if config.environment().get("KUBERNETES_SERVICE_HOST") else ""


def _pid_namespace() -> str:
    if not _is_own("pid"):
        return ""
    if os.getpid() == 1:
        return "a PID namespace in which it is PID 1"
    first = proc.name_of(proc.entry_of(1))
    return f"a PID namespace with {first} as PID 1" if first else "a PID namespace of its own"


def _control_group() -> str:
    text = _read("/proc/self/cgroup")
    if any(name in text for name in _CONTAINER_GROUPS):
        return "a container's control group"
    if "slurm" in text and "job_" in text:
        return "a SLURM job's control group"
    for line in text.splitlines():
        kind, _, path = line.partition(":")[2].partition(":")
        unit = path.rpartition("/")[2]
        if kind in ("", "name=systemd") and unit.endswith(".service") and not unit.startswith("user@"):
            return f"the systemd service {unit}"
    return ""


def _container() -> str:
    """The files alone say little: a virtual machine may have been made of a container's image."""
    return "a container" if any(map(_is_own, _INITIAL)) and any(map(os.path.exists, _MARKS)) else ""


def _is_own(kind: str) -> bool:
    """Is it another namespace than the kernel's first?"""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino != _INITIAL[kind]
    except OSError:
        return False


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
