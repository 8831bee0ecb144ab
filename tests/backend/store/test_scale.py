"""Field cases of scale; `make soak` runs them at the sizes that they name (R2-14, R2-50)."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logclient_backend.collector.store.clock import Clock
from logclient_backend.collector.store.embedded import EmbeddedStore, catalog, open_store
from logclient_backend.collector.store.embedded.database import FILE
from logclient_backend.collector.store.embedded.last_seen import SeenRuns
from logclient_backend.collector.store.interface import Filter, RunDeleted, RunQuery
from tests.conftest import Pace
from tools.bench.small_runs import fill

from .samples import described, noise, parcel, ramp

ROOT = Path(__file__).parents[3]
KEYS = [f"layer{number}/loss" for number in range(500)]
A_PARCEL = 100  # records
ENOUGH_S = 1.0  # R2-14; a quiet machine needs a hundredth of it
MIB = 512


def upkeep(store: EmbeddedStore) -> None:
    while store.compact(deadline_s=60, now=True):
        pass


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_many_old_runs_do_not_slow_the_newest(tmp_path: Path, pace: Pace) -> None:
    """R2-14: 500, 5,000 and 20,000 runs, 10 M points in all; the list, a filter, the newest run opened."""
    sizes = [pace.count(full) for full in (500, 5_000, 20_000)]
    points = 10_000_000 // 20_000 // 3
    store = open_store(str(tmp_path / "store"), synchronous="NORMAL")
    try:
        took: dict[int, dict[str, float]] = {}
        made = 0
        for size in sizes:
            fill(store, made, size, points)
            made = size
            took[size] = ask(store, f"run-{size - 1}", size)
        print(json.dumps(took), store.statistics()["points"])
        assert all(seconds < ENOUGH_S for each in took.values() for seconds in each.values()), took
    finally:
        store.close()


def ask(store: EmbeddedStore, newest: str, runs: int) -> dict[str, float]:
    """Seconds, the best of some: what else the machine does is no history."""
    reader = store.reader
    some = RunQuery([Filter("config", "seed", "=", runs // 2)], limit=50)
    page = reader.runs(RunQuery(limit=50))
    assert (page.total, page.runs[0].id) == (runs, newest)
    assert [run.id for run in reader.runs(some).runs] == [f"run-{runs // 2}"]
    questions: dict[str, Callable[[], object]] = {
        "newest 50": lambda: reader.runs(RunQuery(limit=50)),
        "by a config value": lambda: reader.runs(some),
        "newest run": lambda: (reader.run(newest), reader.keys(newest), reader.buckets(newest, "loss")),
        "last values of the newest 50": lambda: reader.last_values([run.id for run in page.runs], ["loss"]),
    }
    return {what: min(seconds(question) for _ in range(5)) for what, question in questions.items()}


def seconds(question: Callable[[], object]) -> float:
    begin = time.monotonic()
    question()
    return time.monotonic() - begin


def test_one_run_is_found_by_a_value_as_soon_among_many(tmp_path: Path) -> None:
    """R2-14: by a config value, a summary value, a tag; counted in steps of SQLite, which no other load changes."""
    folder = tmp_path / "store"
    store = open_store(str(folder), synchronous="NORMAL")
    try:
        store.writer.write(
            [described("wanted", config={"a": {"b": 7}}, summary={"best": 0.5}, tags=("mine",))]
        )
        wanted = [
            Filter("config", "a::b", value=7),
            Filter("summary", "best", value=0.5),
            Filter("tag", value="mine"),
        ]
        few = [steps(folder, each) for each in wanted]
        store.writer.write([described(f"run-{at}", config={"a": {"b": at + 8}}) for at in range(500)])
        for before, each in zip(few, wanted, strict=True):
            assert steps(folder, each) < 2 * before
    finally:
        store.close()


def steps(folder: Path, wanted: Filter) -> int:
    """Instructions of SQLite's machine, in tens."""
    connection = sqlite3.connect(folder / FILE)
    found: list[None] = []
    try:
        connection.set_progress_handler(lambda: found.append(None), 10)
        page = catalog.page(connection, RunQuery([wanted]), SeenRuns(Clock()))
        assert [run.id for run in page.runs] == ["wanted"] and page.total == 1
    finally:
        connection.close()
    return len(found)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_large_run_goes_for_good_in_little_memory(tmp_path: Path, pace: Pace) -> None:
    """R2-50: 10 M points over 500 keys beside 1,000 small runs: undo, then for good with 512 MiB, killed in the middle
    again and again, while another run is written; late data are refused."""
    folder = tmp_path / "store"
    small = pace.count(1_000)
    records = pace.count(20_000, least=1_000)
    store = open_store(str(folder), synchronous="NORMAL")
    try:
        fill(store, 0, small)
        without = size_of(folder)
        for first in range(1, records + 1, A_PARCEL):
            store.writer.write([parcel(noise(first, A_PARCEL, KEYS), run="large", documents=b"{}")])
            while store.compact(deadline_s=5):
                pass
        upkeep(store)
        before = store.reader.buckets("large", KEYS[7])
        assert before.points == records
        assert store.writer.delete("large", 1)
        assert store.reader.runs(RunQuery()).total == small
        with pytest.raises(RunDeleted):
            store.writer.write([parcel(ramp(1, 5), run="large")])
        assert store.writer.undelete("large")
        after = store.reader.buckets("large", KEYS[7])
        assert (after.min == before.min).all() and (after.max == before.max).all()
        assert store.writer.delete("large", 1)
    finally:
        store.close()
    full = size_of(folder)
    assert full - without > records * len(KEYS) * 4  # bytes a point of noise, at least
    choose = random.Random(int(pace))
    acked = 0
    for _ in range(pace.count(10, least=2)):
        acked, told = remove(folder, acked + 1, choose.uniform(0.0, 0.5))
        if told:
            break  # it was quicker
    acked, told = remove(folder, acked + 1, None)
    assert told is not None
    print(json.dumps({**told, "bytes": [without, full, size_of(folder)], "acked": acked}))
    assert told["peak_mib"] < MIB and told["longest_s"] < 10.0
    assert size_of(folder) < without + (full - without) / 4
    store = open_store(str(folder))
    try:
        assert store.reader.points("live", "loss", most=1 << 30).step.tolist() == list(range(1, acked + 1))
        assert store.reader.runs(RunQuery(limit=1)).total == small + 1
        assert store.reader.buckets(f"run-{small - 1}", "loss").points == 30
        with pytest.raises(RunDeleted):
            store.writer.write([parcel(noise(1, 5, KEYS), run="large")])
        assert store.writer.undelete("large")
        assert store.writer.write([parcel(noise(1, 5, KEYS), run="large")]).records == 5
        assert store.writer.purge(0) == 0
    finally:
        store.close()
    connection = sqlite3.connect(folder / FILE)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def remove(folder: Path, first: int, life_s: float | None) -> tuple[int, dict[str, float] | None]:
    """Delete for good, killed so long after it began; the highest seq of `live`, and what it told at the end."""
    words = [sys.executable, "-m", "tests.backend.store.removing", str(folder), str(first), str(MIB)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        first_line = process.stdout.readline()  # it is at work
        if life_s is not None:
            time.sleep(life_s)  # any moment will do
            os.kill(process.pid, signal.SIGKILL)
        rest = process.communicate(timeout=200)[0]
    finally:
        process.kill()
        process.wait()
    lines = (first_line + rest[: rest.rfind(b"\n") + 1]).split(b"\n")
    acked = [int(line) for line in lines if line.isdigit()]
    assert acked, f"it ended with {process.returncode}"
    told = json.loads(lines[-2]) if lines[-2].startswith(b"{") else None
    assert life_s is not None or process.returncode == 0
    return acked[-1], told
