"""What is logged is at the collector seconds later, and nobody but the process that ships has to do with it."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient.shm.health import no_server
from logclient_backend.wire.messages import digest
from tests.collectors import MemoryCollector
from tests.listing import contents, listed
from tools.faults import fuse

from .. import scripts
from ..agents import SUPERVISOR, WORKER, checked, is_gone, nothing_left
from ..disturbed import Trainer, documents, wait_until
from ..shipped import PATIENCE_S, SHIPPER, address_of, at

HUNDRED = """
    import json, sys, time, logclient
    run = logclient.init("case", id="it")
    for step in range(100):
        run.log(step, {"loss": step / 2})
    deadline = time.monotonic() + 60
    while run.status()["acked"] < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    before = run.status()
    done = run.finish(60)
    print(json.dumps([before, done, run.status()]))
"""


def test_rows_are_there_while_the_program_runs_and_its_end_as_well(run_dir: Path, tmp_path: Path) -> None:
    """Acked in status() means at the collector; then state and documents get there, and the agent leaves."""
    with MemoryCollector() as collector:
        where = str(collector.address)
        ended = scripts.run_well(tmp_path, HUNDRED, env=scripts.environment(LOGCLIENT_SERVER=where))
        before, done, after = json.loads(ended.out)
        assert before["acked"] == after["acked"] == 100
        assert before["server"] | {"state": ""} == {
            "address": where,
            "state": "",
            "error": "",
            "reason": "",
            "lag_records": 0,
            "refused_records": 0,
        }
        assert before["server"]["state"] in ("shipping", "idle")
        assert done is True
        first, last = ended.said
        assert first.endswith(f" -> {where}")
        assert last.endswith(f"; all of it is at {where}")
        nothing_left(PATIENCE_S)
        (node,) = documents(run_dir)
        assert node["ship"] == {"server": where, "state": "connected", "error": ""}
        assert [counts["acked"] for counts in node["streams"].values()] == [100]
        (to,) = scripts.the_run(run_dir).shipments()
        assert (to.server, to.stored, to.acked, to.is_closed) == (where, 100, 100, True)
        kept = collector.node()
        assert kept.steps() == list(range(100)) and kept.repeated == 0
        there = json.loads(kept.documents)
        assert there["closed"] is True
        (process,) = there["processes"].values()
        assert process["documents"]["state"]["data"]["state"] == "finished"
        assert there["streams"] == node["streams"]


PAUSES = """
    import logclient, sys
    run = logclient.init("case", id="it")
    for line in sys.stdin:
        run.log(int(line), {"loss": 1.0})
    run.summary["best"] = 1.0
    sys.exit(not run.finish(60))
"""


@pytest.mark.slow
def test_conversation_ends_at_rest_and_a_record_begins_another_one(run_dir: Path, tmp_path: Path) -> None:
    """No connection is left open by a run in which nothing is logged; each record arrives, and so does the end."""
    with MemoryCollector() as collector:
        env = scripts.environment(LOGCLIENT_SERVER=str(collector.address), LOGCLIENT_SHIP_REST_S="0.3")
        program = scripts.start(tmp_path, PAUSES, stdin=-1, env=env)
        assert program.stdin is not None
        try:
            for step in range(3):
                program.stdin.write(f"{step}\n")
                program.stdin.flush()
                wait_until(lambda: collector.records == step + 1, PATIENCE_S, "the record arrives")  # noqa: B023
                wait_until(
                    lambda: all(talk.has_ended for talk in collector.talks), PATIENCE_S, "nobody talks"
                )
            ended = scripts.end_with(program, "")
            assert ended.code == 0, ended.err
            nothing_left(PATIENCE_S)
        finally:
            program.kill()
            program.wait()
        kept = collector.node()
        assert kept.steps() == [0, 1, 2] and kept.repeated == 0
        assert json.loads(kept.documents)["closed"] is True


def test_server_and_token_of_the_config_file_are_found_by_the_agent(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer reads no such file; it hears from its agent where the run goes. The token is written nowhere."""
    token = "tok-5c0ffee5ecret"
    home = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    (home / "logclient").mkdir(parents=True)
    file = home / "logclient" / "config.toml"
    with MemoryCollector(token=token) as collector:
        file.write_text(f'server = "{collector.address}"\ntoken = "{token}"\n')
        file.chmod(0o600)
        trainer = Trainer(tmp_path, rate=200, until_told=True)
        trainer.wait_shipped(10)
        shm_dir, agent = Path(trainer.shm_dir), trainer.agent_pid(SHIPPER)
        seen = [content for _, content in contents(shm_dir)]
        seen += [Path(f"/proc/{agent}/{name}").read_bytes() for name in ("cmdline", "comm")]
        assert stat.S_IMODE((shm_dir / "shipped.json").stat().st_mode) == 0o600
        status = trainer.tell_to_end()
        assert status["server"]["address"] == str(collector.address)
        nothing_left(PATIENCE_S)
        seen += [content for _, content in contents(run_dir)]
        assert not any(token.encode() in content for content in seen)
        at(collector, status["accepted"])


