"""Containers with little that can be written: no /dev/shm, a small one, a read-only root, a user without a home."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .. import containers, scripts
from ..disturbed import wait_until
from ..recipes import recipe

pytestmark = [pytest.mark.root]

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 61_234  # a user that no passwd entry names

TOLD = """
import json
import logclient
run = logclient.init(project="case")
for step in range(50):
    run.log(step, {"loss": step / 2})
done = run.finish(120)
told = {"done": done, "dir": run.dir, "shm_dir": run._session.shm_dir.path}
print(json.dumps({**told, "notices": run.status()["notices"]}))
"""

NO_SHM = """
for name in null zero full random urandom tty; do touch "$1/$name"; mount --bind "/dev/$name" "$1/$name"; done
mount --move "$1" /dev
test ! -e /dev/shm
"""


def mounted(where: Path, prelude: str, words: list[str], **more: object) -> scripts.Ended:
    """Run those words in mount and PID namespaces of their own, after a shell script; its $1 is an empty tmpfs."""
    (where / "mount").mkdir(parents=True, exist_ok=True)
    script = f'set -e; mount -t tmpfs tmpfs "$1"\n{prelude}\nshift\nexec "$@"'
    command = containers.unshared("sh", "-c", script, "sh", str(where / "mount"), *words, flags="-pfm")
    return scripts.run_words(where, command, 250, **more)


def without(*names: str, **more: str) -> dict[str, str]:
    return {name: value for name, value in scripts.environment(**more).items() if name not in names}


@pytest.mark.timeout(300)
def test_without_dev_shm_another_folder_is_taken_and_said(run_dir: Path, tmp_path: Path) -> None:
    """No /dev/shm at all: the lanes lie in the next folder, one line says which and why, and the run is whole."""
    scripts.write(tmp_path, TOLD)
    ended = mounted(tmp_path, NO_SHM, [sys.executable, "train.py"], env=without("LOGCLIENT_SHM_DIR"))
    assert ended.code == 0, ended
    told = eval(ended.out.replace("true", "True"))
    assert told["done"]
    assert not told["shm_dir"].startswith("/dev/shm")
    (notice,) = told["notices"]
    assert "/dev/shm" in notice and os.path.dirname(told["shm_dir"]) in notice
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(50))
    shutil.rmtree(told["shm_dir"], ignore_errors=True)  # /tmp outlives this container


RANKS = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
import logclient

MIB = 1 << 20

class Samples(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((20 * MIB // 4,), float(index))  # two of them are in flight: 40 MiB

def ours():
    total = 0
    for folder, _, names in os.walk("/dev/shm"):
        for name in names:
            if "logclient" in folder:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    pass
    return total

def train(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="8")
    run = logclient.init(project="case", id="eight", quiet=True)
    seen, most = [], 0
    if rank == 0:
        # no `enumerate`: it keeps the batch before while the next one comes, and then three are in flight
        for batch in DataLoader(Samples(), batch_size=None, num_workers=1, prefetch_factor=1):
            seen.append(float(batch.sum()))
            del batch
            run.log(len(seen) - 1, {"rank0": seen[-1]})
            most = max(most, ours())
            time.sleep(0.02)
        with open("seen", "w") as file:
            print(seen, most, file=file)
    else:
        for step in range(500):
            run.log(step, {f"rank{rank}": float(step)})
            time.sleep(0.001)
    assert run.finish(120), run.status()

torch.set_num_threads(1)
ranks = []
for rank in range(8):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(rank)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    ranks.append(pid)
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks])
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_data_loader_fits_into_64_mib_beside_eight_ranks(run_dir: Path, tmp_path: Path) -> None:
    """C6-2: docker's /dev/shm, eight ranks that log, batches of 40 MiB: it runs as without us, and all is stored."""
    pytest.importorskip("torch")
    scripts.write(tmp_path, RANKS)
    small = "mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm"
    found = []
    for mode in ("disabled", "offline"):
        env = without("LOGCLIENT_SHM_DIR", LOGCLIENT_MODE=mode, OMP_NUM_THREADS="1")
        ended = mounted(tmp_path, small, [sys.executable, "train.py"], env=env)
        assert ended.code == 0, ended
        assert ended.out.strip() == str([0] * 8), ended
        found.append((tmp_path / "seen").read_text().rpartition(" "))
    (plain, _, none), (same, _, most) = found
    assert same == plain
    assert int(none) == 0
    assert 0 < int(most) <= (64 << 20) // 8, "1/8 of what is free"
    series = scripts.points(scripts.the_run(run_dir))
    assert len(series["rank0"]) == 8
    for rank in range(1, 8):
        assert [step for step, _ in series[f"rank{rank}"]] == list(range(500))


