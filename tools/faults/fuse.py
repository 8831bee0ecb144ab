"""A mount that shows another folder, and whose calls hang, are slow or fail when told to.

    python -m tools.faults.fuse --hang write --after 1 --seconds 5 -- command {}
    python -m tools.faults.fuse --backing /some/env --hang open --hang read -- {}/bin/python -c 'import torch'
    python -m tools.faults.fuse --delay fsync=0.08 --fail write=EIO:3 --limit 4096 --counts -- command {}

Needs root, /dev/fuse, libfuse2 and fusepy. What a hanging call does to its caller: it sleeps (S) until the first
signal of any kind, then it is in D and SIGKILL has no effect until the release. A read, which waits for a page of the
cache, is in D at once, but can be killed. A name is looked up by getattr, so a hanging getattr hangs open and all else
that takes a path. Who starts a program from a hanging mount hangs with it: subprocess waits for the exec.
See control.py for the flag files, passthrough.py for what the mount can do.
"""

from __future__ import annotations

import ctypes.util
import errno
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.faults import cleaning, control, guard, kernel, processes, shell
from tools.faults.fault import Fault

MOUNTED_S = 20.0
SERVER_GONE_S = 5.0


def why_not() -> str | None:
    """Why this fault cannot be made here; None where it can."""
    if reason := kernel.why_no_mounts():
        return reason
    if not os.path.exists("/dev/fuse") or not kernel.is_known("fuse"):
        return "needs a kernel with FUSE (/dev/fuse)"
    if ctypes.util.find_library("fuse") is None:
        return "needs libfuse 2 (Debian: libfuse2)"
    if importlib.util.find_spec("fuse") is None:
        return "needs fusepy (pip install fusepy)"
    return None


class Fuse(Fault):
    """`with Fuse() as mount:` a passthrough at `mount.path`; what it shows lies in `mount.backing`.

    `Fuse(folder)` shows an existing folder, `Fuse(folder, over=folder)` lies over it, so that all who come after use
    the mount. `cache_s` is for how long the kernel may remember names and attributes (0: not at all).
    """

    kind = "fuse"

    def __init__(
        self, backing: Path | None = None, *, over: Path | None = None, cache_s: float = 0.0
    ) -> None:
        made = [None if folder is None else str(folder.resolve(strict=True)) for folder in (backing, over)]
        super().__init__(backing=made[0], over=made[1], cache_s=cache_s)
        self.backing = self.base / "backing" if backing is None else Path(str(made[0]))
        self.control = self.base / control.FOLDER
        self._flags = control.Flags(self.control)
        self._counts: control.Counts | None = None

    def _opened(self, facts: dict[str, Any]) -> None:
        super()._opened(facts)
        self._counts = control.Counts(self.base / "counts")

    def hang(self, *ops: str, match: str = "*", at_most_s: float = control.AT_MOST_S) -> None:
        """Calls of these kinds wait until `release` or for `at_most_s`; only for paths that match the glob.

        Paths begin with "/", the mount. A file that was unlinked while open has the path "".
        """
        for op in ops:
            self._flags.set(f"hang.{control.op_named(op)}", match=match, at_most_s=at_most_s)

    def release(self, *ops: str) -> None:
        """Calls of these kinds, or all, go on."""
        for op in ops or (control.EVERYTHING, *control.OPS):
            self._flags.clear(f"hang.{control.op_named(op)}")

    def delay(self, op: str, seconds: float) -> None:
        """Each call of this kind takes that much longer; 0 undoes it."""
        name = f"delay.{control.op_named(op)}"
        if seconds > 0:
            self._flags.set(name, seconds=seconds)
        else:
            self._flags.clear(name)

    def fail(self, op: str, code: int, *, after: int = 0, times: int = 1) -> None:
        """After so many good calls, so many fail with the error (-1: for ever; 0 undoes it)."""
        name = f"fail.{control.op_named(op)}"
        if times != 0:
            self._flags.set(name, errno=code, after=after, times=times)
        else:
            self._flags.clear(name)

    def limit(self, size: int | None, code: int = errno.ENOSPC) -> None:
        """That many bytes more can be written, the rest gets the error (ENOSPC, EDQUOT); None undoes it."""
        if size is None:
            self._flags.clear("limit")
        else:
            self._flags.set("limit", bytes=size, errno=code)

    def counts(self) -> dict[str, int]:
        """How many calls of each kind came in since the mount was made, those that hang or failed included."""
        return self._read(control.CAME)

    def hanging(self) -> dict[str, int]:
        """How many calls of each kind hang at this moment."""
        return self._read(control.HANGS)

    def _read(self, which: int) -> dict[str, int]:
        if self._counts is None:
            raise RuntimeError("The fault is not entered.")
        return self._counts.read(which)

    def wait_until_hanging(self, op: str, calls: int = 1, deadline_s: float = 10.0) -> None:
        """Return once that many calls hang; TimeoutError if they do not by the deadline."""
        name = control.op_named(op)
        processes.wait_until(
            lambda: self.hanging()[name] >= calls, deadline_s, what=f"{calls} hanging {name}"
        )

    def abort(self) -> None:
        """The server dies: every waiting and coming call fails (ECONNABORTED, ENOTCONN), for good."""
        self._ask("abort")


