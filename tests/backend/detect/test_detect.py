"""Detectors on series with one planted event each, on noise with none, and on a published excerpt of a training."""

from __future__ import annotations

import csv
import json
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient_backend.detect.nonfinite import NonFinite, NonFiniteDetector
from logclient_backend.detect.shift import LASTS, Shift, ShiftDetector
from logclient_backend.detect.spike import LASTING, Spike, SpikeDetector
from logclient_backend.detect.straggler import Straggler, StragglerDetector
from logclient_backend.detect.window import MAD_TO_SIGMA, Window
from tools.bench import series
from tools.bench.detectors import episodes

ROOT = Path(__file__).resolve().parents[3]
EXCERPT = ROOT / "tests" / "data" / "loss-spike.csv"
FINITE = st.floats(-1e9, 1e9)


def spikes(values: Sequence[float], steps: Sequence[int] | None = None) -> list[Spike]:
    detector = SpikeDetector()
    found = [
        detector.add(step, value) for step, value in zip(steps or range(len(values)), values, strict=True)
    ]
    return list({id(spike): spike for spike in found if spike is not None}.values())


def shifts(values: Sequence[float]) -> list[Shift]:
    detector = ShiftDetector()
    found = [detector.add(step, value) for step, value in enumerate(values)]
    return [shift for shift in found if shift is not None]


def noise(count: int, level: float = 2.0, share: float = 0.01, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, share)) for _ in range(count)]


def column(name: str) -> tuple[list[int], list[float]]:
    with EXCERPT.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [int(row["step"]) for row in rows], [float(row[name]) for row in rows]


@given(st.lists(FINITE, min_size=1, max_size=60), st.integers(1, 20))
def test_window_has_median_and_spread_of_the_last_values(values: list[float], size: int) -> None:
    """As the standard library computes them."""
    window = Window(size)
    for value in values:
        window.add(value)
    last = values[-size:]
    middle = statistics.median(last)
    assert len(window) == len(last) and window.median == pytest.approx(middle)
    spread = MAD_TO_SIGMA * statistics.median([abs(value - middle) for value in last])
    assert window.sigma == pytest.approx(spread, abs=1e-6)


# ---- spikes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "onset"), [("loss", 31216), ("grad_norm", 31215)])
def test_published_spike_is_one_with_onset_peak_and_recovery(name: str, onset: int) -> None:
    """The log leaves steps out while it recovers."""
    steps, values = column(name)
    (spike,) = spikes(values, steps)
    assert (spike.onset_step, spike.peak_step, spike.recovered_step) == (onset, 31219, 31250)
    assert spike.is_over and spike.peak == max(values)


def test_spike_goes_on_until_it_is_over() -> None:
    """The event of the begin is the one of the end; nothing of the spike enters the baseline."""
    detector = SpikeDetector()
    for step, value in enumerate(noise(100)):
        assert detector.add(step, value) is None
    begun = detector.add(100, 6.0)
    assert begun is not None and begun is detector.spike and not begun.is_over
    for step in range(101, 120):
        assert detector.add(step, 5.0) is None
    assert detector.add(120, 2.0) is None
    assert detector.add(121, 2.0) is begun
    assert detector.spike is None
    assert (begun.recovered_step, begun.peak, begun.peak_step) == (120, 6.0, 100)
    assert begun.baseline == pytest.approx(2.0, rel=0.01) and begun.height == pytest.approx(3.0, rel=0.01)


def test_one_wild_value_is_none_and_two_are() -> None:
    """Between one and two times what makes a value high; two of them within three values confirm each other."""
    quiet = noise(200, share=0.02)
    wild = 2.0 * 1.2
    assert not spikes([*quiet, wild, *noise(50, share=0.02, seed=2)])
    (spike,) = spikes([*quiet, wild, 2.0, wild, *noise(50, share=0.02, seed=2)])
    assert spike.onset_step == 200 and spike.recovered_step == 203


def test_value_that_stays_up_is_a_spike_without_recovery() -> None:
    """The series is learned anew from there: the next spike is judged by the new level."""
    found = spikes([*noise(100), *noise(LASTING + 100, level=4.0), 9.0, 9.0, *noise(20, level=4.0)])
    assert [spike.recovered_step is not None for spike in found] == [False, True]
    assert found[0].is_over and found[1].baseline == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(
    "values",
    [
        [10.0 * math.exp(-step / 30) + 2 for step in range(300)],  # a warm-up
        [*noise(200), *noise(200, level=1.4)],  # a learning rate drops
        [2 + 0.002 * step for step in range(500)],  # a steady rise
        [1.0] * 300,
        [0.0] * 300,
        noise(300, level=-2.0),
        [math.nan, math.inf, -math.inf] * 50,
    ],
    ids=["warm-up", "drop", "rise", "constant", "zero", "negative", "not finite"],
)
def test_no_spike_where_none_is(values: list[float]) -> None:
    """Falling series do not rise by their fall getting slower; constant ones have a spread of zero."""
    assert spikes(values) == []


