"""Starts N ranks of a function on this machine and waits for them: `logclient.launch`.

Runs in the process that calls `launch`, and in each rank before and after the user's function.

Invariants:

- when the first rank fails the others are stopped, by SIGTERM and after a grace by SIGKILL; from then on every wait
  has a deadline, and so has a call with `timeout_s`;
- a rank is over when its process is: pipes that its own children hold open keep nobody waiting;
- ranks get SIGTERM when the process that launched them is gone;
- the environment of the caller is not touched; the script is not run again, so it needs no `__main__` guard.

Does not: decide which run the ranks are in (`launchers.py` and `start.py`, by the variables that are set here).
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

from .. import config
from ..errors import BadArgument, LogclientError, RankFailed, RankTimeout
from . import pickling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

_METHODS = ("spawn", "fork", "forkserver")
_POLL_S = 0.1  # between looks at what wakes nobody: a process whose end was reported to somebody else
_REPORT_S = 1.0  # by then whoever knows how a process ended has reported it
_SETTLE_S = 0.2  # after the first failure: is another rank its cause?
_KILLED_S = 5.0  # SIGKILL does not reach a process that hangs in a frozen disk
_NAME = "logclient rank "
_DEATH_SIGNAL = 1  # linux/prctl.h: PR_SET_PDEATHSIG
_HEAD = 8
_starting: set[int] = set()  # threads that start a rank just now


def launch(
    fn: Callable[..., Any],
    args: Sequence[Any],
    nprocs: int,
    start_method: str,
    timeout_s: float | None,
    grace_s: float,
) -> list[Any]:
    """See `logclient.launch`."""
    _check(fn, nprocs, start_method, timeout_s, grace_s)
    import multiprocess  # the one dependency of the client, and only of those who call this

    context = multiprocess.get_context(start_method)
    call: Any = (fn, tuple(args)) if start_method == "fork" else _packed(fn, tuple(args))
    environments = config.rank_environments(os.urandom(8).hex(), nprocs, _free_port)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    _leave_script_out()
    ranks = [_Rank(number, nprocs, context) for number in range(nprocs)]
    try:
        for rank, variables in zip(ranks, environments, strict=True):
            rank.start(call, variables)
        _wait(ranks, deadline, timeout_s)
        return [rank.value() for rank in ranks]
    except BaseException as error:
        if left := _stop([rank for rank in ranks if rank.is_started], grace_s):
            error.add_note(f"not even SIGKILL reaches process {', '.join(map(str, left))}: is a disk frozen?")
        raise
    finally:
        for rank in ranks:
            rank.close()


class _Rank:
    """One rank as the process that launched it sees it."""

    def __init__(self, number: int, size: int, context: Any) -> None:
        self.name = f"rank {number} of {size}"
        self.number = number
        self.process: Any = None
        self.code: int | None = None  # exit code, negative for a signal
        self.is_over = False
        self.outcome: tuple[str, int, bytes, str] | None = None  # see `_send`
        self._context = context
        self._method: str = context.get_start_method()
        self._got = bytearray()
        self._reader: Any = None
        self._pidfd = -1
        self._gone_at = 0.0

    def start(self, call: Any, variables: dict[str, str]) -> None:
        self._reader, writer = self._context.Pipe(duplex=False)
        os.set_blocking(self._reader.fileno(), False)
        given = (self._method, call, variables, writer, os.getpid())
        try:
            self.process = self._context.Process(target=_main, args=given, name=f"{_NAME}{self.number}")
            _starting.add(get_ident())
            self.process.start()
        except OSError as error:
            raise self.failure(f"could not be started: {error}") from error
        finally:
            _starting.discard(get_ident())
            writer.close()
        try:
            self._pidfd = os.pidfd_open(self.process.pid)
        except (OSError, AttributeError):  # an old kernel, or gone already: the polling finds out
            pass

    @property
    def is_started(self) -> bool:
        return self.process is not None and self.process.pid is not None

    def descriptors(self) -> list[int]:
        """Descriptors that become readable when this rank needs a look."""
        if self.is_over or not self.is_started:
            return []
        found = [] if self._reader is None else [self._reader.fileno()]
        if not self._gone_at:  # the fork server reports an end a little after it
            by_sentinel = self._pidfd < 0 or self._method == "forkserver"
            found.append(self.process.sentinel if by_sentinel else self._pidfd)
        return found

    def look(self) -> None:
        """Take what it sent, and see whether it is over."""
        if self.is_over or not self.is_started:
            return
        code = self.process.exitcode
        self._read()
        if code is None and not self._is_lost():
            return
        self.code, self.is_over = code, True

    def _read(self) -> None:
        while self._reader is not None:
            try:
                data = os.read(self._reader.fileno(), 1 << 20)
            except BlockingIOError:
                break
            if not data:
                self._reader.close()
                self._reader = None
            self._got += data
        size = int.from_bytes(self._got[:_HEAD], "little")
        if self.outcome is None and len(self._got) >= _HEAD + size > _HEAD:
            import pickle

            self.outcome = pickle.loads(bytes(self._got[_HEAD:]))
            self._got.clear()

    def _is_lost(self) -> bool:
        """Has it ended, and somebody else (a SIGCHLD handler, an `os.wait()`) reaped it?"""
        import select

        poll = select.poll()
        if self._pidfd < 0:
            return False
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(0):
            return False
        self._gone_at = self._gone_at or time.monotonic()
        return time.monotonic() - self._gone_at > _REPORT_S

    @property
    def has_failed(self) -> bool:
        kind = self.outcome[0] if self.outcome is not None else ""
        return kind not in ("", "returned") or (self.is_over and (not kind or bool(self.code)))

    def order_of_failure(self) -> tuple[bool, int]:
        """The least one is most likely the cause of the others: whom a signal killed, else who failed first."""
        was_killed = self.outcome is None and self.code is not None and self.code < 0
        return (not was_killed, self.outcome[1] if self.outcome is not None else time.time_ns())

    def value(self) -> Any:
        """The result of its function."""
        assert self.outcome is not None
        try:
            return pickling.unpack(self.outcome[2])
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise self.failure(f"returned what cannot be read here ({what}): return plain data") from error

    def raise_failure(self, others: list[_Rank]) -> NoReturn:
        kind, _, data, text = self.outcome if self.outcome is not None else ("", 0, b"", "")
        error: BaseException
        if kind == "raised":
            error = self._exception(data, text)
            error.__cause__ = _Traceback(f"\n{text}")
            error.add_note(f"raised in {self.name}")
        elif kind in ("exited", "unsent"):
            error = self.failure(text)
        else:
            error = self.failure(_how_it_ended(self.code) + (", after its function returned" if kind else ""))
        if others:
            error.add_note(f"failed as well: {', '.join(other.name for other in others)}")
        raise error

    def _exception(self, data: bytes, text: str) -> BaseException:
        try:
            error = pickling.unpack(data) if data else None
        except Exception:  # noqa: BLE001 - foreign code: __init__ that wants other arguments, a missing module
            error = None
        if isinstance(error, BaseException):
            return error
        return self.failure(
            f"raised {text.splitlines()[-1]} (an exception that cannot be sent to this process)"
        )

    def failure(self, how: str) -> RankFailed:
        error = RankFailed(f"{self.name} {how}")
        error.rank, error.exit_code = self.number, self.code
        return error

    def signal(self, number: int) -> None:
        if not self.is_over:
            try:
                if self._pidfd >= 0:
                    import signal

                    signal.pidfd_send_signal(self._pidfd, number)
                else:
                    os.kill(self.process.pid, number)
            except OSError:
                pass

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        if self.is_started:
            if self.process.exitcode is not None:
                self.process.close()
            else:  # else the interpreter would wait for it at its end
                from multiprocess import process

                process._children.discard(self.process)


class _Traceback(Exception):
    """The traceback of an exception, from the process of the rank."""


def _wait(ranks: list[_Rank], deadline: float | None, timeout_s: float | None) -> None:
    """Wait until all ranks are over; raises for the first that failed."""
    while not all(rank.is_over for rank in ranks):
        _nap(ranks, deadline)
        if any(rank.has_failed for rank in ranks):
            settled = time.monotonic() + _SETTLE_S
            while time.monotonic() < settled and not all(rank.is_over for rank in ranks):
                _nap(ranks, settled)
            break
        if deadline is not None and time.monotonic() >= deadline:
            late = [rank for rank in ranks if not rank.is_over]
            numbers = ", ".join(str(rank.number) for rank in late)
            word = "rank" if len(late) == 1 else "ranks"
            error = RankTimeout(f"{word} {numbers} had not ended after {timeout_s:g} s and had to be stopped")
            error.rank = late[0].number
            raise error
    failed = sorted((rank for rank in ranks if rank.has_failed), key=_Rank.order_of_failure)
    if failed:
        failed[0].raise_failure(failed[1:])


def _nap(ranks: list[_Rank], deadline: float | None) -> None:
    """Wait until a rank needs a look, but not for long."""
    import select

    poll = select.poll()
    for rank in ranks:
        for fd in rank.descriptors():
            poll.register(fd, select.POLLIN)
    left = _POLL_S if deadline is None else min(_POLL_S, max(0.0, deadline - time.monotonic()))
    poll.poll(left * 1000)
    for rank in ranks:
        rank.look()


def _stop(ranks: list[_Rank], grace_s: float) -> list[int]:
    """Send SIGTERM to ranks that still run, SIGKILL after the grace; return the PIDs of those that are there after it.

    Ctrl-C ends the grace.
    """
    import signal

    for rank in ranks:
        rank.look()
        if rank.outcome is None:  # else it is leaving by itself
            rank.signal(signal.SIGTERM)
    try:
        _until_over(ranks, grace_s)
    finally:
        for rank in ranks:
            rank.signal(signal.SIGKILL)
        _until_over(ranks, _KILLED_S)
    return [rank.process.pid for rank in ranks if not rank.is_over]


def _until_over(ranks: list[_Rank], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not all(rank.is_over for rank in ranks) and time.monotonic() < deadline:
        _nap(ranks, deadline)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "ended, and another part of this program took its exit code"
    if code < 0:
        import signal

        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (so does the kernel when memory runs out)" if -code == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"
    return f"left with exit code {code} before its function returned"


def _leave_script_out() -> None:
    """Let new interpreters of ranks not run the user's script again, nor a fork server that is started for them.

    `multiprocess` has no setting for it. What it does for other processes is as ever.
    """
    from multiprocess import spawn

    original = spawn.get_preparation_data
    if getattr(original, "leaves_script_out", False):
        return

    def preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        if name.startswith(_NAME) or get_ident() in _starting:
            data = {key: value for key, value in data.items() if not key.startswith("init_main")}
        return data

    preparation_data.leaves_script_out = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = preparation_data


def _check(fn: object, nprocs: object, start_method: object, timeout_s: object, grace_s: object) -> None:
    if not callable(fn):
        raise BadArgument(f"fn={fn!r}: expected a function")
    if type(nprocs) is not int or nprocs < 1:
        raise BadArgument(f"nprocs={nprocs!r}: expected a whole number from 1 on")
    if start_method not in _METHODS:
        raise BadArgument(f"start_method={start_method!r}: expected one of {', '.join(_METHODS)}")
    for name, value in (("timeout_s", timeout_s), ("grace_s", grace_s)):
        if value is None and name == "timeout_s":
            continue
        if type(value) not in (int, float) or not value >= 0:  # type: ignore[operator]
            raise BadArgument(f"{name}={value!r}: expected a number from 0 on")


def _packed(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return pickling.pack_call(fn, args)
    except Exception as error:
        raise LogclientError(
            f"the function or its arguments cannot be sent to another process ({type(error).__name__}: {error}); put "
            f"the function into a module of its own, make what cannot be sent inside it, or use start_method='fork'"
        ) from error


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# ---- in the rank ----------------------------------------------------------------------------------------------------


def _main(method: str, call: Any, variables: dict[str, str], writer: Any, parent: int) -> None:
    """Run the function of a rank. Its run, if it started one, ends as the function did."""
    config.become_rank(variables)
    _end_with(parent, method)
    error: BaseException | None = None
    try:
        fn, args = call if method == "fork" else pickling.unpack_call(call)
        del call
        value = fn(*args)
        try:
            outcome = ("returned", pickling.pack(value), "")
        except Exception as problem:  # noqa: BLE001 - foreign code
            kind, why = type(value).__qualname__, f"{type(problem).__name__}: {problem}"
            outcome = (
                "unsent",
                b"",
                f"returned a {kind}, which cannot be sent back ({why}): return plain data",
            )
    except BaseException as raised:  # noqa: BLE001 - raised again in the process that launched us
        error = raised
        outcome = _outcome_of(raised)
    _send(writer, *outcome)
    if error is not None:  # where the interpreter would leave it
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if method != "spawn":  # which ends like any interpreter; the others know no exit hooks
        from ..session.start import _at_exit

        _at_exit()
    if outcome[0] not in ("returned", "exited"):
        raise SystemExit(1)
    if isinstance(error, SystemExit):
        raise error


def _outcome_of(error: BaseException) -> tuple[str, bytes, str]:
    if isinstance(error, SystemExit):
        if not error.code:
            return "returned", pickling.pack(None), ""
        return "exited", b"", f"called sys.exit({error.code!r})"
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        return "raised", pickling.pack(error), text
    except Exception:  # noqa: BLE001 - foreign code, whatever it raises
        return "raised", b"", text


def _send(writer: Any, kind: str, data: bytes, text: str) -> None:
    import pickle

    message = pickle.dumps((kind, time.time_ns(), data, text))
    left = memoryview(len(message).to_bytes(_HEAD, "little") + message)
    try:
        while left:
            left = left[os.write(writer.fileno(), left) :]
        writer.close()
    except OSError:  # nobody is there to hear it
        pass


def _end_with(parent: int, method: str) -> None:
    """SIGTERM for this rank when the process that launched it is gone; where that cannot be had, it goes on."""
    import signal

    if method == "forkserver":  # its parent is the server, which waits for the ranks
        import fcntl

        import multiprocess

        launcher = multiprocess.parent_process()
        fcntl.fcntl(launcher.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(launcher.sentinel, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(launcher.sentinel, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        is_gone = not launcher.is_alive()
    else:
        try:
            import ctypes

            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
        except (ImportError, OSError, AttributeError):
            return
        is_gone = os.getppid() != parent
    if is_gone:  # it went before we asked
        os.kill(os.getpid(), signal.SIGTERM)
