"""C6-4: the run folder is read-only, missing, another user's, or fails at the first write, or does not answer at all.

What is right: `init` does not raise; one loud line at start and again at finish tells the folder that is really used;
readers of the wanted folder find the run; `folder_errors="raise"` makes it an error at start instead.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient.config import Config
from logclient.shm import shm_dir as shm_dirs
from tools.faults import frozen, fuse
from tools.faults.frozen import LoopExt4
from tools.faults.fuse import Fuse

from .. import scripts
from ..disturbed import wait_until
from ..scripts import Ended

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534

PROGRAM = """
import sys, time
import logclient
begun = time.monotonic()
run = logclient.init(project="case", dir=sys.argv[1])
took = time.monotonic() - begun
for step in range(10):
    run.log(step, {"loss": step / 2})
run.finish()
print(took, run.dir)
"""

RAISES = """
import sys
import logclient
try:
    logclient.init(project="case", dir=sys.argv[1], folder_errors="raise")
except logclient.FolderError as error:
    print(isinstance(error, OSError), error)
else:
    sys.exit("init did not raise")
logclient.log(1, {"loss": 1.0})
"""


def assert_went_home(ended: Ended, wanted: Path, home: Path, reason: str) -> None:
    """Both loud lines, and the run is found by who looks in the wanted folder."""
    used = home / ".local/share/logclient-runs"
    assert ended.code == 0, ended
    assert len(ended.said) == 2, ended.err
    for line in ended.said:
        assert str(used) in line
        assert str(wanted) in line
        assert reason in line
    assert ended.out.split()[-1] == str(used)
    scripts.wait_gone()
    found = scripts.the_run(wanted)
    assert scripts.steps(found) == list(range(10))
    assert found.state.name == "finished"
    assert scripts.steps(scripts.the_run(used)) == list(range(10))


def assert_raised(ended: Ended, wanted: Path, reason: str) -> None:
    assert ended.code == 0, ended
    assert ended.out.startswith("True "), ended
    assert str(wanted) in ended.out
    assert reason in ended.out
    scripts.wait_gone()  # no agent and no shared memory of a run that was not started


def in_mounts(commands: str, *words: str) -> list[str]:
    """A command line that runs `words` in mounts of its own, made by shell commands: nothing is left to clean."""
    return ["unshare", "--mount", "sh", "-ec", f'{commands}\nexec "$@"', "sh", *words]


@pytest.mark.root
def test_read_only_folder_goes_home(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """A folder on a read-only mount: the run goes home, and both folders lead to it (C6-4 a)."""
    wanted = tmp_path / "mount" / "runs"
    wanted.parent.mkdir()
    commands = f"mount -t tmpfs -o ro tmpfs '{wanted.parent}'"
    scripts.write(tmp_path, PROGRAM)
    words = in_mounts(commands, sys.executable, "train.py", str(wanted))
    ended = scripts.run_words(tmp_path, words)
    wanted.mkdir()
    assert_went_home(ended, wanted, home, os.strerror(errno.EROFS))


@pytest.mark.root
def test_read_only_folder_raises_if_asked(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """With folder_errors="raise" it is a FolderError at start, and nothing is left of the run (C6-4 a)."""
    wanted = tmp_path / "mount" / "runs"
    wanted.parent.mkdir()
    scripts.write(tmp_path, RAISES)
    commands = f"mount -t tmpfs -o ro tmpfs '{wanted.parent}'"
    ended = scripts.run_words(tmp_path, in_mounts(commands, sys.executable, "train.py", str(wanted)))
    assert_raised(ended, wanted, os.strerror(errno.EROFS))
    assert list(home.rglob("*")) == []


def test_missing_folder_is_made(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """A folder that is not there is made, its parents too, and the line at start says so (C6-4 b)."""
    wanted = tmp_path / "not" / "there" / "runs"
    ended = scripts.run_well(tmp_path, PROGRAM, str(wanted))
    assert ended.out.split()[-1] == str(wanted)
    assert f"{wanted} (made: {tmp_path / 'not'} was not there)" in ended.said[0]
    assert str(wanted) in ended.said[1]
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(wanted)) == list(range(10))
    assert list(home.rglob("*")) == []


def test_missing_parent_raises_if_asked(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """With folder_errors="raise" a missing parent (a disk that is not mounted?) is an error, and not made (C6-4 b)."""
    wanted = tmp_path / "not" / "there" / "runs"
    assert_raised(scripts.run(tmp_path, RAISES, str(wanted)), wanted, f"{tmp_path / 'not'} is not there")
    assert not (tmp_path / "not").exists()


def test_missing_last_folder_is_made_even_then(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """With folder_errors="raise" the folder itself may be missing: so it is for everybody's first run (C6-4 b)."""
    code = PROGRAM.replace("dir=sys.argv[1]", 'dir=sys.argv[1], folder_errors="raise"')
    scripts.run_well(tmp_path, code, str(tmp_path / "runs-of-mine"))
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(tmp_path / "runs-of-mine")) == list(range(10))


