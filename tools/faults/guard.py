"""The process that makes one fault, holds it, and ends it whatever happens to the test that asked for it.

    python -m tools.faults.guard KIND BASE SETTINGS OWNER-PID OWNER-PIDFD        (started by fault.py only)

One process per fault, one thread, in a session of its own. It reads requests from standard input and writes answers
to standard output, one JSON object a line: {"do": "freeze", ...} and {"ok": ...} or {"error": text, "errno": n}. The
first answer is to no request: what `Holder.open` returned. The last has "left": what could not be cleaned up.

It ends, and cleans up, at the first of: the request "end"; end of input; the owner's exit (pidfd); the owner hung in
D state with a SIGKILL pending, so that it could not exit; SIGTERM to the guard. While it lives it holds a record lock
on BASE/lock: a base folder without that lock is for `sweep`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.faults import cleaning, processes

TICK_S = 0.2  # how late a hard time limit may be, and how soon a doomed owner is seen


class Holder:
    """What a guard does for one kind of fault. Requests are methods called `do_<request>`."""

    def __init__(self, base: Path, **settings: Any) -> None:
        self.base = base
        self.killable: list[cleaning.Killable] = []

    def open(self) -> dict[str, Any]:
        """Make the fault's mounts; what it returns the owner's object gets."""
        raise NotImplementedError

    def tick(self) -> None:
        """Called at least every TICK_S: hard time limits."""

    def close(self) -> list[str]:
        """End the fault; what is left, a sentence each."""
        return cleaning.clean(self.base, self.killable)

    def do_kill_if_busy(self, pid: int, started: int) -> None:
        self.killable.append(cleaning.Killable(pid, started))


def lock(base: Path) -> int:
    """Take the lock of a base folder; OSError EACCES or EAGAIN if its guard lives."""
    handle = os.open(base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def make_locked(base: Path) -> None:
    """The folder appears with its lock taken, so that no sweep takes it for a dead guard's."""
    hidden = base.with_name("." + base.name)
    hidden.mkdir()
    lock(hidden)
    hidden.rename(base)


class Requests:
    """The owner's requests, until there will be no more."""

    def __init__(self, owner: int, owner_handle: int) -> None:
        self._owner = owner
        self._owner_handle = owner_handle
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._poll.register(owner_handle, select.POLLIN)
        self._buffer = b""

    def next(self) -> dict[str, Any] | None:
        """The next request, {} if there was none for a tick, None at the end."""
        while b"\n" not in self._buffer:
            ready = {handle for handle, _ in self._poll.poll(TICK_S * 1000)}
            if 0 in ready:
                data = os.read(0, 65536)
                self._buffer += data
                if not data:
                    return None
            elif self._owner_handle in ready or processes.is_doomed(self._owner):
                return None
            else:
                return {}
        line, self._buffer = self._buffer.split(b"\n", 1)
        request: dict[str, Any] = json.loads(line)
        return None if request["do"] == "end" else request


def answer(value: dict[str, Any]) -> None:
    try:
        os.write(1, json.dumps(value).encode() + b"\n")
    except BrokenPipeError:
        pass  # the owner is gone; next() will see it


def failure(error: BaseException) -> dict[str, Any]:
    code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return {"error": text, "errno": code}


def perform(holder: Holder, request: dict[str, Any]) -> dict[str, Any]:
    name = request.pop("do")
    try:
        return {"ok": getattr(holder, f"do_{name}")(**request)}
    except Exception as error:  # noqa: BLE001  whatever it is, the owner hears of it and the guard goes on guarding
        return failure(error)


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Inside, SIGTERM ends the guard's work; afterwards nothing but SIGKILL disturbs its cleaning."""

    def end(*_: object) -> None:
        raise SystemExit(143)

    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main(arguments: list[str]) -> int:
    kind, base_name, settings, owner, owner_handle = arguments
    base = Path(base_name)
    holder_type = importlib.import_module(f"tools.faults.{kind}").Holder
    holder: Holder = holder_type(base, **json.loads(settings))
    requests = Requests(int(owner), int(owner_handle))
    left: list[str] = []
    try:
        with ended_by_sigterm():
            make_locked(base)
            try:
                answer({"ok": holder.open()})
            except Exception as error:  # noqa: BLE001  as in perform()
                answer(failure(error))
                return 1
            while (request := requests.next()) is not None:
                holder.tick()
                if request:
                    answer(perform(holder, request))
    finally:
        left = holder.close()
        answer({"left": left})
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
