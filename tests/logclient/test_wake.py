"""Wake-ups: what a training process does so that a sleeping agent looks at once."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logclient.shm.shm_dir import Meeting
from logclient.shm.wake import SUPERVISOR, WORKER, wake


@pytest.fixture
def place(tmp_path: Path) -> Meeting:
    return Meeting(str(tmp_path), {})


def pipe(place: Meeting, name: str) -> int:
    os.mkfifo(place.file(name), 0o600)
    return os.open(place.file(name), os.O_RDWR | os.O_NONBLOCK)


def test_reader_of_that_pipe_alone_is_woken(place):
    """A byte comes out of the pipe that was asked for, and nothing out of the other."""
    worker, supervisor = pipe(place, WORKER), pipe(place, SUPERVISOR)
    try:
        wake(place)
        assert select.select([worker, supervisor], [], [], 0)[0] == [worker]
        assert os.read(worker, 10) == b"\0"
    finally:
        os.close(worker)
        os.close(supervisor)


@pytest.mark.timeout(20)
def test_full_pipe_makes_nobody_wait(place):
    """A stopped agent reads nothing: a hundred thousand wake-ups return all the same."""
    reader = pipe(place, WORKER)
    try:
        for _ in range(100_000):
            wake(place)
        assert len(os.read(reader, 1 << 20)) < 100_000
    finally:
        os.close(reader)


def test_nothing_happens_without_an_agent(place):
    """No pipe, no folder, a pipe without a reader, a link where the pipe should be: no error, no file, no wait."""
    wake(place)
    wake(Meeting(place.file("nowhere"), {}))
    assert not os.listdir(place.path)
    os.mkfifo(place.file(WORKER))
    wake(place)
    os.symlink("elsewhere", place.file(SUPERVISOR))
    wake(place, SUPERVISOR)
    assert sorted(os.listdir(place.path)) == [SUPERVISOR, WORKER]


DIES_OF_SIGPIPE = """
import signal, sys
from logclient.shm.shm_dir import Meeting
from logclient.shm.wake import wake
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for _ in range(1000):
    wake(Meeting(sys.argv[1], {}))
"""


def test_program_with_default_sigpipe_survives_the_end_of_the_agent(place):
    """Command line programs often restore SIGPIPE: a reader that opens and closes all the time does not kill them."""
    os.close(pipe(place, WORKER))
    trainer = subprocess.Popen([sys.executable, "-c", DIES_OF_SIGPIPE, place.path])
    try:
        while trainer.poll() is None:
            os.close(os.open(place.file(WORKER), os.O_RDONLY | os.O_NONBLOCK))
        assert trainer.returncode == 0, signal.Signals(-trainer.returncode)
    finally:
        trainer.kill()
        trainer.wait()


def test_exception_of_a_handler_passes_through(place):
    """An OSError of the user's own, raised by a signal handler inside the call, is not ours to swallow."""

    def handler(number: int, frame: object) -> None:
        raise OSError("the user's")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(OSError, match="the user's"):
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            while True:
                wake(place)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
