"""C3-4, C4-4, P1, P2: standard streams that are closed, full or on a frozen disk; the user's descriptors and children.

What is right: closed streams do no harm and what comes to lie on 0, 1 and 2 is not ours; a notice never waits and is
never written into a file that is not the user's terminal; the agent's start shows up in no handler and no wait of the
user's; a program that closes all descriptors goes on logging.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from textwrap import dedent

import pytest

from tools.faults import frozen
from tools.faults.frozen import LoopExt4

from .. import scripts

IN_TIME_S = 30.0  # on a machine that is ten times slower; who waits for a disk waits until the fault ends
PROGRAM = """
import os, sys, time
import logclient
begun = time.monotonic()
run = logclient.init(project="case")
took = time.monotonic() - begun
for step in range(10):
    run.log(step, {"loss": step / 2})
run.log("none", {"loss": 1.0})
run.log(10, {"loss": object()})
begun = time.monotonic()
done = run.finish()
with open("told", "w") as file:
    print(took, time.monotonic() - begun, done, run.status()["durable"], file=file)
"""


def told(where: Path) -> tuple[float, float, bool, int]:
    """Seconds of init and finish, what finish said, records that are durable."""
    init_s, finish_s, done, durable = (where / "told").read_text().split()
    return float(init_s), float(finish_s), done == "True", int(durable)


@pytest.mark.first_is_quick
@pytest.mark.parametrize("closed", [fds for n in (1, 2, 3) for fds in combinations((0, 1, 2), n)], ids=str)
def test_closed_streams_do_no_harm(tmp_path: Path, run_dir: Path, closed: tuple[int, ...]) -> None:
    """Any of stdin, stdout and stderr closed from the start (C3-4)."""
    scripts.write(tmp_path, PROGRAM)
    redirections = " ".join(f"{fd}>&-" for fd in closed)
    words = ["sh", "-c", f'exec "$0" train.py {redirections}', sys.executable]
    ended = scripts.run_words(tmp_path, words)
    assert ended.code == 0, ended
    assert told(tmp_path)[2:] == (True, 11)
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


@pytest.mark.parametrize("moment", ["before init", "after init"])
def test_reused_standard_descriptors_are_not_ours(tmp_path: Path, run_dir: Path, moment: str) -> None:
    """0, 1 and 2 are closed, and files of the user's come to lie there: they hold what the user wrote (C3-4)."""
    code = """
    import os, sys, time
    import logclient

    def reuse():
        for fd in (0, 1, 2):
            os.close(fd)
        for name in ("first", "second", "third"):
            assert os.open(name, os.O_RDWR | os.O_CREAT) < 3
        for fd in (0, 1, 2):
            os.write(fd, b"mine")

    BEFORE
    run = logclient.init(project="case")
    AFTER
    for step in range(10):
        run.log(step, {"loss": step / 2})
    run.log("none", {"loss": 1.0})
    for fd in (0, 1, 2):
        os.write(fd, b" still")
    assert run.finish()
    for fd in (0, 1, 2):
        os.write(fd, b" mine")
    """
    code = code.replace("BEFORE", "reuse()" if moment == "before init" else "pass")
    code = code.replace("AFTER", "reuse()" if moment == "after init" else "pass")
    ended = scripts.run(tmp_path, code)
    assert ended.code == 0, ended
    for name in ("first", "second"):
        assert (tmp_path / name).read_text() == "mine still mine"
    # Descriptor 2 is where Python writes: a program that puts a file there may find our two lines in it, whole.
    lines = (tmp_path / "third").read_text()
    assert lines.startswith("mine")
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


