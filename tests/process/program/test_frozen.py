"""Real programs in which `sys.executable` is no Python: frozen by PyInstaller, and a C program that embeds Python."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

from .. import scripts
from ..disturbed import wait_until
from ..recipes import recipe

ROOT = Path(__file__).resolve().parents[3]
LEFT_OUT = ("torch", "pandas", "numpy", "IPython", "tkinter", "matplotlib", "logclient_backend.read")
TIMED = """
import os
import time
import logclient
if "SECOND_ENTRY" in os.environ:
    logclient.freeze_support()
if __name__ == "__main__":
    with open(os.environ["STARTS"], "a") as file:
        file.write("x")
    run = logclient.init(project="frozen")
    for step in range(100):
        run.log(step, {"loss": 1 / (step + 1)})
    begun = time.monotonic()
    done = run.finish()
    print(done, time.monotonic() - begun, run.status()["accepted"])
"""
SPEC = """
found = Analysis([{script!r}], pathex={pathex!r}, excludes={excludes!r})
modules = PYZ(found.pure)
EXE(modules, found.scripts, found.binaries, found.datas, name="onefile")
COLLECT(
    EXE(modules, found.scripts, exclude_binaries=True, name="onedir"), found.binaries, found.datas, name="onedir"
)
"""


class Built(NamedTuple):
    """Paths of the two programs that are made of one script: a folder, and a single file."""

    one_dir: Path
    one_file: Path


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both programs, from one analysis of the script: that takes most of the time."""
    pytest.importorskip("PyInstaller")
    where = tmp_path_factory.mktemp("frozen")
    script = scripts.write(where, TIMED)
    # an editable install is not seen by tools that read modules' files
    pathex = [str(ROOT), str(ROOT / "backend")]
    spec = where / "programs.spec"
    spec.write_text(SPEC.format(script=str(script), pathex=pathex, excludes=LEFT_OUT))
    words = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=ERROR", str(spec)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(pathex)}
    done = subprocess.run(words, env=env, cwd=where, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return Built(where / "dist" / "onedir" / "onedir", where / "dist" / "onefile")


def run_it(program: Path, where: Path, **env: str) -> tuple[scripts.Ended, int]:
    """Run a program by itself; how it ended, and how often it was started."""
    starts = where / "starts"
    starts.write_text("")
    given = scripts.environment(STARTS=str(starts), **env)
    given.pop("PYTHONPATH", None)
    ended = scripts.run_words(where, [str(program)], env=given, timeout_s=120)
    return ended, len(starts.read_text())


def assert_stored(ended: scripts.Ended, starts: int, run_dir: Path) -> None:
    assert ended.code == 0, ended
    assert ended.out.startswith("True "), ended
    assert "sh:" not in ended.err
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert scripts.steps(found) == list(range(100))
    assert found.state.name == "finished"
    assert starts == 1


def assert_waits(ended: scripts.Ended, starts: int, run_dir: Path) -> None:
    """Nothing was started; what was logged is still there, and a command of a real Python stores it."""
    assert ended.code == 0, ended
    done, took_s, accepted = ended.out.split()
    print(f"finish without an agent: {1000 * float(took_s):.0f} ms")
    assert (done, accepted) == ("False", "100"), ended
    assert float(took_s) < 1.0, "nobody is waited for"  # of 60 s that it may take
    first, last = ended.said
    assert "no agent can be started" in first and "LOGCLIENT_PYTHON" in first
    assert "100 records are not on disk" in last and "logclient recover" in last
    assert "goes on" not in last
    assert starts == 1
    assert not scripts.agents()
    assert not scripts.runs(run_dir)
    words = [sys.executable, "-m", "logclient_backend", "recover"]
    subprocess.run(words, check=False, capture_output=True, timeout=120, cwd="/")
    scripts.wait_gone(60)
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(100))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("frozen")  # the programs are built once in each worker
@pytest.mark.parametrize("one_file", [False, True], ids=["one folder", "one file"])
@pytest.mark.parametrize("how", ["second entry", "LOGCLIENT_PYTHON", "neither"])
def test_program_of_pyinstaller(
    frozen: Built, tmp_path: Path, run_dir: Path, how: str, one_file: bool
) -> None:
    """It is started once; its run is stored, or `finish` says at once that nobody stores it."""
    program = frozen.one_file if one_file else frozen.one_dir
    env = {"second entry": {"SECOND_ENTRY": "1"}, "LOGCLIENT_PYTHON": {"LOGCLIENT_PYTHON": sys.executable}}
    ended, starts = run_it(program, tmp_path, PATH="/nonexistent", TMPDIR=str(tmp_path), **env.get(how, {}))
    if how == "neither":
        assert_waits(ended, starts, run_dir)
    else:
        assert_stored(ended, starts, run_dir)
    wait_until(lambda: not list(tmp_path.glob("_MEI*")), 60, "what was unpacked goes with its process")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_recipe_of_pyinstaller(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/where-it-runs.md has it."""
    pytest.importorskip("PyInstaller")
    given = recipe("PyInstaller")
    given.write(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = scripts.environment(PATH=path, PYTHONPATH=f"{ROOT}:{ROOT / 'backend'}")
    build, *rest = given.commands
    # no more than the test's environment makes necessary: it has every framework
    build += "".join(f" --exclude-module {name}" for name in LEFT_OUT if name not in build)
    for command in (build, *rest):
        ended = scripts.run_words(tmp_path, shlex.split(command), env=env, timeout_s=800)
        assert ended.code == 0, ended
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(100))


# ---- embedded ----------------------------------------------------------------------------------------------------

EMBEDDING = """
#include <Python.h>
#include <stdio.h>

/* A program of its own that runs a Python script: no command line of Python's, so no sys.orig_argv. */
int main(int argc, char **argv) {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.parse_argv = 0;
    config.install_signal_handlers = 0;
    if (argc > 2) PyConfig_SetBytesString(&config, &config.executable, argv[2]);
    PyStatus status = Py_InitializeFromConfig(&config);
    if (PyStatus_Exception(status)) Py_ExitStatusException(status);
    FILE *file = fopen(argv[1], "r");
    int failed = PyRun_SimpleFile(file, argv[1]);
    return Py_FinalizeEx() < 0 || failed;
}
"""

EMBEDDED = """
import os, sys
with open(os.environ["STARTS"], "a") as file:
    file.write("x")
sys.path[:0] = os.environ["FOLDERS"].split(os.pathsep)
import time
import logclient
run = logclient.init(project="embedded")
for step in range(100):
    run.log(step, {"loss": 1 / (step + 1)})
begun = time.monotonic()
done = run.finish()
print(done, time.monotonic() - begun, run.status()["accepted"])
"""


@pytest.fixture(scope="session")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A C program that embeds this Python, called as a trainer may be."""
    library = sysconfig.get_config_var("LDLIBRARY") or ""
    if not shutil.which("gcc") or ".so" not in library:
        pytest.skip("needs gcc and a shared libpython")
    where = tmp_path_factory.mktemp("embedding")
    (where / "trainer.c").write_text(EMBEDDING)
    folder = sysconfig.get_config_var("LIBDIR")
    name = re.sub(r"^lib|\.so.*$", "", library)
    words = ["gcc", "trainer.c", "-o", "trainer", f"-I{sysconfig.get_path('include')}", f"-L{folder}"]
    done = subprocess.run(
        [*words, f"-l{name}", f"-Wl,-rpath,{folder}"], cwd=where, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot be built: {done.stderr[-200:]}")
    return where / "trainer"


@pytest.mark.first_is_quick
@pytest.mark.parametrize("executable", ["its own", "that of PATH"])
@pytest.mark.parametrize("how", ["LOGCLIENT_PYTHON", "found", "neither"])
def test_embedded_interpreter(
    embedding: Path, tmp_path: Path, run_dir: Path, how: str, executable: str
) -> None:
    """`sys.executable` is the program, or the Python that PATH has: the same as of frozen programs."""
    script = scripts.write(tmp_path, EMBEDDED)
    folders = [str(ROOT), str(ROOT / "backend")]
    env = {"PATH": "/nonexistent", "STARTS": str(tmp_path / "starts"), "PYTHONHOME": sys.base_prefix}
    if how == "LOGCLIENT_PYTHON":
        env["LOGCLIENT_PYTHON"] = sys.executable
    if how == "found":  # the base Python lacks our packages, which this program knows where to find
        folders += [path for path in sys.path if "site-packages" in path]
        env["PATH"] = str(Path(sys.executable).parent)
    if how == "neither":
        env["PYTHONHOME"] = str(home_without_python(tmp_path / "home"))
    (tmp_path / "starts").write_text("")
    words = [str(embedding), str(script)] + ([str(embedding)] if executable == "its own" else [])
    given = scripts.environment(**env, FOLDERS=os.pathsep.join(folders))
    ended = scripts.run_words(tmp_path, words, env=given)
    starts = len((tmp_path / "starts").read_text())
    (assert_waits if how == "neither" else assert_stored)(ended, starts, run_dir)


def home_without_python(where: Path) -> Path:
    """A standard library with no interpreter beside it, as an embedding program brings one."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    (where / "lib").mkdir(parents=True)
    (where / "lib" / version).symlink_to(Path(sys.base_prefix) / "lib" / version)
    return where
