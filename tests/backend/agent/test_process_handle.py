"""Why another process ended, and whether it is still the one that was meant."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logclient.shm.proc import start_ticks
from logclient_backend.agent.host import process_handle
from logclient_backend.agent.host.process_handle import Cause, Watch

ENDS = {
    "return": ("pass", Cause(0, None)),
    "sys.exit": ("import sys; sys.exit(3)", Cause(3, None)),
    "os._exit": ("import os; os._exit(7)", Cause(7, None)),
    "exception": ("raise ValueError", Cause(1, None)),
    "SIGTERM": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", Cause(None, signal.SIGTERM)),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Cause(None, signal.SIGKILL)),
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", Cause(None, signal.SIGSEGV)),
}


def started(code: str) -> subprocess.Popen[bytes]:
    """A process that waits for its standard input to close, then runs the code."""
    words = [sys.executable, "-c", f"import sys; sys.stdin.read(); {code}"]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes], watch: Watch) -> None:
    assert process.stdin is not None
    process.stdin.close()
    deadline = time.monotonic() + 20
    while not watch.has_ended():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def knows_reaped() -> bool:
    """Does this kernel tell how a reaped process ended?"""
    process = started("pass")
    watch = Watch(process.pid)
    ended(process, watch)
    process.wait()
    return watch.cause() is not None


@pytest.mark.first_is_quick
@pytest.mark.parametrize("is_reaped", [False, True], ids=["zombie", "reaped"])
@pytest.mark.parametrize("name", ENDS)
def test_cause_is_exit_code_or_signal(name: str, is_reaped: bool) -> None:
    """Exit code, signal, exception, hard exit: as a parent would see it, without being one, in time and afterwards."""
    if is_reaped and not knows_reaped():
        pytest.skip("needs Linux 6.15 or newer (PIDFD_GET_INFO with exit information)")
    code, expected = ENDS[name]
    process = started(code)
    watch = Watch(process.pid, start_ticks(process.pid))
    assert not watch.has_ended()
    assert not watch.has_stopped_working()
    assert watch.cause() is None
    ended(process, watch)
    if is_reaped:
        process.wait()
    assert watch.has_stopped_working()
    assert watch.cause() == expected
    process.wait()
    assert watch.cause() == expected, "once known it stays known"


def test_old_kernel_knows_a_zombie_and_of_the_reaped_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without exit information in pidfds the cause is known while nobody has reaped the process, else None."""

    def refuse(*_: object) -> None:
        raise OSError(25, "Inappropriate ioctl for device")

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    first, second = started("import os; os._exit(7)"), started("import os; os._exit(7)")
    watches = [Watch(process.pid) for process in (first, second)]
    for process, watch in zip((first, second), watches, strict=True):
        ended(process, watch)
    second.wait()
    assert [watch.cause() for watch in watches] == [Cause(7, None), None]
    first.wait()
    assert watches[0].cause() == Cause(7, None)


def test_kernel_without_pidfd_tells_by_start_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 5.3 there is no pidfd: dead or alive is told by /proc, and the cause while it is a zombie."""
    monkeypatch.delattr(os, "pidfd_open")
    process = started("import os; os._exit(7)")
    watch = Watch(process.pid, start_ticks(process.pid))
    assert not watch.is_open
    assert not watch.has_ended()
    ended(process, watch)
    assert watch.cause() == Cause(7, None)
    process.wait()
    assert watch.has_ended()
    assert watch.cause() == Cause(7, None)


def test_process_that_is_gone_has_ended() -> None:
    """A watch that comes too late says so, and nothing else."""
    process = started("pass")
    ticks = start_ticks(process.pid)
    process.communicate()
    watch = Watch(process.pid, ticks)
    assert not watch.is_open
    assert watch.has_ended()
    assert watch.cause() is None


def test_newcomer_with_the_same_pid_is_another_process() -> None:
    """PID and start time together are a process: with another start time it has ended, whoever has the PID now."""
    process = started("pass")
    watch = Watch(process.pid, start_ticks(process.pid) - 1)
    assert watch.has_ended()
    assert watch.cause() is None
    process.communicate()


@pytest.mark.root
def test_reused_pid_is_noticed() -> None:
    """In a PID namespace of its own the same PID is given to another process: the old watch is not fooled."""
    code = """
