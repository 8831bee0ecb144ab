"""Requests to stop and to save on one node: all ranks after the same step, for the attempt in which they were made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient import NullRun
from logclient.run import session_of
from logclient.shm import layout, stop_requests
from logclient.shm.wake import wake
from tests.lanes import Script

from .. import scripts
from ..agents import SUPERVISOR, WORKER, both_killed, kill, successor
from ..disturbed import Trainer, wait_until
from .asking import command, hand_in, live_dir, taken

# ranks that meet in each step, as in a collective; each writes down after which steps it saved and stopped
RANKS = """
import json, multiprocessing, os, random, sys, time
import logclient
RANKS, step_s, every, alone = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "alone"
barrier = multiprocessing.Barrier(RANKS)
rank = 0
for each in range(1, RANKS):
    if os.fork() == 0:
        rank = each
        break
os.environ["LOGCLIENT_RANK"] = str(rank)
run = logclient.init("stop", id=sys.argv[5], quiet=True)
saves, step, stops = [], 0, False
while not stops:
    step += 1
    time.sleep(step_s * random.random())
    barrier.wait(60)
    if step % every == 0 and (rank == 0 or not alone):
        run.log(step, {"loss": 1 / step})
    given = step if alone else None
    if run.should_save(given):
        saves.append(step)
    stops = run.should_stop(given)
run.finish(60)
with open(f"{sys.argv[5]}-{rank}", "w") as file:
    json.dump([step, saves], file)
