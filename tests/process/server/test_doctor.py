"""`logclient doctor` says in a sentence what is wrong with the server that runs go to, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logclient_backend.cli import server_check
from logclient_backend.cli.doctor_checks import Finding
from tools.collector import ROOT, Collector, free_port
from tools.faults import fuse

from ..shipped import black_hole
from .test_server import certificate


def findings(monkeypatch: pytest.MonkeyPatch, server: str, token: str = "") -> list[Finding]:
    """What is said with these variables; never a token."""
    monkeypatch.setenv("LOGCLIENT_SERVER", server)
    monkeypatch.setenv("LOGCLIENT_TOKEN", token)
    found = server_check.server()
    assert all(each.subject == "server" and each.text for each in found)
    assert not token or token not in str(found)
    return found


def needed(found: list[Finding]) -> list[str]:
    assert all(each.advice for each in found if each.level == "do")
    return [each.text for each in found if each.level == "do"]


@pytest.mark.slow
def test_good_server_is_told_with_what_the_token_may(
    server: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address, version, role and the HTTP API; a token that may not do all is told, one that is unknown too."""
    server.start()
    made = {
        "+".join(roles): server.command(
            "token", "add", "-".join(roles), *(word for role in roles for word in ("--role", role))
        ).stdout.strip()
        for roles in (("ingest", "read"), ("ingest",), ("read",))
    }
    where = server.address
    found = findings(monkeypatch, where, made["ingest+read"])
    assert {each.level for each in found} == {"ok"}
    said = " ".join(each.text for each in found)
    assert f"{where} answers" in said and "LOGCLIENT_TOKEN has the role ingest,read" in said
    assert server.facts["http"] in said
    assert needed(findings(monkeypatch, where, server.token)) == []
    found = findings(monkeypatch, where, made["ingest"])
    assert needed(found) == [] and "no command can read there" in str(found)
    assert needed(findings(monkeypatch, where, made["read"])) == [
        "the token in LOGCLIENT_TOKEN may read only: no run is shipped"
    ]
    (text,) = needed(findings(monkeypatch, where, "lct_of_another_collector"))
    assert "does not know the token in LOGCLIENT_TOKEN" in text
    assert needed(findings(monkeypatch, where)) == ["it asks for a token, and none is set"]


def test_server_that_does_not_answer_is_told_by_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens, or somebody does who never says a word."""
    (text,) = needed(findings(monkeypatch, f"grpc://127.0.0.1:{free_port()}"))
    assert "nothing listens there" in text
    monkeypatch.setattr(server_check, "ANSWER_S", 1.0)
    with black_hole() as port:
        (text,) = needed(findings(monkeypatch, f"grpc://127.0.0.1:{port}"))
    assert f"grpc://127.0.0.1:{port} cannot be reached" in text


@pytest.mark.slow
def test_certificate_that_nobody_vouches_for_is_told(
    server: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how to trust it; then all is well."""
    cert, key = certificate(tmp_path, "IP:127.0.0.1")
    server.start("--tls-cert", str(cert), "--tls-key", str(key))
    (text,) = needed(findings(monkeypatch, server.address, server.token))
    assert "set ca in the config file" in text
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = tmp_path / "logclient" / "config.toml"
    config.parent.mkdir()
    config.touch(0o600)
    config.write_text(f'ca = "{cert}"\n')
    found = findings(monkeypatch, server.address, server.token)
    assert needed(found) == [] and "over TLS" in str(found)


@pytest.mark.slow
def test_clock_that_is_off_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the collector's machine, an hour and a half behind."""
    port = free_port()
    code = (
        "import sys, time\nreal = time.time_ns\ntime.time_ns = lambda: real() - 5400 * 10**9\n"
        "from logclient_backend.cli import main\nmain()"
    )
    words = ["server", "--no-auth", "--data", str(tmp_path / "d"), "--listen", f"127.0.0.1:{port}", "--http"]
    words += [
        f"127.0.0.1:{free_port()}",
        "--limit",
        "web_processes=0",
    ]  # the clock of this process alone is off
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            found = findings(monkeypatch, f"grpc://127.0.0.1:{port}")
        finally:
            process.kill()
    (text,) = needed(found)
    assert text.startswith("its clock is 1 h ") and text.endswith(" behind that of this machine")
    assert "asks nobody for a token" in str(found)


def test_exit_code_and_json_tell_it_too(run_dir: Path, tmp_path: Path) -> None:
    """The server is one of the things that need doing; a wrong file is told with its cure."""
    config = tmp_path / "logclient" / "config.toml"
    config.parent.mkdir()
    config.write_text('server = "grpc://127.0.0.1:1"\ntoken = "lct_secret"\n')
    config.chmod(0o644)
    done = subprocess.run(
        [sys.executable, "-m", "logclient_backend", "doctor", "--json"],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done
    assert "lct_secret" not in done.stdout + done.stderr
    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["subject"] == "server"]
    assert found["level"] == "do" and f"chmod 600 {config}" in found["text"]


@pytest.mark.root
def test_config_file_on_a_disk_that_hangs_holds_nothing_up(
    mount: fuse.Fuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told instead."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(mount.path))
    (mount.path / "logclient").mkdir()
    (mount.path / "logclient" / "config.toml").touch(0o600)
    monkeypatch.setattr(server_check, "PROBE_S", 1.0)
    mount.hang("open", "getattr")
    try:
        (found,) = server_check.server()
    finally:
        mount.release()
    assert found.level == "do" and "did not answer" in found.text
