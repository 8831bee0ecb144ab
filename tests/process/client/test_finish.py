"""`finish` and `flush` judge what is accepted, exactly, and bring an agent where none lives."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import Run
from logclient.shm import layout
from tests.conftest import Pace, kill_all_with
from tests.interrupts import interrupted
from tests.lanes import opened

from .. import scripts
from ..agents import nothing_left
from ..disturbed import wait_until

Log = Callable[[int, dict[str, Any]], None]


def start(**settings: Any) -> Any:
    run = logclient.init("ends", quiet=True, **settings)
    assert isinstance(run, Run)
    return run


def kill_agents() -> None:
    """SIGKILL to every process of every agent of this test, and to what they fork meanwhile."""
    kill_all_with(f"LOGCLIENT_SHM_DIR={os.environ['LOGCLIENT_SHM_DIR']}")


def is_exact(status: logclient.Status) -> bool:
    return status["accepted"] == status["durable"] + status["forgotten"] + status["damaged"]


def rows(step: int, kind: int) -> dict[str, Any]:
    """Known keys, ever new ones, and what takes the slower paths."""
    return ({"a": 1.0}, {"a": 1.0, f"x{step % 50}": "t"}, {"a": step}, {"deep": {"b": 1}})[kind % 4]


class Loggers:
    """Threads that log as fast as they can until they are told to stop."""

    def __init__(self, run: Any, count: int = 6) -> None:
        logs: list[Log] = [run.log, run.as_rank(7).log]
        self.calls = [0] * count
        self.raised: list[BaseException] = []
        self._is_over = False
        self._threads = [
            threading.Thread(target=self._log, args=(index, logs[index % 2])) for index in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _log(self, index: int, log: Log) -> None:
        step = 0
        while not self._is_over:
            try:
                log(step, rows(step, step % 3 and index))
            except BaseException as error:  # noqa: BLE001 - whatever it is
                self.raised.append(error)
            step += 1
            self.calls[index] = step

    def stop(self) -> int:
        """End them; how many calls they made."""
        self._is_over = True
        for thread in self._threads:
            thread.join()
        assert not self.raised, self.raised[:3]
        return sum(self.calls)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_record_is_accepted_behind_finish(run_dir: Path, pace: Pace) -> None:
    """Six threads log while another one finishes: True only where all accepted records are accounted for, for good."""
    answers = []
    for trial in range(pace.count(2_000) if pace <= 1 else 10):
        run = start(dir=run_dir / str(trial))
        threads = Loggers(run)
        time.sleep(random.random() / 10)  # the moment of the finish
        done = run.finish(10)
        then = run.status()
        after = threads.calls.copy()
        wait_until(lambda: all(map(int.__gt__, threads.calls, after)), 60, "all log on")  # noqa: B023
        calls, now = threads.stop(), run.status()
        assert not done or is_exact(then), then
        assert now["accepted"] == then["accepted"], "accepted after finish"
        assert calls == now["accepted"] + now["refused"], (calls, now)
        answers.append(done)
    assert all(answers), f"{answers.count(False)} times not on disk within 10 s"
    nothing_left(60)
    for trial, run_folder in enumerate(sorted(run_dir.iterdir(), key=lambda path: int(path.name))):
        (found,) = logclient.read(run_folder)
        assert found.state == "finished", trial


@pytest.mark.slow
def test_finish_inside_a_call_of_log_is_final(run_dir: Path) -> None:
    """A handler that finishes the run in the middle of `log`, at any point: the call is accepted before, or refused."""
    for kind in range(4):
        at = 0
        is_inside = True
        while is_inside:
            at += 1
            with opened() as (run, file):
                run.log(0, rows(0, kind))
                seen: list[int] = []

                def finish(run: Any = run, seen: list[int] = seen) -> None:
                    run.finish(0)
                    seen.append(run.status()["accepted"])

                is_inside = interrupted(run.log, 1, rows(0, kind), at=at, action=finish)
                status = run.status()
                run.log(2, rows(0, kind))
                assert not seen or seen == [status["accepted"]] == [file.accepted], (kind, at)
                assert status["accepted"] + status["refused"] == 2
                assert run.status()["refused"] == status["refused"] + bool(seen)
        assert at > 5


def test_second_finish_answers_for_what_is_on_disk(run_dir: Path) -> None:
    """Odd arguments end nothing halfway, and no later call says True of what nobody has seen on disk."""
    with opened() as (run, file):
        run.log(1, {"a": 1.0})
        assert run.finish("10") is False and run.finish() is False
        assert run.status()["durable"] == 0
        assert any(
            "finish(timeout_s='10') is no number of seconds" in line for line in run.status()["notices"]
        )
        run.log(2, {"a": 1.0})
        assert run.status()["refused"] == 1 and file.words[layout.STATE] == layout.STATE_FINISHED
    with opened() as (run, file):
        run.log(1, {"a": 1.0})
        inner: list[bool] = []
        second = threading.Thread(target=lambda: inner.append(run.finish(20)))
        first = threading.Thread(target=lambda: inner.append(run.finish(20)))
        first.start()
        second.start()
        wait_until(lambda: file.document("state") is not None, 20, "the first has begun")
        assert not inner
        file.read()
        file.make_durable()
        first.join()
        second.join()
        assert inner == [True, True] and run.finish() is True


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_run_whose_agents_were_all_killed_ends_whole(run_dir: Path, pace: Pace) -> None:
    """Every process of the agent dies at a random moment: finish(10) brings another, and nothing is missing."""
    logged = []
    for trial in range(pace.count(50, least=3)):
        run = start(dir=run_dir / str(trial))
        step, kill_at = 0, time.monotonic() + random.random() / 2
        end = kill_at + random.random() / 10
        killed = False
        while (now := time.monotonic()) < end:
            if not killed and now > kill_at:
                kill_agents()
                killed = True
            run.log(step, {"a": float(step)})
            step += 1
            time.sleep(0.0002)  # a training step: lanes hold what comes until another agent is there
        kill_agents()
        run.summary["last"] = step
        assert run.finish(10), run.status()
        status = run.status()
        assert is_exact(status) and status["accepted"] == step and status["forgotten"] == 0, status
        logged.append(step)
    nothing_left(60)
    for trial, count in enumerate(logged):
        (found,) = logclient.read(run_dir / str(trial))
        assert found.state == "finished" and found.summary["last"] == count
        assert found.series("a").step.tolist() == list(range(count))


def test_flush_brings_an_agent_and_log_and_status_do_not(run_dir: Path) -> None:
    """What `log` and `status` cost stays what it is; `flush` takes its time."""
    run = start()
    run.log(1, {"a": 1.0})
    assert run.flush(60)
    kill_agents()
    run.log(2, {"a": 1.0})
    assert run.status()["agent"]["state"] in ("running", "gone")
    assert not is_locked_by_an_agent(run)
    assert run.flush(60) and is_locked_by_an_agent(run)
    assert run.finish(60) and run.status()["durable"] == 2


def is_locked_by_an_agent(run: Any) -> bool:
    from logclient.spawn import agent as spawn

    return spawn.agent_lives(run._session.shm_dir)


def test_exit_hook_brings_an_agent(run_dir: Path, tmp_path: Path) -> None:
    """A program that never calls finish, and whose agent was killed."""
    code = """
    import os, signal, time, logclient
    run = logclient.init("case")
    run.log(1, {"loss": 1.0})
    assert run.flush(60)
    agent = run.status()["agent"]
    os.kill(agent["supervisor"], signal.SIGSTOP)
    os.kill(agent["worker"], signal.SIGKILL)
    os.kill(agent["supervisor"], signal.SIGKILL)
    for step in range(2, 1000):
        run.log(step, {"loss": 1.0})
    """
    scripts.run_well(tmp_path, code)
    nothing_left()
    found = scripts.the_run(run_dir)
    assert len(scripts.points(found)["loss"]) == 999


@pytest.mark.slow
def test_nobody_is_waited_for_where_none_can_serve(run_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The shm directory is gone with its agent: False at once, in true words."""
    run = logclient.init("ends")
    assert isinstance(run, Run)
    run.log(1, {"a": 1.0})
    assert run.flush(60)
    kill_agents()
    shutil.rmtree(run._session.shm_dir.path)
    run.log(2, {"a": 1.0})
    limit_s = 30.0
    begun = time.monotonic()
    assert not run.finish(600)
    assert time.monotonic() - begun < limit_s, "as long as an agent takes to be known as gone, at most"
    said = capfd.readouterr().err
    assert "1 records are not on disk" in said and "removed" in said, said
    assert "goes on with it" not in said and "after 600 s" not in said


