"""`logclient.launch`: N ranks of any function on this machine, all in one run; failures come back and nothing hangs."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tools.faults import processes

from .. import scripts
from ..disturbed import wait_until
from ..launched import by_rank, ranks, the_runs, writers
from ..place.test_notebook_agent_killed import in_kernel, text_of
from ..recipes import recipe

METHODS = ("spawn", "fork", "forkserver")

# no guard: the script must not be run again by its ranks
RUNS = """
import os, sys
import logclient

open("ran", "a").write("once ")
method = sys.argv[1]
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")

def who():
    return [os.environ[name] for name in names] + [os.environ["MASTER_PORT"]]

def only_log(first):
    for step in range(first, first + 10):
        logclient.log(step, {"loss": step / 2})
    return who()

def init_and_log(which="every"):
    if which == "every" or os.environ["RANK"] == "0":
        with logclient.init(project="ranks", name=which):
            only_log(0)
        return os.getpid()
    only_log(0)
    return logclient.status()["refused"]

# the parent has a run: its ranks are in it
with logclient.init(project="ranks", name="parent") as run:
    run.log(0, {"parent": 1.0})
    told = logclient.launch(only_log, (0,), 3, method)
    again = logclient.launch(only_log, args=[10], nprocs=2, start_method=method)
assert [each[:5] for each in told] == [[str(rank), str(rank), "3", "3", "127.0.0.1"] for rank in range(3)], told
assert len({each[5] for each in told}) == 1 and told[0][5] != again[0][5]
assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "LOGCLIENT_LAUNCH"} & set(os.environ)
# it has none: every rank starts one, and all get the same; or one does, and the others' records are counted
assert len(set(logclient.launch(init_and_log, (), 2, method))) == 2
assert logclient.launch(init_and_log, ("zero",), 2, method)[1] == 10
# nobody has: counted
assert logclient.launch(lambda: [only_log(0), logclient.status()["refused"]][1], (), 2, method) == [10, 10]
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", METHODS)
def test_launch_gives_all_ranks_one_run(tmp_path: Path, run_dir: Path, method: str) -> None:
    """Run in the parent, in every rank, in rank 0 alone, or nowhere; each record has its rank, each writer a stream."""
    ended = scripts.run(tmp_path, RUNS, method, timeout_s=150)
    assert ended.code == 0, ended
    assert (tmp_path / "ran").read_text() == "once "
    assert "Traceback" not in ended.err
    assert "Error" not in ended.err
    parent, every, zero = the_runs(run_dir, 3)
    assert by_rank(parent) == {0: list(range(20)), 1: list(range(20)), 2: list(range(10))}
    assert scripts.steps(parent, "parent") == [0]
    assert writers(parent) == 6
    assert by_rank(every) == ranks(2, range(10))
    assert (every.name, writers(every), len(every.attempts)) == ("every", 2, 1)
    assert by_rank(zero) == {0: list(range(10))}
    assert len([line for line in ended.said if "refused" in line]) == 3, ended.err