def test_stray_output_to_closed_streams_reaches_no_lane(tmp_path: Path, run_dir: Path) -> None:
    """Closed at start; later a C library writes to 0, 1 and 2: nothing of ours lies there to be damaged (C3-4)."""
    code = """
    import os
    import logclient
    run = logclient.init(project="case")
    for step in range(10):
        run.log(step, {"loss": step / 2})
        for fd in (0, 1, 2):
            try:
                os.pwrite(fd, b"\\xff" * 4096, 0)
            except OSError:
                pass
            try:
                os.write(fd, b"\\xff" * 4096)
            except OSError:
                pass
            try:
                os.ftruncate(fd, 0)
            except OSError:
                pass
    assert run.finish()
    assert run.status()["durable"] == 10, run.status()
    """
    scripts.write(tmp_path, code)
    words = ["sh", "-c", 'exec "$0" train.py <&- >&- 2>&-', sys.executable]
    ended = scripts.run_words(tmp_path, words)
    assert ended.code == 0, ended
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


@pytest.mark.first_is_quick
@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
def test_full_stderr_is_not_waited_for(tmp_path: Path, run_dir: Path, kind: str) -> None:
    """Nobody reads standard error and it is full: notices are kept, and nothing waits (P1)."""
    code = """
    import fcntl, os, pty, socket, sys, time
    kind = sys.argv[1]
    if kind == "pipe":
        reader, writer = os.pipe()
    elif kind == "socket":
        a, b = socket.socketpair()
        reader, writer = a.fileno(), b.fileno()
    else:
        reader, writer = pty.openpty()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
    os.dup2(writer, 2)
    """
    ended = scripts.run(tmp_path, dedent(code) + PROGRAM, kind)
    assert ended.code == 0, ended  # who waited would wait for ever
    assert told(tmp_path)[2:] == (True, 11)
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert scripts.steps(found) == list(range(10))
    assert len(found.notices) >= 2, found.notices


