"""R2-22: a script is run from its own folder, twice, with all kinds of things of the user's lying beside it.

What is right: our data folder cannot be imported under our name; a folder `logclient/` of the user's and modules named
like ours or like what the agent needs are not picked up, neither by the client nor by the agent; the second run is the
same as the first; the script is run once.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .. import scripts

PROGRAM = """
with open("ran", "a") as file:
    file.write("x")
import logclient
run = logclient.init(project="case")
for step in range(10):
    logclient.log(step, {"loss": step / 2})
run.config["nested"] = {"a": [1, 2, {"b": None}]}
assert logclient.finish()
status = run.status()
assert status["durable"] == status["accepted"] == 10, status
print(logclient.__file__)
"""

# complains loudly, in a file, about whoever imports it
TRAP = """
import os, sys
with open({told!r}, "a") as file:
    file.write(f"{{__name__}} was imported by {{os.getpid()}} {{sys.argv}}\\n")
raise ImportError("this is the user's module")
"""


def run_here(where: Path, python: Path, code: str = PROGRAM, **env: str) -> scripts.Ended:
    """The script is run in its folder by that interpreter; the run folder is the default one."""
    scripts.write(where, code)
    given = {key: value for key, value in os.environ.items() if key not in ("LOGCLIENT_DIR", "PYTHONPATH")}
    return scripts.run_words(where, [str(python), "train.py"], env={**given, **env})


def assert_good(ended: scripts.Ended, where: Path, count: int) -> None:
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err, ended.err
    scripts.wait_gone()
    found = scripts.runs(where / "logclient-runs")
    assert len(found) == count
    for run in found:
        assert scripts.steps(run) == list(range(10))
        assert run.state.name == "finished"
        assert run.config == {"nested": {"a": [1, 2, {"b": None}]}}
    assert (where / "ran").read_text() == "x" * count, "the script ran more often than it was started"


def test_second_run_is_like_the_first(tmp_path: Path, run_dir: Path, home: Path, installed: Path) -> None:
    """Run twice from its folder, with the default data folder of the first run there: the same (R2-22)."""
    where = tmp_path / "project"
    first = run_here(where, installed)
    assert_good(first, where, 1)
    second = run_here(where, installed)
    assert_good(second, where, 2)
    assert first.out == second.out
    assert len(first.said) == len(second.said) == 2
    assert sorted(path.name for path in where.iterdir()) == ["logclient-runs", "ran", "train.py"]


def test_data_folder_cannot_be_imported(tmp_path: Path, run_dir: Path, home: Path, installed: Path) -> None:
    """The name of the default data folder is no module's name, and no module of ours is found in it (R2-22)."""
    where = tmp_path / "project"
    assert_good(run_here(where, installed), where, 1)
    assert not "logclient-runs".isidentifier()
    names = [path.name.partition(".")[0] for path in where.iterdir()]
    assert not [name for name in names if name.replace("-", "_") in ("logclient", "logclient_backend")]


@pytest.mark.first_is_quick
@pytest.mark.parametrize("name", ["logclient", "logclient_backend"])
def test_folder_of_the_users_with_our_name(
    tmp_path: Path, run_dir: Path, home: Path, installed: Path, name: str
) -> None:
    """A folder `logclient/` without init file lies beside the script: ours is imported, twice (R2-22)."""
    where = tmp_path / "project"
    (where / name).mkdir(parents=True)
    (where / name / "notes.txt").write_text("mine")
    for count in (1, 2):
        ended = run_here(where, installed)
        assert_good(ended, where, count)
        assert not ended.out.startswith(str(where))
    assert os.listdir(where / name) == ["notes.txt"]


MODULES = [
    "click",
    "grpc",
    "json",
    "psutil",
    "rich",
    "zstandard",
    "ctypes",
    "threading",
    "hashlib",
    "importlib",
]


