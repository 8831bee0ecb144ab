"""Rules over records: one episode per condition, with its end; constant memory."""

from __future__ import annotations

import csv
import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.shm.alert_rules import checked
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.alerts import rules as module
from logclient_backend.alerts.event import BEGIN, END, Finding
from logclient_backend.alerts.facts import Facts
from logclient_backend.alerts.rules import Rules

LOSS_SPIKE = Path(__file__).parents[2] / "data" / "loss-spike.csv"


def rules_of(*given: Any) -> Rules:
    return Rules(checked(given))


def fed(
    rules: Rules, key: str, values: list[float], *, stream: str = "s", rank: int | None = None
) -> list[Finding]:
    """In pieces, as looks bring them."""
    found = []
    for at in range(0, len(values), 7):
        part = values[at : at + 7]
        found += rules.feed(stream, key, range(at, at + len(part)), part, rank)
        rules.look(Facts(now=0.0))
    return found


def short(found: list[Finding]) -> list[tuple[str, str, str, int | None]]:
    return [(each.kind, each.phase, each.key, each.step) for each in found]


def test_recorded_loss_spike_gives_one_alert() -> None:
    """All kinds at once over 511 steps of a real training: one spike of the loss, with onset, peak and recovery."""
    rows = list(csv.DictReader(LOSS_SPIKE.read_text().splitlines()))
    rules = rules_of(
        "spike loss",
        "nonfinite",
        "drop tflops",
        "loss > 20",
        {"when": "drop", "key": "loss", "by": 0.5},
        "loss < 0",
    )
    found = []
    for row in rows:
        for key in ("loss", "grad_norm", "step_time_s", "tflops"):
            found += rules.feed("s", key, [int(row["step"])], [float(row[key])], 0)
        found += rules.look(Facts(now=0.0))
    begin, end = found
    assert (begin.kind, begin.phase, begin.key, begin.rank) == ("spike", BEGIN, "loss", 0)
    assert begin.step is not None and abs(begin.step - 31216) <= 1
    assert (end.kind, end.phase, end.subject) == ("spike", END, begin.subject)
    assert end.step is not None and end.step <= 31250 and "at step 31,219" in end.text


def test_limit_for_so_many_values_begins_and_ends() -> None:
    """Values in a row count, NaN is neither above nor below, and the end takes as many."""
    rules = rules_of("loss > 10 for 3")
    values = [11.0, 12, 5, 11, math.nan, 12, 13, 14, 5, 20, 4, 4, 4, 4, 4]
    found = fed(rules, "loss", values)
    assert short(found) == [("over", BEGIN, "loss", 6), ("over", END, "loss", 12)]
    assert "is 13, above 10 for 3 values (step 6)" in found[0].text and "no longer above 10" in found[1].text
    assert short(fed(rules_of("lr < 1e-8"), "lr", [1.0, 0.0, 1.0])) == [
        ("under", BEGIN, "lr", 1),
        ("under", END, "lr", 2),
    ]


def test_limits_of_one_key_are_episodes_of_their_own() -> None:
    subjects = {each.subject for each in fed(rules_of("loss > 10", "loss > 20"), "loss", [30.0])}
    assert len(subjects) == 2


def test_nonfinite_values_are_one_episode() -> None:
    """From the first to the second finite value in a row."""
    found = fed(rules_of("nonfinite train/*"), "train/loss", [1.0, math.nan, math.inf, 2, math.nan, 3, 4, 5])
    assert short(found) == [("nonfinite", BEGIN, "train/loss", 1), ("nonfinite", END, "train/loss", 6)]
    assert found[0].value is not None and math.isnan(found[0].value) and "3 values in all" in found[1].text
    assert fed(rules_of("nonfinite train/*"), "val/loss", [math.nan]) == []


