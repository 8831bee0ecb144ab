"""`Run.as_rank`: records of one process under several ranks, in each form, across threads, forks, pickling."""

from __future__ import annotations

import itertools
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import BadArgument
from logclient.encode import shapes
from tests.interrupts import interrupted
from tests.lanes import Script, by_pid, opened

FORMS: dict[str, dict[str, Any]] = {
    "floats": {"a": 1.5, "b": 2.5},
    "other types": {"a": 1, "b": True, "c": "text"},
    "values that are left out": {"a": 1.5, "b": object()},
    "one that goes to a block": {f"key{number}": "x" * 300 for number in range(300)},
}


@pytest.mark.parametrize("form", FORMS)
def test_records_carry_the_rank_they_were_logged_with(form: str, run_dir: Path) -> None:
    """Interleaved with the process's own; repeated, so that each form takes its fast path too."""
    row = FORMS[form]
    with opened(rank=5) as (run, file):
        speakers = [run, run.as_rank(0), run.as_rank(7)]
        found = []
        for step in range(4):
            for speaker in speakers:
                speaker.log(step, row)
                found += file.read()  # now: a block is used again
        assert [(record.step, record.rank) for record in found] == list(
            itertools.product(range(4), (5, 0, 7))
        )
        kept = {key: value for key, value in row.items() if type(value) is not object}
        assert all(record.values == kept for record in found)
        assert [record.order for record in found] == list(range(1, 13))
        status = run.status()
        assert status["accepted"] == 12 and status["left_out"] == 12 * (len(row) - len(kept))


def test_ranks_share_the_definitions_of_shapes(run_dir: Path) -> None:
    """Beyond the most shapes, records describe themselves, with their rank."""
    with opened() as (run, file):
        ranks = [run.as_rank(rank) for rank in range(3)]
        for number in range(shapes.MAX_SHAPES + 3):
            ranks[number % 3].log(number, {f"k{number}": 1.0})
            ranks[(number + 1) % 3].log(number, {f"k{number}": 1.0})
            records = file.read()
            assert [(record.rank, record.values) for record in records] == [
                (number % 3, {f"k{number}": 1.0}),
                ((number + 1) % 3, {f"k{number}": 1.0}),
            ]
        assert run._session.encoder._next_id == shapes.MAX_SHAPES + 1


def test_threads_with_a_rank_each(run_dir: Path) -> None:
    """All get to the one lane file; each record has its thread's rank.

    A thread that is suspended within `log` keeps the large lane, and the others share the small ones: what is forgotten
    there is counted.
    """
    count, rows = 4, 500
    with opened() as (run, file):

        def work(rank: int) -> None:
            mine = run.as_rank(rank)
            for step in range(rows):
                mine.log(step, {"rank": float(rank), "half": step / 2})

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        records = file.read()
        assert run.status()["accepted"] == count * rows == len(records) + sum(file.forgotten)
    assert records and all(record.rank == record.values["rank"] for record in records)
    found = [(record.rank, record.step) for record in records]
    assert len(set(found)) == len(found)
    assert set(found) <= set(itertools.product(range(count), range(rows)))


@pytest.mark.parametrize("first", ["ranked", "run"])
def test_forked_child_has_shapes_of_its_own(first: str, run_dir: Path, tmp_path: Path) -> None:
    """The parent's shapes have other ids: a child that used them would store values under foreign keys."""
    source = f"""
    run = logclient.init("forks")
    mine = run.as_rank(3)
    for key in "abc":
        mine.log(0, {{key: 1.0}})
    pid = os.fork()
    if pid == 0:
        if {first!r} == "run":
            run.log(1, {{"z": 2.0}})
        mine.log(2, {{"c": 3.0}})
        mine.log(3, {{"a": 4.0}})
        os._exit(0)
    os.waitpid(pid, 0)
    mine.log(4, {{"b": 5.0}})
    print(json.dumps([os.getpid(), pid]))
    """
    parent, child = Script(tmp_path, source).result()
    found = {pid: [(r.rank, r.step, r.values) for r in records] for pid, (_, records) in by_pid().items()}
    assert found[parent] == [*((3, 0, {key: 1.0}) for key in "abc"), (3, 4, {"b": 5.0})]
    own = [(None, 1, {"z": 2.0})] if first == "run" else []
    assert found[child] == [*own, (3, 2, {"c": 3.0}), (3, 3, {"a": 4.0})]


