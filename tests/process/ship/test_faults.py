"""A collector that is dead, stopped, silent or gone, killed processes of the agent: late, and never lost or twice."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.cli.status import describe
from logclient_backend.runs import live
from logclient_backend.wire.messages import NotTaken, Parcel
from tests.collectors import MemoryCollector
from tools.collector import free_port
from tools.faults import processes

from .. import scripts
from ..agents import SUPERVISOR, WORKER, both_killed, checked, is_gone, kill, log_of, nothing_left, successor
from ..disturbed import Trainer, documents, wait_until
from ..shipped import PATIENCE_S, SHIPPER, Outside, address_of, at, black_hole


@pytest.fixture
def collector() -> Iterator[MemoryCollector]:
    with MemoryCollector() as made:
        yield made


def ends_well(trainer: Trainer, collector: MemoryCollector, run_dir: Path) -> None:
    """All is in both places, and no process and no file is left."""
    pids = [trainer.word(which) for which in (SUPERVISOR, WORKER, SHIPPER)]
    status = trainer.end()
    trainer.wait_gone(PATIENCE_S)
    wait_until(lambda: all(map(is_gone, pids)), PATIENCE_S, "its processes are gone")
    checked(run_dir, status["accepted"], order=False)
    at(collector, status["accepted"])
    nothing_left()


# ---- processes of the agent ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_shipper_is_replaced_each_time(
    run_dir: Path, tmp_path: Path, collector: MemoryCollector, pace
) -> None:
    """SIGKILL of the process that ships, 20 times (paced): each record is there once, and no descriptor piles up."""
    trainer = Trainer(tmp_path, address_of(collector.address.port), rate=2_000, until_told=True)
    supervisor = trainer.agent_pid(SUPERVISOR)
    restarts = trainer.word(layout.AGENT_RESTARTS)
    kills = pace.count(20, least=3)
    fds = []
    for _ in range(kills):
        shipped = trainer.word(layout.AGENT_SHIPPED)
        trainer.wait_shipped(shipped + 1)
        before = trainer.agent_pid(SHIPPER)
        kill(before)
        successor(trainer, SHIPPER, before, deadline_s=PATIENCE_S)
        fds.append(len(list(Path(f"/proc/{supervisor}/fd").iterdir())))
    assert trainer.word(layout.AGENT_SHIP_RESTARTS) == kills
    assert trainer.word(layout.AGENT_RESTARTS) == restarts, "the worker has nothing to do with it"
    assert max(fds) <= min(fds) + 4
    trainer.kill(signal.SIGUSR1)
    ends_well(trainer, collector, run_dir)


@pytest.mark.slow
def test_stopped_shipper_is_killed_and_replaced(
    run_dir: Path, tmp_path: Path, collector: MemoryCollector
) -> None:
    """It shows no sign of life: another one takes its place, and shipping goes on."""
    settings = {"LOGCLIENT_STALL_S": "1"} | address_of(collector.address.port)
    trainer = Trainer(tmp_path, settings, rate=200, until_told=True)
    trainer.wait_shipped(1)
    before = trainer.agent_pid(SHIPPER)
    kill(before, signal.SIGSTOP)
    successor(trainer, SHIPPER, before, deadline_s=PATIENCE_S)
    wait_until(lambda: is_gone(before), PATIENCE_S, "the stopped one is gone")
    trainer.wait_shipped_more(1)
    trainer.kill(signal.SIGUSR1)
    ends_well(trainer, collector, run_dir)


@pytest.mark.slow
def test_shipping_goes_on_while_worker_and_supervisor_die(
    run_dir: Path, tmp_path: Path, collector: MemoryCollector
) -> None:
    """The process that ships outlives both, and is the same one afterwards."""
    trainer = Trainer(tmp_path, address_of(collector.address.port), rate=1_000, until_told=True)
    trainer.wait_shipped(1)
    shipper = trainer.agent_pid(SHIPPER)
    for which in (WORKER, SUPERVISOR, WORKER):
        before = trainer.agent_pid(which)
        kill(before)
        successor(trainer, which, before, deadline_s=PATIENCE_S)
        trainer.wait_shipped_more(1)
    assert trainer.agent_pid(SHIPPER) == shipper
    trainer.kill(signal.SIGUSR1)
    ends_well(trainer, collector, run_dir)


@pytest.mark.slow
def test_next_agent_takes_over_the_shipper_of_a_dead_one(
    run_dir: Path, tmp_path: Path, collector: MemoryCollector
) -> None:
    """Supervisor and worker are killed: what is staged is shipped, and the next process of the run brings an agent."""
    trainer = Trainer(tmp_path, address_of(collector.address.port), rate=500, until_told=True)
    trainer.wait_shipped(1)
    shipper = trainer.agent_pid(SHIPPER)
    both_killed(trainer)
    code = "import logclient, sys; print(logclient.init('case', id=sys.argv[1], quiet=True).finish(30))"
    helper = scripts.run_well(
        tmp_path, code, trainer.run_id, env=scripts.environment(**address_of(collector.address.port))
    )
    assert helper.out.split() == ["True"]
    trainer.wait_shipped_more(1)
    assert trainer.agent_pid(SHIPPER) == shipper
    trainer.kill(signal.SIGUSR1)
    ends_well(trainer, collector, run_dir)


# ---- the collector ------------------------------------------------------------------------------------------

ABOUT_ITSELF = """
    import json, os, sys, threading, time, logclient
    def size():
        with open("/proc/self/statm") as file:
            memory = int(file.read().split()[1]) * 4096
        return memory, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    run = logclient.init("case", finish_timeout_s=50.0)
    sizes = []
    for step in range(3_000):
        run.log(step, {"loss": step / 2, "lr": 0.1})
        if step % 500 == 499:
            time.sleep(0.3)
            sizes.append(size())
    if sys.argv[1] == "live":
        deadline = time.monotonic() + 60
        while run.status()["acked"] < 3_000 and time.monotonic() < deadline:
            time.sleep(0.01)
    modules = sorted(name for name in sys.modules if name.partition(".")[0] in ("grpc", "google"))
    begun = time.monotonic()
    done = run.finish()
    finish_s = time.monotonic() - begun
    print(json.dumps([finish_s, done, sizes, modules, run.status()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["live", "dead", "stopped", "silent"])
def test_the_program_does_not_wait_for_a_collector(run_dir: Path, tmp_path: Path, what: str) -> None:
    """P6, R2-06: finish returns in its time; memory, descriptors and threads stay; what is missing is said."""
    with ExitStack() as stack:
        if what in ("live", "stopped"):
            outside = stack.enter_context(Outside())
            port = outside.port
            if what == "stopped":
                outside.process.send_signal(signal.SIGSTOP)
                wait_until(lambda: processes.state_of(outside.process.pid) == "T", 10, "it is stopped")
        else:
            port = free_port() if what == "dead" else stack.enter_context(black_hole())
        env = scripts.environment(LOGCLIENT_SHIP_LEAVE_S="1", **address_of(port))
        ended = scripts.run_well(tmp_path, ABOUT_ITSELF, what, env=env, timeout_s=110)
        finish_s, done, sizes, modules, status = json.loads(ended.out)
        assert done is True and finish_s < 50.0
        assert modules == []
        assert sizes[0][1:] == sizes[-1][1:], "descriptors and threads"
        assert sizes[-1][0] - sizes[1][0] < 4 << 20, "memory"
        (line,) = ended.said[1:]
        if what == "live":
            assert status["acked"] == 3_000 and "not yet at" not in line
        else:
            assert (status["durable"], status["acked"], status["server"]["lag_records"]) == (3_000, 0, 3_000)
            assert "3,000 records are not yet at grpc://127.0.0.1" in line
            assert f"`logclient sync {run_dir}/" in line and f"--server grpc://127.0.0.1:{port}`" in line
        nothing_left(PATIENCE_S)
        if what == "dead":
            (node,) = documents(run_dir)
            assert node["ship"]["state"] == "waiting" and "cannot be reached" in node["ship"]["error"]
            said = [row for row in log_of(run_dir).splitlines() if "cannot be reached" in row]
            assert len(said) == 1, "once a minute"


def test_collector_that_comes_late_and_goes_again_gets_all(run_dir: Path, tmp_path: Path) -> None:
    """Nobody listens at init; then somebody does, is killed in mid-run, and another one that has nothing comes."""
    port = free_port()
    trainer = Trainer(tmp_path, address_of(port), rate=1_000, until_told=True)
    wait_until(lambda: trainer.ship_state == "waiting", PATIENCE_S, "it was tried")
    live_dir = live.look(trainer.shm_dir)
    assert live_dir is not None
    found = describe(live_dir)
    assert found["server"]["state"] in ("waiting", "connecting") and found["server"]["lag_records"] > 0
    assert any("cannot be reached" in problem for problem in found["problems"])
    with Outside(port) as outside:
        trainer.wait_shipped(100)
        outside.process.kill()
        outside.process.wait()
        wait_until(lambda: trainer.ship_state == "waiting", PATIENCE_S, "its end is seen")
    collector = MemoryCollector().start(port)
    try:
        wait_until(lambda: collector.records > 100, PATIENCE_S, "the new one gets all from the first record")
        trainer.kill(signal.SIGUSR1)
        ends_well(trainer, collector, run_dir)
    finally:
        collector.stop()


@pytest.mark.slow
def test_agent_leaves_when_the_collector_takes_nothing(run_dir: Path, tmp_path: Path) -> None:
    """Every parcel is answered with an error: after `ship_leave_s` the agent goes, and sync finishes the job."""

    def refuse(parcel: object) -> None:
        raise NotTaken("no room here", "disk", retry_after_s=0.2)

    with MemoryCollector() as collector:
        collector.on_parcel = refuse
        settings = {"LOGCLIENT_SHIP_LEAVE_S": "2"} | address_of(collector.address.port)
        trainer = Trainer(tmp_path, settings, records=500, rate=2_000)
        status = trainer.end()
        assert status["durable"] == 500 and status["acked"] == 0
        nothing_left(PATIENCE_S)
        checked(run_dir, 500)
        (node,) = documents(run_dir)
        assert node["ship"]["error"].endswith("no room here")
        (to,) = scripts.the_run(run_dir).shipments()
        assert (to.stored, to.acked, to.is_closed) == (500, 0, True)
        assert collector.records == 0
        collector.on_parcel = None
        words = [sys.executable, "-m", "logclient_backend", "sync", str(run_dir / trainer.run_id)]
        ended = scripts.run_words(
            tmp_path, [*words, "--server", str(collector.address)], timeout_s=PATIENCE_S
        )
        assert ended.code == 0, ended
        at(collector, 500)


@pytest.mark.slow
def test_records_that_the_collector_will_never_take_are_told_as_such(run_dir: Path, tmp_path: Path) -> None:
    """In status, and in the last line, which promises nothing that no command can do."""
    code = """
        import time, logclient
        run = logclient.init("case", id="it")
        for step in range(20):
            run.log(step, {"loss": step})
        while run.status()["server"]["refused_records"] < 20:
            time.sleep(0.01)
        run.finish()
    """

    def refuse(parcel: Parcel) -> None:
        if parcel.batches:
            raise NotTaken("too odd for me", "invalid", is_final=True)

    with MemoryCollector() as collector:
        collector.on_parcel = refuse
        where = str(collector.address)
        ended = scripts.run_well(
            tmp_path, code, env=scripts.environment(LOGCLIENT_SERVER=where), timeout_s=PATIENCE_S
        )
        said = f"; 20 records are not at {where}, which refuses them (too odd for me): they stay in the run folder"
        assert ended.said[-1].endswith(said)
        nothing_left(PATIENCE_S)


def test_deleted_run_is_said_and_not_waited_for(
    run_dir: Path, tmp_path: Path, collector: MemoryCollector
) -> None:
    """A final refusal: no retries, the agent leaves at once, and finish says why."""
    collector.deleted.add("gone")
    settings = {"LOGCLIENT_RUN_ID": "gone"} | address_of(collector.address.port)
    trainer = Trainer(tmp_path, settings, records=200, rate=2_000, hold=1, quiet=False)
    wait_until(lambda: trainer.ship_state == "refused", PATIENCE_S, "it is refused")
    status = trainer.end()
    assert status["server"]["state"] == "refused" and "was deleted" in status["server"]["error"]
    nothing_left(PATIENCE_S)
    assert len(collector.hellos) == 1
    checked(run_dir, 200)


@pytest.mark.root
@pytest.mark.slow
def test_shipping_goes_on_while_the_run_folder_hangs(
    disk, tmp_path: Path, collector: MemoryCollector
) -> None:
    """The disk under the run folder is frozen: what is logged meanwhile is at the collector before it is on disk."""
    settings = address_of(collector.address.port)
    trainer = Trainer(tmp_path, settings, rate=500, until_told=True)
    trainer.wait_shipped(100)
    with disk.frozen():
        shipped = trainer.word(layout.AGENT_SHIPPED)
        trainer.wait_shipped(shipped + 1_000)
        page = trainer.status_page()
        wait_until(lambda: page.words[layout.AGENT_WRITE_STALLED_NS], PATIENCE_S, "the disk is silent")
        trainer.wait_shipped_more(500)
    trainer.kill(signal.SIGUSR1)
    ends_well(trainer, collector, disk.path / "runs")
