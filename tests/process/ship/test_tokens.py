"""The agent of an earlier attempt lives, its token was revoked, and a new attempt of the run comes with another one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from logclient.shm import shm_dir as shm_dirs
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle
from logclient_backend.agent.shipping.tokens import Tokens, trainers_of
from logclient_backend.wire import address
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import NotTaken
from tests.collectors import MemoryCollector

from .. import scripts
from ..agents import nothing_left
from ..disturbed import Trainer

SERVER = "grpc://127.0.0.1:7"  # nobody listens there
RETRY_S = 240.0  # a refused token is tried again after a minute


def test_token_of_a_trainer_goes_where_that_trainer_ships_to(run_dir: Path, tmp_path: Path) -> None:
    """And to no other collector; each token that there is is tried before one is tried again."""
    env = {"LOGCLIENT_SERVER": SERVER, "LOGCLIENT_TOKEN": "of-trainer", "LOGCLIENT_SHIP_LEAVE_S": "1"}
    trainer = Trainer(tmp_path, env, rate=50)
    try:
        there = shm_dirs.read(trainer.shm_dir)
        assert there is not None
        handle = ShmDirHandle(there)
        assert trainer.process.pid in trainers_of(handle)
        access = Access(address.parse(SERVER), "of-agent")
        tokens = Tokens(access, SERVER, lambda: trainers_of(handle))
        assert tokens.access(is_refused=False) is access
        assert tokens.access(is_refused=True).token == "of-trainer"
        assert tokens.access(is_refused=False).token == "of-trainer"
        elsewhere = Access(address.parse("grpc://127.0.0.1:8"), "of-agent")
        assert Tokens(elsewhere, "", lambda: trainers_of(handle)).access(is_refused=True) is elsewhere
    finally:
        trainer.end_by(signal.SIGKILL)
    assert trainers_of(handle) == []
    nothing_left(60)


ATTEMPT = """
    import sys, time, logclient
    run = logclient.init("case", id="it")
    for step in range(10):
        run.log(step, {"loss": step / 2})
    run.flush(60)
    if sys.argv[1] == "second":
        while run.status()["acked"] < 10:
            time.sleep(0.05)
    else:
        while "opens nothing here" not in run.status()["server"]["error"]:
            time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.timeout(2 * RETRY_S)
def test_new_attempt_with_a_new_token_ships_by_the_agent_of_the_one_before(
    run_dir: Path, tmp_path: Path
) -> None:
    """What both logged gets there, once."""
    with MemoryCollector(token="second") as collector:
        for token in ("first", "second"):
            env = scripts.environment(
                LOGCLIENT_SERVER=str(collector.address),
                LOGCLIENT_TOKEN=token,
                LOGCLIENT_FINISH_TIMEOUT_S="1",
            )
            scripts.run_well(tmp_path, ATTEMPT, token, env=env, timeout_s=RETRY_S)
        nothing_left(60)
        assert collector.records == 20
        assert sum(node.repeated for node in collector.nodes.values()) == 0
        assert len(collector.nodes) == 1, "it was the agent of the first"


NOTICES = """
    import sys, logclient
    run = logclient.init("case", id="it")
    run.log(0, {"loss": 1.0})
    run.flush(60)
    print(run.status()["notices"])
"""


def test_attempt_with_another_server_is_told_and_one_with_the_same_is_not(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the agent that lives got its server from the config file, too."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGCLIENT_FINISH_TIMEOUT_S", "1")
    (tmp_path / "home" / "logclient").mkdir(parents=True)
    config = tmp_path / "home" / "logclient" / "config.toml"
    config.touch(0o600)

    def refuse(parcel: object) -> None:
        raise NotTaken("no room here", "disk", retry_after_s=0.2)

    with MemoryCollector() as collector:
        collector.on_parcel = refuse  # so the agent stays
        where = str(collector.address)
        config.write_text(f'server = "{where}"\n')
        said = []
        for server in ("", where, SERVER):
            env = scripts.environment(**({"LOGCLIENT_SERVER": server} if server else {}))
            said.append(scripts.run_well(tmp_path, NOTICES, env=env, timeout_s=120).out)
        assert "agent that" not in said[0] and "agent that" not in said[1]
        assert f"ships to {where}: `logclient sync --server {SERVER}` takes it there" in said[2]
        collector.on_parcel = None
        nothing_left(60)
