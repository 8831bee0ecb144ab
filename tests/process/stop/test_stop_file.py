"""The stop file: whoever may make it stops the run; who reads it may hang, and nobody else does."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import layout
from tools.faults import frozen, processes
from tools.faults.fuse import Fuse

from .. import scripts
from ..agents import SUPERVISOR, WORKER, is_gone, kill, successor
from ..disturbed import Trainer, wait_until
from .asking import command, live_dir, taken

OFFLINE = {"LOGCLIENT_MODE": "offline"}  # no ship process beside the reader

# logs until it is stopped, and prints after which step that was
LOOP = """
import sys, time
import logclient
run = logclient.init("stop", id=sys.argv[1], quiet=True, stop_file=sys.argv[2])
step = 0
while not run.should_stop():
    step += 1
    run.log(step, {"loss": 1 / step})
    time.sleep(0.005)
print(step)
run.finish(60)
"""


@contextmanager
def training(folder: Path, env: dict[str, str] | None = None, **plan: Any) -> Iterator[Trainer]:
    """A trainer that logs 200 records a second until it is told to end."""
    trainer = Trainer(folder, {**OFFLINE, **(env or {})}, until_told=True, rate=200, values=1, **plan)
    try:
        yield trainer
    finally:
        trainer.process.kill()
        trainer.process.communicate()


def reader(trainer: Trainer, *before: int) -> int:
    """PID of the process that looks for the stop file; another one than those before, and none that has ended."""

    def found() -> int:
        parent = trainer.word(SUPERVISOR)
        others = {trainer.word(WORKER), trainer.word(layout.AGENT_OBSERVER), *before}
        for child in _children(parent):
            if child not in others and not is_gone(child) and trainer.word(layout.STOP_FILE_BEAT):
                return child
        return 0

    return int(wait_until(found, 60, "a process looks for the stop file"))


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_file_stops_the_run_and_says_why(run_dir: Path, tmp_path: Path) -> None:
    """Its first line is the reason, its owner is who asked; a relative path is one of the program's folder."""
    process = scripts.start(tmp_path, LOOP, "filed", "STOP")
    try:
        live_dir("filed")
        (tmp_path / "STOP").write_text("loss went up\nand more\n")
        ended = scripts.end(process)
        assert ended.code == 0, ended
    finally:
        process.kill()
        process.wait()
    (found,) = scripts.the_run(run_dir).requests()
    assert (found.reason, found.via, found.state) == ("loss went up", "stop file", "holds")
    assert found.by == pwd.getpwuid(os.geteuid()).pw_name and found.step == int(ended.out)


@pytest.mark.root
def test_file_of_somebody_else_names_its_owner(run_dir: Path, tmp_path: Path) -> None:
    """A colleague without rights on the job; a file that may not be read counts all the same."""
    nobody = pwd.getpwnam("nobody")
    for name, mode, owner, by, reason in (
        ("named", 0o644, nobody.pw_uid, "nobody", "enough"),
        ("unnamed", 0o644, 54_321, "uid 54321", "enough"),
    ):
        process = scripts.start(tmp_path, LOOP, name, str(tmp_path / name))
        try:
            live_dir(name)
            made = tmp_path / f"{name}.new"
            made.write_text("enough")
            os.chown(made, owner, owner)
            made.chmod(mode)
            made.rename(tmp_path / name)
            assert scripts.end(process).code == 0
        finally:
            process.kill()
            process.wait()
        found = next(each for each in scripts.runs(run_dir) if each.id == name).requests()
        assert [(each.by, each.reason) for each in found] == [(by, reason)]


@pytest.mark.parametrize("kind", ["empty", "folder", "link", "FIFO", "binary"])
def test_whatever_appears_there_stops_the_run(kind: str, run_dir: Path, tmp_path: Path) -> None:
    """That it is there is enough; nobody waits for its content."""
    path = tmp_path / "STOP"
    with training(tmp_path, {"LOGCLIENT_STOP_FILE": str(path)}) as trainer:
        reader(trainer)
        match kind:
            case "empty":
                path.touch()
            case "folder":
                path.mkdir()
            case "link":
                path.symlink_to("/etc/passwd")
            case "FIFO":
                os.mkfifo(path)
            case "binary":
                path.write_bytes(b"\x00\x1b[2J\xff" * 3000)
        found = taken(trainer.shm_dir)
        assert found["state"] == "holds" and found["reason"].isprintable() and len(found["reason"]) <= 500
        assert ("root:" not in found["reason"]) and trainer.word(layout.STOP_AT)
        trainer.tell_to_end()


def test_old_file_does_not_stop_a_new_run(run_dir: Path, tmp_path: Path) -> None:
    """It is named as stale; touched it counts, once."""
    path = tmp_path / "STOP"
    path.write_text("of yesterday")
    os.utime(path, (1, 1))
    with training(tmp_path, {"LOGCLIENT_STOP_FILE": str(path)}) as trainer:
        first = taken(trainer.shm_dir)
        assert (first["state"], first["why"], trainer.word(layout.STOP_AT)) == ("refused", "stale", 0)
        os.utime(path)
        wait_until(lambda: trainer.word(layout.STOP_AT), 60, "it counts")
        wait_until(lambda: len(live_dir(trainer.run_id).requests()) == 2, 60, "it is noted")
        worker = trainer.agent_pid(WORKER)
        kill(first_reader := reader(trainer))
        kill(worker)
        successor(trainer, WORKER, worker)
        again = reader(trainer, first_reader, worker)
        beat = trainer.word(layout.STOP_FILE_BEAT)
        wait_until(lambda: trainer.word(layout.STOP_FILE_BEAT) > beat, 60, "another reader has looked")
        assert len(live_dir(trainer.run_id).requests()) == 2, "once, whoever reads it"
        assert not is_gone(again)
        assert command(trainer.run_id, "--clear")["state"] == "done"
        trainer.tell_to_end()


