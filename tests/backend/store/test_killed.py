"""A store whose process is killed at any moment holds what was acknowledged, each once, and goes on."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logclient_backend.collector.store.embedded import open_store
from logclient_backend.collector.store.embedded.database import FILE
from logclient_backend.collector.store.interface import RunQuery
from tests.conftest import Pace

from .samples import parcel, ramp
from .writing import RECORDS, STREAMS

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
def test_nothing_acknowledged_is_lost_or_twice(tmp_path: Path, pace: Pace, synchronous: str) -> None:
    """Killed while it writes, compacts, merges and purges; between lives, sent again from somewhere before."""
    folder = str(tmp_path / "store")
    choose = random.Random(int(pace))
    acked = 0
    for _ in range(pace.count(60, least=3)):
        first = max(1, acked + 1 - choose.choice((0, 0, 5, 2 * RECORDS)))
        acked = max(acked, life(folder, first, synchronous, choose))
        with_integrity(folder)
        store = open_store(folder)
        try:
            for stream in STREAMS:
                span = store.reader.contents("run")[stream]
                (whole,) = span.stored.ranges()
                assert whole[0] == 1 and whole[1] >= acked
            points = store.reader.points("run", "loss", most=10_000_000)
            reach = [int((points.stream == at).sum()) for at in range(len(STREAMS))]
            assert points.seq.tolist() == [seq for most in reach for seq in range(1, most + 1)]
            assert (points.values == points.step).all()  # type: ignore[attr-defined]
            chart = store.reader.buckets("run", "loss", most=50)
            assert chart.points == len(points.step)
            key = next(key for key in store.reader.keys("run").keys if key.name == "loss")
            assert key.points == len(points.step) and key.last_step == max(reach)
            found = store.reader.run("run")
            assert found is not None and found.records == len(points.step)
            acked = min(reach)
        finally:
            store.close()
    store = open_store(folder)
    try:
        for run in store.reader.runs(RunQuery(limit=1000)).runs:
            if run.id != "run":  # killed before it was deleted
                store.writer.delete(run.id, 1)
        store.writer.purge(0)
        assert store.writer.write([parcel(ramp(1, acked, stream=STREAMS[0]))]).records == 0
    finally:
        store.close()
    connection = sqlite3.connect(os.path.join(folder, FILE))
    runs = connection.execute("SELECT count(*) FROM runs").fetchone()
    orphans = connection.execute(
        "SELECT (SELECT count(*) FROM block WHERE run NOT IN (SELECT run FROM runs)),"
        " (SELECT count(*) FROM tail WHERE run NOT IN (SELECT run FROM runs)),"
        " (SELECT count(*) FROM part WHERE id >> 20 NOT IN (SELECT block FROM block)),"
        " (SELECT count(*) FROM coarse WHERE block NOT IN (SELECT block FROM block))"
    ).fetchone()
    connection.close()
    assert runs == (1,) and orphans == (0, 0, 0, 0)


def life(folder: str, first: int, synchronous: str, choose: random.Random) -> int:
    """Write from this seq on, until killed; the highest that was acknowledged."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.backend.store.writing", folder, str(first), synchronous],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    try:
        assert writer.stdout is not None
        last = int(writer.stdout.readline())  # it is at work
        time.sleep(choose.uniform(0.0, 0.6))  # any moment will do
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.communicate(timeout=60)[0]
    whole = rest[: rest.rfind(b"\n") + 1].split()
    return int(whole[-1]) if whole else last


def with_integrity(folder: str) -> None:
    connection = sqlite3.connect(os.path.join(folder, FILE))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
