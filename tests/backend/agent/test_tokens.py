"""What the process that ships does where its token was refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from logclient_backend.wire import credentials

SERVER = "grpc://127.0.0.1:7788"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file."""
    monkeypatch.delenv("LOGCLIENT_SERVER", raising=False)
    monkeypatch.delenv("LOGCLIENT_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "logclient" / "config.toml"
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text(f'server = "{SERVER}"\ntoken = "first"\n')
    return path


@pytest.mark.parametrize("server", [SERVER, ""])
def test_token_that_was_put_right_in_the_config_file_is_taken(config: Path, server: str) -> None:
    """A run of weeks goes on with the new one; a file in the middle of being edited changes nothing."""
    first = credentials.find(server)
    assert first is not None and first.token == "first"
    config.write_text('server = "grpc')
    assert credentials.renewed(first, server) is first
    config.write_text(f'server = "{SERVER}"\ntoken = "second"\n')
    found = credentials.renewed(first, server)
    assert (found.address, found.token) == (first.address, "second")


def test_another_server_in_the_config_file_is_for_other_runs(config: Path) -> None:
    """A run stays with the collector that it began with."""
    first = credentials.find("")
    assert first is not None
    config.write_text('server = "grpc://127.0.0.1:1"\ntoken = "second"\n')
    assert credentials.renewed(first, "") is first