class Holder(guard.Holder):
    """The guard's side."""

    def __init__(self, base: Path, backing: str | None, over: str | None, cache_s: float) -> None:
        super().__init__(base)
        self._backing = backing or str(base / "backing")
        self._point = over or str(base / "mount")
        self._cache_s = cache_s
        self._server: subprocess.Popen[bytes] | None = None

    def open(self) -> dict[str, Any]:
        for folder in (self.base / control.FOLDER, Path(self._backing), Path(self._point)):
            folder.mkdir(exist_ok=True)
        control.Counts(self.base / "counts", create=True).close()
        settings = {"name": self.base.name, "base": str(self.base), "guard": os.getpid()}
        settings |= {"behind": self._backing, "point": self._point, "cache_s": self._cache_s}
        with open(self._log, "wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tools.faults.passthrough", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        processes.wait_until(self._is_mounted, MOUNTED_S, what="the FUSE mount")
        return {"path": self._point}

    @property
    def _log(self) -> Path:
        return self.base / "server.log"

    def _is_mounted(self) -> bool:
        assert self._server is not None
        if (code := self._server.poll()) is not None:
            raise RuntimeError(
                f"The FUSE server ended ({code}): {self._log.read_text(errors='replace').strip()}"
            )
        return bool(kernel.mounts(self.base.name))

    def do_abort(self) -> None:
        for mounted in kernel.mounts(self.base.name):
            kernel.abort_fuse(mounted.minor, self.base / "fusectl")

    def close(self) -> list[str]:
        problems = super().close()
        if self._server is None:
            return problems
        try:
            self._server.wait(SERVER_GONE_S)  # it ends with its mount
        except subprocess.TimeoutExpired:
            self._server.kill()
        try:
            self._server.wait(SERVER_GONE_S)
        except subprocess.TimeoutExpired:
            problems.append(f"The FUSE server, process {self._server.pid}, outlives SIGKILL.")
        return problems + (cleaning.clean(self.base) if self.base.exists() else [])


def main(arguments: list[str] | None = None) -> int:
    parser = shell.parser(
        "fuse",
        "Run a command with a mount whose calls hang, are slow or fail. Needs root, /dev/fuse, libfuse2, fusepy.",
    )
    parser.add_argument(
        "--backing", type=Path, metavar="DIR", help="the folder to show (default: an empty one)"
    )
    parser.add_argument("--over", type=Path, metavar="DIR", help="mount over this folder")
    parser.add_argument(
        "--hang", action="append", default=[], metavar="OP", help=f"everything, {', '.join(control.OPS)}"
    )
    parser.add_argument("--match", default="*", metavar="GLOB", help="hang only calls for these paths")
    parser.add_argument("--delay", action="append", default=[], metavar="OP=SECONDS")
    parser.add_argument(
        "--fail", action="append", default=[], metavar="OP=ERROR[:N]", help="the N-th call fails"
    )
    parser.add_argument("--limit", type=int, metavar="BYTES", help="ENOSPC after so many bytes")
    parser.add_argument(
        "--counts", action="store_true", help="print at the end how many calls came in, as JSON"
    )
    given = parser.parse_args(arguments)
    if reason := why_not():
        parser.error(reason)
    with Fuse(given.backing, over=given.over) as mount:

        def begin() -> None:
            for word in given.delay:
                op, _, seconds = word.partition("=")
                mount.delay(op, float(seconds))
            for word in given.fail:
                op, _, rest = word.partition("=")
                name, _, nth = rest.partition(":")
                mount.fail(op, getattr(errno, name), after=int(nth or 1) - 1)
            mount.limit(given.limit)
            mount.hang(*given.hang, match=given.match)

        code = shell.run(mount, given, begin=begin, end=mount.release)
        if given.counts:
            print(json.dumps(mount.counts()))
        return code


if __name__ == "__main__":
    sys.exit(main())
