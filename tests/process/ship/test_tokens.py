"""The agent of an earlier attempt lives when a new attempt comes, with another token or with another server."""

from __future__ import annotations

from pathlib import Path

import pytest

from logclient_backend.wire.messages import NotTaken
from tests.collectors import MemoryCollector

from .. import scripts
from ..agents import nothing_left

SERVER = "grpc://127.0.0.1:7"  # nobody listens there
RETRY_S = 240.0  # a refused token is tried again after a minute


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


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config file of trainers and agents."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOGCLIENT_FINISH_TIMEOUT_S", "1")
    (tmp_path / "home" / "logclient").mkdir(parents=True)
    path = tmp_path / "home" / "logclient" / "config.toml"
    path.touch(0o600)
    return path


@pytest.mark.slow
@pytest.mark.timeout(2 * RETRY_S)
def test_agent_of_the_attempt_before_takes_the_token_that_the_config_file_has_now(
    run_dir: Path, tmp_path: Path, config: Path
) -> None:
    """Records of both attempts get there, once."""
    with MemoryCollector(token="second") as collector:
        for token in ("first", "second"):
            config.write_text(f'server = "{collector.address}"\ntoken = "{token}"\n')
            scripts.run_well(tmp_path, ATTEMPT, token, timeout_s=RETRY_S)
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
    run_dir: Path, tmp_path: Path, config: Path
) -> None:
    """Where the agent that lives got its server from the config file, too."""

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
