"""R2-58, P2: how a program ends is what is stored as the run's state, and nothing of the user's is touched to learn it.

All ways out: exit codes, exceptions, `os._exit`, signals with and without handlers, nested `with`, exit hooks.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from .. import scripts
from ..disturbed import wait_until

HEAD = """
import atexit, os, signal, sys, threading, time
import logclient
run = logclient.init(project="case", quiet=True)
run.log(0, {"loss": 1.0})
"""

# what the program does after HEAD; its exit code; the state of the run, and more about it
ENDS: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    "returns": ("pass", 0, "finished", {}),
    "finish": ("run.finish()", 0, "finished", {}),
    "finish twice": ("run.finish(); run.finish(); logclient.finish()", 0, "finished", {}),
    "exit 0": ("sys.exit(0)", 0, "finished", {}),
    "exit 3": ("sys.exit(3)", 3, "failed", {"exit_code": 3}),
    "exit with text": ("sys.exit('bad luck')", 1, "failed", {"exit_code": 1}),
    "os._exit 0": ("os._exit(0)", 0, "finished", {"exit_code": 0}),
    "os._exit 7": ("os._exit(7)", 7, "failed", {"exit_code": 7}),
    "exception": (
        "raise ValueError('no such batch')",
        1,
        "failed",
        {"type": "ValueError", "text": "no such batch"},
    ),
    "exception in with": (
        "with run:\n    raise KeyError('weights')",
        1,
        "failed",
        {"type": "KeyError", "text": "'weights'"},
    ),
    "exception caught": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", 0, "finished", {}),
    "caught outside of with": (
        "try:\n    with run:\n        1 / 0\nexcept ZeroDivisionError:\n    pass",
        0,
        "failed",
        {"type": "ZeroDivisionError"},
    ),
    "exit 3 in with": ("with run:\n    sys.exit(3)", 3, "failed", {"exit_code": 3}),
    "exit 0 in with": ("with run:\n    sys.exit()", 0, "finished", {"exit_code": 0}),
    "exception in thread": (
        "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()",
        0,
        "finished",
        {},
    ),
    "exception after finish": ("run.finish()\nraise ValueError('too late')", 1, "finished", {}),
    "exception in later exit hook": ("atexit.register(lambda: 1 / 0)", 0, "finished", {}),
    "exit in thread": (
        "thread = threading.Thread(target=sys.exit, args=(3,))\nthread.start()",
        0,
        "finished",
        {},
    ),
    "daemon thread": (
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        0,
        "finished",
        {},
    ),
    "abort": ("os.abort()", -signal.SIGABRT, "terminated", {"signal": signal.SIGABRT}),
    "segfault": (
        "os.kill(os.getpid(), signal.SIGSEGV)",
        -signal.SIGSEGV,
        "terminated",
        {"signal": signal.SIGSEGV},
    ),
    "SIGKILL": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        -signal.SIGKILL,
        "killed",
        {"signal": signal.SIGKILL},
    ),
    "SIGTERM": (
        "os.kill(os.getpid(), signal.SIGTERM)",
        -signal.SIGTERM,
        "terminated",
        {"signal": signal.SIGTERM},
    ),
    "SIGINT": (
        "os.kill(os.getpid(), signal.SIGINT)",
        -signal.SIGINT,
        "terminated",
        {"signal": signal.SIGINT},
    ),
    "SIGTERM with a handler that finishes": (
        "def handler(number, frame):\n    run.log(1, {'loss': 2.0})\n    run.finish()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, handler)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
        0,
        "finished",
        {},
    ),
    "SIGTERM with a handler that exits": (
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(143))\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)",
        143,
        "failed",
        {"exit_code": 143},
    ),
    "SIGTERM ignored": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(os.getpid(), signal.SIGTERM)",
        0,
        "finished",
        {},
    ),
    "recursion": ("def down(n):\n    return down(n + 1)\ndown(0)", 1, "failed", {"type": "RecursionError"}),
    "exception that cannot be shown": (
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad",
        1,
        "failed",
        {"type": "__main__.Bad"},
    ),
    "exec": ("os.execv('/bin/sh', ['sh', '-c', 'exit 5'])", 5, "failed", {"exit_code": 5}),
}


@pytest.mark.first_is_quick
@pytest.mark.parametrize("name", ENDS)
def test_state_is_how_the_program_ended(tmp_path: Path, run_dir: Path, name: str) -> None:
    """The exit code is the user's, the record is stored, and the state says how it ended (R2-58)."""
    code, exit_code, state, more = ENDS[name]
    ended = scripts.run(tmp_path, HEAD + code + "\n")
    assert ended.code == exit_code, ended
    assert "logclient" not in ended.err.replace("logclient.init", ""), ended.err
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert scripts.steps(found)[:1] == [0]
    assert found.state.name == state, found.state
    for what, value in more.items():
        seen = found.state.exception if what in ("type", "text") else vars_of(found.state)
        assert seen[what] == value, found.state


def vars_of(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in ("exit_code", "signal", "cause")}