@pytest.mark.parametrize("row", ["known", "new", "mixed"])
def test_interrupt_at_any_point_loses_no_lane(row: str, run_dir: Path) -> None:
    """After an exception at each point where a signal's handler can run: every lane is back, nothing is claimed."""
    with opened() as (run, file):
        mine = run.as_rank(1)
        mine.log(0, {"a": 0.5})
        at, was_reached = 1, True
        while was_reached:
            rows: dict[str, dict[str, Any]] = {
                "known": {"a": 1.5},
                "new": {f"new{at}": 1.0},
                "mixed": {"a": 1, "b": "x"},
            }
            was_reached = interrupted(mine.log, at, rows[row], at=at)
            at += 1 if at < 60 else 37
            run._session.lanes.find_lost()
            assert len(run._session.lanes.first) + len(run._session.lanes.others) == 4
        mine.log(at, {"after": 1.0})
        records = file.read()
        assert records[-1].values == {"after": 1.0} and {record.rank for record in records} == {1}
        assert len(records) == file.accepted == run.status()["accepted"] <= at + 1
        assert not run._session.encoder._claim and not run._session.lanes.blocks._claims


def test_pickled_it_logs_in_another_process_with_its_rank(run_dir: Path, tmp_path: Path) -> None:
    """A copy attaches to the run as a copy of the run does."""
    source = """
    import pickle
    mine = pickle.loads(bytes.fromhex(sys.argv[1]))
    mine.log(1, {"a": 1.0})
    print(json.dumps(os.getpid()))
    """
    with opened() as (run, _):
        mine = run.as_rank(2)
        mine.log(0, {"a": 0.0})
        child = Script(tmp_path, source, pickle.dumps(mine).hex()).result()
        found = by_pid()
        assert [(record.rank, record.step) for record in found[child][1]] == [(2, 1)]
        assert pickle.loads(pickle.dumps(mine)).rank == 2


def test_finished_run_refuses_and_counts(run_dir: Path) -> None:
    """Nothing raises."""
    with opened() as (run, _):
        mine = run.as_rank(1)
        mine.log(0, {"a": 0.0})
        run.finish(0)
        mine.log(1, {"a": 1.0})
        assert (run.status()["accepted"], run.status()["refused"]) == (1, 1)


@pytest.mark.parametrize("rank", [-1, 1 << 30, 1.0, "1", None, True])
def test_what_is_no_rank_is_said_and_the_own_rank_taken(rank: Any, run_dir: Path) -> None:
    """Nothing ends a training, strict mode aside."""
    with opened(rank=3) as (run, file):
        for step in range(2):
            run.as_rank(rank).log(step, {"a": 1.0})
        assert [record.rank for record in file.read()] == [3, 3]
        (line,) = run.status()["notices"]
        assert "as_rank(" in line
    with opened(strict=True) as (run, _), pytest.raises(BadArgument, match="as_rank"):
        run.as_rank(rank)


def test_disabled_run_has_it(run_dir: Path) -> None:
    """And does nothing."""
    logclient.init("p", mode="disabled").as_rank(1).log(1, {"a": 1.0})


@pytest.mark.parametrize("has_logged", [True, False])
def test_child_that_calls_init_with_a_rank_has_it_from_then_on(
    has_logged: bool, tmp_path: Path, run_dir: Path
) -> None:
    """With floats, other types and new keys, and in a child of it, whose rank that is too."""
    source = """
    run = logclient.init("p")
    run.log(0, {"a": 1.0})
    if not os.fork():
        if sys.argv[1] == "True":
            logclient.log(1, {"a": 1.0})
        assert logclient.init(rank=3) is run
        for row in ({"a": 1.0}, {"a": 1}, {"b": "x"}, {"a": 1.0}):
            logclient.log(2, row)
        if not os.fork():
            logclient.log(3, {"a": 1.0})
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
    print(os.getpid())
    """
    owner = Script(tmp_path, source, has_logged).result()
    found = by_pid()
    ranks = [[record.rank for record in records] for pid, (_, records) in found.items() if pid != owner]
    assert [record.rank for record in found[owner][1]] == [None]
    assert sorted(ranks, key=len) == [[3], [None] * has_logged + [3] * 4]
