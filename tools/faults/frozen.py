"""An ext4 of one's own that freezes, is full, fails, turns read-only or loses power. A frozen one gives real D states.

    python -m tools.faults.frozen --size 256 --after 2 --seconds 20 -- command {}
    python -m tools.faults.frozen --how full -- command {}         {} is the mount, also $FAULT_DIR

Needs root, a loop device and mkfs.ext4. What a frozen ext4 does to callers (Linux 6.18): write, creating a file and
the first write to a clean mapped page wait in D, SIGKILL or not; reading, listing, locks, statvfs and opening what is
there go on. For hanging reads and opens see `fuse`. For an fsync that hangs while writes go on into the page cache,
like a dead disk, put the image on a hanging FUSE mount: `LoopExt4(64, folder=fuse.path)`.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.faults import cleaning, full, guard, kernel, shell
from tools.faults.cleaning import in_child
from tools.faults.fault import Fault

AT_MOST_S = 120.0  # a freeze that nobody ended by then is ended by the guard
WAIT_S = 30.0  # for any one call of the guard's children
HOWS = ("freeze", "full", "shutdown", "read-only")


def why_not() -> str | None:
    """Why this fault cannot be made here; None where it can."""
    if reason := kernel.why_no_mounts():
        return reason
    if not os.path.exists("/dev/loop-control"):
        return "needs loop devices (/dev/loop-control)"
    for program in ("mkfs.ext4", "mount"):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: e2fsprogs, mount)"
    return None if kernel.is_known("ext4") else "needs a kernel with ext4"


class LoopExt4(Fault):
    """`with LoopExt4(64) as disk:` an ext4 of 64 MiB at `disk.path`, its image in `folder` (default: temporary)."""

    kind = "frozen"

    def __init__(self, size_mib: int, *, folder: Path | None = None) -> None:
        super().__init__(size_mib=size_mib, folder=None if folder is None else str(folder))

    def freeze(self, at_most_s: float = AT_MOST_S) -> None:
        """Writers wait from now on, until `thaw` or for `at_most_s`."""
        self._ask("freeze", at_most_s=at_most_s)

    def thaw(self) -> bool:
        """End the freeze. False: it was not frozen any more, or never."""
        return bool(self._ask("thaw"))

    @contextlib.contextmanager
    def frozen(self, at_most_s: float = AT_MOST_S) -> Iterator[None]:
        """Frozen inside the `with`."""
        self.freeze(at_most_s)
        try:
            yield
        finally:
            self.thaw()

    def shutdown(self) -> None:
        """EIO on every write, create, fsync and uncached read, for good (`power_cut` mends it)."""
        self._ask("shutdown")

    def power_cut(self) -> None:
        """What was not synced is gone, and the disk works again. OSError EBUSY while anybody uses it."""
        self._ask("power_cut")

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all that is free, but for `leave_bytes` rounded up to blocks."""
        self._ask("fill", leave_bytes=leave_bytes)

    def free(self) -> None:
        """Undo `fill`."""
        self._ask("free")

    def remount_ro(self, *, force: bool = False) -> None:
        """Read-only; OSError EBUSY while a file is open for writing, unless forced.

        Forced it is as after a disk error: also files that are open get EROFS, and only `power_cut` mends it.
        """
        self._ask("remount_ro", force=force)

    def remount_rw(self) -> None:
        """Undo `remount_ro`."""
        self._ask("remount_rw")