@pytest.mark.slow
def test_start_line_tells_of_a_server_that_only_the_config_file_names(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same line as with `server=`, on a terminal and in a file; offline there is none."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "logclient").mkdir(parents=True)
    file = tmp_path / "home" / "logclient" / "config.toml"
    file.touch(0o600)
    with MemoryCollector() as collector:
        file.write_text(f'server = "{collector.address}"\n')
        # init() waits for the file for a share of its time: there shall be enough on a slow machine
        patient = scripts.environment(LOGCLIENT_START_TIMEOUT_S="100")
        ended = scripts.run_well(tmp_path, scripts.LOG_TEN, env=patient, timeout_s=120)
        assert ended.said[0].endswith(f" -> {collector.address}")
        with open(tmp_path / "err", "w+") as err:
            scripts.run_well(tmp_path, scripts.LOG_TEN, env=patient, timeout_s=120, stderr=err)
            err.seek(0)
            assert err.readline().endswith(f" -> {collector.address}\n")
        offline = scripts.run_well(tmp_path, scripts.LOG_TEN, env=patient | {"LOGCLIENT_MODE": "offline"})
        assert " -> " not in offline.said[0]
        nothing_left(PATIENCE_S)


@pytest.mark.root
def test_config_file_on_a_disk_that_hangs_costs_the_server_in_the_start_line_alone(
    mount: fuse.Fuse, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` goes on after its share of the time, knows its run folder, and all is stored there."""
    monkeypatch.setenv("LOGCLIENT_DIR", str(run_dir))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(mount.path))
    (mount.path / "logclient").mkdir()
    file = mount.path / "logclient" / "config.toml"
    file.touch(0o600)
    file.write_text('server = "grpc://127.0.0.1:1"\n')  # nobody listens there
    mount.hang("open", "getattr")
    try:
        patient = scripts.environment(
            LOGCLIENT_START_TIMEOUT_S="20", LOGCLIENT_FINISH_TIMEOUT_S="60", LOGCLIENT_SHIP_LEAVE_S="1"
        )
        ended = scripts.run_well(tmp_path, scripts.LOG_TEN, env=patient, timeout_s=120)
    finally:
        mount.release()
    assert ended.said[0].endswith(f"goes to {run_dir}")
    assert len(scripts.points(scripts.the_run(run_dir))["loss"]) == 10
    nothing_left(PATIENCE_S)


@pytest.mark.slow
def test_config_file_that_others_may_read_is_said_and_the_run_goes_on(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No token is taken from it; status says what to do."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "logclient").mkdir(parents=True)
    file = tmp_path / "home" / "logclient" / "config.toml"
    file.write_text('server = "grpc://127.0.0.1:1"\n')
    file.chmod(0o644)
    trainer = Trainer(tmp_path, {"LOGCLIENT_SHIP_LEAVE_S": "1"}, rate=100, hold=1, records=10)
    wait_until(lambda: trainer.ship_state == "waiting", PATIENCE_S, "it is told")
    status = trainer.end()
    assert f"chmod 600 {file}" in status["server"]["error"]
    assert status["durable"] == 10
    trainer.wait_gone(PATIENCE_S)
    checked(run_dir, 10)


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_without_a_server_no_process_ships(run_dir: Path, tmp_path: Path, mode: str) -> None:
    """Offline a server is not asked; and where there is none, grpc is loaded nowhere."""
    with MemoryCollector() as collector:
        env = {"LOGCLIENT_MODE": mode}
        env |= address_of(collector.address.port) if mode == "offline" else {}
        trainer = Trainer(tmp_path, env, rate=200, until_told=True)
        worker = trainer.agent_pid(WORKER)
        wait_until(lambda: not trainer.word(layout.AGENT_SHIPPER_TICKS), PATIENCE_S, "it found none")
        maps = Path(f"/proc/{worker}/maps").read_text()
        status = trainer.tell_to_end()
        assert "cygrpc" not in maps
        assert status["server"] == no_server()
        assert not collector.hellos
    trainer.wait_gone(PATIENCE_S)
    (node,) = documents(run_dir)
    assert node["ship"] is None


def test_forked_children_ship_through_one_process(run_dir: Path, tmp_path: Path) -> None:
    """Data-loader workers that logged: counts of processes that are gone are told to the end."""
    code = """
    import os, logclient
    run = logclient.init("case")
    for child in range(20):
        if os.fork() == 0:
            for step in range(50):
                run.log(1000 * child + step, {"child": float(child)})
            os._exit(0)
    for child in range(20):
        os.wait()
    print(run.finish(60))
    """
    with MemoryCollector() as collector:
        env = scripts.environment(LOGCLIENT_SERVER=str(collector.address))
        assert scripts.run_well(tmp_path, code, env=env, timeout_s=90).out.split() == ["True"]
        nothing_left(PATIENCE_S)
        kept = collector.node()
        assert kept.steps() == sorted(1000 * child + step for child in range(20) for step in range(50))
        assert len(collector.nodes) == 1
        (node,) = documents(run_dir)
        assert sum(counts["acked"] for counts in node["streams"].values()) == 1000
        assert digest(kept.documents)


@pytest.mark.slow
def test_what_the_collector_has_is_trimmed_from_the_run_folder(run_dir: Path, tmp_path: Path) -> None:
    """Beyond `keep_bytes` the oldest acked segments go, with a note; what is there and what is here add up."""
    settings = {
        "LOGCLIENT_KEEP_BYTES": "65536",
        "LOGCLIENT_SEGMENT_BYTES": "65536",
        "LOGCLIENT_SEAL_S": "0.5",
    }
    with MemoryCollector() as collector:
        trainer = Trainer(
            tmp_path, settings | address_of(collector.address.port), rate=4_000, until_told=True, values=10
        )

        wait_until(lambda: listed(run_dir, "*/*/*-000000.seg"), PATIENCE_S, "the first segments go")
        trainer.kill(signal.SIGUSR1)
        status = trainer.end()  # `finish` waits for a collector only while acks come, each within 2 s
        trainer.wait_gone(PATIENCE_S)
        found = checked(run_dir, status["accepted"], lost=None)
        assert found.damaged == 0 and found.forgotten > 0, "trimmed counts as forgotten here"
        at(collector, status["accepted"])
    assert os.listdir(os.environ["LOGCLIENT_SHM_DIR"]) == []


def test_run_without_a_folder_is_at_the_collector(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the run folder nor the home can be used: the agent stays until the collector has what memory holds."""
    monkeypatch.setenv("HOME", "/dev/null/home")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    (tmp_path / "taken").write_text("a file")
    with MemoryCollector() as collector:
        settings = {"LOGCLIENT_DIR": str(tmp_path / "taken")} | address_of(collector.address.port)
        trainer = Trainer(tmp_path, settings, records=2_000, finish_timeout_s=1)
        supervisor = trainer.agent_pid(SUPERVISOR)
        trainer.end()
        wait_until(lambda: is_gone(supervisor), PATIENCE_S, "the agent leaves")
        at(collector, 2_000)
    assert list(Path(trainer.shm_dir).glob("*.wal")), "and it is kept for `logclient recover`"
