"""Threads: rows as they were at call time, each thread's order, exact counts, and a finish in the middle."""

from __future__ import annotations

import gc
import logging
import threading
from collections import defaultdict
from pathlib import Path

import pytest

import logclient
from tests.conftest import Pace
from tests.lanes import LaneFile, Record, opened

THREADS = 16


def run_threads(work, count: int = THREADS) -> None:
    """`work(number)` in so many threads; fails where one of them failed."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - told by the caller
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


class Drain(threading.Thread):
    """Reads the lanes while others write."""

    def __init__(self, file: LaneFile) -> None:
        super().__init__()
        self.file = file
        self.records: list[Record] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.001):
            self.records += self.file.read()

    def end(self) -> list[Record]:
        self.is_over.set()
        self.join()
        self.records += self.file.read()
        return self.records


@pytest.mark.parametrize(
    "rows", [pytest.param(20_000, id="short"), pytest.param(200_000, id="long", marks=pytest.mark.slow)]
)
def test_sixteen_threads_lose_nothing_uncounted(rows: int, pace: Pace, run_dir: Path) -> None:
    """Case C9-4: each row is whole and as it was at call time though its dict changes right after; orders are kept."""
    rows = pace.count(rows)

    def work(number: int) -> None:
        key = f"metric{number}"
        row: dict[str, object] = {}
        for step in range(rows):
            row.clear()
            row.update({key: step + 0.25} if step % 4 else {key: step, "text": f"{number}/{step}"})
            run.log(step, row)
            row[key] = "changed"

    with opened() as (run, file):
        drain = Drain(file)
        drain.start()
        run_threads(work)
        records = drain.end()
        status = run.status()
    steps: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        (key,) = record.values.keys() - {"text"}
        number, value = int(key.removeprefix("metric")), record.values[key]
        assert value == (record.step + 0.25 if record.step % 4 else record.step)
        assert record.values.get("text", f"{number}/{record.step}") == f"{number}/{record.step}"
        steps[number].append((record.order, record.step))
    for number, seen in steps.items():
        assert len(set(seen)) == len(seen)
        in_order = [step for _, step in sorted(seen)]
        assert in_order == sorted(set(in_order)), f"the order of thread {number} broke"
    assert len(records) + sum(file.forgotten) == file.accepted == status["accepted"]
    assert status["accepted"] + status["refused"] == THREADS * rows
    assert not sum(file.damaged)


def test_short_threads_take_no_new_memory(run_dir: Path) -> None:
    """200 threads of a few rows each use the lanes that are there, and most of them lane 0."""
    with opened() as (run, file):
        for _ in range(200):
            run_threads(lambda number: run.log(number, {"a": 0.5}), 1)
        assert [record.lane for record in file.read()] == [0] * 200


@pytest.mark.parametrize("round_", range(5))
def test_finish_while_others_log_makes_log_a_counted_no_op(round_: int, run_dir: Path) -> None:
    """Case C9-4: one thread calls finish, others log on: nothing raises, and logged = accepted + refused."""
    rows = 3000
    started = threading.Barrier(THREADS)

    def work(number: int) -> None:
        started.wait()
        for step in range(rows):
            if number == 0 and step == 200 * round_:
                run.finish(0)
            run.log(step, {"a": 0.5} if step % 3 else {"a": step, "b": None})

    with opened(lanes_bytes=1 << 20) as (run, file):
        run_threads(work)
        status = run.status()
        assert status["accepted"] == file.accepted
        assert status["accepted"] + status["refused"] == THREADS * rows
        assert not any(
            reader.words[1] != len(records) for reader, records in _by_lane(file) if not reader.words[2]
        )


def _by_lane(file: LaneFile):
    records = file.read()
    return [(reader, [r for r in records if r.lane == lane]) for lane, reader in enumerate(file.readers)]


def test_log_after_finish_is_refused_counted_and_said_once(run_dir: Path) -> None:
    """Case C1-4: the file of the finished run does not change any more."""
    with opened() as (run, file):
        run.log(1, {"a": 1.0})
        run.finish(0)
        before = bytes(file.mem)
        for _ in range(5):
            run.log(2, {"a": 1.0})
            run.summary["x"] = 1
        status = run.status()
        assert (status["accepted"], status["refused"]) == (1, 5)
        assert bytes(file.mem) == before
        assert sum("refused" in line for line in status["notices"]) == 1


def test_logging_handler_that_logs_does_not_recurse(run_dir: Path) -> None:
    """Case C1-4: nothing that log() does goes through `logging`."""
    with opened() as (run, file):

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                run.log(record.lineno, {"level": float(record.levelno), "bad": None, "other": object()})

        handler = Handler()
        logging.getLogger().addHandler(handler)
        try:
            for _ in range(10):
                logging.getLogger("x").warning("hello")
        finally:
            logging.getLogger().removeHandler(handler)
        assert [record.values for record in file.read()] == [{"level": 30.0}] * 10
        assert run.status()["left_out"] == 20


@pytest.mark.slow
def test_finalizers_that_log_use_a_lane_of_their_own(run_dir: Path) -> None:
    """Objects die wherever the collector comes by, in the middle of log() too."""

    class Dying:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            logclient.log(0, {"died": 1.0})

    with opened() as (run, file):
        before = gc.get_threshold()
        gc.set_threshold(5, 2, 2)
        try:
            for step in range(2000):
                Dying()
                run.log(step, {f"k{step % 50}": step, "b": "text"})
        finally:
            gc.set_threshold(*before)
            gc.collect()
        records = file.read()
        assert sum("died" in record.values for record in records) + sum(file.forgotten) >= 2000
        assert len(records) + sum(file.forgotten) == 4000 - run.status()["refused"]


def test_lane_lost_between_pop_and_try_is_found_again(run_dir: Path) -> None:
    """With every lane lost, the next log() has them all back; one that is in somebody's hand is never taken."""
    with opened() as (run, _):
        in_hand = run._recorder.first.pop()
        while run._session.lanes.others:
            run._session.lanes.others.pop()
        run.log(1, {"a": 1.0})
        assert len(run._session.lanes.first) + len(run._session.lanes.others) == 3
        in_hand.home.append(in_hand)
        del in_hand
        run._recorder.first.clear()
        for step in range(300):  # lane 0 is looked for now and then, though others are free
            run.log(step, {"a": 1.0})
        assert len(run._session.lanes.first) == 1
        assert run.status()["refused"] == 0


def test_no_free_lane_refuses_and_counts(run_dir: Path) -> None:
    """More callers inside log() than lanes: the record is refused, counted and said once."""
    with opened(lanes=2) as (run, file):
        in_hand = [run._session.lanes.first.pop(), run._session.lanes.others.pop()]
        for _ in range(3):
            run.log(1, {"a": 1.0})
        status = run.status()
        assert (status["accepted"], status["refused"], file.refused) == (0, 3, 3)
        (line,) = status["notices"]
        assert "no free lane" in line
        assert file.document("notices")["notices"] == [line]
        for lane in in_hand:
            lane.home.append(lane)
        run.log(1, {"a": 1.0})
        assert run.status()["accepted"] == 1
