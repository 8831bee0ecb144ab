"""Promise P1: what the training process has to bear. Measured in processes of its own, from outside where that goes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from logclient.shm import layout
from tests.conftest import Pace
from tests.lanes import ROOT, Script, lane_files, wait_until

# system calls that read a clock: time.time_ns is one only where the kernel offers no vDSO
CLOCKS = {"clock_gettime", "gettimeofday", "time", "clock_getres"}

TRACED = """
import ctypes, gc, mmap, time
import numpy, torch
from logclient.shm import layout
from collections import UserDict

run = logclient.init("guest", config={"lr": 1.0})
tensor = torch.tensor(1.5)
class Odd:
    pass
rows = [
    {"a": 0.5, "b": 1.5},
    {"a": 1, "b": True, "c": "text"},
    {"n": numpy.float32(1.5), "i": numpy.int64(3), "t": tensor, "big": 2**70},
    {"deep": {"er": {"x": 1.0}}, 5: 1.0, "bad::key": 1.0},
    {"none": None, "odd": Odd(), "list": [1], "ok": 1.0},
    {f"k{i}": float(i) for i in range(300)},
    {f"text{i}": "x" * 4000 for i in range(20)},
    UserDict(a=1.0),
]
page, second = run._session.status_page, run.as_rank(1)
def everything(number):
    for at, row in enumerate(rows):
        run.log(number, row)
    # as the agent writes them: nobody asks, a step that lies ahead, one that is reached, at once, withdrawn
    for at, until in ((0, 0), ((1 << 63) + (1 << 40), 0), ((1 << 63) + 1, 0), (1, 0), ((1 << 63) + 1, 1 << 63)):
        page[layout.STOP_AT] = page[layout.SAVE_AT] = 0
        page[layout.STOP_UNTIL] = page[layout.SAVE_UNTIL] = until
        page[layout.REQUESTS_CHECKED_NS] = 1 << 63
        page[layout.SAVE_NUMBER] += 1
        page[layout.STOP_AT] = page[layout.SAVE_AT] = at
        told = run.should_stop(), run.should_save(), run.should_stop(number), run.should_stop("x")
        assert number < 9 or told[:2] == (at in (1, (1 << 63) + 1) and not until,) * 2, (at, until, told)
        second.should_stop(), second.should_save()
    run.log(number + 0.5, rows[0])
    run.log("no step", rows[0])
    run.log(number, {f"new{number}": 1.0})
    with run.section("data"), logclient.section("decode"), run.section(f"name {number}"), run.section(7):
        pass

for number in range(3):  # each cause is said once
    everything(number)
run._session.notices.once("x", "y")
gc.collect()
gc.disable()
open("ready", "w").close()
while "TracerPid:\\t0" in open("/proc/self/status").read():
    time.sleep(0.01)
marker = ctypes.CDLL(None).getpgid
marker.argtypes = [ctypes.c_int]
marker(os.getpid())
marker(111)
for number in range(int(sys.argv[1])):
    everything(number)
for number in range(5000):
    run.log(number, rows[0])
marker(222)
print(json.dumps(run.status()))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_log_makes_no_system_call_but_the_clock(run_dir: Path, tmp_path: Path, pace: Pace) -> None:
    """Thousands of calls, all kinds of rows, wrong ones too, a full ring, new key sets: the kernel hears nothing."""
    pytest.importorskip("torch")
    trace, rounds = tmp_path / "trace", pace.count(2000, least=60)
    script = Script(tmp_path, TRACED, rounds, env={"MALLOC_TOP_PAD_": "67108864"})
    wait_until((tmp_path / "ready").exists, "all is imported", 100)
    with subprocess.Popen(
        ["strace", "-f", "-o", trace, "-p", str(script.process.pid)], stderr=subprocess.PIPE
    ):
        status = script.result(timeout_s=110 * max(1.0, 20 / pace))
    assert status["accepted"] + status["refused"] == 3 * 11 + rounds * 11 + 5000
    lines = trace.read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if "getpgid(111" in line)
    end = next(at for at, line in enumerate(lines) if "getpgid(222" in line)
    calls = [match.group(1) for line in lines[begin + 1 : end] if (match := re.match(r"\d+\s+(\w+)\(", line))]
    memory = {"brk", "mmap", "munmap", "mremap"}  # of the interpreter, for rows of our test
    assert not [line for line in lines[begin + 1 : end] if " SIG" in line]
    assert set(calls) <= CLOCKS | memory, sorted(set(calls))
    assert len([call for call in calls if call in memory]) < 50


ADDED = """
import gc, os, sys, _signal as signal
sys.path[:0] = [sys.argv[1]]

def sight():
    with open("/proc/self/status") as file:
        found = {line.split(":")[0]: line.split()[1] for line in file if line.startswith(("Rss", "Threads"))}
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    found["sockets"] = sum(os.path.exists(link) and os.readlink(link).startswith("socket:") for link in links)
    return {name: int(value) for name, value in found.items()}

def handlers():
    return [signal.getsignal(number) for number in sorted(signal.valid_signals())]

gc.collect()
before, modules, own = sight(), set(sys.modules), handlers()
hooks = sys.excepthook, sys.stdout, sys.stderr, os.fork, sys.unraisablehook
import logclient
from logclient.spawn import agent as spawn
spawn.start_agent = lambda *args, **more: None
run = logclient.init("guest", quiet=True)
for step in range(20000):
    run.log(step, {"a": 0.5, "b": float(step)} if step % 2 else {"c": step, "d": "text"})
gc.collect()
after = sight()
assert handlers() == own and hooks == (sys.excepthook, sys.stdout, sys.stderr, os.fork, sys.unraisablehook)
new = sorted(set(sys.modules) - modules)
import json
print(json.dumps([before, after, new]))
"""


