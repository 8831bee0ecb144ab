"""Ancestors of this process, as /proc shows them.

Runs in the training process, in `init` and when a child looks for its parent's run. Reads /proc only; what cannot be
read (another PID namespace, another user, no /proc) ends the walk.
"""

from __future__ import annotations

from ..shm.proc import STAT_PARENT, STAT_START, pid_of, stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MOST = 200  # a chain longer than that is no chain


def ancestors() -> Iterator[tuple[int, int]]:
    """(PID, start in clock ticks since boot) of the parent, its parent, and so on."""
    return (who for _, who in _line())


def _line() -> Iterator[tuple[str, tuple[int, int]]]:
    """Return the ancestors, each with its entry in /proc."""
    fields = stat_of("self")
    for _ in range(_MOST):
        entry = fields[STAT_PARENT].decode() if fields else ""
        fields = stat_of(entry)
        pid = pid_of(entry) if fields else 0
        if not pid:
            return
        yield entry, (pid, int(fields[STAT_START]))


def has_ancestor(pid: int, ticks: int) -> bool:
    return (pid, ticks) in ancestors()


def launcher(env: Mapping[str, str], *variables: str) -> str:
    """The nearest ancestor that was started with other values of these, named so that no other process ever is.

    Who sets them for those whom it starts has others itself, or none; wrappers in between hand them on.
    """
    ours = _chosen(
        (f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in env.items()), variables
    )
    found = (0, 0)
    for entry, found in _line():  # noqa: B007 - the last one is asked for
        try:
            with open(f"/proc/{entry}/environ", "rb", buffering=0) as file:
                theirs = file.readall().split(b"\0")
        except OSError:
            break
        if _chosen(theirs, variables) != ours:
            break
    return _named(found)


def parent() -> str:
    """The parent, named in the same way."""
    return _named(next(ancestors(), (0, 0)))


def _named(who: tuple[int, int]) -> str:
    return f"{boot()}-{who[0]}-{who[1]}"


def _chosen(entries: Iterable[bytes], variables: tuple[str, ...]) -> set[bytes]:
    prefixes = tuple(f"{name}=".encode() for name in variables)
    return {entry for entry in entries if entry.startswith(prefixes)}


def boot() -> str:
    """This boot of this machine; empty where it cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def command() -> bytes:
    """The words that this process was started with."""
    try:
        with open("/proc/self/cmdline", "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""
