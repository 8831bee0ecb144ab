"""What the user's code raises inside our frames reaches the user: from handlers of any form, of any type, injected."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import error as StructError
from typing import Any

import pytest

from logclient.guest import foreign
from logclient.shm import notices
from tests.conftest import Pace
from tests.interrupts import Interrupt, interrupted
from tests.lanes import Script, opened

# exceptions that our own code may raise too: only where they come from tells them apart
KINDS = (ValueError, TypeError, KeyError, IndexError, OSError, AttributeError, RuntimeError, TimeoutError)

STORM = """
import builtins, functools, gc
from tests.process.storm import send_signals

kinds = [getattr(builtins, name) for name in sys.argv[2].split(",")]
raised, caught = [], []

def fail(frame):
    if frame is None or not str(frame.f_globals["__name__"]).startswith("logclient."):
        return
    error = kinds[len(raised) % len(kinds)](*(["pop from empty list"] if len(raised) % 2 else []))
    raised.append(error)
    raise error

def plain(number, frame):
    fail(frame)

def resets_itself(number, frame):
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        fail(frame)
    finally:
        signal.signal(signal.SIGUSR2, handler)

class Called:
    def __call__(self, *what):
        fail(what[1])

handler = {
    "function": plain,
    "lambda": lambda *what: fail(what[1]),
    "partial": functools.partial(lambda more, number, frame: fail(frame), 1),
    "object": Called(),
    "resets": resets_itself,
}[sys.argv[1]]
run = logclient.init("user")
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.signal(signal.SIGUSR2, handler)
neighbour = send_signals()
deadline = time.monotonic() + float(sys.argv[3])
step = returned = interrupted = 0
while time.monotonic() < deadline:
    for row in ({"a": 0.5}, {"a": 1, "b": 2.5}, {f"k{step % 3000}": 1.0}, {"t": "text", "n": None}, {1: 1.0}):
        step += 1
        try:
            run.log(step, row)
            returned += 1
        except tuple(kinds) as error:
            interrupted += 1
            while error is not None:
                if any(error is one for one in raised) and not any(error is one for one in caught):
                    caught.append(error)
                error = error.__context__
        error = None
