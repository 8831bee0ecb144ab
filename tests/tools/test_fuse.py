"""A passthrough mount: right where it passes, and each of its faults happens as asked for."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tools.traces import ROOT, line_of, python, traces_of, wait_until_state
from tools.faults import fuse, processes
from tools.faults.control import OPS
from tools.faults.frozen import LoopExt4
from tools.faults.frozen import why_not as why_no_loop
from tools.faults.fuse import Fuse

WHY_NOT = fuse.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(60),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

NOBODY = 65534
# What hangs, and a program that does it to the existing file that it is given.
HANGS = {
    "open": "open(sys.argv[1])",
    "stat": "os.stat(sys.argv[1])",
    "write": "os.write(os.open(sys.argv[1], os.O_WRONLY), b'x')",
    "fsync": "os.fsync(os.open(sys.argv[1], os.O_WRONLY))",
    "create": "open(sys.argv[1] + '.new', 'w')",
    "rename": "os.rename(sys.argv[1], sys.argv[1] + '.new')",
    "unlink": "os.unlink(sys.argv[1])",
    "readdir": "os.listdir(os.path.dirname(sys.argv[1]))",
    "everything": "open(sys.argv[1])",
}


def nothing_left(name: str) -> bool:
    return not traces_of(name, Path(tempfile.gettempdir()))


def raised(call: Callable[[], object]) -> int | None:
    """The errno of the OSError that the call ends in."""
    with pytest.raises(OSError) as caught:
        call()
    return caught.value.errno


def hung_calls(mount: Fuse) -> int:
    return sum(mount.hanging().values())


@pytest.fixture
def mount() -> Iterator[Fuse]:
    with Fuse() as made:
        yield made
    assert nothing_left(made.name)


def test_files_pass_through(mount: Fuse) -> None:
    """Written, mapped, cut and reserved bytes are the same on both sides, at the same inode."""
    path, behind = mount.path / "file", mount.backing / "file"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
    assert raised(lambda: os.open(path, os.O_CREAT | os.O_EXCL)) == errno.EEXIST
    assert os.pwrite(handle, b"hello", 10) == 5
    assert os.pread(handle, 100, 0) == behind.read_bytes() == bytes(10) + b"hello"
    assert os.fstat(handle).st_ino == path.stat().st_ino == behind.stat().st_ino
    assert path.stat().st_mode == behind.stat().st_mode
    os.posix_fallocate(handle, 0, 10_000)
    assert behind.stat().st_size == 10_000
    os.ftruncate(handle, mmap.PAGESIZE)
    with mmap.mmap(handle, mmap.PAGESIZE) as mapped:
        mapped[:3] = b"abc"
        mapped.flush()
        assert behind.read_bytes()[:3] == b"abc"
    os.truncate(path, 4)
    assert os.fstat(handle).st_size == behind.stat().st_size == 4
    os.fsync(handle)
    os.fdatasync(handle)
    os.close(handle)
    with open(path, "ab") as file:
        file.write(b"1")
        file.flush()
        file.write(b"2")
    assert behind.read_bytes() == b"abc\x0012"


def test_names_pass_through(mount: Fuse) -> None:
    """Folders, links, renames, times, modes and owners are the same on both sides."""
    root, behind = mount.path, mount.backing
    (root / "folder").mkdir()
    (root / "folder/file").write_text("text")
    os.symlink("folder", root / "link")
    assert os.readlink(behind / "link") == "folder"
    assert (root / "link/file").read_text() == "text"
    os.link(root / "folder/file", root / "second")
    assert (root / "second").stat().st_nlink == 2
    os.replace(root / "second", root / "third")
    assert sorted(os.listdir(root)) == sorted(os.listdir(behind)) == ["folder", "link", "third"]
    assert {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(root)}["folder"]
    os.utime(root / "third", ns=(10**18 + 5, 10**18 + 7))
    assert (behind / "third").stat().st_mtime_ns == (root / "third").stat().st_mtime_ns == 10**18 + 7
    os.chmod(root / "third", 0o600)
    os.chown(root / "third", NOBODY, NOBODY)
    status = (behind / "third").stat()
    assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o600, NOBODY, NOBODY)
    assert raised(lambda: os.rmdir(root / "folder")) == errno.ENOTEMPTY
    handle = os.open(root, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    shutil.rmtree(root / "folder")
    assert not (behind / "folder").exists()
    assert os.statvfs(root).f_blocks == os.statvfs(behind).f_blocks


def test_open_file_outlives_its_name(mount: Fuse) -> None:
    """Renamed, replaced and unlinked files, and those of a removed folder, go on for who has them open."""
    folder = mount.path / "folder"
    folder.mkdir()
    with open(folder / "a", "w+b", 0) as first, open(folder / "b", "w+b", 0) as second:
        os.replace(folder / "a", folder / "b")
        os.unlink(folder / "b")
        assert os.listdir(folder) == []
        first.write(b"1")
        second.write(b"2")
        assert os.fstat(first.fileno()).st_size == os.fstat(second.fileno()).st_size == 1
        os.rmdir(folder)
        first.write(b"3")
        assert os.pread(first.fileno(), 9, 0) == b"13"
        assert os.pread(second.fileno(), 9, 0) == b"2"
    with tempfile.TemporaryFile(dir=mount.path) as nameless:
        nameless.write(b"x")
    assert os.listdir(mount.path) == []
    assert mount.counts()["unlink"] == 3  # b was replaced, b was unlinked, the nameless file was


def test_files_belong_to_who_makes_them(mount: Fuse) -> None:
    """Another user's file is that user's, and what is not open to that user stays shut."""
    mount.path.chmod(0o777)
    (mount.path / "private").touch(0o600)
    code = "import sys; open(sys.argv[1] + '/mine', 'w'); open(sys.argv[1] + '/private')"
    command = ["/usr/bin/env", "python3", "-I", "-c", code, str(mount.path)]
    done = subprocess.run(command, user=NOBODY, stderr=subprocess.PIPE, text=True, check=False)
    if not (mount.backing / "mine").exists():
        pytest.skip(f"no interpreter for another user: {done.stderr}")
    assert (mount.backing / "mine").stat().st_uid == NOBODY
    assert "PermissionError" in done.stderr


LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.{}(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["lockf", "flock"])
def test_locks_hold_between_processes(mount: Fuse, kind: str) -> None:
    """A lock taken through the mount keeps another process out, and is free when its holder is dead."""
    take = {"lockf": fcntl.lockf, "flock": fcntl.flock}[kind]
    with (
        python(LOCK.format(kind), mount.path / "lock") as holder,
        open(mount.path / "lock", "w") as file,
    ):
        line_of(holder)
        assert raised(lambda: take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)) == errno.EAGAIN
        holder.kill()
        holder.wait()
        take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("op", HANGS)
def test_hanging_call_ends_in_d(mount: Fuse, op: str) -> None:
    """The caller sleeps; once killed it is in D; it dies when released. Meanwhile other calls are answered."""
    (mount.path / "file").write_text("text")
    (mount.path / "other").mkdir()
    mount.hang(op, match="/" if op == "readdir" else "*file*")
    with python(f"import os, sys; {HANGS[op]}", mount.path / "file") as caller:
        try:
            processes.wait_until(lambda: sum(mount.hanging().values()) == 1, 10, what=f"one hanging {op}")
            wait_until_state(caller, "S")
            (mount.path / "other/new").write_text("goes on")
            assert (mount.path / "other/new").read_text() == "goes on"
            caller.kill()
            wait_until_state(caller, "D")
            with pytest.raises(subprocess.TimeoutExpired):
                caller.wait(0.2)
        finally:
            mount.release()
        assert caller.wait(10) == -signal.SIGKILL
    assert not any(mount.hanging().values())


def test_hanging_read_is_in_d_at_once_and_can_be_killed(mount: Fuse) -> None:
    """A read waits for a page of the cache: in D without any signal, and SIGKILL ends it."""
    (mount.path / "file").write_text("text")
    mount.hang("read")
    with python("import sys; open(sys.argv[1]).read()", mount.path / "file") as caller:
        mount.wait_until_hanging("read")
        wait_until_state(caller, "D")
        caller.kill()
        assert caller.wait(10) == -signal.SIGKILL
        mount.release("read")


MANY = """
import os, sys, threading
calls = (
    lambda path: open(path).read(),
    lambda path: os.write(os.open(path, os.O_WRONLY), b"x"),
    lambda path: os.fsync(os.open(path, os.O_WRONLY)),
)
for i in range(42):
    threading.Thread(target=calls[i % 3], args=(sys.argv[1] + f"/hung-{i}",)).start()
