"""Signals by PID, process states and waits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from tests.tools.traces import ROOT, line_of, python, wait_until_state
from tools.faults import processes

pytestmark = pytest.mark.timeout(60)

SLEEP = "import time; print(flush=True); time.sleep(60)"
# A parent that waits for a vfork child is in D, without root and without a disk.
VFORK = """
import ctypes, os
os.write(1, b"\\n")
if ctypes.CDLL(None).vfork() == 0:
    ctypes.CDLL(None).pause()
"""


def test_wait_until_returns_the_answer() -> None:
    """The first true answer is returned, as it is."""
    answers = iter([0, "", "yes"])
    assert processes.wait_until(lambda: next(answers), 5) == "yes"


def test_wait_until_names_what_did_not_happen() -> None:
    """At the deadline there is an error that says what was waited for."""
    with pytest.raises(TimeoutError, match="the moon is still None"):
        processes.wait_until(lambda: None, 0.02, what="the moon")


def test_state_of_the_gone_is_gone() -> None:
    """A process that was waited for has no state, no start time and is not alive."""
    with subprocess.Popen(["true"]) as process:
        pass
    assert processes.state_of(process.pid) == processes.GONE
    assert processes.start_time_of(process.pid) is None
    assert not processes.is_alive(process.pid)
    assert not processes.send(process.pid, 0)


def test_a_signal_spares_a_newcomer_with_the_same_pid() -> None:
    """Asked for a process with another start time, send() signals nobody."""
    with python(SLEEP) as process:
        started = processes.start_time_of(process.pid)
        assert started is not None
        assert not processes.send(process.pid, signal.SIGKILL, started + 1)
        assert processes.is_alive(process.pid)
        assert processes.send(process.pid, signal.SIGKILL, started)
        assert process.wait() == -signal.SIGKILL


def test_stopped_process_goes_on_afterwards() -> None:
    """Inside the with the process is in T; after it, also after an error, it runs."""
    with python(SLEEP) as process:
        line_of(process)
        with pytest.raises(ZeroDivisionError), processes.stopped(process.pid):
            assert processes.state_of(process.pid) == "T"
            _ = 1 / 0
        wait_until_state(process, "S")


def test_stop_for_takes_that_long() -> None:
    """The process is seen stopped, and the call lasts as long as it was asked for."""
    with python(SLEEP) as process:
        line_of(process)
        begun = time.monotonic()
        thread = threading.Thread(target=processes.stop_for, args=(process.pid, 0.3))
        thread.start()
        wait_until_state(process, "T")
        thread.join()
        assert time.monotonic() - begun >= 0.3
        wait_until_state(process, "S")


def test_kill_at_random_kills_whom_it_is_given() -> None:
    """The PID is asked for at the random time, not before; without one nobody is signalled."""
    with python(SLEEP) as process:
        rng = random.Random(1)
        expected = random.Random(1).uniform(0, 0.2)
        begun = time.monotonic()
        assert processes.kill_at_random(lambda: process.pid, 0.2, rng) == process.pid
        assert time.monotonic() - begun >= expected
        assert process.wait() == -signal.SIGKILL
    assert processes.kill_at_random(lambda: None, 0, rng) is None
    assert processes.kill_at_random(lambda: process.pid, 0, rng) is None


def test_children_in_state_d_are_found() -> None:
    """A child in uninterruptible sleep is listed, its sleeping child is a child and is not."""
    with python(VFORK) as parent:
        line_of(parent)
        wait_until_state(parent, "D")
        processes.wait_until(lambda: processes.children_in_state_d() == [parent.pid], 5)
        (vforked,) = processes.children_of(parent.pid)
        assert {parent.pid, vforked} <= set(processes.children_of(os.getpid()))
        assert processes.states_of_threads(parent.pid) == {parent.pid: "D"}
        os.kill(vforked, signal.SIGKILL)
        parent.wait()
    assert processes.children_in_state_d() == []


def test_command_line_stops_and_kills() -> None:
    """From a shell: state, stop and kill, and an exit code for a PID that is none."""
    command = [sys.executable, "-m", "tools.faults.processes"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False)

    with python(SLEEP) as process:
        line_of(process)
        assert run("state", "--pid", str(process.pid)).stdout == f"{process.pid} S\n"
        assert run("stop", "--seconds", "0.1", "--pid", str(process.pid)).returncode == 0
        wait_until_state(process, "S")
        assert run("kill", "--pid", str(process.pid)).returncode == 0
        assert process.wait() == -signal.SIGKILL
    gone = run("kill", "--pid", str(process.pid))
    assert (gone.returncode, gone.stderr) == (1, f"No process {process.pid}.\n")