if rank == 0:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
"""


@pytest.mark.parametrize(
    ("step_s", "every", "how"), [(0.02, 1, "all"), (0.001, 7, "all"), (0.01, 1, "alone")]
)
def test_all_ranks_act_after_the_same_step(
    step_s: float, every: int, how: str, run_dir: Path, tmp_path: Path
) -> None:
    """A save, then a stop with a save: by the steps that each rank logs, or by those it gives where rank 0 logs."""
    run_id = f"ranks-{how}-{every}"
    process = scripts.start(tmp_path, RANKS, "4", str(step_s), str(every), how, run_id)
    try:
        live_dir(run_id)
        wait_until(lambda: any(each.streams() for each in live_dir(run_id).processes), 60, "a step is logged")
        first = command(run_id, "--save-only", "--reason", "before the holidays")
        assert (first["kind"], first["state"], first["reason"]) == ("save", "holds", "before the holidays")
        wait_until(
            lambda: max(map(_newest, live_dir(run_id).processes)) > first["step"] + every,
            60,
            "it saves",
        )
        second = command(run_id, "--save")
        assert scripts.end(process, 120).code == 0
    finally:
        process.kill()
        process.wait()
    ended = [json.loads((tmp_path / f"{run_id}-{rank}").read_text()) for rank in range(4)]
    assert all(each == ended[0] for each in ended), "ranks acted after different steps"
    step, saves = ended[0]
    assert len(saves) == 2 and saves[1] == step
    for at, request in ((saves[0], first), (step, second)):
        assert request["step"] <= at < request["step"] + (every if how == "all" else 1)
    shown = scripts.the_run(run_dir).requests()
    assert [each.what for each in shown] == ["save", "stop and save"]


def _newest(lanes: Any) -> int:
    found = stop_requests.newest_step(lanes.mem, lanes.words, None, time.monotonic() + 1)
    return found or 0


@pytest.fixture
def run(run_dir: Path) -> Iterator[Any]:
    """A run of this process, with an agent."""
    made = logclient.init("stop", name="here", quiet=True)
    try:
        yield made
    finally:
        made.finish(60)


def path_of(run: Any) -> str:
    return str(session_of(run).shm_dir.path)


def steps_until(run: Any, condition: Any, first: int, most: int = 100_000) -> int:
    """Log steps until the condition holds after one; which."""
    for step in range(first, first + most):
        run.log(step, {"loss": 1.0})
        if condition():
            return step
        time.sleep(0.002)
    raise AssertionError("it never holds")


def test_where_no_steps_are_logged_it_is_true_at_once(run: Any) -> None:
    """Also in a forked child that has logged nothing; a withdrawal ends it; nothing of it wakes or waits."""
    assert not run.should_stop() and not run.should_save()
    hand_in(path_of(run), "stop", save=True)
    wait_until(run.should_stop, 60, "it is true")
    assert run.should_save() and not run.should_save(), "once"
    child = os.fork()
    if child == 0:
        os._exit(0 if run.should_stop() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert taken(path_of(run))["step"] is None
    hand_in(path_of(run), "clear")
    wait_until(lambda: not run.should_stop(), 60, "it was withdrawn")


def test_withdrawal_has_a_step_of_its_own(run: Any) -> None:
    """A program that went on sees the stop end after one step, on all ranks the same, and can be asked again."""
    for step in range(10):
        run.log(step, {"loss": 1.0})
    hand_in(path_of(run), "stop")
    first = steps_until(run, run.should_stop, 10)
    assert taken(path_of(run))["step"] == first
    id = hand_in(path_of(run), "clear")
    end = steps_until(run, lambda: not run.should_stop(), first + 1)
    assert taken(path_of(run), id)["step"] == end
    assert not run.should_stop(end) and run.should_stop(first) and not run.should_stop(first - 1)
    assert not run.should_stop(end + 1000)
    hand_in(path_of(run), "stop")
    assert steps_until(run, run.should_stop, end + 1) > end
    states = [each["state"] for each in live_dir(run.id).requests()]
    assert states == ["withdrawn", "done", "holds"]


def test_a_stop_that_holds_is_not_put_off(run: Any) -> None:
    """Whoever asks again gets the step of the first request."""
    for step in range(10):
        run.log(step, {"loss": 1.0})
    first = taken(path_of(run), hand_in(path_of(run), "stop"))
    second = taken(path_of(run), hand_in(path_of(run), "stop", by="another"))
    assert first["step"] == second["step"] and second["state"] == "holds"


def test_request_that_comes_twice_is_taken_once(run: Any) -> None:
    """By its id, also by the next worker: a collector sends it in each conversation, a stop file stays."""
    for step in range(10):
        run.log(step, {"loss": 1.0})
    id = stop_requests.new_id()
    hand_in(path_of(run), "save", id=id)
    steps_until(run, run.should_save, 10)
    page = session_of(run).status_page
    assert page is not None and page[layout.SAVE_NUMBER] == 1
    for _ in range(2):
        hand_in(path_of(run), "save", id=id)
        taken(path_of(run), hand_in(path_of(run), "clear"))  # behind the other
        assert page[layout.SAVE_NUMBER] == 1
        kill(before := page[layout.AGENT_WORKER])
        while page[layout.AGENT_WORKER] == before:
            time.sleep(0.005)
    assert [each["kind"] for each in live_dir(run.id).requests()] == ["save", "clear", "clear"]


def test_ranks_of_one_process_go_by_their_own_steps(run: Any) -> None:
    """Threads with a device each: what one logged does not stop another earlier, and each saves once."""
    ahead, behind = run.as_rank(0), run.as_rank(1)
    for step in range(10):
        ahead.log(step, {"loss": 1.0})
        behind.log(step, {"loss": 1.0})
    hand_in(path_of(run), "stop", save=True)
    step = taken(path_of(run))["step"]
    for each in range(10, step + 1):
        ahead.log(each, {"loss": 1.0})
    assert ahead.should_stop() and not behind.should_stop() and not behind.should_save()
    for each in range(10, step + 1):
        behind.log(each, {"loss": 1.0})
    assert behind.should_stop() and behind.should_save() and ahead.should_save()
    assert not behind.should_save() and not ahead.should_save()


@pytest.mark.parametrize(
    "step",
    [None, "soon", 2.5, float("nan"), 10**40, -(10**40), True, object(), [1], type],
    ids=["None", "text", "float", "NaN", "huge", "low", "bool", "object", "list", "type"],
)
def test_no_step_makes_it_raise(step: Any, run: Any) -> None:
    """What is no step counts as none was given."""
    for each in range(10):
        run.log(each, {"loss": 1.0})
    hand_in(path_of(run), "stop", save=True)
    ahead = taken(path_of(run))["step"]
    assert run.should_stop(step) is (step == 10**40)
    assert run.should_save(step) is (step == 10**40)
    assert run.should_stop(ahead)


def test_depth_of_the_stack_does_not_make_it_raise(run: Any) -> None:
    """Near the interpreter's limit the answer is no, as long as there is room for the call itself."""
    for step in range(10):
        run.log(step, {"loss": 1.0})
    hand_in(path_of(run), "stop", save=True)
    steps_until(run, run.should_stop, 10)

    def deep(room: int) -> int:
        """How many calls raised, with less and less room below them."""
        try:
            raised = deep(room + 1)
        except RecursionError:
            return 0
        try:
            run.should_stop("no step")
            run.should_save("no step")
        except RecursionError:
            raised += 1
        return raised

    assert deep(0) <= 2, "calls for which there is no room, as of any function"
    assert run.should_stop()