FUNCTIONS = """
import abc, dataclasses, enum, functools, os, sys, typing
import logclient
import other

method = sys.argv[1]
SCALE = 3

class Result:
    def __init__(self, value): self.value = value
    def __eq__(self, more): return type(more) is type(self) and more.value == self.value
    def scaled(self): return Result(self.value * SCALE)

class Trainer:
    def __init__(self, lr): self.lr = lr
    def train(self, epochs): return Result([self.lr, epochs, odd(epochs)])
    def __call__(self): return self.lr

class Kind(enum.Enum):
    SMALL = 1
    TINY = 1
    BIG = 2
    @property
    def double(self): return 2 * self.value
    def next(self): return Kind(self.value + 1)

@dataclasses.dataclass
class Settings:
    kind: Kind = Kind.SMALL
    lr: float = SCALE / 2

class Batch(typing.NamedTuple):
    number: int = 0

class Base(abc.ABC):
    def __init__(self, settings): self.settings = settings
    @abc.abstractmethod
    def step(self): ...

class Net(Base):
    def __init__(self, settings):
        super().__init__(settings)
    @property
    def lr(self): return self.settings.lr
    @staticmethod
    def make(): return Net(Settings())
    @classmethod
    def kind(cls): return cls.make().settings.kind
    def step(self):
        small = self.kind()
        assert small is Kind.SMALL is Kind.TINY and small.double == 2 and small.next() is Kind.BIG
        return Batch(SCALE), self.lr, small, self.settings

def logged(fn):
    @functools.wraps(fn)
    def wrapper(*args, **more):
        return [fn.__name__, fn(*args, **more)]
    return wrapper

@logged
def decorated(net): return net.step()

def odd(n): return n > 0 and even(n - 1)
def even(n): return n == 0 or odd(n - 1)

def closure(a):
    def inner(b): return a * SCALE + b + int(os.environ["RANK"])
    return inner

def names():
    import pickle
    return pickle.loads(pickle.dumps(Result(1))) == Result(1)

def nested():
    inner = logclient.launch(lambda: [os.environ["RANK"], os.environ["MASTER_PORT"]], (), 2, method)
    return [os.environ["RANK"], os.environ["MASTER_PORT"], inner]

launch = functools.partial(logclient.launch, nprocs=2, start_method=method)
assert launch(lambda: SCALE) == [3, 3]
assert launch(closure(1), (2,)) == [5, 6]
assert launch(functools.partial(closure(1), b=2)) == [5, 6]
assert launch(Trainer(0.5).train, (3,)) == [Result([0.5, 3, True])] * 2
assert launch(Trainer(0.5)) == [0.5] * 2
assert launch(Result.scaled, (Result(2),)) == [Result(6)] * 2
assert launch(other.work, (1,)) == [other.Made(1)] * 2
assert launch(names) == [True, True]
assert launch(lambda: None) == [None, None]
assert launch(bytes, (5_000_000,)) == [bytes(5_000_000)] * 2
assert launch(sys.exit) == [None, None]
assert launch(decorated, (Net.make(),)) == [["decorated", (Batch(3), 1.5, Kind.SMALL, Settings())]] * 2
assert launch(lambda: os.path.basename(__file__)) == ["train.py"] * 2
zero, one = launch(nested)
assert [zero[0], one[0]] == ["0", "1"] and zero[1] == one[1]
ports = set()
for _, port, inner in (zero, one):
    assert [rank for rank, _ in inner] == ["0", "1"]
    ports |= {port, *(port for _, port in inner)}
assert len(ports) == 3
bad = ({"nprocs": 0}, {"nprocs": True}, {"start_method": "thread"}, {"timeout_s": -1}, {"grace_s": None}, {"fn": 5})
for wrong in bad:
    try:
        launch(**{"fn": print, **wrong})
    except logclient.BadArgument as error:
        assert str(error).startswith(f"{next(iter(wrong))}="), error
    else:
        sys.exit(f"{wrong} did not raise")
assert not {"numpy", "torch"} & set(sys.modules)
"""
OTHER = """
class Made(int): pass
def work(number): return Made(number)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", METHODS)
def test_launch_takes_any_function(tmp_path: Path, run_dir: Path, method: str) -> None:
    """Of the script (unguarded), lambdas, closures, methods, partials, of a module; large results; nested launches."""
    scripts.write(tmp_path, OTHER, "other.py")
    scripts.run_well(tmp_path, FUNCTIONS, method, timeout_s=150)


FAILURES = """
import os, signal, sys, time, traceback
import logclient

method = sys.argv[1]

class Diverged(Exception):
    pass
class Other(Exception):
    def __init__(self, step, why):
        super().__init__(f"step {step}: {why}")
class Running(Exception):
    def __init__(self):
        super().__init__("holds a generator")
        self.batches = (batch for batch in ())

def deepest(how):
    match how:
        case "own": raise Diverged("nan")
        case "builtin": raise ZeroDivisionError("division")
        case "chained":
            try: deepest("own")
            except Diverged as error: raise ValueError("outer") from error
        case "arguments": raise Other(7, "why")
        case "running": raise Running
        case "exit": os._exit(3)
        case "sys.exit": sys.exit(4)
        case "sys.exit text": sys.exit("text")
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "abort": os.abort()
        case "return": return (batch for batch in ())
        case "holder":  # a child of its own holds open all that it inherited
            if (pid := os.fork()) == 0:
                time.sleep(1000)
            open("holding", "w").write(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)

def work(how):
    if os.environ["RANK"] == "1":
        return deepest(how)
    open(f"{how}.{method}", "w").write(f"{os.getpid()} {os.getppid()}")
    time.sleep(1000)

