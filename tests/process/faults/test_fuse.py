"""With its interpreter, its packages and its run folder on a file system that answers nothing, training goes on."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logclient.shm import layout
from tools.faults import fuse, processes
from tools.faults.crash import account, training

from .. import disturbed
from ..disturbed import ROOMY, Trainer, wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
NEEDED = ("click", "psutil", "rich", "markdown_it", "mdurl", "pygments", "zstandard")  # as pip installs them
NOT_COPIED = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "config-*",
)
STUCK = ("open", "read", "getattr", "write")
GONE_S = 90.0


def copy_environment(to: Path) -> Path:
    """An installation of Python with our packages in it, not linked to ours; its interpreter."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    left_out = shutil.ignore_patterns(*NOT_COPIED)
    for scheme in ("stdlib", "platstdlib"):
        source = sysconfig.get_path(scheme, vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
        shutil.copytree(
            source, to / "lib" / version, ignore=left_out, ignore_dangling_symlinks=True, dirs_exist_ok=True
        )
    packages = to / "lib" / version / "site-packages"
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.submodule_search_locations, name
        shutil.copytree(next(iter(spec.submodule_search_locations)), packages / name)
    shutil.copytree(ROOT / "logclient", packages / "logclient")
    shutil.copytree(ROOT / "backend" / "logclient_backend", packages / "logclient_backend")
    harness = to / "work" / "tests" / "process"
    harness.mkdir(parents=True)
    for name in ("tests/__init__.py", "tests/process/__init__.py", "tests/process/trainer.py"):
        shutil.copy(ROOT / name, to / "work" / name)
    for library in Path(sysconfig.get_config_var("LIBDIR") or "/nowhere").glob("libpython3*.so*"):
        shutil.copy(library, to / "lib" / library.name)
    (to / "bin").mkdir()
    interpreter = to / "bin" / version
    shutil.copy(os.path.realpath(getattr(sys, "_base_executable", sys.executable)), interpreter)
    return interpreter


@contextmanager
def stuck(mount: fuse.Fuse) -> Iterator[None]:
    """Inside the `with` the mount answers no open, read, stat or write."""
    mount.hang(*STUCK)
    try:
        yield
    finally:
        mount.release()


def mapped_files(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/" in line}


@pytest.fixture
def trainer_on_mount(run_dir: Path, needs_root: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that starts a trainer whose environment and run folder lie on the mount, and the mount."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    backing = tmp_path / "backing"
    backing.mkdir()
    interpreter = copy_environment(backing)
    with fuse.Fuse(backing, cache_s=1.0) as mount:

        @contextmanager
        def start(env: dict[str, str], **plan) -> Iterator[Trainer]:
            env = {
                "LOGCLIENT_DIR": str(mount.path / "runs"),
                "LD_LIBRARY_PATH": str(mount.path / "lib"),
                "PATH": "/usr/bin:/bin",
                **env,
            }
            with monkeypatch.context() as patch:
                patch.setattr(disturbed, "ROOT", mount.path / "work")
                patch.setattr(sys, "executable", str(mount.path / interpreter.relative_to(backing)))
                made = training(tmp_path, env, **plan)
                trainer = made.__enter__()
            try:
                yield trainer
            finally:
                made.__exit__(None, None, None)

        yield start, mount


@pytest.mark.timeout(240)
def test_an_environment_that_answers_nothing_stops_neither_trainer_nor_draining(
    trainer_on_mount, tmp_path, pace
):
    """Open, read, stat and write hang; the worker is SIGKILLed meanwhile, and its successor drains into tmpfs."""
    start, mount = trainer_on_mount
    stall_s = max(1.0, pace.seconds(5))
    seconds = pace.seconds(60)
    plan = {"rate": 2_000, "until_told": True, "finish_timeout_s": 2.0}
    with start(ROOMY | {"LOGCLIENT_STALL_S": str(stall_s)}, **plan) as trainer:
        page = trainer.status_page()
        wait_until(lambda: page.words[layout.AGENT_WRITTEN] > 0, 30, "something is durable")
        worker = trainer.agent_pid()
        for pid in (trainer.process.pid, worker):
            ours = [path for path in mapped_files(pid) if path.startswith(f"{mount.path}/")]
            assert any("/bin/python" in path for path in ours), "the interpreter does not lie on the mount"
            assert pid != worker or any("zstandard" in path for path in ours), "the packages do not"
        with stuck(mount):
            wait_until(lambda: any(mount.hanging().values()), 30, "the worker hangs in the mount")
            assert processes.send(worker, signal.SIGKILL)
            wait_until(lambda: page.words[layout.AGENT_WORKER] != worker, 30, "another worker starts")
            drained = page.words[layout.AGENT_DRAINED]
            wait_until(lambda: page.words[layout.AGENT_DRAINED] > drained, 30, "the other one drains")
            assert page.words[layout.AGENT_SPILL_BYTES] > 0
            time.sleep(seconds)
            before_end = page.words[layout.AGENT_DRAINED]
            status = trainer.tell_to_end()
            assert status["refused"] == status["forgotten"] == 0
            assert status["durable"] < status["accepted"] == trainer.logged
            wait_until(lambda: page.words[layout.AGENT_DRAINED] > before_end, 30, "draining goes on")
        # Generous: a call that waited for the mount would have waited until its release.
        assert trainer.longest_ms < 1_000
        trainer.wait_gone(GONE_S)
    found = account(mount.backing / "runs", trainer.logged)
    assert not found.problems
    assert (found.stored, found.forgotten, found.damaged) == (trainer.logged, 0, 0)
