"""Modes of files and folders: shared memory is for its owner alone, run folders follow the umask and the group."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from .. import scripts
from ..agents import WORKER, both_killed, kill, nothing_left
from ..disturbed import Trainer, wait_until

# root enters and opens what it likes, unless it gave up the right to
_STRICT = "--bounding-set=-dac_override,-dac_read_search"

UMASK = """
import os, sys
os.umask(int(sys.argv[1], 8))
import logclient
run = logclient.init(project="case", config={f"large{n}": "x" * 20_000 for n in range(10)})
for step in range(100):
    run.log(step, {"loss": step / 2})
if os.fork() == 0:
    run.log(100, {"loss": 50.0})
    os._exit(0)
os.wait()
print(run.finish(60), run.status()["notices"])
"""


def strict(*words: str) -> list[str]:
    """A command line in which modes count, for root as well."""
    if os.geteuid():
        return list(words)
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux")
    return ["setpriv", _STRICT, *words]


def train(where: Path, umask: int) -> scripts.Ended:
    scripts.write(where, UMASK)
    return scripts.run_words(where, strict(sys.executable, "train.py", f"{umask:o}"), 120)


def modes_of(path: Path) -> dict[str, int]:
    return {
        "" if each == path else each.name: stat.S_IMODE(each.stat().st_mode)
        for each in (path, *path.rglob("*"))
    }


@pytest.mark.first_is_quick
@pytest.mark.parametrize("umask", [0o177, 0o277, 0o777])
def test_a_umask_that_takes_the_owners_bits_costs_nothing(umask: int, run_dir: Path, tmp_path: Path) -> None:
    """A run under such a umask is stored whole, forked child included, and so is the next one under a usual umask."""
    for number, mask in ((1, umask), (2, 0o022)):
        ended = train(tmp_path, mask)
        assert ended.out == "True []\n", ended
        assert [scripts.steps(run) for run in scripts.runs(run_dir)] == [list(range(101))] * number
    for run in run_dir.iterdir():
        for name, mode in modes_of(run).items():
            wanted = 0o700 if not Path(name).suffix else 0o600
            assert mode & 0o700 == wanted, f"{name} has mode {mode:o}"
    nothing_left(30)


@pytest.mark.parametrize("mode", [0o000, 0o600])
def test_a_base_folder_that_cannot_be_used_is_mended(mode: int, run_dir: Path, tmp_path: Path) -> None:
    """A folder of this user whose mode shuts him out, left by an earlier version, holds the next run's place again."""
    base = Path(os.environ["LOGCLIENT_SHM_DIR"]) / f"logclient-{os.geteuid()}"
    base.mkdir()
    base.chmod(mode)
    ended = train(tmp_path, 0o022)
    assert ended.out == "True []\n", ended
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(101))
    nothing_left(30)


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o027, 0o077])
def test_run_folders_follow_the_umask_of_the_trainer(umask: int, run_dir: Path, tmp_path: Path) -> None:
    """Whoever makes a file of a run: the first worker, its successor, or the agent that `recover` starts."""
    before = os.umask(umask)
    try:
        settings = {"LOGCLIENT_SEAL_S": "0.3"}
        trainer = Trainer(tmp_path, settings, records=2_000, rate=2_000, hold=1)
    finally:
        os.umask(before)
    wait_until(lambda: trainer.logged == 2_000, 30, "all is logged")
    shm_dir = Path(trainer.shm_dir)
    found = modes_of(shm_dir.parent)
    kill(trainer.agent_pid(WORKER))
    both_killed(trainer)
    trainer.kill(9)
    trainer.process.communicate(timeout=60)
    recovered = scripts.run_words(tmp_path, [sys.executable, "-m", "logclient_backend", "recover"], 120)
    assert recovered.code == 0, recovered
    assert len(found) > 5
    for name, mode in found.items():
        assert mode & 0o077 == 0, f"{name} in shared memory has mode {mode:o}"
    (run,) = run_dir.iterdir()
    for name, mode in modes_of(run).items():
        is_folder = not Path(name).suffix
        assert mode == (0o777 if is_folder else 0o666) & ~umask, f"{name} has mode {mode:o}"
    nothing_left(30)


@pytest.mark.root
def test_a_folder_of_a_group_gives_its_group_to_what_lies_in_it(
    run_dir: Path, tmp_path: Path, needs_root: None
) -> None:
    """With the set-group-id bit on the folder for runs, a colleague's run can be read by the group."""
    run_dir.mkdir(exist_ok=True)
    os.chown(run_dir, 0, 4242)
    run_dir.chmod(0o2775)
    ended = train(tmp_path, 0o007)
    assert ended.out == "True []\n", ended
    (run,) = run_dir.iterdir()
    for path in (run, *run.rglob("*")):
        assert path.stat().st_gid == 4242
        assert stat.S_IMODE(path.stat().st_mode) == (0o2770 if path.is_dir() else 0o660)


@pytest.mark.slow
def test_exports_and_imports_follow_the_umask(run_dir: Path, tmp_path: Path) -> None:
    """What the command line writes for people has the modes that its umask gives, and always the owner's."""
    assert train(tmp_path, 0o022).out == "True []\n"
    (run,) = run_dir.iterdir()
    program = [sys.executable, "-m", "logclient_backend"]
    for umask in (0o007, 0o777):
        before = os.umask(umask)
        try:
            words = ["export", run.name, "--out", str(tmp_path / f"out-{umask:o}")]
            assert scripts.run_words(tmp_path, strict(*program, *words), 60).code == 0
            words = ["import", str(tmp_path / f"out-{umask:o}"), "--dir", str(tmp_path / f"in-{umask:o}")]
            done = scripts.run_words(tmp_path, strict(*program, *words), 60)
            assert done.code == 0, done
        finally:
            os.umask(before)
        for top in (f"out-{umask:o}", f"in-{umask:o}"):
            for path in (tmp_path / top, *(tmp_path / top).rglob("*")):
                wanted = (0o777 if path.is_dir() else 0o666) & ~(umask & 0o077)
                assert stat.S_IMODE(path.stat().st_mode) == wanted, f"{path} has mode {path.stat().st_mode:o}"
