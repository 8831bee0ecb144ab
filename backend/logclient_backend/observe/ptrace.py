"""Why another process's memory may not be read, and what to set so that it may."""

from __future__ import annotations

import os

from logclient.shm import proc

YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_SYS_PTRACE = 19  # bit of the capability
_WITH_RIGHT = "run as root; in a container, start that with `--cap-add SYS_PTRACE`"


def why_refused(pid: int, *, yama: str = YAMA) -> str:
    """Return why this process may not read the stack of that one, and what to do, as a clause."""
    ours, theirs = _status("self"), _status(proc.entry_of(pid))
    is_root = _has_capability(ours)  # root in a container often has it not
    scope = _scope(yama)
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the next boot"
    if not is_root and theirs.get("Uid", ours.get("Uid")) != ours.get("Uid"):
        return "it is another user's process: run this command as that user, or as root"
    if not is_root and scope in (1, 2):
        allow = "set it to 0 (`sysctl kernel.yama.ptrace_scope=0` on the host), or " if scope == 1 else ""
        hint = ", or start the program with LOGCLIENT_PTRACE=any" if scope == 1 else ""
        return f"kernel.yama.ptrace_scope is {scope}: {allow}{_WITH_RIGHT}{hint}"
    if not is_root:
        return f"ptrace is not permitted here: {_WITH_RIGHT}"
    return "ptrace is not permitted here, not even to root: a security module, or the process's own user namespace"


def _has_capability(status: dict[str, list[str]]) -> bool:
    words = status.get("CapEff", ["0"])
    return bool(int(words[0], 16) >> _SYS_PTRACE & 1)


def _scope(path: str) -> int:
    """Return the value of Yama's setting; 0 where the kernel has no Yama."""
    try:
        with open(path, "rb", buffering=0) as file:
            return int(file.read(16))
    except (OSError, ValueError):
        return 0


def _status(entry: str) -> dict[str, list[str]]:
    """Return the lines of /proc/ENTRY/status; empty where it cannot be read."""
    try:
        fd = os.open(f"/proc/{entry}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        text = os.read(fd, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return {}
    finally:
        os.close(fd)
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in text.splitlines())}