def test_what_import_init_and_log_add_to_the_process(run_dir: Path, tmp_path: Path) -> None:
    """No thread, socket, foreign module, handler or hook, and at most 4 MiB beside the lanes (case C3-2)."""
    command = [sys.executable, "-S", "-c", ADDED, str(ROOT)]
    env = {**os.environ, "LOGCLIENT_FINISH_TIMEOUT_S": "0.05"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    for _ in range(2):  # the first one compiles our modules, which takes memory too
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
    before, after, modules = json.loads(done.stdout)
    assert after["Threads"] == before["Threads"] == 1
    assert after["sockets"] == before["sockets"] == 0
    new = {name.partition(".")[0] for name in modules}
    assert not new - sys.stdlib_module_names - {"logclient"}
    assert not new & {
        "threading",
        "socket",
        "subprocess",
        "multiprocessing",
        "asyncio",
        "ctypes",
        "logging",
        "typing",
    }
    grown_kb = sum(after[kind] - before[kind] for kind in ("RssAnon", "RssFile"))
    lanes_kb = after["RssShmem"] - before["RssShmem"]
    print(f"import, init and log() add {grown_kb} KiB beside {lanes_kb} KiB of lanes")
    assert grown_kb <= 4 << 10 and lanes_kb <= (4 << 10) + 64


def test_program_ends_as_it_would_without_us(run_dir: Path, tmp_path: Path) -> None:
    """Promise P2: exit code, output and standard error are the program's own, however it ends."""
    ends = {
        "pass": (0, ""),
        "sys.exit(3)": (3, ""),
        "raise ValueError('x')": (1, "ValueError: x"),
        "os._exit(5)": (5, ""),
        "os.kill(os.getpid(), 15)": (-15, ""),
        "raise KeyboardInterrupt": (-2, "KeyboardInterrupt"),
    }
    for end, (code, said) in ends.items():
        script = Script(tmp_path, f'run = logclient.init("guest")\nrun.log(1, {{"a": 1.0}})\n{end}')
        out, err = script.process.communicate(timeout=60)
        assert script.process.returncode == code and out == "", end
        assert err.strip().splitlines()[-1:] == ([said] if said else []), (end, err)
        assert "logclient" not in err
    states = [file.document("state") for file in lane_files()]
    assert [state and state["state"] for state in states] == [
        "finished",
        "finished",
        "failed",
        None,
        None,
        "terminated",
    ]
    assert states[2]["exception"]["type"] == "ValueError" and states[2]["exception"]["text"] == "x"


def test_closed_standard_streams_do_no_harm(run_dir: Path, tmp_path: Path) -> None:
    """Case C3-4: descriptors 0, 1, 2 closed before the start; nothing of ours goes into a file that takes them."""
    source = """
    victims = [open(os.path.join(sys.argv[1], f"victim{i}"), "w") for i in range(3)]
    run = logclient.init("guest", quiet=False)
    run.log(1, {"bad": None, "ok": 1.0})
    run.log("bad step", {"ok": 1.0})
    run.finish()
    """
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert Script(tmp_path, source, tmp_path, before=shell).result() is None
    (file,) = lane_files()
    assert file.words[layout.STATE] == layout.STATE_FINISHED
    assert [record.values for record in file.read()] == [{"ok": 1.0}] and file.refused == 1
    assert [os.path.getsize(victim) for victim in tmp_path.glob("victim*")] == [0, 0, 0]


FLAT = """
import gc

def sight():
    gc.collect()
    with open("/proc/self/status") as file:
        found = {line.split(":")[0]: line.split()[1] for line in file if line.startswith(("RssAnon", "Threads"))}
    return int(found["RssAnon"]), int(found["Threads"]), len(os.listdir("/proc/self/fd"))

def rows(run, count):
    for step in range(count):
        run.log(step, {"a": 0.5, "b": step})
        run.log(step, {f"new{step}": 1.0, "x": "text"})
        run.log(step, {"none": None, f"bad{step}": [], "ok": 1.0})
        run.log("no step", {"a": 1.0})

def runs(count):
    for number in range(count):
        run = logclient.init(f"p{number % 3}", lanes_bytes=1 << 20)
        run.log(1, {"a": 1.0})
        run.summary["large"] = "x" * 100_000
        run.finish()

run = logclient.init("flat")
rows(run, 6000)  # more than there are ids for shapes
runs(3)
before = sight()
rows(run, int(sys.argv[1]))
middle = sight()
runs(int(sys.argv[2]))
print(json.dumps([before, middle, sight()]))
"""


@pytest.mark.slow
def test_memory_threads_and_descriptors_stay_flat(run_dir: Path, tmp_path: Path, pace: Pace) -> None:
    """Cases C1-4, S-4, S-7: new keys and wrong values in every row, a hundred runs one after another: no growth."""
    script = Script(tmp_path, FLAT, pace.count(200_000), pace.count(1000))
    before, middle, after = script.result(timeout_s=100 * max(1, 20 / pace))
    # one arena of the interpreter's allocator, 1 MiB, comes and goes
    assert middle[0] - before[0] < 1536 and after[0] - middle[0] < 1536, (before, middle, after)
    assert before[1:] == middle[1:] == after[1:] and before[1] == 1