os.kill(neighbour, 9)
os.waitpid(neighbour, 0)
lanes = run._session.lanes
raised_count, caught_count = len(raised), len(caught)
raised.clear(), caught.clear(), gc.collect()  # `fail` makes a cycle of each
lanes.find_lost()
back = len(lanes.first) + len(lanes.others)
status = run.status()
print(json.dumps([raised_count, caught_count, step, returned, interrupted, back, status]))
"""


@pytest.mark.first_is_quick
@pytest.mark.parametrize("handler", ["function", "lambda", "partial", "object", "resets"])
def test_exceptions_of_any_handler_come_out_of_log(
    handler: str, run_dir: Path, tmp_path: Path, pace: Pace
) -> None:
    """Each exception is counted where it is raised and where it arrives; also those that log() itself could raise."""
    kinds = ",".join(kind.__name__ for kind in KINDS)
    script = Script(tmp_path, STORM, handler, kinds, pace.seconds(12))
    raised, caught, step, returned, cut, back, status = script.result()
    assert raised == caught > 10
    assert step == returned + cut
    assert returned <= status["accepted"] + status["refused"] <= step
    assert back == 4


ROWS: tuple[dict[Any, Any], ...] = (
    {"a": 0.5},
    {"a": 1, "b": 2.5},
    {"new": 1.0},
    {"text": "x", "none": None, "deep": {"a": 1}},
    {("a", 1): 2**70},
    {f"text{i}": "x" * 4000 for i in range(20)},  # lies in a block
)


@pytest.mark.parametrize("row", range(len(ROWS)))
def test_interrupt_at_any_point_loses_no_lane_and_nothing_else(row: int, run_dir: Path) -> None:
    """After an exception at each point of log() where a handler can run: every lane is back, shapes are interned."""
    at = 1
    with opened() as (run, file):
        run.log(0, {"a": 0.5})
        calls, was_reached = 1, True
        while was_reached:
            interruptable = dict(ROWS[row])
            if row == 2:
                interruptable = {f"new{at}": 1.0}
            try:
                was_reached = interrupted(run.log, at, interruptable, at=at)
            finally:
                calls += 1
            at += 1 if at < 60 else 37
            assert len(run._session.lanes.first) + len(run._session.lanes.others) == 4 or _find_lost(run) == 4
        run.log(at, {f"after{at}": 1.0})
        calls += 1
        records = file.read()
        assert records[-1].values == {f"after{at}": 1.0}
        assert file.shape(run._recorder.known[f"after{at}",].head & 0xFFFF_FFFF).names == (f"after{at}",)
        assert len(records) == file.accepted <= calls
        assert len({record.order for record in records}) == len(records)
        assert not run._session.encoder._claim and not run._session.lanes.blocks._claims


# each type that an `except` below log() names, of our own code's or the interpreter's
NAMED = (
    *(
        RuntimeError("r"),
        OSError(2, "o"),
        ValueError("v"),
        AttributeError("a"),
        IndexError("i"),
        KeyError("k"),
    ),
    *(TypeError("t"), StructError("s"), UnicodeEncodeError("utf-8", "x", 0, 1, "u"), RuntimeError()),
)


def strikes(function: Callable[..., Any], error: Exception, make: Callable[[], tuple[Any, ...]]) -> int:
    """A handler raises `error` at each point of the call in turn: it must come out. The number of points."""

    def strike() -> None:
        raise error

    for at in range(1, 10_000):
        error.__traceback__ = error.__context__ = None
        try:
            was_reached = interrupted(function, *make(), at=at, action=strike)
        except Exception as came:  # noqa: BLE001 - it is looked at
            assert came is error, f"point {at} of {function.__name__}: {came!r} came instead"
        else:
            assert not was_reached, f"{error!r} vanished at point {at} of {function.__name__}"
            return at - 1
    raise AssertionError("it has no end")


@pytest.mark.first_is_quick
@pytest.mark.parametrize("error", NAMED, ids=repr)
def test_exception_that_log_itself_may_meet_comes_out_at_any_point(error: Exception, run_dir: Path) -> None:
    """Also where our code catches that type from the very call that the handler interrupts."""
    numbers = itertools.count()
    rows: tuple[Callable[[], dict[Any, Any]], ...] = (
        lambda: {"a": 0.5},
        lambda: {f"new{next(numbers)}": 1.0},
        lambda: {"big": 2**70, "small": 2},  # the shape is known, but for 64 bits
        lambda: {
            "lone": "\ud800",
            "\u00e9": 1,
        },  # text that is no valid Unicode, and a key that must be asked
        lambda: {f"none{next(numbers)}": None},  # a notice each
    )
    with opened() as (run, file):
        run.log(0, {"big": 1, "small": 2})
        for row in rows:

            def call(row: Callable[[], dict[Any, Any]] = row) -> tuple[Any, ...]:
                return next(numbers), row()

            assert strikes(run.log, error, call) > 10
        assert _find_lost(run) == 4
        run.log(1, {"ok": 1.0})
        assert file.read()[-1].values == {"ok": 1.0}


@pytest.mark.parametrize("error", NAMED, ids=repr)
def test_exception_comes_out_of_what_sorts_out_another(error: Exception, run_dir: Path) -> None:
    """A second one that strikes while the frames of the first are emptied: it was lost where it was a RuntimeError."""

    def first() -> tuple[Exception]:
        try:
            run.log(1, {"a": _Injecting(lambda: signal.raise_signal(signal.SIGUSR1))})
        except Tick as tick:
            return (tick,)
        raise AssertionError("no signal came")

    def handler(number: int, frame: Any) -> None:
        raise Tick

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with opened() as (run, _):
            assert strikes(foreign.forget_frames, error, first) > 10
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", NAMED, ids=repr)
def test_exception_comes_out_of_a_notice(error: Exception, run_dir: Path) -> None:
    """Standard error is a pipe here: the line is written, and what strikes meanwhile is not taken for a closed one."""
    reader, writer = os.pipe()
    kept = os.dup(2)
    try:
        os.dup2(writer, 2)
        reached = strikes(notices.write_stderr, error, lambda: ("a line",))
        os.dup2(kept, 2)
        assert reached > 3 and b"a line" in os.read(reader, 1 << 16)
    finally:
        os.dup2(kept, 2)
        for fd in (reader, writer, kept):
            os.close(fd)


class Tick(Exception):
    """What a handler raises."""


def _find_lost(run: Any) -> int:
    run._session.lanes.find_lost()
    return len(run._session.lanes.first) + len(run._session.lanes.others)


class Injector(threading.Thread):
    """Puts exceptions into a thread, one at a time, and only while that says it is inside."""

    def __init__(self, target: int, kind: type[BaseException]) -> None:
        super().__init__()
        self.target = target
        self.kind = kind
        self.inside = False
        self.injected = self.caught = 0
        self.is_over = False
        self.lock = threading.Lock()

    def run(self) -> None:
        inject = ctypes.pythonapi.PyThreadState_SetAsyncExc
        inject.argtypes = (ctypes.c_ulong, ctypes.py_object)
        while not self.is_over:
            with self.lock:
                if self.inside and self.injected == self.caught:
                    self.injected += 1
                    inject(self.target, self.kind)
            time.sleep(0)


def wait_for_what_is_on_its_way() -> None:
    """The interpreter looks for injected exceptions on entry of functions."""


@pytest.fixture
def quick_switches():
    """Threads take turns often, and no finalizer of an earlier test runs, which would swallow what hits it."""
    before = sys.getswitchinterval()
    gc.collect()
    gc.disable()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)
    gc.enable()


@pytest.mark.first_is_quick
@pytest.mark.parametrize("kind", [*KINDS, KeyboardInterrupt, SystemExit, Interrupt])
def test_injected_exceptions_pass_through(
    kind: type[BaseException], run_dir: Path, quick_switches: None, pace: Pace
) -> None:
    """What `PyThreadState_SetAsyncExc` puts into the thread comes out of log(), whatever its type."""
    wanted = pace.count(2000)
    injector = Injector(threading.get_ident(), kind)
    with opened(lanes_bytes=256 << 10) as (run, file):
        injector.start()
        try:
            for step in range(100 * wanted):
                try:
                    injector.inside = True
                    for row in ({"a": 0.5}, {"a": 1, "b": 2.5}, {"t": "text", "n": None}) * 10:
                        run.log(step, row)
                    with injector.lock:
                        injector.inside = False
                    wait_for_what_is_on_its_way()
                except kind:
                    with injector.lock:
                        injector.inside = False
                        injector.caught += 1
                assert injector.injected == injector.caught, f"{kind.__name__} vanished"
                if injector.caught == wanted:
                    break
        finally:
            injector.is_over = True
            injector.join()
        assert injector.caught == wanted
        run.log(2, {"ok": 1.0})
        assert file.read()[-1].values == {"ok": 1.0}
        assert _find_lost(run) == 4


class _Injecting(dict[str, float]):
    """A nested dict whose items() does something: deep in our frames."""

    def __init__(self, action: Any) -> None:
        super().__init__(x=1.0)
        self._action = action

    def items(self):
        self._action()
        return super().items()


def test_keyboard_interrupt_passes_through(run_dir: Path) -> None:
    """Ctrl-C in the middle of log() is the user's, and logging goes on after it (case C9-2)."""
    with opened() as (run, file):
        row = {"a": _Injecting(lambda: signal.raise_signal(signal.SIGINT))}
        for step in range(20):
            with pytest.raises(KeyboardInterrupt):
                run.log(step, row)
        run.log(1, {"ok": 1.0})
        assert [record.values for record in file.read()] == [{"ok": 1.0}]
        assert _find_lost(run) == 4


class Odd(str):
    """A key whose own code fails."""

    def __hash__(self) -> int:
        if Odd.fails:
            raise Odd.fails("odd")
        return 1

    fails: Any = None


@pytest.mark.parametrize("kind", [*KINDS, foreign.Failed, type("Own", (Exception,), {})])
def test_failures_of_the_users_objects_are_swallowed_and_the_rest_arrives(
    kind: type[Exception], run_dir: Path
) -> None:
    """A key whose hash raises costs nothing but itself: what we called ourselves is ours to swallow."""
    with opened() as (run, file):
        row = {Odd("odd"): 1.0, "ok": 2.0}
        Odd.fails = kind
        try:
            run.log(1, row)
        finally:
            Odd.fails = None
        (record,) = file.read()
        assert record.values["ok"] == 2.0
        assert run.status()["refused"] == 0
