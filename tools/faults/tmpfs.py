"""A small tmpfs of one's own, for LOGCLIENT_SHM_DIR, that can be full.

    python -m tools.faults.tmpfs --size 2 -- command {}          {} is the mount, also $FAULT_DIR
    python -m tools.faults.tmpfs --size 2 --after 1 --seconds 5 -- command {}      full for 5 s

Needs root.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from tools.faults import full, guard, kernel, shell
from tools.faults.cleaning import in_child
from tools.faults.fault import Fault

FILL_S = 30.0


def why_not() -> str | None:
    """Why this fault cannot be made here; None where it can."""
    return kernel.why_no_mounts()


class SmallTmpfs(Fault):
    """`with SmallTmpfs(2) as shm:` a tmpfs of 2 MiB at `shm.path`, mode 1777 like /dev/shm."""

    kind = "tmpfs"

    def __init__(self, mib: float, *, noexec: bool = False) -> None:
        super().__init__(mib=mib, noexec=noexec)

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all that is free, but for `leave_bytes` rounded up to pages."""
        self._ask("fill", leave_bytes=leave_bytes)

    def free(self) -> None:
        """Undo `fill`."""
        self._ask("free")


class Holder(guard.Holder):
    """The guard's side."""

    def __init__(self, base: Path, mib: float, noexec: bool) -> None:
        super().__init__(base)
        self._kib = int(mib * 1024)
        self._noexec = noexec
        self._point = base / "shm"

    def open(self) -> dict[str, Any]:
        self._point.mkdir()
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | (kernel.MS_NOEXEC if self._noexec else 0)
        kernel.mount(self.base.name, str(self._point), "tmpfs", flags, f"size={self._kib}k,mode=1777")
        return {"path": str(self._point)}

    def do_fill(self, leave_bytes: int) -> None:
        in_child("fill", functools.partial(full.fill_up, self._point, leave_bytes), FILL_S)

    def do_free(self) -> None:
        in_child("free", functools.partial(full.free_up, self._point), FILL_S)


def main(arguments: list[str] | None = None) -> int:
    parser = shell.parser("tmpfs", "Run a command with a small tmpfs that is full for a while. Needs root.")
    parser.add_argument("--size", type=float, default=2.0, metavar="MIB", help="of the tmpfs (default 2)")
    parser.add_argument("--noexec", action="store_true", help="mount it without the right to execute")
    given = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(reason)
    with SmallTmpfs(given.size, noexec=given.noexec) as shm:
        return shell.run(shm, given, begin=shm.fill, end=shm.free)


if __name__ == "__main__":
    sys.exit(main())