@pytest.mark.first_is_quick
@pytest.mark.parametrize("name", MODULES)
def test_modules_of_the_users_are_not_picked_up(
    tmp_path: Path, run_dir: Path, home: Path, installed: Path, name: str
) -> None:
    """A module of the user's beside the script has the name of one that client or agent could need (R2-22)."""
    where = tmp_path / "project"
    told = tmp_path / "told"
    scripts.write(where, TRAP.format(told=str(told)), f"{name}.py")
    assert_good(run_here(where, installed), where, 1)
    assert not told.exists(), told.read_text()


@pytest.mark.first_is_quick
@pytest.mark.parametrize("name", ["json", "zstandard"])
def test_modules_that_the_script_itself_uses(
    tmp_path: Path, run_dir: Path, home: Path, installed: Path, name: str
) -> None:
    """The script imports its own `json` before us and after us: it gets its own, and we get ours (R2-22)."""
    where = tmp_path / "project"
    scripts.write(where, "WHOSE = 'mine'\n", f"{name}.py")
    code = f"import {name}\nassert {name}.WHOSE == 'mine'\n{PROGRAM}\nimport {name} as again\nassert again is {name}\n"
    assert_good(run_here(where, installed, code), where, 1)
    code = f"{PROGRAM}\nimport {name}\nassert {name}.WHOSE == 'mine'\n"
    assert_good(run_here(where, installed, code), where, 2)


@pytest.mark.first_is_quick
@pytest.mark.parametrize("name", ["json", "zstandard", "click"])
def test_modules_on_the_users_python_path(
    tmp_path: Path, run_dir: Path, home: Path, installed: Path, name: str
) -> None:
    """The same with the script's folder in PYTHONPATH, absolute or as a dot: the agent is not led astray (R2-22)."""
    where = tmp_path / "project"
    told = tmp_path / "told"
    scripts.write(where, TRAP.format(told=str(told)), f"{name}.py")
    for count, path in enumerate((str(where), ".", ""), 1):
        assert_good(run_here(where, installed, PYTHONPATH=path), where, count)
        assert not told.exists(), told.read_text()


def test_packages_that_are_found_by_python_path_alone(
    tmp_path: Path, run_dir: Path, home: Path, installed: Path
) -> None:
    """Installed with `pip install --target` and found by PYTHONPATH: the agent finds what it needs there (R2-22)."""
    (site,) = installed.parent.parent.glob("lib/python*/site-packages")
    target, rest = tmp_path / "target", tmp_path / "rest"
    target.mkdir()
    rest.mkdir()
    for entry in site.iterdir():
        (target if entry.name in ("logclient", "logclient_backend") else rest).joinpath(
            entry.name
        ).symlink_to(entry)
    where = tmp_path / "project"
    scripts.write(where, PROGRAM)
    given = {key: value for key, value in os.environ.items() if key != "LOGCLIENT_DIR"}
    env = {**given, "PYTHONPATH": f"{target}:{rest}"}
    bare = Path(os.path.realpath(installed))
    assert_good(scripts.run_words(where, [str(bare), "-s", "train.py"], env=env), where, 1)


def test_no_main_guard_is_needed(tmp_path: Path, run_dir: Path, home: Path, installed: Path) -> None:
    """The agent dies and comes back, runs follow each other: the script's top level ran once (R2-22)."""
    where = tmp_path / "project"
    code = """
    open("ran", "a").write("x")
    import os, signal, time
    import logclient
    for number in range(3):
        run = logclient.init(project="case")
        while not run.status()["agent"]["worker"]:
            time.sleep(0.01)
        os.kill(run.status()["agent"]["worker"], signal.SIGKILL)
        for step in range(10):
            run.log(step, {"loss": step / 2})
        run.config["nested"] = {"a": [1, 2, {"b": None}]}
        assert run.finish()
    """
    ended = run_here(where, installed, code)
    assert ended.code == 0, ended
    scripts.wait_gone()
    assert len(scripts.runs(where / "logclient-runs")) == 3
    assert (where / "ran").read_text() == "x"