REMOVED = """
import os, sys, tempfile
import logclient
how, count = sys.argv[1], int(sys.argv[2])
for number in range(count):
    with tempfile.TemporaryDirectory(dir=".") as folder:
        where = os.path.join(folder, "runs") if number % 2 else folder
        run = logclient.init("case", dir=where, quiet=True)
        for step in range(20):
            run.log(step, {"loss": step / 2})
        if how == "flush":
            assert run.flush(60)
        if how == "with":
            with run:
                run.log(20, {"loss": 1.0})
        else:
            assert run.finish(60)
    assert os.listdir(".") == ["train.py"]
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["finish", "flush", "with"])
def test_folder_that_its_owner_removes_stays_removed(
    how: str, run_dir: Path, tmp_path: Path, pace: Pace
) -> None:
    """Twenty `TemporaryDirectory` around a run each: once it is finished, nothing is written or made there again."""
    scripts.run_well(tmp_path, REMOVED, how, str(pace.count(400, least=20)), timeout_s=200)
    nothing_left(60)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_folder_stays_removed_though_its_agent_was_not_done(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stops before its last writes and is replaced: all was on disk, so nothing is made again."""
    monkeypatch.setenv("LOGCLIENT_FAILPOINTS", "copy.seal=stop:1!")
    scripts.run_well(tmp_path, REMOVED, "finish", "1")
    nothing_left(60)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