def test_file_in_the_way_goes_home(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """A file where the folder should be: the same as any folder that cannot be used (C6-4 b)."""
    wanted = tmp_path / "taken"
    wanted.write_text("a file")
    assert_went_home(scripts.run(tmp_path, PROGRAM, str(wanted)), wanted, home, "taken")
    assert wanted.read_text() == "a file"


@pytest.fixture
def open_folder(needs_root: None) -> Iterator[Path]:
    """A folder that every user can reach, with the interpreter and our code in it (pytest's own are private)."""
    where = Path(tempfile.mkdtemp(prefix="logclient-test-", dir="/tmp"))
    where.chmod(0o755)
    for name in ("python", "site", "ours"):
        (where / name).mkdir()
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)


def as_user(folder: Path, uid: int, *arguments: str) -> list[str]:
    """A command line that runs Python as another user."""
    site = sysconfig.get_path("purelib")
    binds = ((sys.base_prefix, "python"), (site, "site"), (str(ROOT), "ours"))
    commands = "\n".join(f"mount --bind '{source}' '{folder / name}'" for source, name in binds)
    program = folder / "python" / Path(os.path.realpath(sys.executable)).relative_to(sys.base_prefix)
    become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups")
    return in_mounts(commands, *become, str(program), *arguments)