begun = time.monotonic()
def failure(how, kind, text, *notes):
    # the other rank is there, not still on its way
    wait = f"{how}.{method}"
    def work_when_there(how):
        while os.environ["RANK"] == "1" and not (os.path.exists(wait) and os.path.getsize(wait)): time.sleep(0.01)
        return work(how)
    try:
        logclient.launch(work_when_there, (how,), 2, method)
    except BaseException as error:
        assert type(error) is kind, (how, repr(error))
        assert text in str(error), (how, str(error))
        shown = "".join(traceback.format_exception(error))
        for note in notes:
            assert note in shown, (how, note, shown)
        pid = int(open(wait).read().split()[0])
        assert not os.path.exists(f"/proc/{pid}"), how
        return error
    sys.exit(f"{how} did not raise")

Failed = logclient.RankFailed
failure("own", Diverged, "nan", "raised in rank 1 of 2", "in deepest", 'raise Diverged("nan")')
failure("builtin", ZeroDivisionError, "division", "in deepest")
failure("chained", ValueError, "outer", "Diverged: nan", "in deepest")
failure("arguments", Failed, "rank 1 of 2 raised Other: step 7: why", "in deepest")
failure("running", Failed, "rank 1 of 2 raised Running: holds a generator", "in deepest")
assert failure("exit", Failed, "rank 1 of 2 left with exit code 3").exit_code == 3
failure("sys.exit", Failed, "rank 1 of 2 called sys.exit(4)")
failure("sys.exit text", Failed, "rank 1 of 2 called sys.exit('text')")
killed = failure("kill", Failed, "rank 1 of 2 was killed by SIGKILL")
assert (killed.rank, killed.exit_code) == (1, -9) and isinstance(killed, logclient.LogclientError)
failure("abort", Failed, "rank 1 of 2 was killed by SIGABRT")
failure("return", Failed, "rank 1 of 2 returned a generator, which cannot be sent back")
failure("holder", Failed, "rank 1 of 2 was killed by SIGKILL")
os.kill(int(open("holding").read()), signal.SIGKILL)  # was there all the time
assert time.monotonic() - begun < 60

batches = (batch for batch in ())
if method != "fork":
    try:
        logclient.launch(lambda: batches)
    except logclient.LogclientError as error:
        assert "cannot be sent to another process" in str(error) and "start_method='fork'" in str(error)
    else:
        sys.exit("a generator was sent")

