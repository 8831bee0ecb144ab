"""P2, R2-22: settings that make no sense, variables that change an interpreter, folders that vanish, odd mains."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipapp
from pathlib import Path

import pytest

import logclient

from .. import scripts

ROOT = Path(__file__).resolve().parents[3]
SITE = sysconfig.get_path("purelib")

GARBAGE = {
    "LOGCLIENT_LANES": ("many", "0", "99", "4.5", "-1"),
    "LOGCLIENT_LANES_BYTES": ("4MiB", "-1"),
    "LOGCLIENT_QUIET": ("maybe", "2"),
    "LOGCLIENT_STRICT": ("on!",),
    "LOGCLIENT_MODE": ("sideways",),
    "LOGCLIENT_RESUME": ("sometimes",),
    "LOGCLIENT_FOLDER_ERRORS": ("ignore",),
    "LOGCLIENT_FLUSH_TIMEOUT_S": ("soon", "-1", "nan", "inf"),
    "LOGCLIENT_START_TIMEOUT_S": ("nan", "inf"),
    "LOGCLIENT_FINISH_TIMEOUT_S": ("inf",),
    "LOGCLIENT_POLL_S": ("inf", "1e400"),
    "LOGCLIENT_STALL_S": ("-inf",),
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in GARBAGE.items() for text in texts]
)
def test_garbage_in_a_setting_is_an_error_that_says_what(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """A setting that makes no sense raises BadArgument at init, with its name and what it was (P2)."""
    monkeypatch.setenv(name, text)
    with pytest.raises(logclient.BadArgument) as raised:
        logclient.init(project="case")
    said = str(raised.value)
    assert name in said or name.removeprefix("LOGCLIENT_").lower() in said
    assert text in said or repr(float(text)) in said
    assert not run_dir.exists()
    assert scripts.shm_dirs() == []


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    "text", ["", "garbage", "1:", ":/etc", "1-2-3:/etc", "0-0-0:/dev/shm", "1--3:/dev/shm", "1-2-3:\udcff"]
)
def test_garbage_handed_on_by_a_parent_is_no_run(tmp_path: Path, run_dir: Path, text: str) -> None:
    """LOGCLIENT_PARENT leads nowhere: a new run is started, as without it (P2)."""
    scripts.run_well(tmp_path, scripts.LOG_TEN, env=scripts.environment(LOGCLIENT_PARENT=text))
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


def test_empty_settings_are_not_given(tmp_path: Path, run_dir: Path) -> None:
    """A variable that is set to nothing counts as not set (P2)."""
    from logclient.config import SETTINGS

    keep = ("LOGCLIENT_DIR", "LOGCLIENT_SHM_DIR")
    empty = {setting.variable: "" for setting in SETTINGS if setting.variable not in keep}
    scripts.run_well(tmp_path, scripts.LOG_TEN, env=scripts.environment(**empty))
    scripts.wait_gone()
    assert scripts.the_run(run_dir).state.name == "finished"


# says who ran it, by process
SPY = """
import os
with open({told!r}, "a") as file:
    with open("/proc/self/cmdline", "rb") as words:
        file.write(repr(words.read()) + "\\n")
"""

CHANGES = {
    "PYTHONSTARTUP": "{spy}",
    "PYTHONINSPECT": "1",
    "PYTHONVERBOSE": "1",
    "PYTHONPROFILEIMPORTTIME": "1",
    "PYTHONDEVMODE": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONTRACEMALLOC": "5",
    "PYTHONMALLOC": "debug",
    "PYTHONOPTIMIZE": "2",
    "PYTHONBREAKPOINT": "os.abort",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "ascii",
    "PYTHONHASHSEED": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONINTMAXSTRDIGITS": "640",
    "LD_PRELOAD": "/nonexistent/lib.so",
    "LC_ALL": "C",
}
NOT_HANDED_ON = {
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONVERBOSE",
    "PYTHONPROFILEIMPORTTIME",
    "PYTHONDEVMODE",
    "PYTHONWARNINGS",
    "PYTHONTRACEMALLOC",
    "PYTHONMALLOC",
    "PYTHONOPTIMIZE",
    "PYTHONBREAKPOINT",
    "PYTHONEXECUTABLE",
    "LD_PRELOAD",
    "LOGCLIENT_PARENT",
}

LOOK_AT_AGENT = """
import os, sys, time
import logclient
run = logclient.init(project="case", quiet=True)
run.log(0, {"loss": 1.0})
while not (agent := run.status()["agent"])["worker"]:
    time.sleep(0.01)