class Holder(guard.Holder):
    """The guard's side."""

    def __init__(self, base: Path, size_mib: int, folder: str | None) -> None:
        super().__init__(base)
        self._size = size_mib << 20
        self._image = (base if folder is None else Path(folder)) / f"{base.name}.img"
        self._point = base / "disk"
        self._thaw_at: float | None = None

    def open(self) -> dict[str, Any]:
        self._point.mkdir()
        in_child("make the image", self._make_image, WAIT_S)
        in_child("mount", self._mount, WAIT_S)
        return {"path": str(self._point)}

    def _make_image(self) -> None:
        with open(self._image, "wb") as image:
            image.truncate(self._size)
        # No reserve for root and no background work of the kernel that a freeze would have to wait for.
        features = ["-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]
        _run("mkfs.ext4", "-q", *features, str(self._image))

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self._point))

    def tick(self) -> None:
        if self._thaw_at is not None and time.monotonic() > self._thaw_at:
            self.do_thaw()

    def close(self) -> list[str]:
        problems = super().close()
        with contextlib.suppress(OSError):
            if self._image.parent != self.base:
                in_child("remove the image", functools.partial(self._image.unlink, missing_ok=True), WAIT_S)
        return problems

    def do_freeze(self, at_most_s: float) -> None:
        in_child("freeze", functools.partial(kernel.freeze, str(self._point)), WAIT_S)
        self._thaw_at = time.monotonic() + at_most_s

    def do_thaw(self) -> bool:
        self._thaw_at = None
        try:
            in_child("thaw", functools.partial(kernel.thaw, str(self._point)), WAIT_S)
        except OSError as error:
            if error.errno in cleaning.NOT_FROZEN:
                return False
            raise
        return True

    def do_shutdown(self) -> None:
        self._refuse_if_frozen()
        in_child("shut down", functools.partial(kernel.shut_down, str(self._point)), WAIT_S)

    def do_power_cut(self) -> None:
        self._refuse_if_frozen()
        # In this order: what is dirty must not reach the image with the unmount. An unmount that finds the disk
        # busy leaves it shut down.
        try:
            self.do_shutdown()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EROFS):  # shut down before, or read-only by force
                raise
        in_child("unmount", functools.partial(kernel.unmount, str(self._point)), WAIT_S)
        in_child("mount", self._mount, WAIT_S)

    def do_fill(self, leave_bytes: int) -> None:
        self._refuse_if_frozen()
        in_child("fill", functools.partial(full.fill_up, self._point, leave_bytes), WAIT_S)

    def do_free(self) -> None:
        self._refuse_if_frozen()
        in_child("free", functools.partial(full.free_up, self._point), WAIT_S)

    def do_remount_ro(self, force: bool) -> None:
        self._refuse_if_frozen()
        if force:
            self._remount(0, "abort")
        else:
            self._remount(kernel.MS_RDONLY, "")

    def do_remount_rw(self) -> None:
        self._refuse_if_frozen()
        self._remount(0, "")

    def _remount(self, flags: int, options: str) -> None:
        arguments = ("none", str(self._point), "ext4", kernel.MS_REMOUNT | flags, options)
        in_child("remount", functools.partial(kernel.mount, *arguments), WAIT_S)

    def _refuse_if_frozen(self) -> None:
        """Nothing of the guard may wait for a disk that only the guard can thaw."""
        if self._thaw_at is not None:
            raise RuntimeError("The disk is frozen: thaw it first.")


def _run(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}")


def main(arguments: list[str] | None = None) -> int:
    parser = shell.parser(
        "frozen",
        "Run a command with an ext4 that freezes, is full or fails for a while. Needs root, a loop device, mkfs.ext4.",
    )
    parser.add_argument("--size", type=int, default=256, metavar="MIB", help="of the disk (default 256)")
    parser.add_argument("--how", choices=HOWS, default="freeze", help="shutdown: EIO on everything, for good")
    given = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(reason)
    with LoopExt4(given.size) as disk:
        at_most_s = 3600.0 if given.seconds is None else given.seconds + 10
        faults: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "freeze": (functools.partial(disk.freeze, at_most_s), disk.thaw),
            "full": (disk.fill, disk.free),
            "shutdown": (disk.shutdown, lambda: None),
            "read-only": (functools.partial(disk.remount_ro, force=True), lambda: None),
        }
        begin, end = faults[given.how]
        return shell.run(disk, given, begin=begin, end=end)


if __name__ == "__main__":
    sys.exit(main())
