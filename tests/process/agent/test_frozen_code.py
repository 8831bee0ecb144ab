"""Nothing that the agent needs after its start lies on a disk: neither code nor tables nor source for tracebacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from logclient.shm import layout
from tests.certificates import Authority
from tests.hooks import Hooks, hooks, target_file, webhook
from tools.faults.processes import stopped

from ..agents import SUPERVISOR, WORKER, both_killed, checked, kill, log_of, successor
from ..disturbed import ROOMY, Trainer, wait_until

# A supervisor that notes each file and module that it or a process of its opens, and whether the main thread does so:
# from its first fork on, or if observers are watched, once it has loaded their code.
_SUPERVISOR = """
import os, sys, threading
from logclient.shm import shm_dir as shm_dirs
from logclient_backend.agent.supervise import capture, page_pinning
from logclient_backend.agent.shipping import ship_process
from logclient_backend.agent.observer.observer_keeper import ObserverKeeper
from logclient_backend.agent.supervise.supervisor import Supervisor
log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
main, forked, ships, ship = threading.main_thread().ident, [], [], ship_process.run
events = ("open", "import", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.chdir")
def note(event, arguments):
    if event == ("observer loaded" if sys.argv[4] == "observers" else "os.fork"):
        forked.append(True)
    elif forked and event in events and not ships:
        who = "main" if threading.get_ident() == main else "copier"
        os.write(log, f"{who} {event} {arguments[0]}\\n".encode("utf-8", "replace"))
def note_no_more(*given):
    ships.append(True)  # in a process of its own, which may wait for a disk
    return ship(*given)
ship_process.run = note_no_more
collect = capture.collect_in_child
def collect_and_note_no_more(*given, **more):
    ships.append(True)  # in a child that may hang, too
    collect(*given, **more)
capture.collect_in_child = collect_and_note_no_more
look = ObserverKeeper.look
def look_and_note(keeper):
    is_loaded = look(keeper)
    if is_loaded:
        open(sys.argv[2] + ".loaded", "w").close()
        sys.audit("observer loaded")
    return is_loaded
ObserverKeeper.look = look_and_note
sys.addaudithook(note)
if sys.argv[3] == "unlocked":  # as for a user who may not lock memory
    page_pinning.lock_pages = lambda: False
os.umask(0o077)
os._exit(Supervisor(shm_dirs.read(sys.argv[1]), sends_alerts="LOGCLIENT_ALERTS" in os.environ).run())
"""


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("memory", ["locked", "unlocked"])
def test_supervisor_and_workers_open_nothing_outside_tmpfs_and_proc(
    run_dir: Path, tmp_path: Path, memory: str
) -> None:
    """After the supervisor's first fork: restarts, crashes, a new supervisor, errors of the disk, the log of them."""
    log = tmp_path / "opened"
    env = ROOMY | {"LOGCLIENT_SEAL_S": "0.5", "LOGCLIENT_STALL_S": "1", "LOGCLIENT_OBSERVE": "off"}
    trainer = Trainer(tmp_path, env, rate=1_000, until_told=True)
    both_killed(trainer)
    points = (
        "copy.write=eio:2!,documents.save=die:2!,worker.loop=die:30!,drain.taken=segv:5!,copy.seal=enospc:1!"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, trainer.shm_dir, str(log), memory, "workers"],
        env={**os.environ, "LOGCLIENT_FAILPOINTS": points, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    wait_until(lambda: trainer.agent_pid(SUPERVISOR) == agent.pid, 20, "our supervisor is elected")
    met = ("fail point worker.loop", "SystemExit", "signal 11")
    wait_until(lambda: all(words in log_of(run_dir) for words in met), 60, "fail points are met")
    kill(agent.pid)
    agent.wait(60)
    successor(trainer, SUPERVISOR, agent.pid)
    worker = trainer.agent_pid(WORKER)
    kill(worker)
    successor(trainer, WORKER, worker)
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    shm_root, runs = os.environ["LOGCLIENT_SHM_DIR"], str(run_dir)
    lines = sorted(set(log.read_text().splitlines()))
    assert any(line.startswith(f"copier open {runs}") for line in lines), "it is noted at all"
    assert any(line.startswith("main open /proc/self/fd/") for line in lines)
    for line in lines:
        who, event, what = line.split(" ", 2)
        is_memory = what.startswith((f"{shm_root}/", "/proc/", "/sys/")) or what.isdecimal()
        assert event != "import" and (is_memory or (who == "copier" and what.startswith(runs))), line


@pytest.mark.timeout(120)
def test_observer_opens_nothing_outside_tmpfs_proc_and_dev(run_dir: Path, tmp_path: Path) -> None:
    """Samples, stacks, files of the verdict, alerts: all of it while every disk may be frozen. So does its successor.

    The file of receivers is read by children, which may hang.
    """
    log = tmp_path / "opened"
    authority, folder = Authority(tmp_path / "ca"), tmp_path / "targets"
    folder.mkdir()
    shutil.copy(authority.folder / "ca.pem", folder)
    env = {
        "LOGCLIENT_OBSERVE_S": "0.1",
        "LOGCLIENT_LATE_AFTER_S": "0.5",
        "LOGCLIENT_LATE_FACTOR": "1",
        "LOGCLIENT_STALL_SAMPLES_S": "0.3",
        "LOGCLIENT_SYSTEM": "1",
    }
    trainer = Trainer(tmp_path, ROOMY | env, rate=100, until_told=True)
    both_killed(trainer)
    with hooks(authority.certificate("good")) as served:
        file = target_file(folder, f'ca = "{folder}/ca.pem"\n' + webhook("team", f"{served.url}/ok"))
        _stall_twice(trainer, log, file, served)
    shm_root, runs = os.environ["LOGCLIENT_SHM_DIR"], str(run_dir)
    lines = sorted(set(log.read_text().splitlines()))
    assert any("/why.txt" in line for line in lines), "it is noted at all"
    assert any(".system" in line for line in lines), "and it measures"
    for line in lines:
        who, event, what = line.split(" ", 2)
        is_memory = (
            what.startswith((f"{shm_root}/", "/proc/", "/sys/", "/dev/", f"{folder}/")) or what.isdecimal()
        )
        assert event != "import" and (is_memory or (who == "copier" and what.startswith(runs))), line


def _stall_twice(trainer: Trainer, log: Path, file: Path, served: Hooks) -> None:
    """Serve the run by a supervisor that notes what is opened; its observer is killed in between."""
    agent = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, trainer.shm_dir, str(log), "locked", "observers"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LOGCLIENT_ALERTS": str(file)},
    )
    wait_until(lambda: trainer.agent_pid(SUPERVISOR) == agent.pid, 20, "our supervisor is elected")
    wait_until(Path(f"{log}.loaded").exists, 20, "it has loaded what observers need")
    kill(trainer.word(layout.AGENT_OBSERVER))  # the one that loaded that itself
    text = Path(trainer.shm_dir) / "why.txt"
    with stopped(trainer.process.pid):
        wait_until(
            lambda: text.exists() and text.read_text().startswith("stalled: stopped"), 60, "it is stalled"
        )
        wait_until(lambda: len(served.of("/ok")) == 1, 60, "it is sent")
        observer = trainer.word(layout.AGENT_OBSERVER)
        kill(observer)
        wait_until(lambda: trainer.word(layout.AGENT_OBSERVER) != observer, 60, "there is another observer")
        before = text.stat().st_mtime_ns
        wait_until(lambda: text.stat().st_mtime_ns > before, 60, "it has taken a sample")
    wait_until(lambda: text.read_text().startswith("ok"), 60, "it moves again")
    wait_until(lambda: len(served.of("/ok")) == 2, 60, "that is sent")
    trainer.tell_to_end()
    trainer.wait_gone()
    agent.wait(60)
