"""Upkeep of the embedded engine: small blocks end in large ones, space comes back, a purge goes on where it ended."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient_backend.collector.store.embedded import EmbeddedStore, compact, open_store
from logclient_backend.collector.store.embedded.database import FILE
from logclient_backend.collector.store.embedded.remove import Remover

from .samples import noise, parcel, ramp

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = open_store(str(tmp_path / "store"))
    yield store
    store.close()


def upkeep(store: EmbeddedStore) -> None:
    while store.compact(deadline_s=60, now=True):
        pass


def keys(count: int) -> list[str]:
    return [f"key{number}" for number in range(count)]


def test_nothing_is_done_before_it_is_due(store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A little that came just now may wait; much, or what waited long, is compacted."""
    monkeypatch.setattr(compact, "KEEP_S", 0.0)
    store.writer.write([parcel(ramp(1, 10))])
    assert not store.compact(deadline_s=10)
    assert store.statistics()["uncompacted_points"] == 20
    monkeypatch.setattr(compact, "DUE_POINTS", 20)
    assert store.compact(deadline_s=10)
    assert store.statistics()["uncompacted_points"] == 0
    monkeypatch.setattr(compact, "DUE_POINTS", 1000)
    store.writer.write([parcel(ramp(11, 10))])
    monkeypatch.setattr(compact, "DUE_S", 0.0)
    assert store.compact(deadline_s=10)
    assert store.statistics()["uncompacted_points"] == 0


def test_what_a_process_left_is_due_for_the_next(store: EmbeddedStore, tmp_path: Path) -> None:
    store.writer.write([parcel(ramp(1, 10))])
    store.close()
    again = open_store(str(tmp_path / "store"))
    try:
        assert again.compact(deadline_s=10) and again.statistics()["blocks"] == 1
    finally:
        again.close()


def test_a_slow_run_ends_in_few_blocks(store: EmbeddedStore) -> None:
    """Compacted after every few records, as where one comes a second, none is rewritten often."""
    for number in range(200):
        store.writer.write([parcel(ramp(1 + 5 * number, 5))])
        upkeep(store)
    assert store.statistics()["blocks"] < 30
    assert store.reader.points("run", "loss").step.tolist() == list(range(1, 1001))


def test_disk_space_comes_back(store: EmbeddedStore, tmp_path: Path) -> None:
    """A purged run's pages leave the file; other runs are as they were."""
    store.writer.write([parcel(ramp(1, 100), run="other")])
    for number in range(10):
        store.writer.write([parcel(noise(1 + 500 * number, 500, keys(50)))])
    upkeep(store)
    path = tmp_path / "store" / FILE
    before = path.stat().st_size
    assert before > 10 * 500 * 50 * 6
    assert store.writer.delete("run", 1) and store.writer.purge(0) == 1
    upkeep(store)
    assert path.stat().st_size < before / 5
    assert store.reader.points("other", "loss").step.tolist() == list(range(1, 101))
    statistics = store.statistics()
    assert statistics["runs"] == 1 and statistics["points"] == 200


def test_an_interrupted_purge_is_finished_by_the_upkeep(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after any step: nobody sees half a run, its id is free again, the rest goes later."""
    for steps in range(8):
        interrupt_purge(store, steps, monkeypatch)


def interrupt_purge(store: EmbeddedStore, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        store.writer.write([parcel(ramp(1 + 100 * number, 100), documents=b"{}")])
        if number < 2:
            upkeep(store)
    assert store.writer.delete("run", 1)
    real = Remover.step
    left = itertools.count(steps, -1)
    with monkeypatch.context() as patch:
        patch.setattr(Remover, "step", lambda self: next(left) > 0 and real(self))
        store.writer.purge(0)
    assert store.reader.run("run") is None and store.reader.is_deleted("run")
    assert store.reader.points("run", "loss").is_all
    assert store.writer.undelete("run")
    store.writer.write([parcel(ramp(7, 3))])
    assert store.reader.points("run", "loss").step.tolist() == [7, 8, 9]
    upkeep(store)
    assert store.reader.points("run", "loss").step.tolist() == [7, 8, 9]
    statistics = store.statistics()
    assert (statistics["runs"], statistics["blocks"], statistics["points"]) == (1, 1, 6)
    assert store.writer.delete("run", 1) and store.writer.purge(0) == 1 and store.writer.undelete("run")


LIMITED = """
import sys
from pathlib import Path
from logclient_backend.collector.store.embedded import open_store
store = open_store(sys.argv[1])
def peak_kib():  # ru_maxrss begins with the memory of the process that started this one
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
base = peak_kib()
store.writer.delete("run", 1)
assert store.writer.purge(0) == 1
while store.compact(deadline_s=60, now=True): pass
print(peak_kib() - base)
store.close()
"""


@pytest.mark.slow
def test_a_purge_takes_no_memory_to_speak_of(store: EmbeddedStore, tmp_path: Path) -> None:
    """However large the run is: 1,000,000 points over 500 keys, and less than a tenth of them in memory."""
    for number in range(20):
        store.writer.write([parcel(noise(1 + 100 * number, 100, keys(500)))])
    upkeep(store)
    assert store.statistics()["points"] == 1_000_000
    store.close()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "store")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    size = os.stat(tmp_path / "store" / FILE).st_size
    assert int(done.stdout) * 1024 < 24 << 20, done.stdout  # SQLite's own cache is 16 MiB
    assert size < 1 << 20