def test_stopped_reader_is_replaced(run_dir: Path, tmp_path: Path) -> None:
    """One that hangs is killed; the next one sees the file. Worker and training do not wait for it."""
    path = tmp_path / "STOP"
    with training(tmp_path, {"LOGCLIENT_STOP_FILE": str(path)}) as trainer:
        first = reader(trainer)
        worker = trainer.agent_pid(WORKER)
        kill(first, signal.SIGSTOP)
        path.write_text("enough")
        trainer.wait_logged_more(100)
        second = reader(trainer, first)
        assert taken(trainer.shm_dir)["reason"] == "enough"
        wait_until(lambda: is_gone(first), 60, "the first one is killed")
        assert second != first and trainer.agent_pid(WORKER) == worker
        trainer.tell_to_end()
    wait_until(lambda: is_gone(second), 60, "it ends with the agent")


def test_next_supervisor_has_a_reader_of_its_own(run_dir: Path, tmp_path: Path) -> None:
    """The one of a supervisor that was killed ends."""
    path = tmp_path / "STOP"
    with training(tmp_path, {"LOGCLIENT_STOP_FILE": str(path)}) as trainer:
        first, supervisor = reader(trainer), trainer.agent_pid(SUPERVISOR)
        kill(supervisor)
        successor(trainer, SUPERVISOR, supervisor)
        second = reader(trainer, first)
        wait_until(lambda: is_gone(first), 60, "the first one ends")
        path.write_text("enough")
        assert taken(trainer.shm_dir)["reason"] == "enough"
        trainer.tell_to_end()
    wait_until(lambda: is_gone(second), 60, "it ends with the agent")


@pytest.mark.root
@pytest.mark.timeout(240)
def test_hanging_mount_holds_up_the_reader_alone(mount: Fuse, run_dir: Path, tmp_path: Path) -> None:
    """Stat and open hang: readers hang in the kernel, a bounded number of them; afterwards the file is found."""
    path = mount.path / "STOP"
    env = {
        "LOGCLIENT_STOP_FILE": str(path),
        "LOGCLIENT_DIR": str(tmp_path / "runs"),
        "LOGCLIENT_CAPTURE": "off",
    }
    with training(tmp_path, env) as trainer:
        first = reader(trainer)
        worker = trainer.agent_pid(WORKER)
        mount.hang("getattr", "open", "read")
        try:
            wait_until(lambda: mount.hanging().get("getattr"), 60, "a reader hangs in the mount")
            (mount.backing / "STOP").write_text("enough")
            others = set[int]()

            def are_several() -> bool:
                others.update(set(_children(trainer.word(SUPERVISOR))) - {worker, first})
                return len(others) >= 2

            wait_until(are_several, 90, "readers are replaced, and replaced again")
            trainer.wait_logged_more(400)
            assert trainer.agent_pid(WORKER) == worker and not trainer.word(layout.STOP_AT)
            silent = live_dir(trainer.run_id).stop_file_silent_s
            assert silent > 5, "status can say so"
        finally:
            mount.release()
        assert taken(trainer.shm_dir)["reason"] == "enough"
        wait_until(lambda: is_gone(first), 60, "the first one was killed")
        ended = trainer.tell_to_end()
    assert ended["agent"]["restarts"] == 0 and ended["refused"] == ended["forgotten"] == 0
    trainer.wait_gone()


@pytest.mark.root
def test_frozen_disk_under_the_file_stops_nobody(
    disk: frozen.LoopExt4, run_dir: Path, tmp_path: Path
) -> None:
    """A file that was made before the freeze is found: reading goes on there. The run folder is on that disk, too."""
    path = disk.path / "STOP"
    with training(tmp_path, {"LOGCLIENT_STOP_FILE": str(path)}) as trainer:
        reader(trainer)
        path.write_text("enough")
        with disk.frozen():
            assert taken(trainer.shm_dir)["reason"] == "enough"
            trainer.wait_logged_more(100)
            assert command(trainer.run_id, "--save-only")["state"] == "holds", "asking needs no disk"
        trainer.tell_to_end()


def test_file_is_refused_where_others_would_wait(run_dir: Path, tmp_path: Path) -> None:
    """A launch over several nodes: each node would choose a step of its own."""
    path = tmp_path / "STOP"
    launch = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
    env = {"LOGCLIENT_STOP_FILE": str(path), "MASTER_PORT": "29500", "LOGCLIENT_RUN_ID": "nodes", **launch}
    with training(tmp_path, env) as trainer:
        reader(trainer)
        path.write_text("enough")
        found = taken(trainer.shm_dir)
        assert (found["state"], found["why"]) == ("refused", "other_nodes")
        assert not trainer.word(layout.STOP_AT)
        trainer.tell_to_end()


def test_without_a_stop_file_nobody_looks(run_dir: Path, tmp_path: Path) -> None:
    """No process is kept for it."""
    with training(tmp_path, {"LOGCLIENT_CAPTURE": "off"}) as trainer:
        worker, supervisor = trainer.agent_pid(WORKER), trainer.agent_pid(SUPERVISOR)
        wait_until(lambda: trainer.word(layout.AGENT_OBSERVER), 60, "there is an observer")
        alive = {pid for pid in _children(supervisor) if processes.is_alive(pid)}
        assert alive == {worker, trainer.word(layout.AGENT_OBSERVER)} and not trainer.word(
            layout.STOP_FILE_BEAT
        )
        trainer.tell_to_end()