import os, time
from logclient_backend.agent.host.process_handle import Watch
from logclient.shm.proc import start_ticks
def child(seconds):
    pid = os.fork()
    if pid == 0:
        time.sleep(seconds)
        os._exit(5)
    return pid
first = child(60)
watch, late = Watch(first, start_ticks(first)), start_ticks(first)
time.sleep(0.05)  # start times are counted in clock ticks
os.kill(first, 9)
os.waitpid(first, 0)
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(first - 1))
second = child(60)
assert second == first, (first, second)
assert watch.has_ended() and Watch(first, late).has_ended() and not Watch(second).has_ended()
assert watch.cause() is None or watch.cause().signal == 9, watch.cause()
os.kill(second, 9)
"""
    words = ["unshare", "-pf", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


FOREIGN_PROC = """
import os, signal, sys, time
from logclient_backend.agent.host import process_handle
if sys.argv[1] == "no pidfd":
    del os.pidfd_open
def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(3)
    return pid
for number in range(300):  # of so many PIDs some are strangers' out there, some nobody's, a few threads of the kernel
    pid = child(signal.pause)
    watch = process_handle.Watch(pid)
    assert not watch.has_ended() and not watch.has_stopped_working(), f"{pid} lives"
    assert watch.cause() is watch.decision() is None
    watch.kill()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert watch.has_ended() and watch.has_stopped_working() and watch.decision() == process_handle.Cause(None, 9)
    os.waitpid(pid, 0)
    assert watch.has_ended()
    assert process_handle.Watch(pid).has_ended()
pid = child(lambda: None)
watch = process_handle.Watch(pid)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
assert watch.decision() == watch.cause() == process_handle.Cause(3, None)
assert process_handle.Watch(pid).cause() == process_handle.Cause(3, None)  # also for who looks at it only now
assert process_handle.Watch(child(signal.pause)).is_sure == (sys.argv[1] == "pidfd")
assert not process_handle.Watch(0).is_open and process_handle.Watch(0).has_ended()
"""


@pytest.mark.root
@pytest.mark.parametrize("kernel", ["pidfd", "no pidfd"])
def test_where_proc_shows_other_pids_the_living_live(kernel: str) -> None:
    """A PID namespace without a /proc of its own: whatever has that number out there decides nothing."""
    words = ["unshare", "-pf", "--kill-child", sys.executable, "-c", FOREIGN_PROC, kernel]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_kill_reaches_no_newcomer() -> None:
    """With a start time that is not that of the process with this PID."""
    process = started("pass")
    Watch(process.pid, start_ticks(process.pid) - 1).kill()
    process.communicate()
    assert process.returncode == 0


def test_main_thread_that_is_dead_counts_as_stopped() -> None:
    """Its process may live on in another thread that hangs: it has not ended, and will not work again."""
    code = "import threading, time, ctypes; threading.Thread(target=time.sleep, args=(60,)).start(); "
    process = started(code + "ctypes.CDLL(None).pthread_exit(None)")
    watch = Watch(process.pid)
    assert process.stdin is not None
    process.stdin.close()
    deadline = time.monotonic() + 20
    while not watch.has_stopped_working():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert not watch.has_ended()
    assert watch.cause() is None
    process.kill()
    process.wait()
    assert watch.has_ended()


def test_what_was_watched_from_the_start_is_known_later() -> None:
    """The launcher looks at once; a watch that is made when the process is gone still tells how it ended."""
    if not knows_reaped():
        pytest.skip("needs Linux 6.15 or newer (PIDFD_GET_INFO with exit information)")
    process = started("import os; os._exit(7)")
    ticks = start_ticks(process.pid)
    assert process_handle.watch_from_now_on(process.pid) >= 0
    process.communicate()
    assert Watch(process.pid, ticks).cause() == Cause(7, None)


def test_watch_closes_its_descriptor() -> None:
    """Closed by hand or let go of."""
    gc.collect()  # those of other tests
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch = Watch(os.getpid())
    watch.close()
    watch.close()
    del watch
    Watch(os.getpid())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
