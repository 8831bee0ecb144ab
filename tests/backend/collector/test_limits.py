"""What a collector takes, and which ids."""

from __future__ import annotations

import pytest

from logclient.shm.record import Shape
from logclient_backend.collector.limits import Limits, Pace, RunLimits, check_ids
from logclient_backend.wire.messages import Hello, NotTaken

LEGAL = [
    "a",
    "../../etc/passwd",
    "a/b",
    "%2e%2e",
    "\\",
    "CON",
    "損失",
    "x" * 512,
    " ",
    "a.",
    "'; DROP TABLE runs; --",
]


@pytest.mark.parametrize("id", LEGAL)
def test_awkward_ids_are_only_text(id: str) -> None:
    """No path and no query is made of one, so they are taken as they are."""
    check_ids(Hello(id, "node"))


@pytest.mark.parametrize(
    "id", ["", "x" * 513, "損" * 171, "a\0b", "a\nb", "\x1b[2J", "a\x7f", "a\x85", "a\ud800"]
)
def test_ids_that_no_run_can_have_are_refused_with_a_sentence(id: str) -> None:
    """For good: the client need not try again."""
    for hello in (Hello(id, "node"), Hello("run", id)):
        with pytest.raises(NotTaken) as caught:
            check_ids(hello)
        assert caught.value.is_final and caught.value.reason == "invalid"
        assert "id" in caught.value.text


def test_pace_lets_a_burst_through_and_then_so_many_a_second() -> None:
    """Ten seconds' worth at once; after that each waits its turn."""
    now = [0.0]
    pace = Pace(10.0, lambda: now[0])
    assert [pace.take() for _ in range(100)] == [0.0] * 100
    assert pace.take() == pytest.approx(0.1)
    assert pace.take() == pytest.approx(0.2)
    now[0] = 100.0
    assert pace.take() == 0.0


def test_one_stream_or_key_too_many_is_refused_and_known_ones_go_on() -> None:
    """A run whose names hold numbers ends there; what it had before is not hurt."""
    run = RunLimits(Limits(run_streams=2, run_keys=3), [b"a"], {"": ["loss"]})
    run.take_stream(b"a")
    run.take_stream(b"b")
    with pytest.raises(NotTaken, match="2 streams"):
        run.take_stream(b"c")
    run.take_stream(b"a")
    run.take_keys(Shape(("loss", "lr"), "dd"))
    with pytest.raises(NotTaken, match="4 keys"):
        run.take_keys(Shape(("lr", "x", "y"), "ddd"))
    run.take_keys(Shape(("x",), "d"))