READ_ONLY = 'mount --bind "$VOLUME" "$VOLUME"; mount -o remount,ro,bind /; ! touch /tmp/x 2>/dev/null'


@pytest.mark.timeout(300)
def test_read_only_root_with_a_volume(run_dir: Path, tmp_path: Path) -> None:
    """Nothing but a volume and /dev/shm can be written (the page's recipe): the run is as anywhere."""
    volume = tmp_path / "data"
    volume.mkdir()
    scripts.write(tmp_path, TOLD)
    (command,) = recipe("A read-only root").commands
    words = ["sh", "-c", command.replace("/data", str(volume)).replace("python", sys.executable)]
    env = without("LOGCLIENT_DIR", VOLUME=str(volume))
    ended = mounted(tmp_path, READ_ONLY, words, env=env)
    assert ended.code == 0, ended
    assert scripts.steps(scripts.the_run(volume / "runs")) == list(range(50))
    assert scripts.the_run(volume / "runs").state.name == "finished"


@pytest.mark.timeout(300)
def test_read_only_root_without_a_volume(run_dir: Path, home: Path, tmp_path: Path) -> None:
    """No disk can be written: training goes on, it is told, and `recover --dir` stores it while the mount lives."""
    (tmp_path / "data").mkdir()
    scripts.write(tmp_path, TOLD)
    env = without("LOGCLIENT_DIR", VOLUME=str(tmp_path / "data"))
    ended = mounted(tmp_path, READ_ONLY, [sys.executable, "train.py"], env=env)
    assert ended.code == 0, ended
    assert '"done": false' in ended.out
    assert len(ended.said) == 2 and all("recover --dir" in line for line in ended.said), ended.err
    containers.recover("--dir", str(tmp_path / "later"))
    scripts.wait_gone(120)
    assert scripts.steps(scripts.the_run(tmp_path / "later")) == list(range(50))


@pytest.mark.timeout(300)
def test_user_without_a_home_or_a_name(run_dir: Path, tmp_path: Path) -> None:
    """`docker run --user 61234`, HOME unset or unwritable: the working directory takes the run, or it is told."""
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    pythons = [[*become, path] for path in (sys.executable, "/usr/bin/python3")]
    modules = os.pathsep.join((str(ROOT), str(ROOT / "backend"), sysconfig.get_path("purelib")))
    shm = {"PYTHONPATH": modules}
    for python in pythons:
        probe = [
            *python,
            "-c",
            "import logclient_backend.agent.supervise.supervisor, os, sys\n"
            "os.access(sys.executable, os.X_OK) or sys.exit(1)",
        ]
        if not subprocess.run(probe, cwd="/", env=without(**shm), stderr=subprocess.DEVNULL).returncode:
            break
    else:
        pytest.skip("other users cannot read this installation, nor use it with another interpreter")
    top = Path(os.environ["LOGCLIENT_SHM_DIR"])
    top.chmod(0o755)
    theirs = top / "theirs"
    (theirs / "work").mkdir(parents=True)
    scripts.write(theirs / "work", TOLD)
    for path in (theirs, theirs / "work"):
        os.chown(path, NOBODY, NOBODY)
    shm["LOGCLIENT_SHM_DIR"] = str(theirs)
    ended = scripts.run_words(
        theirs / "work", [*python, "train.py"], env=without("LOGCLIENT_DIR", "HOME", **shm), timeout_s=150
    )
    assert ended.code == 0, ended
    assert scripts.steps(scripts.the_run(theirs / "work" / "logclient-runs")) == list(range(50))
    for env in (without("LOGCLIENT_DIR", "HOME", **shm), without("LOGCLIENT_DIR", HOME="/root", **shm)):
        ended = scripts.run_words(Path("/"), [*python, str(theirs / "work" / "train.py")], 150, env=env)
        assert ended.code == 0, ended
        assert '"done": false' in ended.out
        assert "recover --dir" in ended.said[-1], ended.err
    later = str(theirs / "work" / "later")
    containers.recover("--dir", later, python=tuple(python), env=without("HOME", **shm))
    assert [scripts.steps(found) for found in scripts.runs(Path(later))] == [list(range(50))] * 2
    wait_until(lambda: not list(theirs.glob("logclient-*")), 120, "nothing is left in shared memory")