def test_exception_is_kept_with_its_last_lines(tmp_path: Path, run_dir: Path) -> None:
    """Type, message and where it was raised, innermost last; no source file is read for it (R2-58)."""
    ended = scripts.run(tmp_path, HEAD + "def deep():\n    raise ValueError('x' * 5000)\ndeep()\n")
    assert ended.code == 1
    scripts.wait_gone()
    exception = scripts.the_run(run_dir).state.exception
    assert exception["text"] == "x" * 2000
    assert exception["last_lines"][-1].endswith("train.py:7 in deep")
    assert exception["last_lines"][-2].endswith("train.py:8 in <module>")


def test_nested_runs_fail_together_or_alone(tmp_path: Path, run_dir: Path) -> None:
    """The inner block fails and the outer one catches it: only the inner run failed; else both (R2-58)."""
    code = """
    import logclient
    with logclient.init(project="case", name="outer-good") as outer:
        try:
            with logclient.init(project="case", name="inner-bad") as inner:
                inner.log(0, {"loss": 1.0})
                1 / 0
        except ZeroDivisionError:
            pass
        outer.log(0, {"loss": 2.0})
        logclient.log(1, {"loss": 3.0})
    with logclient.init(project="case", name="both-bad"):
        with logclient.init(project="case", name="both-bad-too"):
            {}["missing"]
    """
    ended = scripts.run(tmp_path, code)
    assert ended.code == 1
    scripts.wait_gone()
    states = {found.name: found.state for found in scripts.runs(run_dir)}
    assert {name: state.name for name, state in states.items()} == {
        "outer-good": "finished",
        "inner-bad": "failed",
        "both-bad": "failed",
        "both-bad-too": "failed",
    }
    assert states["both-bad"].exception["type"] == states["both-bad-too"].exception["type"] == "KeyError"


def test_exit_hooks_run_in_the_users_order(tmp_path: Path, run_dir: Path) -> None:
    """One hook of ours, at its place: those registered later come before it, the earlier ones after it (P2)."""
    code = """
    import atexit
    import logclient
    atexit.register(lambda: print("registered before", run.status()["accepted"], run.status()["refused"]))
    count = atexit._ncallbacks()
    run = logclient.init(project="case", quiet=True)
    second = logclient.init(project="case", quiet=True)
    assert atexit._ncallbacks() - count <= 1
    atexit.register(lambda: (run.log(0, {"loss": 1.0}), print("registered after")))
    """
    ended = scripts.run_well(tmp_path, code)
    assert ended.out == "registered after\nregistered before 1 0\n"
    scripts.wait_gone()
    assert [len(scripts.steps(found)) for found in scripts.runs(run_dir)].count(1) == 1


UNTOUCHED = """
import atexit, faulthandler, gc, os, signal, sys, threading, warnings, io
# the user's own of everything
signal.signal(signal.SIGTERM, lambda *a: None)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, lambda *a: None)
sys.excepthook = lambda *a: sys.__excepthook__(*a)
threading.excepthook = lambda *a: None
sys.stdout = io.TextIOWrapper(io.FileIO(1, closefd=False), line_buffering=True)
sys.settrace(None)

def look():
    return {
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "wakeup": signal.set_wakeup_fd(-1),
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook, sys.breakpointhook),
        "streams": (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__),
        "os": (os.fork, os._exit, os.system, os.execve, getattr(os, "posix_spawn", None)),
        "trace": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "cwd": os.getcwd(),
        "umask": os.umask(0o022),
        "nice": os.nice(0),
        "path": list(sys.path),
        # logclient.guest.dynamo has one, which waits for torch._dynamo and hands every import on
        "finders": [finder for finder in sys.meta_path if type(finder).__module__ != "logclient.guest.dynamo"],
        "warnings": list(warnings.filters),
        "gc": (gc.isenabled(), gc.get_threshold()),
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "threads": threading.enumerate(),
        "native": len(os.listdir("/proc/self/task")),
        "fault": faulthandler.is_enabled(),
        "environment": {k: v for k, v in os.environ.items() if k != "LOGCLIENT_PARENT"},
        "group": (os.getpgrp(), os.getsid(0)),
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    }

os.umask(0o022)
before = look()
import logclient
assert look() == before, "import"
run = logclient.init(project="case", quiet=True)
run.log(0, {"loss": 1.0})
during = look()
for name in before:
    assert during[name] == before[name], (name, before[name], during[name])
run.flush()
run.finish()
after = look()
for name in before:
    assert after[name] == before[name], (name, before[name], after[name])
assert "LOGCLIENT_PARENT" not in os.environ
"""


def test_nothing_of_the_users_is_touched(tmp_path: Path, run_dir: Path) -> None:
    """Signal handlers, mask, hooks, streams, os.fork, path, threads, children: as before, whatever we do (P2)."""
    scripts.run_well(tmp_path, UNTOUCHED)
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == [0]


def test_exit_hook_of_the_users_that_never_ends_is_not_ours(tmp_path: Path, run_dir: Path) -> None:
    """A hook of the user's blocks the exit: what was logged is stored, and the run is seen as it is (R2-58)."""
    code = HEAD.replace("import logclient\n", "import logclient\natexit.register(time.sleep, 600)\n")
    process = scripts.start(tmp_path, code)
    try:
        scripts.wait_state(run_dir, "finished")
        wait_until(lambda: scripts.steps(scripts.the_run(run_dir)) == [0], 30, "what was logged is stored")
    finally:
        process.kill()
        process.communicate()
    scripts.wait_gone()
