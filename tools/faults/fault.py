"""What all faults with a guard share on the owner's side: start it, ask it, end it, and hear what it left behind.

Runs in the test (or bench, or command) that wants the fault; any of its threads may ask. The owner never touches a
mount to make, mend or end its fault: all that is the guard's. A forked child of the owner has no say in it.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tools.faults import cleaning, processes

ROOT = Path(__file__).resolve().parent.parent.parent
OPEN_S = 60.0
ASK_S = 90.0
GUARD_GONE_S = 5.0  # after its SIGKILL
CLOSE_S = 120.0  # longer than all waits of cleaning.py together


class GuardLost(RuntimeError):
    """The guard does not answer or is dead. What it held has been swept up, as far as that went."""


class LeftBehind(RuntimeError):
    """Something of the fault could not be cleaned up; the message says what, and who uses it."""


class Fault:
    """Base of the faults: a context manager with a `path`, the mount to use."""

    kind: ClassVar[str]  # the module in tools.faults whose Holder the guard runs

    def __init__(self, **settings: Any) -> None:
        self.name = f"{cleaning.PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self.base = Path(tempfile.gettempdir()) / self.name
        self.path = self.base / "unmounted"
        self._settings = settings
        self._owner = os.getpid()
        self._guard: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._asking = threading.Lock()

    def __enter__(self) -> Self:
        handle = os.pidfd_open(self._owner)
        arguments = [self.kind, str(self.base), json.dumps(self._settings), str(self._owner), str(handle)]
        search = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "tools.faults.guard", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[handle],
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": search},
            )
        finally:
            os.close(handle)
        try:
            self._opened(self._answer(OPEN_S))
        except BaseException:
            self._close(OPEN_S)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._guard is None or os.getpid() != self._owner:
            return
        left = self._close(CLOSE_S)
        if left and error is None:
            raise LeftBehind(" ".join(left))
        if left and error is not None:
            error.add_note(f"Left behind by {self.name}: {' '.join(left)}")

    def kill_if_busy(self, *pids: int) -> None:
        """These processes may be killed if they still use the mount at the end. No others ever are."""
        for pid in pids:
            if (started := processes.start_time_of(pid)) is not None:
                self._ask("kill_if_busy", pid=pid, started=started)

    @property
    def guard_pid(self) -> int:
        if self._guard is None:
            raise RuntimeError("The fault is not entered.")
        return self._guard.pid

    def _opened(self, facts: dict[str, Any]) -> None:
        self.path = Path(facts["path"])

    def _ask(self, request: str, **arguments: Any) -> Any:
        """The guard's answer; OSError as it raised there, GuardLost if there is no answer."""
        with self._asking:
            self._send({"do": request, **arguments})
            return self._answer(ASK_S)

    def _send(self, request: dict[str, Any]) -> None:
        if self._guard is None or self._guard.stdin is None:
            raise RuntimeError("The fault is not entered.")
        try:
            os.write(self._guard.stdin.fileno(), json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            pass  # _answer tells

    def _answer(self, timeout_s: float) -> Any:
        answer = self._line(timeout_s)
        if answer is None or "left" in answer:
            raise GuardLost(f"The guard of {self.name} ended. {' '.join(self._sweep())}")
        if "error" not in answer:
            return answer["ok"]
        if answer["errno"] is None:
            raise RuntimeError(f"{self.name}: {answer['error']}")
        raise OSError(answer["errno"], f"{self.name}: {answer['error']}")

    def _line(self, timeout_s: float) -> dict[str, Any] | None:
        """The guard's next answer, None when it has ended or did not answer in time, and then was killed."""
        assert self._guard is not None and self._guard.stdout is not None
        output = self._guard.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._guard.kill()
                return None
            if not (data := os.read(output, 65536)):
                return None
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _close(self, timeout_s: float) -> list[str]:
        """End the guard; what it could not clean up, a sentence each."""
        assert self._guard is not None and self._guard.stdin is not None and self._guard.stdout is not None
        self._send({"do": "end"})  # a closed pipe is not enough: a forked child may hold it open
        left: list[str] | None = None
        while left is None and (answer := self._line(timeout_s)) is not None:
            left = answer.get("left")
        if left is None:
            left = self._sweep()
        else:
            self._guard.wait(timeout_s)  # it has nothing more to do
        self._guard.stdin.close()
        self._guard.stdout.close()
        self._guard = None
        return left

    def _sweep(self) -> list[str]:
        """The guard is dead, without a last word: do its cleaning in a process of its own."""
        assert self._guard is not None
        # Not the interpreter of a virtual environment: the fault may be a mount that lay over that.
        python = getattr(sys, "_base_executable", sys.executable)
        command = [python, "-m", "tools.faults.sweep", str(self.base)]
        try:
            self._guard.wait(GUARD_GONE_S)
            done = subprocess.run(command, cwd=ROOT, timeout=CLOSE_S, stderr=subprocess.PIPE, check=False)
        except subprocess.TimeoutExpired as error:
            return [f"{error.cmd} hangs."]
        return done.stderr.decode(errors="replace").splitlines()