"""


def test_many_hanging_calls_keep_no_other_waiting(mount: Fuse) -> None:
    """With 42 reads, writes and fsyncs hanging, those of other files are answered."""
    for i in range(42):
        (mount.path / f"hung-{i}").write_text("text")
    mount.hang("read", "write", "fsync", match="/hung-*")
    with python(MANY, mount.path) as caller:
        for op in ("read", "write", "fsync"):
            mount.wait_until_hanging(op, calls=14)
        with open(mount.path / "another", "w+b", 0) as file:
            file.write(b"goes on")
            os.fsync(file.fileno())
            assert os.pread(file.fileno(), 9, 0) == b"goes on"
        mount.release()
        assert caller.wait(20) == 0


def test_hang_ends_at_its_time_limit(mount: Fuse) -> None:
    """Nobody releases: the call goes on at the limit."""
    mount.hang("fsync", at_most_s=0.4)
    with open(mount.path / "file", "w") as file:
        begun = time.monotonic()
        os.fsync(file.fileno())
        assert time.monotonic() - begun >= 0.35


def test_flag_files_work_by_hand(mount: Fuse) -> None:
    """`touch` and `rm` in the control folder do what hang() and release() do."""
    (mount.control / "hang.fsync").touch()
    with python("import os, sys; os.fsync(os.open(sys.argv[1], os.O_CREAT))", mount.path / "file") as caller:
        mount.wait_until_hanging("fsync")
        (mount.control / "hang.fsync").unlink()
        assert caller.wait(10) == 0


def test_slow_fsync_is_as_slow_as_asked(mount: Fuse) -> None:
    """Each fsync takes the time that was asked for, and its usual time when that is taken back."""
    with open(mount.path / "file", "w") as file:
        took = []
        for seconds in (0.2, 0.0):
            mount.delay("fsync", seconds)
            begun = time.monotonic()
            for _ in range(3):
                os.fsync(file.fileno())
            took.append(time.monotonic() - begun)
    assert took[0] >= 0.6
    assert took[1] < took[0]


def test_calls_are_counted(mount: Fuse) -> None:
    """As many fsyncs and writes are counted as were made, those that failed too."""
    before = mount.counts()
    assert set(before) == set(OPS)
    with open(mount.path / "file", "wb", 0) as file:
        for _ in range(5):
            file.write(b"x")
            os.fsync(file.fileno())
        mount.fail("fsync", errno.EIO)
        assert raised(lambda: os.fsync(file.fileno())) == errno.EIO
    after = mount.counts()
    assert {op: after[op] - before[op] for op in ("create", "write", "fsync")} == {
        "create": 1,
        "write": 5,
        "fsync": 6,
    }


@pytest.mark.parametrize("op", ["write", "fsync"])
def test_nth_call_fails(mount: Fuse, op: str) -> None:
    """The third and the fourth call fail with EIO, those before and after do not."""
    mount.fail(op, errno.EIO, after=2, times=2)
    with open(mount.path / "file", "wb", 0) as file:
        results = []
        for _ in range(6):
            try:
                file.write(b"x") if op == "write" else os.fsync(file.fileno())
                results.append(0)
            except OSError as error:
                results.append(error.errno or -1)
    assert results == [0, 0, errno.EIO, errno.EIO, 0, 0]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_space_ends_at_the_byte(mount: Fuse, code: int) -> None:
    """The write that crosses the limit is cut there, the next one fails, also in another file."""
    with open(mount.path / "file", "wb", 0) as file:
        mount.limit(10, code)
        assert file.write(b"1234567") == 7
        assert file.write(b"1234567") == 3
        assert raised(lambda: file.write(b"8")) == code
        assert raised(lambda: (mount.path / "other").write_bytes(b"8")) == code
        mount.limit(None)
        assert file.write(b"8") == 1
    assert (mount.backing / "file").read_bytes() == b"12345671238"


def test_unknown_operation_is_refused(mount: Fuse) -> None:
    """A misspelt operation is an error, not a fault that never happens."""
    for call in (mount.hang, mount.release, mount.wait_until_hanging):
        with pytest.raises(ValueError, match="'wriet' is no operation"):
            call("wriet")


def test_aborted_mount_answers_with_errors(mount: Fuse) -> None:
    """A hanging caller gets an error at once, and so does every later one."""
    (mount.path / "file").write_text("text")
    mount.hang("open")
    code = "import sys\ntry: open(sys.argv[1])\nexcept OSError as error: print(error.errno)"
    with python(code, mount.path / "file") as caller:
        mount.wait_until_hanging("open")
        mount.abort()
        assert int(line_of(caller)) in (errno.ECONNABORTED, errno.ENOTCONN)
    assert raised((mount.path / "file").read_text) in (errno.ECONNABORTED, errno.ENOTCONN)


def test_python_runs_through_the_mount() -> None:
    """An interpreter whose prefix is the mount starts, and hangs where its files do."""
    with Fuse(Path(sys.base_prefix)) as mount:
        program = mount.path / Path(os.path.realpath(sys.executable)).relative_to(sys.base_prefix)
        code = "import sys, json; print(json.__file__, flush=True); sys.stdin.read(); import decimal"
        # Started by a shell: whoever starts a program from a hanging mount hangs with it.
        words = ["sh", "-c", 'exec "$0" -I -c "$1"', str(program), code]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert line_of(child).startswith(str(mount.path))
            mount.hang("open", "getattr", match="*decimal*")
            child.stdin.close()
            processes.wait_until(lambda: sum(mount.hanging().values()) == 1, 10)
            mount.release()
            assert child.wait(20) == 0
    assert nothing_left(mount.name)


def test_mount_over_the_folder_that_it_shows(tmp_path: Path) -> None:
    """Those who come by the old path use the mount; afterwards they find the folder with all that was written."""
    (tmp_path / "file").write_text("text")
    with Fuse(tmp_path, over=tmp_path) as mount:
        assert mount.path == tmp_path
        mount.fail("open", errno.EIO)
        assert raised((tmp_path / "file").read_text) == errno.EIO
        (tmp_path / "new").write_text("written through the mount")
    assert (tmp_path / "file").read_text() == "text"
    assert (tmp_path / "new").read_text() == "written through the mount"
    assert nothing_left(mount.name)


@pytest.mark.skipif(why_no_loop() is not None, reason=why_no_loop() or "")
def test_disk_on_a_hanging_mount_hangs_in_fsync_only() -> None:
    """The image of an ext4 lies on the mount: writes go on into the page cache, fsync is in D until the release."""
    with Fuse() as mount, LoopExt4(16, folder=mount.path) as disk:
        mount.hang("write", "fsync")
        with python(
            "import os, sys; f = open(sys.argv[1], 'wb', 0); f.write(b'x'); print(flush=True); os.fsync(f.fileno())",
            disk.path / "file",
        ) as writer:
            line_of(writer)
            wait_until_state(writer, "D")
            writer.kill()
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(0.2)
            mount.release()
            assert writer.wait(10) == -signal.SIGKILL
    assert nothing_left(mount.name)
    assert nothing_left(disk.name)


OWNER = """
import os, sys, time
from tools.faults.fuse import Fuse