def test_closed_pipe_on_stderr_raises_nothing(tmp_path: Path, run_dir: Path) -> None:
    """Who read standard error is gone (SIGPIPE, EPIPE): the program does not notice (P2)."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = scripts.run(tmp_path, PROGRAM, stderr=writer)
    finally:
        os.close(writer)
    assert ended.code == 0, ended
    assert told(tmp_path)[2:] == (True, 11)


def test_stderr_in_a_file_gets_both_lines(tmp_path: Path, run_dir: Path) -> None:
    """Standard error is a file, as under a scheduler: both lines are in it, whole and once (C6-4)."""
    path = tmp_path / "log"
    with open(path, "wb") as file:
        code = PROGRAM.replace("run = logclient", "sys.stderr.write('first\\n'); run = logclient")
        ended = scripts.run(tmp_path, code, stderr=file)
    assert ended.code == 0, ended
    lines = path.read_text().splitlines()
    assert lines[0] == "first"
    assert [line.split(" ")[0] for line in lines[1:]] == ["logclient:"] * (len(lines) - 1), lines
    assert len([line for line in lines if f"goes to {run_dir}" in line]) == 1, lines
    assert len([line for line in lines if f"is in {run_dir}" in line]) == 1, lines


def test_stderr_in_a_file_of_another_disk_gets_both_lines(tmp_path: Path, run_dir: Path) -> None:
    """Both lines are in it before `finish` returns, and before what the program writes then (C6-4, P6)."""
    path = Path(os.environ["LOGCLIENT_SHM_DIR"]) / "log"
    with open(path, "wb") as file:
        ended = scripts.run(tmp_path, PROGRAM + "\nsys.stderr.write('last')\n", stderr=file)
    lines = path.read_text().splitlines()
    path.unlink()
    assert ended.code == 0, ended
    assert [f"goes to {run_dir}" in lines[0], f"is in {run_dir}" in lines[-2], lines[-1]] == [
        True,
        True,
        "last",
    ], lines
    scripts.wait_gone()


def test_stderr_in_a_file_tells_what_is_in_memory_only(
    tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder can be used and standard error is a file: both loud lines are in it (C6-4, P6)."""
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    (tmp_path / "taken").write_text("")
    path = tmp_path / "log"
    with open(path, "wb") as file:
        env = scripts.environment(LOGCLIENT_DIR=str(tmp_path / "taken"))
        ended = scripts.run(tmp_path, PROGRAM, stderr=file, env=env)
    assert ended.code == 0, ended
    lines = path.read_text().splitlines()
    assert len(lines) == 2, lines
    assert all("logclient recover --dir" in line for line in lines), lines


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
@pytest.mark.parametrize("runs_too", [False, True], ids=["stderr only", "run folder too"])
def test_stderr_on_a_frozen_disk_is_not_waited_for(tmp_path: Path, run_dir: Path, runs_too: bool) -> None:
    """Standard error is a file on a frozen disk: init, log and finish go on, in time (P1, P6)."""
    with LoopExt4(16) as disk:
        with open(disk.path / "log", "wb") as file:
            late = {"LOGCLIENT_DIR": str(disk.path / "runs"), "LOGCLIENT_START_TIMEOUT_S": "6"}
            env = scripts.environment(**(late if runs_too else {}))
            (disk.path / "runs").mkdir()
            with disk.frozen():
                code = PROGRAM.replace("run.finish()", "run.finish(1.0)") if runs_too else PROGRAM
                ended = scripts.run(tmp_path, code, stderr=file, env=env)
                assert ended.code == 0, ended
                init_s, finish_s, done, _ = told(tmp_path)
                assert init_s < 6 + IN_TIME_S
                assert finish_s < IN_TIME_S
                assert done is not runs_too
        scripts.wait_gone()
        assert scripts.steps(scripts.the_run(disk.path / "runs" if runs_too else run_dir)) == list(range(10))


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
def test_stderr_freezes_after_init(tmp_path: Path, run_dir: Path) -> None:
    """The disk with standard error freezes in mid-run, the one with the runs does not: finish is in time (P6)."""
    code = PROGRAM.replace(
        "begun = time.monotonic()\ndone", "print('go', flush=True); input()\nbegun = time.monotonic()\ndone"
    )
    with LoopExt4(16) as disk, open(disk.path / "log", "wb") as file:
        process = scripts.start(tmp_path, code, stderr=file, stdin=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        with disk.frozen():
            ended = scripts.end_with(process, "\n")
            assert ended.code == 0, ended
            assert told(tmp_path)[1] < IN_TIME_S
            assert told(tmp_path)[2:] == (True, 11)


# ---- children and signals ---------------------------------------------------------------------------------------


CHILDREN = """
import os, signal, sys, threading, time
import logclient

seen = []
def handler(number, frame):
    seen.append("handler")
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        seen.append(pid)

if "handler" in sys.argv:
    signal.signal(signal.SIGCHLD, handler)
if "ignored" in sys.argv:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
mine = set()
def child():
    pid = os.fork()
    if pid == 0:
        time.sleep(0.2)
        os._exit(0)
    mine.add(pid)

def wait_all():
    while True:
        try:
            pid, _ = os.wait()
        except ChildProcessError:
            return
        seen.append(pid)

for _ in range(3):
    child()
if "waiting thread" in sys.argv:
    thread = threading.Thread(target=wait_all)
    thread.start()
if "other threads" in sys.argv:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
run = logclient.init(project="case", quiet=True)
for step in range(10):
    run.log(step, {"loss": step / 2})
killed = 0
for _ in range(2):  # two restarts of the worker
    while (worker := run.status()["agent"].get("worker", 0)) in (0, killed):
        time.sleep(0.01)
    os.kill(worker, signal.SIGKILL)
    killed = worker
if "waiting thread" in sys.argv:
    thread.join()
else:
    wait_all()
assert run.finish()
foreign = [pid for pid in seen if pid != "handler" and pid not in mine]
assert not foreign, (foreign, mine)
if "handler" in sys.argv:
    assert set(seen) - {"handler"} == mine, (seen, mine)
    assert 1 <= seen.count("handler") <= len(mine), seen
if "ignored" in sys.argv:
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
"""


@pytest.mark.first_is_quick
@pytest.mark.parametrize(
    "how",
    [
        "plain",
        "handler",
        "handler, other threads",
        "waiting thread",
        "waiting thread, handler",
        "ignored",
    ],
)
def test_children_of_ours_never_show_up(tmp_path: Path, run_dir: Path, how: str) -> None:
    """A SIGCHLD handler, an os.wait() loop, both, or SIGCHLD ignored: only the user's children are seen (C4-4, P2)."""
    scripts.run_well(tmp_path, CHILDREN, *how.split(", "))
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))