def test_series_around_zero_is_judged_by_distances() -> None:
    """Values of both signs have no logarithm."""
    chance = random.Random(3)
    quiet = [chance.gauss(0, 1) for _ in range(300)]
    assert spikes(quiet) == []
    (spike,) = spikes([*quiet, 30.0, 40.0, *[chance.gauss(0, 1) for _ in range(20)]])
    assert (spike.onset_step, spike.peak_step, spike.recovered_step) == (300, 301, 302)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_planted_spikes_are_found(factor: float) -> None:
    """On drifting, autocorrelated baselines with warm-up, drops, restarts; drawn seeds: `tools/bench/detectors.py`."""
    found = [episodes(series.loss(seed, factor=factor)) for seed in range(40)]
    assert sum(bool(hits) for hits, _ in found) >= 36
    assert sum(false for _, false in found) <= 3


# ---- shifts ------------------------------------------------------------------------------------------------------


@pytest.mark.first_is_quick
@pytest.mark.parametrize("after", [140.0, 149 * 0.97, 149 * 1.03, 60.0])
def test_lasting_change_is_found_within_twenty_steps(after: float) -> None:
    """Once; the level before and after, and where it began."""
    for seed in range(20):
        values = [*noise(300, 149.0, seed=seed), *noise(200, after, seed=seed + 100)]
        (shift,) = shifts(values)
        assert 295 <= shift.onset_step <= 305 and 300 <= shift.step < 320, (seed, shift)
        assert shift.change == pytest.approx(after / 149 - 1, abs=0.015)


def test_burst_is_no_shift() -> None:
    """Fewer values than a shift takes, and then as before."""
    for length in range(1, LASTS - 1):
        assert shifts([*noise(200, 149.0), *noise(length, 120.0), *noise(200, 149.0, seed=2)]) == []


@pytest.mark.slow
def test_stationary_noise_has_no_shift() -> None:
    """Within 50,000 values; a million of them: `tools/bench/detectors.py`."""
    assert len(shifts(noise(50_000, 149.0, seed=5))) <= 5


@pytest.mark.parametrize("name", ["loss", "grad_norm", "step_time_s", "tflops"])
def test_published_excerpt_has_no_shift(name: str) -> None:
    """The spike is over before it is one."""
    assert shifts(column(name)[1]) == []


def test_constant_that_changes_is_a_shift() -> None:
    """Without any noise."""
    (shift,) = shifts([5.0] * 100 + [6.0] * 100)
    assert (shift.before, shift.after, shift.onset_step) == (5.0, 6.0, 100)
    assert shifts([0.0] * 200) == []


# ---- not finite --------------------------------------------------------------------------------------------------


def test_values_that_are_not_finite_are_an_episode() -> None:
    """From the first to the last; one finite value between does not end it."""
    detector = NonFiniteDetector()
    values = [1.0, 2.0, math.nan, math.inf, 3.0, -math.inf, 4.0, 5.0, 6.0]
    found = [(step, event) for step, value in enumerate(values) if (event := detector.add(step, value))]
    assert [step for step, _ in found] == [2, 7]
    assert found[0][1] is found[1][1] == NonFinite(2, 5, 3, 2.0, is_over=True)


# ---- stragglers --------------------------------------------------------------------------------------------------


def test_rank_that_is_slower_is_named_and_no_other() -> None:
    """2.5 % among 48 in noise of 3 %; the job as a whole gets slower and faster."""
    chance = random.Random(11)
    detector = StragglerDetector()
    found: list[Straggler] = []
    for step in range(400):
        common = 10 * (1 + 0.2 * math.sin(step / 40))
        slower = 0.025 if step < 200 else 0.0
        seconds = {
            rank: common * (1 + slower * (rank == 17)) * (1 + chance.gauss(0, 0.03)) for rank in range(48)
        }
        found += detector.add(step, seconds)
    assert [(each.rank, each.is_over) for each in found] == [(17, False), (17, True)]
    assert found[0].step < 200 and found[0].lag == pytest.approx(0.025, abs=0.015)


def test_two_ranks_and_odd_times_name_nobody() -> None:
    """With two nobody knows which is odd; times that are none are left out."""
    detector = StragglerDetector()
    for step in range(100):
        assert detector.add(step, {0: 1.0, 1: 2.0}) == []
        assert detector.add(step, {0: 1.0, 1: math.nan, 2: -1.0, 3: math.inf}) == []
        assert detector.add(step, {}) == []


# ---- replay ------------------------------------------------------------------------------------------------------


def replayed(*words: object) -> list[dict[str, object]]:
    command = [sys.executable, str(ROOT / "tools" / "replay.py"), *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_replay_of_the_published_excerpt_gives_one_alarm() -> None:
    """Loss and gradient norm are one episode; no other alarm on any column."""
    (alarm,) = replayed(EXCERPT)
    assert alarm["kind"] == "spike" and alarm["first_step"] in (31215, 31216) and alarm["last_step"] == 31250
    assert set(alarm["keys"]) == {"loss", "grad_norm"}  # type: ignore[call-overload]


@pytest.mark.slow
def test_replay_of_a_stored_run(run_dir: Path) -> None:
    """By its name, and by key."""
    import logclient

    with logclient.init(project="replay", name="shifted", dir=str(run_dir), quiet=True) as run:
        for step, value in enumerate([*noise(100, 149.0), *noise(50, 120.0)]):
            run.log(step, {"tflops": value, "nan": math.nan if step == 30 else 0.0})
        assert run.finish(60)
    found = replayed(run_dir, "shifted", "tflops", "nan")
    assert [(alarm["kind"], alarm["first_step"]) for alarm in found] == [("not finite", 30), ("shift", 100)]