def test_drop_begins_once_and_ends_when_it_is_made_good() -> None:
    """A second fall is the same episode; a smaller one than the rule asks for is none; a rise is none."""
    noise = [0.1 * (at * 7919 % 13 - 6) for at in range(100)]
    levels = [100.0] * 100 + [90.0] * 60 + [80.0] * 60 + [100.0] * 80
    values = [level + noise[at % 100] for at, level in enumerate(levels)]
    found = fed(rules_of("drop rate"), "rate", values)
    assert [(each.kind, each.phase) for each in found] == [("drop", BEGIN), ("drop", END)]
    assert found[0].step is not None and abs(found[0].step - 100) <= 2 and "-10.0 %" in found[0].text
    assert found[1].step is not None and abs(found[1].step - 220) <= 2
    assert fed(rules_of({"when": "drop", "key": "rate", "by": 0.3}), "rate", values[:200]) == []
    assert fed(rules_of("drop rate"), "rate", [200 - value for value in values[:150]]) == []


def test_spike_smaller_than_asked_for_is_none_until_it_grows() -> None:
    """`by` is a share of the level."""
    calm = [1 + 0.01 * (at * 7919 % 13 - 6) / 6 for at in range(60)]
    values = [*calm, 1.6, 1.7, 3.0, 1.0, 1.0, 1.0, *calm]
    (begin, end) = fed(rules_of({"when": "spike", "key": "loss", "by": 1.5}), "loss", values)
    assert begin.phase == BEGIN and begin.value == 3.0 and end.phase == END
    assert fed(rules_of({"when": "spike", "key": "loss", "by": 3}), "loss", values) == []
    assert len(fed(rules_of("spike loss"), "loss", values)) == 2


def test_slow_rank_is_found_by_times_that_ranks_log() -> None:
    """In whatever order the ranks' values come; it catches up again. A rank that logs no longer is not waited for."""
    rules = rules_of("straggler time/work")
    found: list[Finding] = []
    for start in range(0, 800, 20):
        for rank in range(8):
            slow = 1.1 if rank == 5 and start < 300 else 1.0
            times = [
                slow * (1 + 0.001 * ((step * 31 + rank * 17) % 11 - 5)) for step in range(start, start + 20)
            ]
            found += rules.feed(f"s{rank}", "time/work", range(start, start + 20), times, rank)
        rules.look(Facts(now=0.0))
    begin, end = found
    assert (begin.kind, begin.rank, begin.phase) == ("straggler", 5, BEGIN) and (end.rank, end.phase) == (
        5,
        END,
    )
    assert (
        begin.step is not None
        and begin.step < 100
        and "slower than the median rank in time/work" in begin.text
    )


def test_ranks_and_threads_have_series_of_their_own() -> None:
    """Two ranks in one stream at different levels are no spikes of one series."""
    rules = rules_of("spike loss")
    found = []
    for step in range(200):
        for rank, level in ((0, 1.0), (1, 50.0)):
            found += rules.feed("s", "loss", [step], [level * (1 + 0.001 * (step % 7))], rank)
    assert found == []


def test_stream_that_is_over_is_forgotten_and_its_episodes_end() -> None:
    rules = rules_of("loss > 10")
    (begin,) = rules.feed("a", "loss", [1], [20.0], 3)
    rules.feed("b", "loss", [1], [1.0])
    assert rules.look(Facts(now=0.0, streams={"a", "b"})) == []
    (end,) = rules.look(Facts(now=0.0, streams={"b"}))
    assert (end.phase, end.subject, end.source, end.rank) == (END, begin.subject, "a", 3)
    assert rules.look(Facts(now=0.0, streams=set())) == [] and not rules.has_series


