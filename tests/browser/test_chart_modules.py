"""The arithmetic of charts, in the browser that does it: buckets that grow, smoothing, ranges, exact digits."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from logclient_backend.collector.tokens import EVERYBODY
from tests.served import backing, made_store, serving

from .chart_data import module

LARGEST = sys.float_info.max
STEPS = [-9223372036854775000, 9223372036854775000]  # as a browser writes the last steps


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with (
        made_store(tmp_path_factory.mktemp("modules") / "data") as store,
        serving(backing(store, check=lambda token: EVERYBODY)) as url,
    ):
        context = browser.new_context()
        found = context.new_page()
        found.goto(url)
        yield found
        context.close()


def test_points_go_into_the_buckets_that_the_collector_would_make(page: Page) -> None:
    """Extremes, counts, NaN and the last value are those of all points, however often buckets are joined."""
    chance = np.random.default_rng(3)
    values = [float(value) for value in chance.normal(0, 1, 1000)]
    values[500], values[501], values[502], values[700] = math.nan, math.inf, -math.inf, 99.0
    given = [value if math.isfinite(value) else str(value) for value in values]
    found = module(
        page,
        "charts/curve.js",
        """const curve = new it.Curve({run: 'r', key: 'k'});
        const odd = {nan: NaN, inf: Infinity, '-inf': -Infinity};
        given.forEach((value, step) => {
          curve.append(step, odd[value] ?? value, step / 10);
          curve.coarsen(100);
        });
        const names = ['x', 'min', 'max', 'last', 'count', 'nans', 'infs', 'negInfs', 'time'];
        const columns = names.map((name) => [name, Array.from(curve[name].subarray(0, curve.length), String)]);
        return {width: curve.width, points: curve.points, ...Object.fromEntries(columns)};""",
        given,
    )
    width = found["width"]
    assert (width, found["points"]) == (16, 1000)
    for at, start in enumerate(range(0, 1000, width)):
        part = np.array(values[start : start + width])
        finite = part[np.isfinite(part)]
        assert float(found["x"][at]) == start
        assert float(found["min"][at]) == finite.min()
        assert float(found["max"][at]) == finite.max()
        assert float(found["last"][at]) == part[-1]
        assert float(found["count"][at]) == len(part)
        assert float(found["nans"][at]) == np.isnan(part).sum()
        assert float(found["infs"][at]) == (part == math.inf).sum()
        assert float(found["negInfs"][at]) == (part == -math.inf).sum()
        assert float(found["time"][at]) == (start + len(part) - 1) / 10


def test_point_between_buckets_is_not_taken(page: Page) -> None:
    """The curve is loaded anew then; a point of a bucket that is there goes in, and the newest stays the last."""
    assert module(
        page,
        "charts/curve.js",
        """const curve = new it.Curve({run: 'r', key: 'k', width: 10});
        return [curve.append(5, 1, 1), curve.append(25, 2, 2), curve.append(15, 9, 3), curve.append(3, 7, 4),
                curve.length, curve.max[0], curve.last[0], curve.last[1], curve.points];""",
    ) == [True, True, False, True, 2, 7, 7, 2, 3]


def test_smoothing_weights_by_distance_whatever_the_length(page: Page) -> None:
    """Each value is the mean of all, weighted by e^(-distance / tau), and ten times as many points look the same."""
    chance = np.random.default_rng(4)
    x = np.sort(chance.uniform(0, 100, 60))
    y = chance.normal(0, 1, 60)
    y[7] = math.nan
    kept = ~np.isnan(y)
    expected = [
        float((np.exp(-abs(x[kept] - at) / 5) * y[kept]).sum() / np.exp(-abs(x[kept] - at) / 5).sum())
        for at in x
    ]
    smooth = """const [x, y, tau] = given;
    return Array.from(it.smooth(Float64Array.from(x), Float64Array.from(y, Number), tau), String);"""
    found = module(page, "charts/transform.js", smooth, [x.tolist(), [str(value) for value in y], 5])
    for at in range(60):
        assert math.isnan(float(found[at])) if at == 7 else float(found[at]) == pytest.approx(expected[at])

    def smoothed(points: int) -> list[float]:
        places = np.linspace(0, 1000, points)
        given: list[Any] = [places.tolist(), [str(value) for value in np.sin(places / 60)], 20]
        return [float(value) for value in module(page, "charts/transform.js", smooth, given)]

    few, many = smoothed(501), smoothed(5001)
    assert max(abs(a - b) for a, b in zip(few, many[::10], strict=True)) < 0.02


def test_robust_range_leaves_outliers_out_and_no_more(page: Page) -> None:
    """One spike in a hundred does not set the range; without any the range is that of the values."""
    robust = "return it.robustRange(given[0], given[1]);"
    values = [math.sin(at) for at in range(400)]
    low, high = module(page, "charts/transform.js", robust, [[*values, 1e6], False])
    assert -2.1 < low < -0.99
    assert 0.99 < high < 2.1
    assert module(page, "charts/transform.js", robust, [[3.0, 3.0], False]) == [3, 3]
    low, high = module(page, "charts/transform.js", robust, [[-1, *(10.0**at for at in range(5))], True])
    assert low >= 1
    assert high <= 1e4


def test_every_bucket_is_drawn_to_its_extremes(page: Page) -> None:
    """Per column of pixels the line reaches the lowest and the highest value of all buckets in it."""
    found = module(
        page,
        "charts/curve_shapes.js",
        """const {frame} = await import(base + 'charts/frame.js');
        const n = 1000;
        const curve = {length: n, isRaw: false};
        for (const name of ['min', 'max', 'last']) curve[name] = new Float64Array(n).fill(0.5);
        for (const name of ['nans', 'infs', 'negInfs']) curve[name] = new Float64Array(n);
        curve.max[333] = 1;
        curve.min[666] = 0;
        curve.min[900] = curve.max[900] = curve.last[900] = NaN; // the line is interrupted
        const x = Float64Array.from({length: n}, (_, i) => i);
        const made = frame({box: {left: 0, top: 0, width: 100, height: 100}, x: [0, n], y: [0, 1]});
        const {points} = it.extremes(made, curve, x, 0, n);
        const rows = points.filter((_, i) => i % 2);
        return [Math.min(...rows.filter((y) => y === y)), Math.max(...rows.filter((y) => y === y)),
                rows.filter((y) => y !== y).length, points[2 * rows.indexOf(0)]];""",
    )
    assert found[:3] == [0, 100, 1]
    assert 33 <= found[3] < 34


def test_digits_come_out_as_they_went_in(page: Page) -> None:
    """Ints beyond 2^53, floats and texts of a column, none of which another text can imitate."""
    texts = ['a,b]"', "☃", 'x "value":[2]']
    numbers = "9007199254740993,1e-05,0.1"
    inside = ",".join(json.dumps(each) for each in texts)
    text = f'{{"key":{json.dumps(texts[2])},"value":[{numbers},{inside}],"step":[1]}}'
    found = module(page, "charts/export_csv.js", "return it.exactColumn(given, 'value');", text)
    assert found == [*numbers.split(","), *map(json.dumps, texts)]


@pytest.mark.parametrize(
    ("find", "matches"),
    [
        ("LOSS", ["train/loss", "eval/loss"]),
        ("loss tr", ["train/loss"]),
        ("/^eval/", ["eval/loss"]),
        ("/[/", []),
        ("", ["train/loss", "eval/loss", "lr"]),
    ],
)
def test_filter_takes_words_and_expressions(page: Page, find: str, matches: list[str]) -> None:
    """An expression that is none matches nothing, and raises nothing."""
    names = ["train/loss", "eval/loss", "lr"]
    body = "const of = it.matcher(given[0]); return given[1].filter(of);"
    assert module(page, "charts/view_state.js", body, [find, names]) == matches


def test_view_that_nobody_can_have_set_is_the_default(page: Page) -> None:
    """Links are typed and cut: what cannot be read is left out."""
    body = """const view = it.read(new URLSearchParams(given));
    const system = it.read(new URLSearchParams(given), "system");
    return [view.x, system.x, view.smooth, view.zoom, view.size, view.band];"""
    assert module(page, "charts/view_state.js", body, "x=key:&smooth=-3&zoom=5,1&size=huge&band=no") == [
        "step", "relative", 0, None, "m", "quantiles",
    ]  # fmt: skip
    body = """const wide = it.read(new URLSearchParams(given)), zoom = wide.zoom;
    return [zoom, it.read(new URLSearchParams(given + "&x=key:k")).zoom, it.stepsIn([-1e300, 1e300])];"""
    assert module(page, "charts/view_state.js", body, "zoom=1e300,1e308") == [None, [1e300, 1e308], STEPS]
    assert module(page, "charts/view_state.js", body, "zoom=-1e300,1e308")[0] == STEPS


def test_axis_labels_are_short_and_right(page: Page) -> None:
    """Large numbers have SI letters only where no digit is lost."""
    body = "return given.map(it.short);"
    found = module(
        page, "charts/axis.js", body, [0, 0.25, 1000, 1250, 12500, 10_000_000, -2_500_000, 1e-7, 1e20]
    )
    assert found == ["0", "0.25", "1k", "1250", "12.5k", "10M", "-2.5M", "1e-7", "1e20"]
    labels = "return it.labels(given);"
    assert module(page, "charts/axis.js", labels, [2**53, None, 2**53 + 4]) == [
        str(2**53),
        "",
        str(2**53 + 4),
    ]
    assert module(page, "charts/axis.js", labels, [1_000_001, 1_000_002]) == ["1000001", "1000002"]


@pytest.mark.parametrize(
    ("low", "high", "is_log"),
    [
        (-LARGEST, LARGEST, False),
        (-1e-300, 1e-300, False),
        (1e16, 1e16 + 2, False),
        (2.0**53, 2.0**53 + 19, False),
        (5e-324, LARGEST, True),
        (2e50, 5e50, True),
        (1e15, 1e15 + 2, True),
    ],
)
def test_axis_of_any_floats_has_ticks(page: Page, low: float, high: float, is_log: bool) -> None:
    """A few round numbers in the range, and the way to uPlot's scale and back."""
    body = """const made = it.axisOf(given.range, given.isLog);
    const ticks = made.ticks(made.range[1] / 5);
    return [ticks, ticks.map(made.to), ticks.map(made.to).map(made.from), made.range, it.labels(ticks)];"""
    ticks, placed, back, (first, last), labels = module(
        page, "charts/axis.js", body, {"range": [low, high], "isLog": is_log}
    )
    assert 2 <= len(ticks) <= 12
    assert len(set(labels)) == len(ticks)
    assert all(low <= tick <= high for tick in ticks)
    assert all(first <= place <= last for place in placed)
    assert back == pytest.approx(ticks, rel=1e-6, abs=(high / 2 - low / 2) * 1e-6)
    padded = "const {padded} = await import(base + 'charts/transform.js'); return padded(given[0], given[1]);"
    for range_ in ([low, high], [high, high], [5e-324, 5e-324]):
        made = module(page, "charts/transform.js", padded, [range_, is_log])
        assert -LARGEST <= made[0] <= range_[0] <= range_[1] <= made[1] <= LARGEST and made[0] < made[1]


def test_error_goes_with_the_view_it_is_about(page: Page) -> None:
    """It stays while its view is shown."""
    bad = page.locator("#messages > .bad")
    module(page, "core/messages.js", "it.showError(new Error('of this view'));")
    expect(bad).to_have_count(1)
    page.evaluate("location.hash = '#/compare'")
    expect(bad).to_have_count(0)
