"""R2-42: 100,000 steps and a sparse key, read by API, command line and `logclient.read`: the same, all of it."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from click.testing import CliRunner

import logclient
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.cli import cli
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import REAL
from logclient_backend.wal.seal import sealed_pieces, write_sealed
from tests.backend.runs.build import NOW_NS, NodeMaker, Rec, raw
from tests.served import backing, made_store, serving, take_in

FIRST, STEPS, EACH = 61_010, 100_000, 1_000
PIECE = 10_000  # records of a segment
LOSS = [(step, float(step)) for step in range(FIRST, FIRST + STEPS)]
VAL = [(step, -float(step)) for step in range(FIRST, FIRST + STEPS, EACH)]

Pairs = list[tuple[int, Any]]


def columns(name: str, seqs: range, value: Any, pace: int = 1) -> Columns:
    """Records of one float, a step each `pace`."""
    seq = array("Q", seqs)
    step = array("q", [FIRST + (number - 1) * pace for number in seqs])
    time = array("q", [NOW_NS + number for number in seqs])
    words = array("Q", array("d", [value(number) for number in step]).tobytes())
    return Columns(Shape((name,), "d"), None, seq, seq[:], step, time, [words])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """`loss` from one lane, `val` from another, in segments that overlap in time; the run is not over."""
    base = tmp_path_factory.mktemp("complete")
    maker = NodeMaker(base / "runs", "long")
    maker.process()
    loss, val = raw((1, 1, 0)), raw((2, 1, 1))
    for number, start in enumerate(range(1, STEPS + 1, PIECE), 1):
        part = columns("loss", range(start, start + PIECE), float)
        items = [StreamColumns(*loss, part)]
        if number == 1:
            sparse = columns("val", range(1, STEPS // EACH + 1), lambda step: -float(step), EACH)
            items.append(StreamColumns(*val, sparse))
        pieces = sealed_pieces(items, b"writer-1", number, NOW_NS)
        write_sealed(REAL, str(maker.path), b"writer-1", number, pieces)
    maker.number = number
    maker.save()
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        while store.compact(deadline_s=60.0):
            pass
        with serving(backing(store)) as url:
            yield base / "runs", url


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOGCLIENT_TOKEN", "reads")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def by_api(url: str, key: str, limit: int, most_pages: int = 10**9) -> Pairs:
    found: Pairs = []
    after = ""
    asked: dict[str, Any] = {"run": "long", "key": key, "limit": limit, "field": ["step", "value"]}
    with requests.Session() as session:
        session.headers["Authorization"] = "Bearer reads"
        for _ in range(most_pages):
            page = session.get(
                f"{url}/api/v1/run/series",
                params={**asked, "after": after},
                timeout=60,
            ).json()
            found += zip(page["step"], page["value"], strict=True)
            after = page["next"]
            if page["is_all"]:
                break
    return found


def by_command(*source: str) -> dict[str, Pairs]:
    done = CliRunner().invoke(cli, ["export", "long", *source])
    assert done.exit_code == 0, done.stderr
    found: dict[str, Pairs] = {}
    for line in done.stdout.splitlines():
        point = json.loads(line)
        found.setdefault(point["key"], []).append((point["step"], point["value"]))
    return found


def by_read(where: Any, key: str) -> Pairs:
    series = logclient.read(where)["long"].series(key)
    assert not series.is_reduced
    return list(zip(series.step.tolist(), series.value.tolist(), strict=True))


@pytest.mark.slow
def test_every_reader_gives_all_of_it_each_time(live: tuple[Path, str]) -> None:
    """Three times each, from the folder and from the server, pages of 1 and of 1,000,000."""
    folder, url = live
    for _ in range(3):
        assert by_api(url, "loss", 1_000_000) == LOSS
        assert by_api(url, "val", 1) == VAL
        assert by_read(url, "loss") == by_read(folder, "loss") == LOSS
        assert by_read(url, "val") == by_read(folder, "val") == VAL
    assert by_api(url, "loss", 1, most_pages=100) == LOSS[:100]
    assert by_api(url, "loss", 7_919) == LOSS
    there = by_command("--server", url)
    assert there == by_command("--dir", str(folder)) == {"loss": LOSS, "val": VAL}


@pytest.mark.slow
def test_reduced_only_on_request_and_marked(live: tuple[Path, str]) -> None:
    """Method and true count; the same buckets from folder and server, nothing between the extremes is lost."""
    for key, pairs in (("loss", LOSS), ("val", VAL)):
        for most in (1, 10, 2_000):
            found = [logclient.read(where)["long"].series(key, buckets=most) for where in live]
            for reduced in found:
                assert (reduced.is_reduced, reduced.method, reduced.points) == (True, "min_max", len(pairs))
                assert len(reduced) <= most
                assert int(reduced.count.sum()) == len(pairs)
                assert reduced.min.min() == min(value for _, value in pairs)
                assert reduced.max.max() == max(value for _, value in pairs)
            for name in ("start", "min", "max", "last", "count", "nans", "infs", "neg_infs"):
                mine, theirs = (getattr(reduced, name) for reduced in found)
                assert np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
            assert found[0].width == found[1].width


@pytest.mark.slow
def test_union_of_steps(live: tuple[Path, str]) -> None:
    """Several keys: every step of any of them; what is not there is NaN, and told from a NaN that was logged."""
    for where in live:
        table = logclient.read(where)["long"].series(["loss", "val"])
        assert table.step.tolist() == [step for step, _ in LOSS]
        assert table.has("loss").all()
        assert table.step[table.has("val")].tolist() == [step for step, _ in VAL]
        assert table["val"][table.has("val")].tolist() == [value for _, value in VAL]
        assert np.isnan(table["val"][~table.has("val")]).all()


def test_a_live_run_grows_by_a_longer_prefix(tmp_path: Path) -> None:
    """What was read stays as it was when more comes."""
    maker = NodeMaker(tmp_path / "runs", "long")
    maker.process()

    def grow(first: int, last: int) -> None:
        records = [
            Rec(seq, seq, seq, NOW_NS + seq, (("loss", "d", float(seq)),)) for seq in range(first, last)
        ]
        maker.segment({(1, 1, 0): records}, is_open=True)
        maker.save()

    grow(1, 50)
    run = logclient.read(tmp_path / "runs")["long"]
    before = run.series("loss")
    grow(50, 90)
    after = run.series("loss")
    assert after.step[: len(before)].tolist() == before.step.tolist() == list(range(1, 50))
    assert after.step.tolist() == list(range(1, 90))
