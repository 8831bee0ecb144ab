"""C9-2: Ctrl-C in a terminal, once, twice, three times, at random moments; it reaches the whole foreground group.

What is right: the prompt is back in 2 s, no traceback is ours, rows logged before are safe, the agent outlives the
program and leaves afterwards; code that catches the interrupt goes on logging.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import Pace
from tools.faults import frozen
from tools.faults.frozen import LoopExt4

from .. import scripts
from ..terminal import PROMPT, Terminal

BACK_S = 20.0  # 2 s on a machine with nothing else to do; who waits for a disk, or as `finish` may here, waits longer

# keeps the number of calls that returned in a file, so that the test knows what must be there
HEAD = """
import os, sys, time
import logclient
truth = os.open("truth", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
run = logclient.init(project="case", quiet={quiet})
step = 0

def train():
    global step
    while not os.path.exists("stop"):
        run.log(step, {{"loss": step / 2}})
        step += 1
        os.pwrite(truth, b"%20d" % step, 0)
        if step == 1:
            print("started", flush=True)
        time.sleep(0.001)
"""
PLAIN = HEAD + "train()\n"
WITH = HEAD + "with run:\n    train()\n"
CATCHES = HEAD + (
    """
caught = 0
while not os.path.exists("stop"):
    try:
        train()
    except KeyboardInterrupt:
        caught += 1
        print("caught", caught, flush=True)
for number in range(100):
    run.log(number, {{"test": number}})
print("finished", run.finish(), flush=True)
"""
)


def press(terminal: Terminal, times: int, seed: int) -> float:
    """Press Ctrl-C so often, at random moments; seconds from the last press to the prompt."""
    chance = random.Random(seed)
    terminal.look(chance.uniform(0, 0.3))
    for number in range(times):
        if number:
            time.sleep(chance.choice((chance.uniform(0.002, 0.01), chance.uniform(0.01, 0.1))))
        terminal.press_ctrl_c()
    return terminal.wait_for(PROMPT)


def assert_no_words_of_ours(shown: str) -> None:
    """The user's own interrupt may be shown, once; nothing that our exit hook adds."""
    assert shown.count("Traceback (most recent call last)") <= 1, shown
    assert "Exception ignored" not in shown, shown
    assert "During handling" not in shown, shown
    assert "Error in" not in shown, shown


def assert_rows_are_safe(where: Path, run_dir: Path) -> None:
    scripts.wait_gone()
    logged = int((where / "truth").read_text())
    stored = scripts.steps(scripts.the_run(run_dir))
    assert stored[:logged] == list(range(logged))
    assert len(stored) <= logged + 1  # the call that was interrupted


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("program", [PLAIN, WITH], ids=["plain", "with"])
def test_interrupted_program_ends_at_once(
    tmp_path: Path, run_dir: Path, pace: Pace, times: int, program: str, request: pytest.FixtureRequest
) -> None:
    """One, two or three presses end the program; all rows are stored, and the state is terminated by SIGINT (C9-2)."""
    for round_ in range(pace.count(60, least=3)):
        where, runs = tmp_path / str(round_), run_dir / str(round_)
        scripts.write(where, program.format(quiet=False).replace('"case"', f'"case", dir={str(runs)!r}'))
        with Terminal(where) as terminal:
            terminal.type(f"{sys.executable} train.py")
            terminal.wait_for("started")
            took = press(terminal, times, seed=100 * times + round_)
            assert took < BACK_S, terminal.shown
            assert_no_words_of_ours(terminal.shown)
            assert_rows_are_safe(where, runs)
            state = scripts.the_run(runs).state
            assert (state.name, state.signal) == ("terminated", signal.SIGINT), state


@pytest.mark.first_is_quick
@pytest.mark.parametrize("times", [1, 2, 3])
def test_program_that_catches_the_interrupt_goes_on(
    tmp_path: Path, run_dir: Path, pace: Pace, times: int
) -> None:
    """The user's code catches each press and goes on to test: logging goes on, and the run is finished (C9-2)."""
    chance = random.Random(times)
    for round_ in range(pace.count(20, least=2)):
        where, runs = tmp_path / str(round_), run_dir / str(round_)
        scripts.write(where, CATCHES.format(quiet=True).replace('"case"', f'"case", dir={str(runs)!r}'))
        with Terminal(where) as terminal:
            terminal.type(f"{sys.executable} train.py")
            terminal.wait_for("started")
            for number in range(1, times + 1):
                terminal.look(chance.uniform(0, 0.2))
                terminal.press_ctrl_c()
                terminal.wait_for(f"caught {number}\n")
            (where / "stop").touch()
            terminal.wait_for("finished True")
            terminal.wait_for(PROMPT)
            assert_no_words_of_ours(terminal.shown)
            assert "Traceback" not in terminal.shown
        scripts.wait_gone()
        found = scripts.the_run(runs)
        logged = int((where / "truth").read_text())
        assert set(range(logged)) <= set(scripts.steps(found))
        assert scripts.steps(found, "test") == list(range(100))
        assert found.state.name == "finished"
        assert found.counts()["forgotten"] == found.counts()["damaged"] == found.counts()["refused"] == 0


def test_agent_outlives_the_terminal(tmp_path: Path, run_dir: Path) -> None:
    """The terminal is closed on the program (SIGHUP): the agent stores everything and leaves (C9-2)."""
    scripts.write(tmp_path, PLAIN.format(quiet=True))
    with Terminal(tmp_path) as terminal:
        terminal.type(f"{sys.executable} train.py")
        terminal.wait_for("started")
        terminal.look(0.2)
    scripts.wait_gone()
    logged = int((tmp_path / "truth").read_text())
    found = scripts.the_run(run_dir)
    assert scripts.steps(found)[:logged] == list(range(logged))
    assert (found.state.name, found.state.signal) == ("terminated", signal.SIGHUP)


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("program", [PLAIN, WITH], ids=["plain", "with"])
def test_interrupt_while_the_disk_is_frozen(tmp_path: Path, run_dir: Path, times: int, program: str) -> None:
    """The disk does not answer: the prompt is back in 2 s all the same, with the command that helps (C9-2)."""
    with LoopExt4(16) as disk:
        runs = disk.path / "runs"
        scripts.write(tmp_path, program.format(quiet=False).replace('"case"', f'"case", dir={str(runs)!r}'))
        with Terminal(tmp_path) as terminal:
            terminal.type(f"{sys.executable} train.py")
            terminal.wait_for("started")
            terminal.look(0.3)
            with disk.frozen():
                terminal.look(0.3)
                assert press(terminal, times, seed=times) < BACK_S
                assert_no_words_of_ours(terminal.shown)
                if times == 1:
                    assert "not on disk" in terminal.shown
                    assert "`logclient recover`" in terminal.shown
        assert_rows_are_safe(tmp_path, runs)


@pytest.mark.root
@pytest.mark.skipif(frozen.why_not() is not None, reason=frozen.why_not() or "")
def test_interrupt_of_a_waiting_finish(tmp_path: Path, run_dir: Path) -> None:
    """Ctrl-C while finish() waits for a frozen disk: the user's own interrupt, at once; nothing is lost (C9-2)."""
    code = HEAD.format(quiet=True) + "train()\nprint('finishing', flush=True)\nrun.finish(30)\n"
    with LoopExt4(16) as disk:
        runs = disk.path / "runs"
        scripts.write(tmp_path, code.replace('"case"', f'"case", dir={str(runs)!r}'))
        with Terminal(tmp_path) as terminal:
            terminal.type(f"{sys.executable} train.py")
            terminal.wait_for("started")
            terminal.look(0.3)
            with disk.frozen():
                (tmp_path / "stop").touch()
                terminal.wait_for("finishing")
                terminal.look(0.3)
                terminal.press_ctrl_c()
                assert terminal.wait_for(PROMPT) < BACK_S
                assert_no_words_of_ours(terminal.shown)
        assert_rows_are_safe(tmp_path, runs)
