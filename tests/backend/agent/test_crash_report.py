"""What a supervisor concludes from how its workers died."""

from __future__ import annotations

import os
import signal

import pytest

from logclient_backend.agent.host.crash_report import Handover
from logclient_backend.agent.host.process_handle import Cause

ONE, OTHER = b"1" * 16, b"2" * 16
SEGV, KILL = Cause(None, signal.SIGSEGV), Cause(None, signal.SIGKILL)


@pytest.mark.parametrize(
    ("cause", "was_stuck", "is_crash"),
    [
        (SEGV, False, True),
        (Cause(None, signal.SIGBUS), False, True),
        (Cause(1, None), False, True),
        (KILL, True, True),
        (KILL, False, False),
        (Cause(None, signal.SIGTERM), False, False),
        (None, False, False),
    ],
)
def test_second_crash_with_the_same_file_in_hand_sets_it_aside(cause, was_stuck, is_crash) -> None:
    """What a file's content can cause counts: not a SIGKILL from outside, nor a cause that nobody knows."""
    handover = Handover()
    for _ in range(2):
        assert not handover.set_aside
        handover.take(ONE)
        handover.conclude(4711, cause, was_stuck=was_stuck)
    assert handover.set_aside == ({ONE} if is_crash else set())


def test_crashes_with_other_files_or_positions_in_hand_do_not_add_up() -> None:
    """One crash each is an accident, and so is one in a lane that was drained further meanwhile."""
    handover = Handover()
    for process, position in ((ONE, 0), (OTHER, 0), (ONE, 1), (ONE, 2), (None, 0), (None, 0)):
        handover.take(process or ONE, position)
        if process is None:
            handover.put_down()
        handover.conclude(4711, SEGV, was_stuck=False)
    assert not handover.set_aside


def test_last_words_of_a_forked_worker_reach_the_next_one() -> None:
    """Kind, text and place of an exception, in one line, through a page that both share; said until it is written."""
    handover = Handover()
    child = os.fork()
    if child == 0:
        try:
            raise ValueError("no \udc80 such \n thing" + 5000 * "x")
        except ValueError as error:
            handover.last_words(error)
        os._exit(1)
    os.waitpid(child, 0)
    handover.conclude(child, Cause(1, None), was_stuck=False)
    (line,) = handover.news
    assert line.startswith(f"worker {child} ended with exit code 1: ValueError: no ")
    handover.conclude(child, KILL, was_stuck=False)
    assert len(handover.news) == 2, "not told yet"
    handover.note_written(1, has_made=True)
    handover.conclude(child, KILL, was_stuck=True)
    assert [line.split(" made")[0].split(" ended")[0] for line in handover.news] == [f"worker {child}"] * 2
    assert "made no progress and was killed" in handover.news[-1]
