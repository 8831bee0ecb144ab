"""Fork marks and locks of the living: a fork is noticed however it was made, a lock says who lives and nothing else."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logclient.shm import owner
from logclient.shm.owner import ForkMark, LiveLock, PidMark, is_alive, is_locked
from logclient.shm.proc import pid_namespace, start_ticks


def in_child(work, fork=os.fork) -> int:
    """What `work` answers in a forked child, as a number."""
    pid = fork()
    if pid == 0:
        code = 99
        try:
            code = int(work())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("make", ["ForkMark().page", "PidMark()"], ids=["page", "pid"])
@pytest.mark.parametrize("fork", ["os.fork", "ctypes.CDLL(None).fork"], ids=["os.fork", "libc"])
def test_mark_is_gone_in_a_forked_child_and_can_be_set_there(make: str, fork: str) -> None:
    """Also for a fork made in C; a grandchild notices its own fork.

    It runs in a process without other threads: `ctypes.CDLL` forks without the GIL, which one of them would
    hold for ever in the child.
    """
    source = f"""
import ctypes, os
from logclient.shm.owner import ForkMark, PidMark

{inspect.getsource(in_child)}
mark = {make}
mark[0] = 1

def look():
    if mark[0]:
        return 1
    mark[0] = 1
    return 2 * in_child(lambda: mark[0], {fork}) + (not mark[0]) * 4

print(in_child(look, {fork}), mark[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_kernel_without_wiped_pages_is_served_by_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where madvise refuses, the mark is the process id."""
    monkeypatch.setattr(owner, "_MADV_WIPEONFORK", 9999)
    assert isinstance(ForkMark().page, PidMark)


def test_lock_is_held_by_the_process_and_not_by_its_children(tmp_path: Path) -> None:
    """Record locks are not inherited by fork, and a child that lets go of its copy frees nothing."""
    path = str(tmp_path / "x.live")
    lock = LiveLock(path)

    def child() -> int:
        seen = is_locked(path)
        lock.forget()
        return not (seen and is_locked(path))

    assert in_child(child) == 0
    assert is_locked(path) and in_child(lambda: not is_locked(path)) == 0
    lock.release()
    assert not is_locked(path) and in_child(lambda: is_locked(path)) == 0
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_asking_for_ones_own_lock_does_not_free_it(tmp_path: Path) -> None:
    """Closing any descriptor of the file would: the process that holds it answers without opening it."""
    path = str(tmp_path / "x.live")
    lock = LiveLock(path)
    for _ in range(3):
        assert is_locked(path)
    assert in_child(lambda: not is_locked(path)) == 0
    lock.release()


def test_asking_never_takes_the_lock(tmp_path: Path) -> None:
    """A probe that held the lock for a moment would make an agent's election fail: many ask, and one always gets it."""
    path = str(tmp_path / "agent.lock")
    Path(path).touch(0o600)
    asking = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from logclient.shm.owner import is_locked\nprint(1, flush=True)\nwhile True: is_locked({path!r})",
            ],
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for process in asking:
            assert process.stdout is not None and process.stdout.readline()
        import fcntl

        for _ in range(3000):
            fd = os.open(path, os.O_RDWR)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(fd)
    finally:
        for process in asking:
            process.kill()
            process.communicate()


def test_file_that_is_gone_or_a_link_is_not_locked(tmp_path: Path) -> None:
    """A removed folder means nobody is there; a link is not followed."""
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "target").touch()
    assert not is_locked(str(tmp_path / "gone")) and not is_locked(str(tmp_path / "link"))
    assert not is_locked(str(tmp_path / "target" / "below"))


def test_dead_means_lock_free_and_process_gone(tmp_path: Path) -> None:
    """A PID proves life only with its start time and in this namespace; a zombie is dead."""
    path = str(tmp_path / "x.live")
    Path(path).touch()
    me, ticks, here = os.getpid(), start_ticks(), pid_namespace()
    assert ticks == start_ticks(me) > 0 and here > 0
    assert is_alive(path, me, ticks, here)
    assert not is_alive(path, me, ticks + 1, here), "the PID was reused"
    assert not is_alive(path, me, ticks, here + 1), "a PID means nothing in another namespace"
    assert not is_alive(path, me, 0, here)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    ticks = start_ticks(child)
    assert is_alive(path, child, ticks, here)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not is_alive(path, child, ticks, here), "a zombie"
    os.waitpid(child, 0)
    assert not is_alive(path, child, ticks, here) and start_ticks(child) == 0
    lock = LiveLock(str(tmp_path / "y.live"))
    assert is_alive(lock.path, 1, 1, here), "the lock alone decides"
    lock.release()


def test_lock_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """A folder that is gone is an error, and no file or descriptor stays."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        LiveLock(str(tmp_path / "gone" / "x.live"))
    blocked = tmp_path / "x.live"
    blocked.mkdir()
    with pytest.raises(OSError):
        LiveLock(str(blocked))
    assert len(os.listdir("/proc/self/fd")) == before and os.listdir(tmp_path) == ["x.live"]
    assert not is_locked(str(blocked)) or os.path.isdir(blocked)


def test_threads_do_not_matter_to_the_lock(tmp_path: Path) -> None:
    """Taken in one thread, seen and released in another."""
    path = str(tmp_path / "x.live")
    locks: list[LiveLock] = []
    for work, is_held in ((lambda: locks.append(LiveLock(path)), True), (lambda: locks[0].release(), False)):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert in_child(lambda: is_locked(path)) == is_held