# one that takes no notice of SIGTERM is killed after the grace; time-out
def deaf(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(name, "w").write(str(os.getpid()))
    while True: time.sleep(1)
begun = time.monotonic()
try:
    logclient.launch(deaf, ("deaf",), 1, method, timeout_s=10, grace_s=0.5)
except TimeoutError as error:
    assert type(error) is logclient.RankTimeout and "rank 0 had not ended after 10 s" in str(error), error
else:
    sys.exit("no time-out")
assert time.monotonic() - begun < 60
assert not os.path.exists("/proc/" + open("deaf").read())

# one that is asked to leave leaves as it likes
def leaves():
    def handler(*_):
        open("left", "w").write("well")
        sys.exit(0)
    signal.signal(signal.SIGTERM, handler)
    open("armed", "w").close()
    if os.environ["RANK"] == "0":
        while True: time.sleep(1)
    while not os.path.exists("armed"): time.sleep(0.01)
    raise Diverged
for name in ("armed", "left"):
    if os.path.exists(name): os.unlink(name)
try:
    logclient.launch(leaves, (), 2, method)
except Diverged:
    assert open("left").read() == "well"

# somebody else takes the exit code
if method == "fork":
    signal.signal(signal.SIGCHLD, lambda *_: [os.waitpid(-1, os.WNOHANG)])
    def late():
        time.sleep(0.3)
        os._exit(5)
    try:
        logclient.launch(late, (), 1, method)
    except Failed as error:
        assert "took its exit code" in str(error) or "exit code 5" in str(error), error
    assert logclient.launch(lambda: 7, (), 1, method) == [7]
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", METHODS)
def test_failure_of_a_rank_comes_back_and_stops_the_others(
    tmp_path: Path, run_dir: Path, method: str
) -> None:
    """However a rank ends, the caller gets its own exception or a sentence with rank and signal; no rank is left."""
    scripts.run_well(tmp_path, FAILURES, method, timeout_s=200)


STATE = """
import os, sys
import logclient

def fails():
    logclient.init(project="ranks")
    logclient.log(0, {"loss": 1.0})
    raise ValueError("nan in rank " + os.environ["RANK"])

for method in sys.argv[1:]:
    try:
        logclient.launch(fails, (), 1, method)
    except ValueError as error:
        assert str(error) == "nan in rank 0"
"""


@pytest.mark.timeout(120)
def test_run_of_a_rank_that_raised_has_failed(tmp_path: Path, run_dir: Path) -> None:
    """A run that a rank started ends as the rank did: failed, with the exception, whatever the start method."""
    scripts.run_well(tmp_path, STATE, *METHODS, timeout_s=60)
    for found in the_runs(run_dir, 3, "failed"):
        (process,) = found.processes.values()
        assert process.data("state")["exception"]["text"] == "nan in rank 0"


INTERRUPTED = """
import os, signal, sys, time
import logclient

def work():
    number = int(os.environ["RANK"])
    run = logclient.init(project="ranks")
    logclient.log(0, {"loss": 1.0})
    if number == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"rank{number}.new", "w").write(str(os.getpid()))
    os.rename(f"rank{number}.new", f"rank{number}")
    while True: time.sleep(1)

try:
    logclient.launch(work, (), 2, sys.argv[1], grace_s=0.5)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("who", ["parent", "group", "killed"])
def test_interrupt_stops_the_ranks(tmp_path: Path, run_dir: Path, who: str) -> None:
    """Ctrl-C raises KeyboardInterrupt and leaves no rank; ranks of a parent that was killed get SIGTERM."""
    parents = {
        method: scripts.start(tmp_path / method, INTERRUPTED, method, start_new_session=True)
        for method in METHODS
    }
    try:
        for method, parent in parents.items():
            interrupt(tmp_path / method, parent, who)
    finally:
        for parent in parents.values():
            try:
                os.killpg(parent.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            parent.communicate()
    scripts.wait_gone(60)
    for found in scripts.runs(run_dir):
        assert by_rank(found) == ranks(2, [0])
    assert len(scripts.runs(run_dir)) == len(METHODS)


def interrupt(where: Path, parent: subprocess.Popen[str], who: str) -> None:
    files = [where / "rank0", where / "rank1"]
    wait_until(lambda: all(file.exists() for file in files), 60, "the ranks are there")
    pids = [int(file.read_text()) for file in files]
    if who == "group":
        os.killpg(parent.pid, signal.SIGINT)
    else:
        parent.send_signal(signal.SIGKILL if who == "killed" else signal.SIGINT)
    if who == "killed":
        wait_until(lambda: not processes.is_alive(pids[0]), 30, "rank 0 ends")
        os.kill(pids[1], signal.SIGKILL)
    ended = scripts.end(parent, 60)
    assert ended.out == ("" if who == "killed" else "interrupted\n"), ended
    wait_until(lambda: not any(map(processes.is_alive, pids)), 30, "the ranks end")


CELL = """
import os
import logclient
FACTOR = 2

class Diverged(Exception): pass

class Model:
    def loss(self, step): return FACTOR / (step + 1)

def train(steps):
    model = Model()
    for step in range(steps):
        logclient.log(step, {"loss": model.loss(step)})
    if steps == 0:
        raise Diverged("no steps")
    return int(os.environ["RANK"]), model
"""
LAUNCH = """
for method in ("spawn", "fork", "forkserver"):
    told = logclient.launch(train, (10,), 2, method)
    print([rank for rank, _ in told], all(type(model) is Model for _, model in told))
"""
RAISE = """
try:
    logclient.launch(train, (0,), 2)
except Diverged as error:
    print(error, error.__notes__[0][:14])
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_launch_from_a_notebook(tmp_path: Path, run_dir: Path) -> None:
    """Function, class and exception of a cell work with every start method, and come back as what they are."""
    init = "run = logclient.init(project='ranks')"
    outputs = in_kernel(tmp_path, [CELL, init, LAUNCH, RAISE, "print(run.finish())"])
    shown = [text_of(output) for output in outputs]
    assert shown[2].splitlines() == ["[0, 1] True"] * 3
    assert shown[3].startswith("no steps raised in rank")
    assert shown[4].endswith("True\n")
    (found,) = the_runs(run_dir, 1)
    assert by_rank(found) == ranks(2, [*range(10)] * 3)


@pytest.mark.slow
def test_recipe_of_the_page(tmp_path: Path, run_dir: Path) -> None:
    """As the page shows it: one run, two ranks."""
    page = recipe("logclient.launch")
    page.write(tmp_path)
    (command,) = page.commands
    assert command == "python train.py"
    assert scripts.run_well(tmp_path, page.files["train.py"], timeout_s=60).code == 0
    (found,) = the_runs(run_dir, 1)
    assert by_rank(found) == ranks(4, range(100))
