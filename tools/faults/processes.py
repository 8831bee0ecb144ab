"""Signals by PID, states of processes, and waits with a deadline. Nothing here looks a process up by its name.

    python -m tools.faults.processes state --pid 4711
    python -m tools.faults.processes stop --pid 4711 --seconds 60
    python -m tools.faults.processes kill --pid 4711 --within 10 --seed 1

Needs no root for one's own processes. A signal goes through a pidfd: a newcomer that got the same PID between look
and signal is safe.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

GONE = ""  # state_of() of a process that is not there, or no more than a zombie's entry without a status


def why_not() -> str | None:
    """Why this module cannot work here; None where it can."""
    if not hasattr(os, "pidfd_open"):
        return "needs Linux 5.3 or newer (pidfd_open)"
    return None


def wait_until(
    condition: Callable[[], T], deadline_s: float, every_s: float = 0.01, what: str | None = None
) -> T:
    """Ask until the answer is true and return it; TimeoutError, naming `what`, if it is not by the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__name__", "the condition")
            raise TimeoutError(f"After {deadline_s:g} s: {name} is still {answer!r}.")
        time.sleep(every_s)
    return answer


def _status(pid: int, tid: int | None = None) -> dict[str, str]:
    """Lines of /proc/PID/status (of one thread, if `tid` is given); empty if there is no such process."""
    path = f"/proc/{pid}/status" if tid is None else f"/proc/{pid}/task/{tid}/status"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except (FileNotFoundError, ProcessLookupError):
        return {}


def state_of(pid: int, tid: int | None = None) -> str:
    """The state letter (R S D T t Z ...) of a process's first thread, or of thread `tid`; GONE if it is not there."""
    return _status(pid, tid).get("State", GONE)[:1]


def states_of_threads(pid: int) -> dict[int, str]:
    """The state letter of each thread, by thread id."""
    try:
        tids = [int(entry) for entry in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {tid: state for tid in tids if (state := state_of(pid, tid)) != GONE}


def is_alive(pid: int) -> bool:
    """Whether the process runs, sleeps, hangs or is stopped: not gone, not a zombie."""
    return state_of(pid) not in (GONE, "Z", "X")


def is_doomed(pid: int) -> bool:
    """Whether the process is gone, or will be as soon as the kernel call that it hangs in returns."""
    status = _status(pid)
    if status.get("State", "X")[0] in "ZX":
        return True
    pending = int(status["SigPnd"], 16) | int(status["ShdPnd"], 16)
    return bool(pending & 1 << (signal.SIGKILL - 1))


def start_time_of(pid: int) -> int | None:
    """When the process started, in clock ticks since boot: with its PID, its name for good. None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def children_of(pid: int) -> list[int]:
    """The PIDs of all descendants that are still linked to `pid` (not of those that were double-forked away)."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (parent := _status(int(entry)).get("PPid")) is not None:
            parents[int(entry)] = int(parent)
    found = [pid]
    for ancestor in found:
        found += [child for child, parent in parents.items() if parent == ancestor]
    return found[1:]


def children_in_state_d(pid: int | None = None) -> list[int]:
    """Descendants of `pid` (default: this process) of which at least one thread is in uninterruptible sleep."""
    descendants = children_of(os.getpid() if pid is None else pid)
    return [child for child in descendants if "D" in states_of_threads(child).values()]


def send(pid: int, signum: int, started: int | None = None) -> bool:
    """Signal the process; False if it is gone, or is another one than that which started at `started`."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if started is not None and start_time_of(pid) != started:
            return False
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def kill_at_random(
    pid_source: Callable[[], int | None],
    seconds: float,
    rng: random.Random,
    signum: int = signal.SIGKILL,
) -> int | None:
    """Wait a random time within `seconds`, ask for a PID, signal it; the PID, or None if there was none to signal."""
    time.sleep(rng.uniform(0, seconds))
    pid = pid_source()
    return pid if pid is not None and send(pid, signum) else None


@contextmanager
def stopped(pid: int, deadline_s: float = 5.0) -> Iterator[None]:
    """The process is stopped (SIGSTOP) inside the `with`, and goes on (SIGCONT) after it in any case."""
    started = start_time_of(pid)
    try:
        if not send(pid, signal.SIGSTOP, started):
            raise ProcessLookupError(f"No process {pid} to stop.")
        wait_until(lambda: state_of(pid) in ("T", "Z", GONE), deadline_s, what=f"process {pid} stopped")
        yield
    finally:
        send(pid, signal.SIGCONT, started)


def stop_for(pid: int, seconds: float) -> None:
    """Stop the process for `seconds`; returns when it may go on."""
    with stopped(pid):
        time.sleep(seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.faults.processes",
        description="Kill, stop or look at one process, by its PID. Needs no root for one's own processes.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    kill = verbs.add_parser("kill", help="SIGKILL the process at a random time")
    kill.add_argument(
        "--within", type=float, default=0.0, metavar="SECONDS", help="latest time (default: at once)"
    )
    kill.add_argument("--seed", type=int, default=0, help="of the random time")
    stop = verbs.add_parser("stop", help="SIGSTOP the process, and SIGCONT it after some seconds")
    stop.add_argument("--seconds", type=float, default=10.0)
    state = verbs.add_parser("state", help="print the state letter of each of its threads")
    for verb in (kill, stop, state):
        verb.add_argument("--pid", type=int, required=True)
    given = parser.parse_args(arguments)

    if not is_alive(given.pid):
        print(f"No process {given.pid}.", file=sys.stderr)
        return 1
    if given.verb == "kill":
        return 0 if kill_at_random(lambda: int(given.pid), given.within, random.Random(given.seed)) else 1
    if given.verb == "stop":
        stop_for(given.pid, given.seconds)
    else:
        for tid, letter in states_of_threads(given.pid).items():
            print(tid, letter)
    return 0


if __name__ == "__main__":
    sys.exit(main())
