"""`init` gives a run or leaves nothing: interrupted at random moments, raising late, in many threads at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Pace

from .. import scripts

INTERRUPTED = """
import glob, json, os, random, signal, sys, time
import logclient

count, how = int(sys.argv[1]), sys.argv[2]
shm, runs = os.environ["LOGCLIENT_SHM_DIR"], os.environ["LOGCLIENT_DIR"]

class Stop(BaseException):
    pass

def handler(number, frame):
    if how == "exit":
        sys.exit(3)
    raise KeyboardInterrupt if how == "ctrl-c" else Stop

number = signal.SIGINT if how == "ctrl-c" else signal.SIGALRM
signal.signal(signal.SIGALRM, handler)
if how == "ctrl-c":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))

def agents():
    found = []
    for entry in os.listdir("/proc"):
        try:
            environment = open(f"/proc/{entry}/environ", "rb").read().split(b"\\0") if entry.isdigit() else []
        except OSError:
            continue
        if f"LOGCLIENT_SHM_DIR={shm}".encode() in environment and int(entry) != os.getpid():
            found.append(int(entry))
    return found

def left():
    lanes = sum(".lanes" in line for line in open("/proc/self/maps"))
    return {
        "descriptors": len(os.listdir("/proc/self/fd")) - first,
        "lanes": lanes,
        "shared": len(glob.glob(shm + "/**", recursive=True)) - 1,
        "runs": sorted(os.listdir(runs)) if os.path.isdir(runs) else [],
        "agents": len(agents()),
        "parent": os.environ.get("LOGCLIENT_PARENT"),
    }

begun = time.perf_counter()
logclient.init(name="whole", id="whole").finish()
whole_s = time.perf_counter() - begun
first = len(os.listdir("/proc/self/fd"))
rng, hits, kept = random.Random(count), 0, ["whole"]
begun = time.perf_counter()
for turn in range(count):
    run = None
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 1.2 * whole_s))
            run = logclient.init(id=f"run-{turn}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except (Stop, KeyboardInterrupt, SystemExit):
        hits += run is None
    if run is not None:
        run.finish()
        kept.append(run.id)
wanted = {"descriptors": 0, "lanes": 0, "shared": 0, "runs": sorted(kept), "agents": 0, "parent": None}
deadline = time.monotonic() + 10
while (found := left()) != wanted and time.monotonic() < deadline:
    time.sleep(0.05)
after = logclient.init(id="after")
after.log(1, {"a": 1.0})
ended = after.finish()
print(json.dumps({"hits": hits, "found": found, "wanted": wanted, "after": ended}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["alarm", "ctrl-c", "exit"])
def test_init_that_is_interrupted_leaves_nothing(tmp_path: Path, run_dir: Path, pace: Pace, how: str) -> None:
    """At random moments before it returns: 10 s later there is no descriptor, file, process or run of it."""
    env = scripts.environment(LOGCLIENT_QUIET="1")
    count = pace.count(500 if how == "alarm" else 100, least=6)
    ended = scripts.run(tmp_path, INTERRUPTED, str(count), how, timeout_s=500 * 20 / pace, env=env)
    assert ended.code == 0, ended
    found = json.loads(ended.out.splitlines()[-1])
    print(f"{how}: {found['hits']} of {count} interrupted")
    assert found["hits"], found
    assert found["found"] == found["wanted"], found
    assert found["after"] is True


RAISES_LATE = """
import glob, json, os, sys
import logclient

class Broken(dict):
    def items(self):
        raise LookupError("a setting that cannot be resolved")
    __iter__ = keys = items

raised = []
for given in ({"config": Broken(a=1)}, {"tags": 3}, {"notes": 3}, {"config": [1]}, {"lanes": 99}):
    try:
        logclient.init(**given)
    except Exception as error:
        raised.append(type(error).__name__)
print(json.dumps([raised, glob.glob(os.environ["LOGCLIENT_SHM_DIR"] + "/**/*", recursive=True)]))
"""


def test_argument_that_raises_leaves_nothing(tmp_path: Path, run_dir: Path) -> None:
    """Whether it shows at once or only when it is read."""
    ended = scripts.run_well(tmp_path, RAISES_LATE)
    raised, left = json.loads(ended.out)
    assert len(raised) >= 4, raised
    scripts.wait_gone()
    assert not [path for path in left if path.endswith(".lanes")]
    assert len(scripts.runs(run_dir)) == 5 - len(raised)


THREADS = """
import json, os, sys, threading
import logclient

errors, made = [], []
barrier = threading.Barrier(8)

def begin():
    try:
        barrier.wait()
        run = logclient.init(**({"id": "same"} if sys.argv[1] == "same" else {}))
        run.log(1, {"a": 1.0})
        made.append(run)
    except BaseException as error:
        errors.append(repr(error))

threads = [threading.Thread(target=begin) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
different = list({id(run): run for run in made}.values())
durable = [(run.finish(), run.status()["durable"]) for run in different]
print(json.dumps([errors, len(made), durable]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ids", ["same", "new"])
def test_many_threads_call_init_first(tmp_path: Path, run_dir: Path, pace: Pace, ids: str) -> None:
    """Eight threads in a new program: no import is half done, and one id is one run with one owner."""
    for turn in range(pace.count(20, least=2)):
        env = scripts.environment(LOGCLIENT_QUIET="1", LOGCLIENT_DIR=str(run_dir / str(turn)))
        ended = scripts.run(tmp_path, THREADS, ids, env=env)
        assert ended.code == 0, ended
        errors, made, durable = json.loads(ended.out)
        assert not errors
        assert made == 8
        assert durable == ([[True, 8]] if ids == "same" else [[True, 1]] * 8)
        found = scripts.runs(run_dir / str(turn))
        assert len(found) == len(durable)
        assert sum(len(scripts.steps(run, "a")) for run in found) == 8
        scripts.wait_gone()  # the next one with this id is another program


FILE_SIZE = """
import resource, signal
import logclient

signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))
run = logclient.init(config={{"text": "x" * 200_000}})
for step in range(10):
    run.log(step, {{"loss": step / 2}})
run.finish()
print("alive")
"""


@pytest.mark.parametrize("size", [1 << 20, 100_000])
def test_limit_of_file_sizes_never_ends_the_program(tmp_path: Path, run_dir: Path, size: int) -> None:
    """SIGXFSZ ends a program by default: no file of ours is asked to grow beyond the limit."""
    ended = scripts.run(tmp_path, FILE_SIZE.format(size=size))
    assert (ended.code, ended.out) == (0, "alive\n"), ended
    if size >= 1 << 20:
        scripts.wait_gone()
        assert scripts.steps(scripts.the_run(run_dir)) == list(range(10))