def test_memory_and_work_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Series and values beyond the limits are counted."""
    monkeypatch.setattr(module, "MAX_SERIES", 3)
    monkeypatch.setattr(module, "MAX_VALUES", 100)
    rules = rules_of("* > 10")
    for number in range(5):
        rules.feed("s", f"k{number}", range(10), [1.0] * 10)
    assert rules.skipped == 20
    rules.look(Facts(now=0.0))
    rules.feed("s", "k0", range(90), [1.0] * 90)
    assert rules.feed("s", "k0", range(20), [99.0] * 20) == [] and rules.skipped == 40
    rules.look(Facts(now=0.0))
    assert len(rules.feed("s", "k0", [1], [99.0])) == 1


def test_columns_are_decoded_where_a_rule_looks() -> None:
    """Floats, ints, bools and huge ints; texts never are."""
    shape = Shape(("loss", "count", "flag", "huge", "note"), "dqbis")
    rows = 2
    cells: list[Any] = [
        array("Q", array("d", [1.0, 99.0]).tobytes()),
        array("Q", [5, 50]),
        array("Q", [0, 1]),
        [(10**400).to_bytes(200, "little"), (-(10**400)).to_bytes(200, "little", signed=True)],
        [b"text", b"text"],
    ]
    index = array("Q", range(1, rows + 1))
    columns = Columns(shape, 2, index, index, array("q", [7, 8]), array("q", [0, 0]), cells)
    found = rules_of("* > 10", "flag > 0").feed_columns("s", columns)
    assert {(each.key, each.step) for each in found if each.phase == BEGIN} == {
        ("loss", 8),
        ("count", 8),
        ("flag", 8),
        ("huge", 7),
    }
    assert all(each.rank == 2 for each in found)


VALUES = st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=300)
RULES = ("v > 10", "v < -5 for 2", "nonfinite", "spike v", "drop v", {"when": "spike", "key": "*", "by": 2})


@given(VALUES, st.sets(st.sampled_from(range(len(RULES))), min_size=1))
def test_each_begin_has_one_end_at_most_whatever_comes(values: list[float], chosen: set[int]) -> None:
    """Begins and ends of an episode alternate, and the end of the stream ends what goes on."""
    rules = rules_of(*(RULES[at] for at in chosen))
    found = fed(rules, "v", values) + rules.look(Facts(now=0.0, streams=frozenset()))
    phases: dict[tuple[str, str], list[str]] = {}
    for each in found:
        phases.setdefault((each.kind, each.subject), []).append(each.phase)
    is_double = (
        "spike v" in [RULES[at] for at in chosen] and len(RULES) - 1 in chosen
    )  # two rules of one kind
    for (kind, _), some in phases.items():
        if not (is_double and kind == "spike"):
            assert some == [BEGIN, END] * (len(some) // 2)


def fingerprint(rank: int, step: int, values: dict[str, float]) -> Columns:
    """A record of `run.fingerprint(replicas="dp0")`; `values`: by tensor and sum."""
    names = tuple(f"fingerprint/dp0/{name}" for name in values)
    cells: list[Any] = [array("Q", array("d", [value]).tobytes()) for value in values.values()]
    seq, times = array("Q", [step // 100 + 1]), array("q", [0])
    return Columns(Shape(names, "d" * len(names)), rank, seq, seq, array("q", [step]), times, cells)


def test_replica_that_differs_is_one_alert_whatever_the_number_of_tensors() -> None:
    """It ends once all of them are equal again."""
    rules = rules_of("replica")
    assert rules.has_keys and rules.wants("fingerprint/dp0/norm/bits") and not rules.wants("loss")
    found = []
    for step in range(0, 2_000, 100):
        for rank in range(4):
            is_odd = rank == 2 and 800 <= step < 1_500
            bits = {"norm/bits": 1.0 + step + is_odd, "linear/bits": 2.0 + step + is_odd, "same/bits": 3.0}
            found += rules.feed_columns(f"s{rank}", fingerprint(rank, step, bits))
    assert [(each.phase, each.subject, each.rank, each.step) for each in found] == [
        (BEGIN, "dp0", 2, 800),
        (END, "dp0", None, 1_500),
    ]
    assert "rank 2 differs from the 3 others" in found[0].text and "1 more tensor" in found[0].text


def test_replicas_within_the_tolerance_are_no_alert() -> None:
    """A tolerance is for sums and norms; where a tensor has those its bits may differ."""
    values = {"norm/norm": 1.0, "norm/sum": 0.5, "norm/bits": 7.0}
    loose, strict = rules_of({"when": "replica", "tolerance": 1e-3}), rules_of("replica")
    found: dict[str, list[Finding]] = {"loose": [], "strict": []}
    for step in range(0, 1_000, 100):
        for rank in range(4):
            given = {name: value + 1e-5 * (rank == 1) for name, value in values.items()}
            columns = fingerprint(rank, step, given)
            found["loose"] += loose.feed_columns(f"s{rank}", columns)
            found["strict"] += strict.feed_columns(f"s{rank}", columns)
    assert found["loose"] == [] and [each.rank for each in found["strict"]] == [1]
