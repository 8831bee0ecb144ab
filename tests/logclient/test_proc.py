"""PIDs and their names in /proc, in a PID namespace that has no /proc of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from logclient.shm import proc


@pytest.fixture
def as_pid_1() -> Callable[[str], None]:
    """Runs code as PID 1 of a namespace of its own, with the /proc of this one; it must end well."""
    words = ["unshare", "-pf", "--kill-child"]
    tries = shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True, check=False)
    if not tries or tries.returncode:
        pytest.skip("needs unshare, and the right to make PID namespaces")

    def run(code: str) -> None:
        words_of_python = [sys.executable, "-c", _CHILDREN + code]
        done = subprocess.run(
            [*words, *words_of_python], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr

    return run


_CHILDREN = """
import os, signal, time
def child(work=signal.pause):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid
"""


def test_where_proc_is_ours_a_pid_is_its_entry() -> None:
    """Of this process, of its parent, and of nobody."""
    me = os.getpid()
    assert proc.is_ours() and proc.own_entry() == proc.entry_of(me) == str(me)
    assert proc.pid_of(str(me)) == me
    assert proc.start_ticks() == proc.start_ticks(me) > 0
    assert proc.pid_namespace() == os.stat("/proc/self/ns/pid").st_ino
    assert proc.name_of("self") != ""
    assert (proc.entry_of(0), proc.start_ticks(0), proc.stat_of(""), proc.name_of("x")) == ("", 0, [], "")
    assert (proc.entry_of(1 << 63), proc.start_ticks(1 << 63)) == ("", 0), "of a damaged file"


@pytest.mark.root
def test_where_proc_shows_other_pids_no_stranger_is_found(as_pid_1: Callable[[str], None]) -> None:
    """PID and entry lead to each other; what is gone, or of a namespace around ours, is not found."""
    as_pid_1("""
from logclient.shm import proc
assert os.getpid() == 1 and not proc.is_ours()
other = child()
entry = proc.entry_of(other)
assert entry not in ("", str(other)) and proc.pid_of(entry) == other
assert proc.entry_of(1) == proc.own_entry() and proc.pid_of(proc.own_entry()) == 1
assert proc.pid_of(proc.stat_of("self")[proc.STAT_PARENT].decode()) == 0, "of the namespace around"
assert proc.start_ticks(other) >= proc.start_ticks(1) == proc.start_ticks() > 0
assert proc.pid_namespace() == os.stat(f"/proc/{entry}/ns/pid").st_ino > 0
os.kill(other, 9)
os.waitpid(other, 0)
assert (proc.entry_of(other), proc.pid_of(entry), proc.start_ticks(other)) == ("", 0, 0)
assert proc.entry_of(4_000_000) == proc.entry_of(1 << 63) == ""
del os.pidfd_open
assert proc.entry_of(child()) == "", "nobody can tell"
""")


@pytest.mark.root
def test_same_number_here_and_there_is_not_taken_for_our_proc(as_pid_1: Callable[[str], None]) -> None:
    """A process may bear one number in both namespaces, by chance."""
    as_pid_1("""
import ctypes, struct
from logclient.shm import proc
wanted = (ctypes.c_int * 2)()
for number in range(30_000, 31_000):
    wanted[:] = [number, number]
    call = struct.pack("=8Q3Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, ctypes.addressof(wanted), 2)
    buffer = ctypes.create_string_buffer(call, 88)
    found = ctypes.CDLL(None, use_errno=True).syscall(435, buffer, 88)  # clone3
    if found == 0:
        os._exit(7 if os.readlink("/proc/self") == str(os.getpid()) and not proc.is_ours() else 1)
    if found > 0:
        assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 7
        break
    if ctypes.get_errno() != 17:  # not only that the number is taken
        break  # a kernel that lets nobody choose
""")


@pytest.mark.root
def test_ancestors_and_life_are_told_where_proc_shows_other_pids(as_pid_1: Callable[[str], None]) -> None:
    """The chain ends with PID 1; who lives is known without a lock; a place that ends says whose PID 1 it is."""
    as_pid_1("""
from logclient.launching import ancestry
from logclient.spawn import lifetime
from logclient.shm import proc
from logclient.shm.owner import is_alive
line = ((1, proc.start_ticks()),)
def chain():
    assert tuple(ancestry.ancestors()) == line
    assert ancestry.has_ancestor(*line[0])
    assert ancestry.parent() == f"{ancestry.boot()}-{line[0][0]}-{line[0][1]}"
    assert lifetime.why().endswith(f"with {proc.name_of(proc.entry_of(1))} as PID 1"), lifetime.why()
first = child(chain)
assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 0
other, here = child(), proc.pid_namespace()
ticks = proc.start_ticks(other)
assert is_alive("/nowhere", other, ticks, here)
os.kill(other, 9)
os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
assert not is_alive("/nowhere", other, ticks, here), "a zombie"
""")


@pytest.mark.root
def test_pid_1_reaps_what_is_ours_where_proc_shows_other_pids(as_pid_1: Callable[[str], None]) -> None:
    """Agents' processes by their name, a launcher's shell as it was noted; never a child of the user's."""
    as_pid_1("""
from logclient.spawn import reap
def agent():
    open("/proc/self/comm", "w").write(reap.NAME)
users, ours, shell = child(lambda: None), child(agent), child(lambda: None)
for pid in (users, ours, shell):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
reap.note(shell)
reap.ended()
left = []
for pid in (users, ours, shell):
    try:
        left.append(os.waitpid(pid, os.WNOHANG)[0])
    except ChildProcessError:
        pass
assert left == [users], (left, users, ours, shell)
""")
