"""Wake-ups: what a training process does so that a sleeping agent looks at once."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from logclient.shm.shm_dir import ShmDir
from logclient.shm.wake import SUPERVISOR, WORKER, wake


@pytest.fixture
def shm_dir(tmp_path: Path) -> ShmDir:
    return ShmDir(str(tmp_path), {})


def pipe(shm_dir: ShmDir, name: str) -> int:
    os.mkfifo(shm_dir.file(name), 0o600)
    return os.open(shm_dir.file(name), os.O_RDWR | os.O_NONBLOCK)


def test_reader_of_that_pipe_alone_is_woken(shm_dir):
    """A byte comes out of the pipe that was asked for, and nothing out of the other."""
    worker, supervisor = pipe(shm_dir, WORKER), pipe(shm_dir, SUPERVISOR)
    try:
        wake(shm_dir)
        assert select.select([worker, supervisor], [], [], 0)[0] == [worker]
        assert os.read(worker, 10) == b"\0"
    finally:
        os.close(worker)
        os.close(supervisor)


@pytest.mark.timeout(20)
def test_full_pipe_makes_nobody_wait(shm_dir):
    """A stopped agent reads nothing: a hundred thousand wake-ups return all the same."""
    reader = pipe(shm_dir, WORKER)
    try:
        for _ in range(100_000):
            wake(shm_dir)
        assert len(os.read(reader, 1 << 20)) < 100_000
    finally:
        os.close(reader)


def test_nothing_happens_without_an_agent(shm_dir):
    """No pipe, no folder, a pipe without a reader, a link where the pipe should be: no error, no file, no wait."""
    wake(shm_dir)
    wake(ShmDir(shm_dir.file("nowhere"), {}))
    assert not os.listdir(shm_dir.path)
    os.mkfifo(shm_dir.file(WORKER))
    wake(shm_dir)
    os.symlink("elsewhere", shm_dir.file(SUPERVISOR))
    wake(shm_dir, SUPERVISOR)
    assert sorted(os.listdir(shm_dir.path)) == [SUPERVISOR, WORKER]


DIES_OF_SIGPIPE = """
import signal, sys
from logclient.shm.shm_dir import ShmDir
from logclient.shm.wake import wake
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for _ in range(1000):
    wake(ShmDir(sys.argv[1], {}))
"""


def test_program_with_default_sigpipe_survives_the_end_of_the_agent(shm_dir):
    """Command line programs often restore SIGPIPE: a reader that opens and closes all the time does not kill them."""
    os.close(pipe(shm_dir, WORKER))
    trainer = subprocess.Popen([sys.executable, "-c", DIES_OF_SIGPIPE, shm_dir.path])
    try:
        while trainer.poll() is None:
            os.close(os.open(shm_dir.file(WORKER), os.O_RDONLY | os.O_NONBLOCK))
        assert trainer.returncode == 0, signal.Signals(-trainer.returncode)
    finally:
        trainer.kill()
        trainer.wait()


def test_exception_of_a_handler_passes_through(shm_dir):
    """An OSError of the user's own, raised by a signal handler inside the call, is not ours to swallow."""

    def handler(number: int, frame: object) -> None:
        raise OSError("the user's")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(OSError, match="the user's"):
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            while True:
                wake(shm_dir)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