for which in ("supervisor", "worker"):
    with open(f"/proc/{agent[which]}/environ", "rb") as file:
        print(repr(dict(pair.split("=", 1) for pair in file.read().decode().split("\\0") if pair)))
    print(os.readlink(f"/proc/{agent[which]}/cwd"), os.getsid(agent[which]) == agent["supervisor"])
    print(sorted({os.readlink(f"/proc/{agent[which]}/fd/{fd}") for fd in (0, 1, 2)}))
if not run.finish(): sys.exit("finish")
"""


def test_what_changes_an_interpreter_does_not_reach_the_agent(tmp_path: Path, run_dir: Path) -> None:
    """PYTHONSTARTUP, LD_PRELOAD and the like are the trainer's; the agent has the rest, null streams and / (P2)."""
    told = tmp_path / "told"
    spy = scripts.write(tmp_path, SPY.format(told=str(told)), "spy.py")
    changes = {name: value.format(spy=spy) for name, value in CHANGES.items()}
    changes["MY_OWN"] = "kept"
    del changes["PYTHONINSPECT"]  # would keep the trainer at its prompt; the others show how it is done
    ended = scripts.run(tmp_path, LOOK_AT_AGENT, env=scripts.environment(**changes))
    assert ended.code == 0, ended
    lines = ended.out.splitlines()
    for number in (0, 3):
        environment = eval(lines[number])
        assert environment["MY_OWN"] == "kept"
        assert not NOT_HANDED_ON.intersection(environment), NOT_HANDED_ON.intersection(environment)
        assert lines[number + 1] == "/ True"
        assert lines[number + 2] == "['/dev/null']"
    assert not told.exists()
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == [0]


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    "options",
    [["-E"], ["-I"], ["-s"], ["-P"], ["-B"], ["-O"], ["-OO"], ["-u"], ["-X", "dev"], ["-W", "error"]],
    ids=str,
)
def test_interpreter_options(
    tmp_path: Path, run_dir: Path, home: Path, installed: Path, options: list[str]
) -> None:
    """Options of the user's interpreter: the run is the same (P2)."""
    scripts.write(tmp_path, scripts.LOG_TEN)
    ended = scripts.run_words(tmp_path, [str(installed), *options, "train.py"])
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err, ended.err
    assert "Warning" not in ended.err, ended.err
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


def test_without_site(tmp_path: Path, run_dir: Path) -> None:
    """-S and everything found by sys.path as the script sets it: the agent finds it all the same (P2)."""
    code = f"import sys\nsys.path += {[str(ROOT), str(ROOT / 'backend'), SITE]!r}\n{scripts.LOG_TEN}"
    scripts.write(tmp_path, code)
    ended = scripts.run_words(tmp_path, [sys.executable, "-S", "train.py"])
    assert ended.code == 0, ended
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


@pytest.mark.first_is_quick
@pytest.mark.parametrize("how", ["-c", "stdin", "-m", "zipapp", "runpy", "folder"])
def test_main_is_no_file(tmp_path: Path, run_dir: Path, how: str) -> None:
    """`python -c`, from standard input, as a module, a zipped application, a folder: the same run (R2-22)."""
    scripts.write(tmp_path / "app", scripts.LOG_TEN, "__main__.py")
    (tmp_path / "app" / "__init__.py").touch()
    words = {
        "-c": ["-c", scripts.LOG_TEN],
        "stdin": ["-"],
        "-m": ["-m", "app"],
        "zipapp": ["app.pyz"],
        "runpy": ["-c", "import runpy; runpy.run_path('app/__main__.py', run_name='__main__')"],
        "folder": ["app"],
    }[how]
    if how == "zipapp":
        zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = process.communicate(scripts.LOG_TEN if how == "stdin" else "", timeout=60)
    assert process.returncode == 0, (out, err)
    assert "Traceback" not in err, err
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