def test_init_from_a_thread_with_a_sigchld_handler(tmp_path: Path, run_dir: Path) -> None:
    """init in a thread other than the main one: the handler does not see our start either (P2)."""
    code = """
    import signal, threading
    import logclient
    seen = []
    signal.signal(signal.SIGCHLD, lambda *a: seen.append(a))
    runs = []
    thread = threading.Thread(target=lambda: runs.append(logclient.init(project="case", quiet=True)))
    thread.start()
    thread.join()
    runs[0].log(0, {"loss": 1.0})
    assert runs[0].finish()
    assert not seen
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    """
    scripts.run_well(tmp_path, code)


def test_children_of_the_users_inherit_nothing_of_ours(tmp_path: Path, run_dir: Path) -> None:
    """Descriptors are close-on-exec: a program that the user starts has none of them (C3-2)."""
    code = """
    import os, subprocess, sys
    import logclient
    def open_in_child():
        words = [sys.executable, "-S", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"]
        return subprocess.run(words, close_fds=False, capture_output=True, text=True, check=True).stdout
    before = open_in_child()
    run = logclient.init(project="case", quiet=True)
    run.log(0, {"loss": 1.0})
    assert open_in_child() == before, (open_in_child(), before)
    assert run.finish()
    """
    scripts.run_well(tmp_path, code)


DAEMON = """
import os, socket, sys, time
import logclient
run = logclient.init(project="case", quiet=True, finish_timeout_s=5.0)
for step in range(10):
    run.log(step, {"loss": step / 2})
os.closerange(3, 1024)
# descriptors of the user's own come to lie where ours were
mine = [os.open(f"mine{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
run.config["after"] = "closed"
deadline = time.monotonic() + 1.5  # longer than agents need to declare somebody dead
step = 10
while time.monotonic() < deadline:
    run.log(step, {"loss": step / 2})
    step += 1
    time.sleep(0.005)
print(step, flush=True)
input()
run.log(step, {"loss": 0.0})
assert run.finish()
assert run.status()["durable"] == step + 1, run.status()
del run
logclient.init(project="case", quiet=True).finish()
import gc
gc.collect()
for number, fd in enumerate(mine):
    assert os.readlink(f"/proc/self/fd/{fd}").endswith(f"mine{number}"), fd
    os.write(fd, b"still mine")
"""


def test_program_that_closes_all_descriptors_goes_on(tmp_path: Path, run_dir: Path) -> None:
    """os.closerange(3, 1024) after init: the run is not declared dead, all is stored, no foreign file closed (P2)."""
    process = scripts.start(tmp_path, DAEMON, stdin=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.strip().isdecimal(), scripts.end(process)
    assert scripts.the_run(run_dir).state.name == "running"
    ended = scripts.end_with(process, "\n")
    assert ended.code == 0, ended
    scripts.wait_gone()
    found = next(run for run in scripts.runs(run_dir) if scripts.points(run))
    assert scripts.steps(found) == list(range(int(line) + 1))
    assert found.config == {"after": "closed"}
    assert found.state.name == "finished"


def test_daemonized_program_goes_on(tmp_path: Path, run_dir: Path) -> None:
    """Two forks, a new session and all descriptors closed after init: the grandchild logs on in the same run (C3-2)."""
    code = """
    import os, sys, time
    import logclient
    run = logclient.init(project="case", quiet=True)
    run.log(0, {"loss": 0.0})
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(0, 1024)
    for name in (os.devnull,) * 3:
        os.open(name, os.O_RDWR)
    for step in range(1, 200):
        run.log(step, {"loss": step / 2})
        time.sleep(0.005)
    run.finish()
    """
    ended = scripts.run(tmp_path, code)
    assert ended.code == 0, ended
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert sorted(scripts.steps(found)) == list(range(200))
