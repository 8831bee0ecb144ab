"""Processes in state D on disks that hang: the mount they wait for, threads, and what the kernel logs of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logclient_backend.observe import deadline, kernel_log
from logclient_backend.observe.deadline import MAX_LEFT, NoAnswer, Question, ask
from tools.faults import frozen, fuse, processes

from ..disturbed import wait_until
from .plant import PATIENCE_S, asked, of, program, settled

pytestmark = pytest.mark.root


def is_blocked(pid: int) -> bool:
    return "D" in processes.states_of_threads(pid).values()


@pytest.mark.parametrize(
    ("call", "because"),
    [
        ("os.write(there, b'x')", "it is in write of {path}/there"),
        ("os.ftruncate(there, 1 << 20)", "it is in ftruncate of {path}/there"),
    ],
)
def test_mount_is_named_by_the_file_of_the_system_call(
    tmp_path: Path, disk: frozen.LoopExt4, call: str, because: str
) -> None:
    """A file that is open on a frozen disk; path and type of its mount, and the line of code."""
    source = f"""
    there = os.open({str(disk.path / "there")!r}, os.O_CREAT | os.O_WRONLY)
    ready()
    while not os.path.exists("go"): time.sleep(0.01)
    def f(): {call}
    f()
    """
    with program(tmp_path, source) as (process,), disk.frozen():
        (tmp_path / "go").touch()
        wait_until(lambda: is_blocked(process.pid), PATIENCE_S, "it waits for the disk")
        found, code = settled("file system", *of([process]))
        assert (code, found["pids"]) == (3, [process.pid])
        (each,) = found["processes"]
        mount = each["mount"]
        assert (mount["path"], mount["type"]) == (str(disk.path), "ext4")
        assert mount["because"] == because.format(path=disk.path)
        assert f"most likely for {disk.path} (ext4, " in found["text"] and "main.py" in found["text"]
        assert each["kernel_stack"] and each["frames"]


def test_state_d_without_a_hint_at_the_mount_is_named_without_it(
    tmp_path: Path, disk: frozen.LoopExt4
) -> None:
    """A file that is made on a frozen disk: no descriptor says where, and the disk is not guessed."""
    source = f"""
    ready()
    while not os.path.exists("go"): time.sleep(0.01)
    def f(): open({str(disk.path / "file")!r}, "w").close()
    f()
    """
    with program(tmp_path, source) as (process,), disk.frozen():
        (tmp_path / "go").touch()
        wait_until(lambda: is_blocked(process.pid), PATIENCE_S, "it waits for the disk")
        found, code = settled("file system", *of([process]))
        assert (code, found["pids"]) == (3, [process.pid])
        (each,) = found["processes"]
        assert each["wait_channel"] or each["kernel_stack"]
        assert each["mount"] is None or each["mount"]["path"] == str(disk.path)


def test_thread_that_hangs_in_state_d_is_named(tmp_path: Path, disk: frozen.LoopExt4) -> None:
    """The main thread sleeps until a thread has written, as with a checkpoint that is saved beside the training."""
    source = f"""
    import threading
    there = os.open({str(disk.path / "there")!r}, os.O_CREAT | os.O_WRONLY)
    def save():
        while not os.path.exists("go"): time.sleep(0.01)
        os.write(there, b"x")
    thread = threading.Thread(target=save, name="saver")
    thread.start()
    ready()
    def wait_for_it(): thread.join()
    wait_for_it()
    """
    with program(tmp_path, source) as (process,), disk.frozen():
        (tmp_path / "go").touch()
        wait_until(lambda: is_blocked(process.pid), PATIENCE_S, "its thread waits for the disk")
        found, _ = settled("file system", *of([process]))
        assert "wait_for_it" in found["text"] and f"most likely for {disk.path}" in found["text"]
        assert "saver" in asked(*of([process])).stdout


def test_mount_whose_reads_hang_is_named(tmp_path: Path, mount: fuse.Fuse) -> None:
    """A FUSE mount, which counts as a network file system; the process is never asked for what hangs itself."""
    (mount.path / "data").write_bytes(b"x" * 100)
    source = f"""
    there = os.open({str(mount.path / "data")!r}, os.O_RDONLY)
    ready()
    while not os.path.exists("go"): time.sleep(0.01)
    def f(): os.read(there, 10)
    f()
    """
    with program(tmp_path, source) as (process,):
        mount.hang("read")
        try:
            (tmp_path / "go").touch()
            wait_until(lambda: is_blocked(process.pid), PATIENCE_S, "it waits for the mount")
            found, _ = settled("file system", *of([process]))
            (each,) = found["processes"]
            assert each["mount"]["path"] == str(mount.path) and each["mount"]["type"].startswith("fuse")
            assert each["mount"]["because"] == f"it is in read of {mount.path}/data"
        finally:
            mount.release("read")


def test_child_that_hangs_in_the_kernel_is_left_behind_and_counted(disk: frozen.LoopExt4) -> None:
    """SIGKILL ends it when the disk answers; beyond a few no more are asked."""
    path = str(disk.path / "there")
    there = os.open(path, os.O_CREAT | os.O_WRONLY)

    def write() -> int:
        return os.write(os.open(path, os.O_WRONLY), b"x")

    try:
        with disk.frozen():
            for _ in range(MAX_LEFT):
                with pytest.raises(NoAnswer, match="gave no answer within 1 s"):
                    ask(write, timeout_s=1, of="the disk")
            assert len(deadline.left_behind()) == MAX_LEFT
            with pytest.raises(NoAnswer, match=f"was not asked: {MAX_LEFT} earlier questions still hang"):
                Question(write, timeout_s=1, of="the disk").answer()
        wait_until(lambda: not deadline.left_behind(), PATIENCE_S, "the children end with the freeze")
        assert ask(write, timeout_s=PATIENCE_S, of="the disk") == 1
    finally:
        os.close(there)


def test_kernel_log_has_what_the_kernel_wrote_of_a_disk(tmp_path: Path, disk: frozen.LoopExt4) -> None:
    """A disk that the kernel turns read-only, on the page and in the JSON with its age."""
    disk.remount_ro(force=True)
    if kernel_log.read().absent:
        pytest.skip("the kernel log cannot be read here")
    with program(tmp_path, "ready()\ntime.sleep(1000)\n") as begun:
        found, _ = settled("user code", *of(begun))
        (log,) = found["kernel_log"]
        last = log["lines"][-1]
        assert last["code"] == "i/o error" and "read-only" in last["text"] and last["age_s"] < PATIENCE_S
        assert last["text"] in asked(*of(begun)).stdout