def test_relative_folder_is_the_one_at_init(tmp_path: Path, run_dir: Path) -> None:
    """os.chdir after init: the runs stay where the program was at init (P2)."""
    code = """
    import os
    import logclient
    run = logclient.init(project="case", dir="here")
    os.mkdir("other")
    os.chdir("other")
    for step in range(10):
        run.log(step, {"loss": step / 2})
    assert run.finish()
    print(run.dir)
    """
    ended = scripts.run_well(tmp_path, code)
    assert ended.out.strip() == str(tmp_path / "here")
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(tmp_path / "here")) == list(range(10))
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.first_is_quick
@pytest.mark.parametrize("moment", ["before init", "after init"])
def test_working_directory_is_removed(tmp_path: Path, run_dir: Path, home: Path, moment: str) -> None:
    """The working directory is gone before or after init: nothing raises, the run is stored, told where (C6-4)."""
    code = """
    import os, sys
    import logclient
    where = sys.argv[1]
    os.mkdir(where)
    os.chdir(where)
    if sys.argv[2] == "before init":
        os.rmdir(where)
    run = logclient.init(project="case")
    if sys.argv[2] == "after init":
        import shutil
        run.flush()
        os.rename(where, where + ".removed")  # at once: the agent goes on making files in it
        shutil.rmtree(where + ".removed")
    for step in range(10):
        run.log(step, {"loss": step / 2})
    run.finish(2.0)
    print(run.dir)
    """
    env = {key: value for key, value in os.environ.items() if key != "LOGCLIENT_DIR"}
    where = tmp_path / "gone"
    ended = scripts.run(tmp_path, code, str(where), moment, env=env)
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err
    if moment == "before init":
        used = home / ".local/share/logclient-runs"
        assert all(str(used) in line for line in ended.said), ended.err
        assert "working directory" in ended.said[0]
    else:
        used = where / "logclient-runs"
    assert ended.out.strip() == str(used)
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(used)) == list(range(10))


@pytest.mark.slow
def test_run_folder_is_removed_in_mid_run(tmp_path: Path, run_dir: Path) -> None:
    """Somebody removes the run folder: what is logged afterwards is stored in a new one (C6-4)."""
    code = """
    import os, shutil, sys, time
    import logclient
    run = logclient.init(project="case", quiet=True)
    run.log(0, {"loss": 0.0})
    assert run.flush()
    os.rename(sys.argv[1], sys.argv[1] + ".removed")  # at once: the agent goes on making files in it
    shutil.rmtree(sys.argv[1] + ".removed")
    for step in range(1, 10):
        run.log(step, {"loss": step / 2})
    run.finish()
    """
    scripts.run_well(tmp_path, code, str(run_dir))
    scripts.wait_gone()
    assert set(range(1, 10)) <= set(scripts.steps(scripts.the_run(run_dir)))


@pytest.mark.slow
@pytest.mark.parametrize("same", [False, True], ids=["20 runs", "one run"])
def test_twenty_inits_at_once(tmp_path: Path, run_dir: Path, same: bool) -> None:
    """One process forks twenty that call init in the same moment: all work, each record is stored once (C3-4)."""
    code = """
    import os, sys, time
    import logclient
    children = []
    for number in range(20):
        pid = os.fork()
        if pid == 0:
            while not os.path.exists("go"):
                time.sleep(0.001)
            code = 1
            try:
                run = logclient.init(project="case", quiet=True, **({"id": "same"} if sys.argv[1] == "True" else {}))
                for step in range(20):
                    run.log(step, {"loss": float(number)})
                code = 0 if run.finish(60) else 2
            finally:
                os._exit(code)
        children.append(pid)
    open("go", "w").close()
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
    """
    ended = scripts.run(tmp_path, code, str(same), timeout_s=60)
    assert ended.code == 0, ended
    scripts.wait_gone()
    found = scripts.runs(run_dir)
    assert len(found) == (1 if same else 20)
    rows = sorted((value, step) for run in found for step, value in scripts.points(run)["loss"])
    assert rows == [(float(number), step) for number in range(20) for step in range(20)]


@pytest.mark.first_is_quick
@pytest.mark.parametrize("executable", ["", "/nonexistent/python", "train.py", "/bin/false", "/bin/true"])
def test_an_executable_that_is_no_python_is_never_started(
    tmp_path: Path, run_dir: Path, executable: str
) -> None:
    """sys.executable is empty, gone or no Python (a program embeds it): a real one is found, and all is stored (P2)."""
    code = """
    import sys
    sys.executable = sys.argv[1]
    import logclient
    run = logclient.init(project="case", finish_timeout_s=60.0)
    for step in range(10):
        run.log(step, {"loss": step / 2})
    assert run.finish()
    """
    ended = scripts.run_well(tmp_path, code, executable)
    assert "is in" in ended.said[-1]
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))