def user_env(folder: Path, shm: Path, home: Path | None) -> dict[str, str]:
    paths = (folder / "ours", folder / "ours/backend", folder / "site")
    env = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "LOGCLIENT_SHM_DIR": str(shm)}
    env.pop("HOME")
    return env if home is None else {**env, "HOME": str(home)}


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_folder_of_another_user_goes_home(
    open_folder: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """A folder of root's, closed or readable, for another user: the run goes to that user's home (C6-4 c)."""
    wanted, home = open_folder / "runs", open_folder / "home"
    wanted.mkdir(mode=mode)
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    shm = Path(os.environ["LOGCLIENT_SHM_DIR"])
    os.chown(shm, NOBODY, NOBODY)
    monkeypatch.setenv("HOME", str(home))
    scripts.write(open_folder, PROGRAM)
    words = as_user(open_folder, NOBODY, "train.py", str(wanted))
    ended = scripts.run_words(open_folder, words, env=user_env(open_folder, shm, home))
    assert_went_home(ended, wanted, home, os.strerror(errno.EACCES))
    assert list(wanted.iterdir()) == []
    assert {path.stat().st_uid for path in home.rglob("*")} == {NOBODY}


@pytest.mark.root
def test_run_of_another_user_with_the_same_id_goes_home(
    open_folder: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own folder is another user's, in a folder open to all: nothing of it is touched (C6-4 c)."""
    wanted, home = open_folder / "runs", open_folder / "home"
    wanted.mkdir()
    wanted.chmod(0o1777)
    (wanted / "mine").mkdir(mode=0o700)
    (wanted / "mine" / "kept").write_text("root's")
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    shm = Path(os.environ["LOGCLIENT_SHM_DIR"])
    os.chown(shm, NOBODY, NOBODY)
    scripts.write(open_folder, PROGRAM.replace("init(", "init(id='mine', "))
    words = as_user(open_folder, NOBODY, "train.py", str(wanted))
    ended = scripts.run_words(open_folder, words, env=user_env(open_folder, shm, home))
    assert ended.code == 0, ended
    assert all(str(home) in line for line in ended.said), ended.err
    assert len(ended.said) == 2
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(home / ".local/share/logclient-runs")) == list(range(10))
    assert os.listdir(wanted / "mine") == ["kept"]


@pytest.mark.root
def test_user_without_home_keeps_the_run_in_memory(open_folder: Path, run_dir: Path) -> None:
    """No folder, no HOME, no entry in the user database: shared memory only, and that is said twice (C6-4 c)."""
    uid = 54321
    wanted, tmp = open_folder / "runs", open_folder / "tmp"
    wanted.mkdir()
    tmp.mkdir()
    tmp.chmod(0o1777)
    shm = Path(os.environ["LOGCLIENT_SHM_DIR"])
    os.chown(shm, uid, uid)
    scripts.write(open_folder, PROGRAM)
    env = {**user_env(open_folder, shm, None), "TMPDIR": str(tmp)}
    ended = scripts.run_words(open_folder, as_user(open_folder, uid, "train.py", str(wanted)), env=env)
    assert ended.code == 0, ended
    assert len(ended.said) == 2, ended.err
    for line in ended.said:
        assert "shared memory only" in line
        assert "logclient recover --dir" in line
    (shm_dir,) = scripts.shm_dirs()
    assert json.loads((shm_dir / "folder.json").read_text())["state"] == "none"
    assert ended.took_s < 60, "finish waits for a folder that there is none"
    assert list(wanted.iterdir()) == []
    assert list(tmp.iterdir()) == [], "the shared temporary folder is not ours"


@pytest.mark.parametrize("home_text", ["", "/dev/null/home", "relative"])
def test_useless_home_is_no_home(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch, home_text: str
) -> None:
    """HOME is empty, no folder or relative: shared memory only, nothing appears elsewhere (C6-4)."""
    wanted = tmp_path / "taken"
    wanted.write_text("a file")
    monkeypatch.setenv("HOME", home_text)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    ended = scripts.run_well(tmp_path, PROGRAM, str(wanted))
    assert len(ended.said) == 2, ended.err
    assert all("shared memory only" in line for line in ended.said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken", "train.py"]


@pytest.mark.root
@pytest.mark.skipif(fuse.why_not() is not None, reason=fuse.why_not() or "")
@pytest.mark.parametrize("call", ["write", "fsync", "create"])
def test_eio_at_the_first_write_goes_home(tmp_path: Path, run_dir: Path, home: Path, call: str) -> None:
    """The disk fails at the first write, fsync or create: the run goes home (C6-4 d)."""
    with Fuse() as mount:
        wanted = mount.path / "runs"
        wanted.mkdir()
        mount.fail(call, errno.EIO, times=-1)
        assert_went_home(scripts.run(tmp_path, PROGRAM, str(wanted)), wanted, home, os.strerror(errno.EIO))
        assert_raised(scripts.run(tmp_path, RAISES, str(wanted)), wanted, os.strerror(errno.EIO))
        assert list(wanted.iterdir()) == []


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
def test_dead_disk_goes_home(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """An ext4 that was shut down answers everything with EIO: the run goes home (C6-4 d)."""
    with LoopExt4(16) as disk:
        wanted = disk.path / "runs"
        wanted.mkdir()
        disk.shutdown()
        assert_went_home(scripts.run(tmp_path, PROGRAM, str(wanted)), wanted, home, os.strerror(errno.EIO))


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
def test_frozen_folder_does_not_hold_init(
    tmp_path: Path, run_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is frozen at init: it returns all the same and says so; all is stored after the thaw (C6-4)."""
    monkeypatch.setenv("LOGCLIENT_START_TIMEOUT_S", "6")  # the folder shall be late, not the agent
    code = PROGRAM.replace("run.finish()", "print(run.flush(1.0), flush=True); input(); run.finish()")
    with LoopExt4(16) as disk:
        wanted = disk.path / "runs"
        wanted.mkdir()
        with disk.frozen():
            process = scripts.start(tmp_path, code, str(wanted), stdin=-1)
            assert process.stdout is not None
            assert process.stdout.readline() == "False\n"
        ended = scripts.end_with(process, "\n")
        assert ended.code == 0, ended
        assert f"{wanted} does not answer" in ended.said[0]
        scripts.wait_gone()
        assert scripts.steps(scripts.the_run(wanted)) == list(range(10))


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
def test_frozen_folder_raises_if_asked(
    tmp_path: Path, run_dir: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With folder_errors="raise" a folder that does not answer in time is a FolderError (C6-4)."""
    monkeypatch.setenv("LOGCLIENT_START_TIMEOUT_S", "6")  # the folder shall be late, not the agent
    with LoopExt4(16) as disk:
        wanted = disk.path / "runs"
        wanted.mkdir()
        with disk.frozen():
            ended = scripts.run(tmp_path, RAISES, str(wanted))
        assert_raised(ended, wanted, "does not answer")
        wait_until(lambda: list(wanted.iterdir()) == [], 20, "who looked at it too late leaves nothing")


def command(where: Path, *words: str) -> Ended:
    """The command line, as a user types it."""
    return scripts.run_words(where, [sys.executable, "-m", "logclient_backend", *words], 240)


@pytest.mark.slow
def test_commands_find_a_run_that_went_home(tmp_path: Path, run_dir: Path, home: Path) -> None:
    """`logclient ls`, `show` and `export` with the wanted folder as --dir find the run that lies at home (C6-4)."""
    wanted = tmp_path / "taken"
    wanted.write_text("a file")
    scripts.run_well(tmp_path, PROGRAM, str(wanted))
    scripts.wait_gone()
    wanted.unlink()  # it may be gone, or usable again, when somebody looks
    for _ in ("gone", "there"):
        (listed,) = json.loads(command(tmp_path, "ls", "--dir", str(wanted), "--json").out)["runs"]
        shown = json.loads(command(tmp_path, "show", listed["id"], "--dir", str(wanted), "--json").out)
        assert shown["state"]["name"] == "finished"
        assert shown["counts"]["stored"] == 10
        exported = command(tmp_path, "export", listed["id"], "--dir", str(wanted), "--format", "jsonl").out
        assert [json.loads(line)["step"] for line in exported.splitlines()] == list(range(10))
        wanted.mkdir(exist_ok=True)


@pytest.mark.slow
@pytest.mark.timeout(300)  # an agent that is leaving is given its time before another is started
def test_recover_stores_a_run_that_is_in_memory_only(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the lines at start and finish say is true: `logclient recover --dir FOLDER` stores the run (C6-4)."""
    wanted = tmp_path / "taken"
    wanted.write_text("a file")
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    scripts.run_well(tmp_path, PROGRAM, str(wanted))
    assert len(scripts.shm_dirs()) == 1
    good = tmp_path / "good"
    ended = command(tmp_path, "recover", "--dir", str(good))
    assert ended.code == 0, ended
    scripts.wait_gone()
    found = scripts.the_run(good)
    assert scripts.steps(found) == list(range(10))
    assert found.state.name == "finished"


# ---- shared memory: a folder in one that is open to all -------------------------------------------------


def squat(kind: str, path: Path, elsewhere: Path) -> None:
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "file":
        path.write_text("")
    else:
        path.mkdir(mode=0o700)
        path.chmod(0o777 if kind == "open" else 0o700)
        if kind == "other user":
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.first_is_quick
@pytest.mark.parametrize("kind", ["link", "file", "open", pytest.param("other user", marks=pytest.mark.root)])
def test_squatted_shared_folder_is_not_taken(tmp_path: Path, run_dir: Path, home: Path, kind: str) -> None:
    """Where somebody made our folder in shared memory first, a fresh one is used; agent and readers find it (C6-4)."""
    shm, elsewhere = Path(os.environ["LOGCLIENT_SHM_DIR"]), tmp_path / "elsewhere"
    elsewhere.mkdir()
    squatted = shm / f"logclient-{os.getuid()}"
    squat(kind, squatted, elsewhere)
    assert shm_dirs.make_base(str(shm)) != str(squatted)
    ended = scripts.run_well(tmp_path, PROGRAM, str(run_dir))
    assert ended.out.split()[-1] == str(run_dir)
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))
    assert list(elsewhere.iterdir()) == []
    if squatted.is_dir():
        assert list(squatted.iterdir()) == []
    for base in shm_dirs.bases(Config()):
        found = os.lstat(base)
        assert found.st_uid == os.getuid()
        assert stat.S_IMODE(found.st_mode) == 0o700