def test_every_kind_of_run_answers(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disabled, none, finished: no, and nobody waits."""
    monkeypatch.setattr("logclient._run", None)  # an earlier test's
    assert NullRun("", {}, ()).should_stop() is NullRun("", {}, ()).should_save() is False
    assert logclient.should_stop() is logclient.should_save() is False
    with logclient.init("stop", quiet=True) as run:
        assert logclient.should_stop() is logclient.should_save() is False
        hand_in(path_of(run), "stop")
        wait_until(logclient.should_stop, 60, "module functions ask the current run")
    assert run.should_stop() and not run.should_save(), "what was true stays so"
    assert logclient.init(mode="disabled").should_stop() is False


def test_child_process_without_init_finds_the_request(run: Any, tmp_path: Path) -> None:
    """A child that calls `logclient.should_stop()` asks the run of its parent."""
    child = Script(
        tmp_path,
        """
        import time
        deadline = time.monotonic() + 60
        while not logclient.should_stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        print(json.dumps([logclient.should_stop(), logclient.should_save()]))
        """,
    )
    hand_in(path_of(run), "stop")
    assert child.result(120) == [True, False]


def test_resumed_run_does_not_stop(run_dir: Path) -> None:
    """Not where it joins the shared memory of the attempt in which the stop was asked; nor does it save."""
    first = logclient.init("stop", id="again", quiet=True)
    path = path_of(first)
    read_end, write_end = os.pipe()
    child = os.fork()  # keeps the agent where it is
    if child == 0:
        first.log(0, {"child": 1.0})
        os.write(write_end, b"x")
        while not first.should_stop():
            time.sleep(0.005)
        signal.pause()
    try:
        assert os.read(read_end, 1) == b"x"
        for step in range(1, 10):
            first.log(step, {"loss": 1.0})
        hand_in(path, "stop", save=True)
        last = steps_until(first, first.should_stop, 10)
        assert first.finish(60)
        second = logclient.init("stop", id="again", quiet=True)
        assert path_of(second) == path, "the test needs the same shared memory"
        for step in range(last + 1, last + 50):
            second.log(step, {"loss": 1.0})
            assert not second.should_stop() and not second.should_save()
            time.sleep(0.005)
        wait_until(lambda: taken(path)["state"] == "over", 60, "the request is void")
        assert not second.should_stop()
        hand_in(path, "stop")
        steps_until(second, second.should_stop, last + 50)
        assert second.finish(60)
    finally:
        kill(child)
        os.waitpid(child, 0)


def test_late_rank_of_the_same_attempt_sees_the_request(run: Any, tmp_path: Path) -> None:
    """A process that joins after it was asked, while others of the attempt are at work."""
    hand_in(path_of(run), "stop")
    wait_until(run.should_stop, 60, "it is true")
    late = Script(
        tmp_path,
        """
        import time
        run = logclient.init("stop", id=sys.argv[1])
        deadline = time.monotonic() + 60
        while not run.should_stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        print(json.dumps(run.should_stop()))
        """,
        run.id,
        env={"LOGCLIENT_PARENT": ""},
    )
    assert late.result(120) is True


def test_request_outlives_the_worker(run: Any) -> None:
    """The next one neither takes it again nor forgets it, and takes others."""
    for step in range(10):
        run.log(step, {"loss": 1.0})
    id = hand_in(path_of(run), "stop", save=True)
    step = taken(path_of(run), id)["step"]
    page = session_of(run).status_page
    assert page is not None
    for _ in range(2):
        kill(before := page[layout.AGENT_WORKER])
        while page[layout.AGENT_WORKER] == before:
            time.sleep(0.005)
    assert steps_until(run, run.should_stop, 10) == step
    assert run.should_save() and not run.should_save()
    hand_in(path_of(run), "save")
    steps_until(run, run.should_save, step + 1)
    assert [each["id"] for each in live_dir(run.id).requests()].count(id) == 1


def test_stopped_worker_takes_nothing_and_trainer_goes_on(run_dir: Path, tmp_path: Path) -> None:
    """The command says that nobody took it, and takes it back: the worker that comes to does not find it."""
    trainer = Trainer(tmp_path, {"LOGCLIENT_STALL_S": "600"}, until_told=True, rate=200, values=1)
    try:
        worker, supervisor = trainer.agent_pid(WORKER), trainer.agent_pid(SUPERVISOR)
        kill(supervisor, signal.SIGSTOP)
        kill(worker, signal.SIGSTOP)
        try:
            told = command(trainer.run_id, code=1)
            assert "has not taken it" in told["error"]
            trainer.wait_logged_more(100)
        finally:
            kill(worker, signal.SIGCONT)
            kill(supervisor, signal.SIGCONT)
        assert command(trainer.run_id, "--clear", code=1)["why"] == "nothing"
        assert [each["kind"] for each in live_dir(trainer.run_id).requests()] == ["clear"]
        trainer.tell_to_end()
    finally:
        trainer.process.kill()
        trainer.process.communicate()


def test_run_without_an_agent_is_not_asked(run_dir: Path, tmp_path: Path) -> None:
    """Nobody would read it."""
    trainer = Trainer(tmp_path, until_told=True, rate=200, values=1)
    try:
        both_killed(trainer)
        assert "no agent" in command(trainer.run_id, code=1)["error"]
        assert not list(Path(trainer.shm_dir).glob(f"*{stop_requests.SUFFIX}"))
    finally:
        trainer.process.kill()
        trainer.process.communicate()


def test_unknown_runs_and_contradictions_are_sentences(run_dir: Path) -> None:
    """No run, more than one, options that exclude each other."""
    assert "No live run" in command("nobody", code=3)["error"]
    assert "exclude" in command("nobody", "--clear", "--save", code=2)["error"]
    with logclient.init("stop", id="twin-1", quiet=True), logclient.init("stop", id="twin-2", quiet=True):
        found = command("twin", code=3)["error"]
        assert "twin-1" in found and "twin-2" in found
        assert command("twin-1")["state"] == "holds"


NODE = """
import sys, time
import logclient
run = logclient.init("stop", id="nodes", quiet=True)
run.log(1, {"loss": 1.0})
sys.stdin.readline()
print(run.should_stop(10**9))
run.finish(60)
"""


def test_run_with_ranks_elsewhere_is_not_stopped_here_alone(run_dir: Path, tmp_path: Path) -> None:
    """Without a server: unless that is what is wanted."""
    launch = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
    env = scripts.environment(**launch, MASTER_PORT="29500")
    process = scripts.start(tmp_path, NODE, env=env, stdin=subprocess.PIPE)
    try:
        live_dir("nodes")
        refused = command("nodes", code=1)["error"]
        assert "other nodes" in refused and "--this-node-only" in refused
        assert command("nodes", "--this-node-only")["state"] == "holds"
        assert scripts.end_with(process, "\n").out.strip() == "True"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"kind": "shell"}', b'{"kind": "stop", "id": "../../x"}', b"\xff" * 20_000],
    ids=["empty", "cut", "list", "kind", "id", "large"],
)
def test_files_that_are_no_requests_are_removed(content: bytes, run: Any) -> None:
    """And do nothing; neither does a folder of that name, or a link."""
    path = Path(path_of(run))
    (path / f"a{stop_requests.SUFFIX}").write_bytes(content)
    (path / f"b{stop_requests.SUFFIX}").symlink_to("/etc/hostname")
    session = session_of(run)
    wake(session.shm_dir)
    wait_until(lambda: not (path / f"a{stop_requests.SUFFIX}").exists(), 60, "it is removed")
    id = hand_in(str(path), "save", reason="a\nb\x1b[2J" + "x" * 1000, by="me\0")
    found = taken(str(path), id)
    assert found["reason"].isprintable() and len(found["reason"]) == 500 and found["by"] == "me"
    assert not run.should_stop()
    assert len(live_dir(run.id).requests()) == 1


def test_supervisor_and_worker_change_and_the_next_request_is_taken(run_dir: Path, tmp_path: Path) -> None:
    """A promoted supervisor's worker takes requests as any."""
    trainer = Trainer(tmp_path, until_told=True, rate=200, values=1)
    try:
        supervisor = trainer.agent_pid(SUPERVISOR)
        trainer.agent_pid(WORKER)  # which forks another one
        kill(supervisor)
        successor(trainer, SUPERVISOR, supervisor)
        assert command(trainer.run_id, "--save-only")["state"] == "holds"
        trainer.tell_to_end()
    finally:
        trainer.process.kill()
        trainer.process.communicate()
