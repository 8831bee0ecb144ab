"""Server and token from a call, the environment, or the config file; and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logclient.errors import BadArgument
from logclient_backend.wire import credentials
from logclient_backend.wire.address import Address


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The config file's path, in a folder of this test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "logclient").mkdir()
    return tmp_path / "logclient" / "config.toml"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_nothing_named_is_no_server(config: Path) -> None:
    """Everything works without one."""
    assert credentials.find() is None


def test_a_folder_of_settings_that_cannot_be_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a file there is nothing: no server, and nothing that an agent would wait for."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/dev/null/none")
    assert credentials.find() is None


def test_the_file_names_server_and_token(config: Path) -> None:
    """And its token is not in what is shown of it."""
    write(config, 'server = "grpc://collector:1"\ntoken = "secret"\n')
    found = credentials.find()
    assert found is not None
    assert (found.address, found.token) == (Address("collector", 1), "secret")
    assert "secret" not in repr(found)


def test_environment_wins_over_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a call wins over both."""
    write(config, 'server = "grpc://file:1"\ntoken = "of-file"\n')
    monkeypatch.setenv("LOGCLIENT_SERVER", "grpc://environment:1")
    monkeypatch.setenv("LOGCLIENT_TOKEN", " of-environment ")
    found = credentials.find()
    assert found is not None
    assert (found.address.host, found.token) == ("environment", "of-environment")
    given = credentials.find("grpc://call:1")
    assert given is not None
    assert given.address.host == "call"


def test_the_files_token_goes_to_the_files_server_only(config: Path) -> None:
    """Who names another server does not send the token there; a file without a server says for all."""
    write(config, 'server = "grpc://collector:1"\ntoken = "secret"\n')
    other = credentials.find("grpc://other:1")
    same = credentials.find("collector:1")
    assert other is not None and other.token == ""
    assert same is not None and same.token == "secret"
    write(config, 'token = "for-all"\n')
    other = credentials.find("grpc://other:1")
    assert other is not None and other.token == "for-all"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_may_read_is_refused(config: Path, mode: int) -> None:
    """With the command that helps, and without what is in it."""
    write(config, 'token = "secret"\n', mode)
    with pytest.raises(BadArgument, match="chmod 600") as caught:
        credentials.find("grpc://host")
    assert "secret" not in str(caught.value)
    with pytest.raises(BadArgument, match="chmod 600"):
        credentials.find("grpc://host", token_file=str(config))


@pytest.mark.parametrize("text", ["token = secret", "token = 5", "\x00\xff", 'server = ["a"]'])
def test_a_broken_file_is_a_sentence_without_its_content(config: Path, text: str) -> None:
    """What a parser says of a line may show a token."""
    write(config, text)
    with pytest.raises(BadArgument) as caught:
        credentials.find()
        credentials.find("grpc://host")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_token_file(config: Path, tmp_path: Path) -> None:
    """One line; missing, empty or with what no token has, it is a sentence."""
    good = write(tmp_path / "token", "abc\n")
    found = credentials.find("grpc://host", token_file=str(good))
    assert found is not None and found.token == "abc"
    for name, text in (("empty", ""), ("two", "a b"), ("odd", "töken")):
        bad = write(tmp_path / name, text)
        with pytest.raises(BadArgument):
            credentials.find("grpc://host", token_file=str(bad))
    with pytest.raises(BadArgument, match="cannot be read"):
        credentials.find("grpc://host", token_file=str(tmp_path / "none"))


def test_a_fifo_is_not_waited_for(config: Path) -> None:
    """Somebody who may write to the folder cannot make us hang."""
    os.mkfifo(config, 0o600)
    with pytest.raises(BadArgument, match="no file"):
        credentials.find()


def test_a_certificate_authority(config: Path, tmp_path: Path) -> None:
    """Read for TLS only, beside the config file where its path is relative."""
    pem = b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"
    (config.parent / "ca.pem").write_bytes(pem)
    write(config, 'ca = "ca.pem"\n')
    secure, plain = credentials.find("grpcs://host"), credentials.find("grpc://host")
    assert secure is not None and secure.ca == pem
    assert plain is not None and plain.ca is None
    write(config, 'ca = "none.pem"\n')
    with pytest.raises(BadArgument, match=r"no such file as none\.pem"):
        credentials.find("grpcs://host")
    (config.parent / "text.pem").write_text("no certificate")
    write(config, 'ca = "text.pem"\n')
    with pytest.raises(BadArgument, match=r"text\.pem holds no certificate"):
        credentials.find("grpcs://host")
