"""Words and files of requests to stop or to save, and the newest step of a lane file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from logclient.shm import stop_requests
from logclient.shm.stop_requests import AT_ONCE, LOWEST, checked, newest_step, step_of, word_of
from tests.lanes import opened

HIGHEST = -LOWEST - 1
GOOD = {"id": "0123456789abcdef", "kind": "stop", "time_ns": 1}


@pytest.mark.parametrize("step", [LOWEST + 2, -1, 0, 1, 12345, HIGHEST])
def test_word_gives_the_step_back(step: int) -> None:
    """Words rise with steps, above that for at once, above that for none."""
    assert step_of(word_of(step)) == step and word_of(step) > AT_ONCE > 0
    assert word_of(step - 1) <= word_of(step) < 1 << 64
    assert step_of(word_of(None)) is None
    assert word_of(1 << 70) == word_of(HIGHEST) and word_of(-(1 << 70)) == AT_ONCE + 1


def test_newest_step_is_the_highest_of_the_newest_records(run_dir: Path) -> None:
    """Whatever their order, sizes and types; of a rank, of records that carry it."""
    with opened() as (run, _):
        lanes = run._session.lanes

        def found(rank: int | None = None) -> int | None:
            return newest_step(lanes.mem, lanes.words, rank, time.monotonic() + 10)

        assert found() is None and found(3) is None
        run.log(7, {"a": 1.0})
        assert found() == 7 and found(3) is None
        run.log(-5, {"epoch": 1})
        assert found() == 7
        run.as_rank(3).log(2, {"a": 1.0})
        assert found() == 7 and found(3) == 2 and found(4) is None
        run.log(8, {f"k{number}": float(number) for number in range(2000)})
        assert found() == 8 and found(3) == 2
        for step in range(100_000):  # laps: what is overwritten is not found any more
            run.log(step, {"a": 1.0})
        assert found() == 99_999


def test_looking_for_a_rank_has_an_end(run_dir: Path) -> None:
    """Where nothing is found in time it is not taken for one that has logged nothing."""
    with opened() as (run, _):
        lanes = run._session.lanes
        for step in range(20_000):
            run.log(step, {"a": 1.0})
        assert newest_step(lanes.mem, lanes.words, 3, time.monotonic()) == LOWEST
        assert newest_step(lanes.mem, lanes.words, None, time.monotonic()) == 19_999


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "stop",
        {},
        {**GOOD, "kind": "exec"},
        {**GOOD, "kind": ["stop"]},
        {**GOOD, "id": ""},
        {**GOOD, "id": "../../../etc/pass"},
        {**GOOD, "id": 7},
    ],
)
def test_what_is_no_request_is_none(wrong: Any) -> None:
    """Whatever a file, a wire or another program holds."""
    assert checked(wrong) is None


def test_fields_are_bounded_and_of_one_type() -> None:
    """What is not of the right type counts as absent; texts are one line."""
    found = checked(
        {
            **GOOD,
            "reason": "a\n b\x1b" + "c" * 1000,
            "by": 7,
            "via": "wire",
            "save": 1,
            "step": "x",
            "run": "/",
        }
    )
    assert found is not None
    assert found["reason"].startswith("a b c") and len(found["reason"]) == stop_requests.MAX_REASON
    assert (found["by"], found["via"], found["save"]) == ("", "command", False)
    assert "step" not in found and "run" not in found
    good: list[int | None] = [None, 0, LOWEST, HIGHEST]
    for step in good:
        kept = checked({**GOOD, "step": step})
        assert kept is not None and kept["step"] == step
    for odd in (True, 1.5, HIGHEST + 1):
        kept = checked({**GOOD, "step": odd})
        assert kept is not None and "step" not in kept