with Fuse() as mount:
    (mount.path / "file").write_text("text")
    mount.hang("everything")
    print(mount.name, flush=True)
    {}
    time.sleep(60)
"""


@pytest.mark.parametrize("then", ["pass", "os.stat(mount.path / 'file')"], ids=["asleep", "hung itself"])
def test_killed_owner_leaves_nothing(then: str) -> None:
    """Killed in mid-hang, the owner dies at once, and mount, server, guard and folder go with it."""
    with python(OWNER.format(then)) as owner:
        name = line_of(owner)
        owner.kill()
        assert owner.wait(10) == -signal.SIGKILL
        processes.wait_until(lambda: nothing_left(name), 20)


def test_killed_guard_takes_the_hang_with_it(mount: Fuse) -> None:
    """The guard's death is the server's: callers get an error, and the owner removes the mount."""
    mount.hang("fsync")
    with python("import os, sys; os.fsync(os.open(sys.argv[1], os.O_CREAT))", mount.path / "file") as caller:
        mount.wait_until_hanging("fsync")
        os.kill(mount.guard_pid, signal.SIGKILL)
        assert caller.wait(10) == 1


def test_left_user_of_the_mount_is_not_left_hanging() -> None:
    """A caller that still hangs when the fault ends goes on; one with an open file gets errors from then on."""
    code = """
import os, sys
f = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.fsync(f)
print(flush=True)
sys.stdin.read()
"""
    with Fuse() as mount:
        mount.hang("fsync")
        words = [sys.executable, "-c", code, str(mount.path / "file")]
        caller = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with caller:
            mount.wait_until_hanging("fsync")
            mount.kill_if_busy(caller.pid)
            mount.__exit__(None, None, None)
            assert line_of(caller) == ""
            assert caller.wait(10) == -signal.SIGKILL
    assert nothing_left(mount.name)


def test_command_line_delays_and_counts() -> None:
    """From a shell: calls fail and hang while the command runs, and are counted in the end."""
    tool = [
        sys.executable,
        "-m",
        "tools.faults.fuse",
        "--hang",
        "create",
        "--seconds",
        "0.5",
        "--counts",
        "--",
    ]
    begun = time.monotonic()
    command = [*tool, "sh", "-c", "sleep 0.2; echo text > {}/file"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun >= 0.5
    assert '"create": 1, "fsync": 0' in done.stdout
    assert nothing_left(Path(done.stderr.splitlines()[0]).parent.name)
