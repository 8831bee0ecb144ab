"""`logclient server` as a user starts it: what it says, who gets in, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from logclient_backend.collector.metrics import METRICS
from logclient_backend.wire.address import parse
from logclient_backend.wire.messages import NotTaken
from tests.ingest import Client, records
from tools.collector import END_S, ROOT, Collector

from ..disturbed import wait_until


@pytest.mark.slow
def test_first_start_shows_a_token_once_and_keeps_none(server: Collector) -> None:
    """It opens everything, and is in no file, log or command line."""
    assert "admin_token" in server.start()
    token = server.token
    listens = [each.laddr for each in psutil.Process(server.pid).net_connections() if each.status == "LISTEN"]
    assert {where.port for where in listens} == {server.port, server.port + 1}
    assert {where.ip.removeprefix("::ffff:") for where in listens} == {"127.0.0.1"}, "and nowhere else"
    assert server.get("/api/v1/info").json()["role"] == "admin"
    client = server.client()
    client.send(records(1, 10))
    client.settle()
    client.close()
    assert server.get("/api/v1/runs").json()["total"] == 1
    assert token.encode() not in server.cmdline()
    assert server.stop() == 0
    facts = server.start()
    assert "admin_token" not in facts, "shown once"
    assert server.get("/api/v1/runs").json()["total"] == 1
    server.kill()
    assert token not in server.log.read_text()
    for folder, _, files in os.walk(server.data):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700, folder
        for name in files:
            path = Path(folder, name)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
            assert path.is_socket() or token.encode() not in path.read_bytes(), path


def test_no_thread_but_the_main_one_takes_the_signals_that_end_it(server: Collector) -> None:
    """One that did, of numpy's for instance, would end the process where it stands: main waits for them in turns."""
    server.start()
    ends = 1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1
    tasks = [path for path in Path(f"/proc/{server.pid}/task").iterdir() if path.name != str(server.pid)]
    blocked = [int((task / "status").read_text().split("SigBlk:")[1].split()[0], 16) for task in tasks]
    assert blocked and all(each & ends == ends for each in blocked), blocked


@pytest.mark.slow
def test_words_for_people_say_where_everything_is(server: Collector) -> None:
    """Without --json; the address of both ports, the data, the token and that there is no backup yet."""
    words = [sys.executable, "-m", "logclient_backend", "server", "--data", str(server.data)]
    with subprocess.Popen(
        [*words, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_S)
    assert process.returncode == 0, "Ctrl-C is a good end"
    assert "grpc://127.0.0.1:" in lines[0] and "http://127.0.0.1:" in lines[1] and "/docs" in lines[1]
    assert "http://127.0.0.1:" in lines[2] and "dashboard" in lines[2]
    assert str(server.data) in lines[3] and "no backup yet" in lines[3]
    assert "lct_" in lines[4] and "this once" in lines[4]


def test_token_does_not_go_into_the_journal(server: Collector) -> None:
    """systemd keeps what a service prints, and hands it a socket: there the token goes to a file of the user's."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "logclient_backend", "server", "--data", str(server.data)),
                    *("--listen", "127.0.0.1:0", "--json"),
                ],
                stdout=theirs.fileno(),
                stderr=theirs.fileno(),
                cwd=ROOT,
            )
        server.process = None
        try:
            ours.settimeout(END_S)
            said = b""
            while b"admin_token_file" not in said:
                said += ours.recv(65536)
        finally:
            process.kill()
            process.wait(END_S)
    path = server.data / "admin-token"
    token = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.startswith("lct_") and token.encode() not in said


@pytest.mark.slow
def test_roles_and_revocation_over_both_ports(server: Collector) -> None:
    """Made with the command while it runs; a revoked token is one within seconds."""
    server.start()
    made = {
        role: server.command("token", "add", role, "--role", role).stdout.strip()
        for role in ("ingest", "read")
    }
    client = server.client(made["ingest"])
    client.send(records(1, 1))
    client.settle()
    with pytest.raises(NotTaken):
        server.client(made["read"])
    status = {name: server.get("/api/v1/runs", token).status_code for name, token in made.items()}
    assert status == {"ingest": 403, "read": 200}
    assert server.ask("DELETE", "/api/v1/run?run=mlp", made["read"]).status_code == 403
    assert server.get("/api/v1/runs", "wrong").status_code == 401
    listed = server.command("token", "list").stdout
    assert listed.split("\n")[0].split() == ["NAME", "ROLES", "MADE"]
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [
        ["admin", "admin"],
        ["ingest", "ingest"],
        ["read", "read"],
    ]
    assert "ingest" in listed and not any(token in listed for token in (*made.values(), server.token))
    server.command("token", "revoke", "ingest")
    server.command("token", "revoke", "ingest", code=3)

    def is_refused() -> bool:
        try:
            server.client(made["ingest"]).close()
        except NotTaken as refused:
            return refused.reason == "unauthorized"
        return False

    wait_until(is_refused, 60, "the token is revoked")
    client.session._sent_at = -1e9
    client.session.keep_alive()
    with pytest.raises(NotTaken, match="revoked"):
        while True:
            client.session.poll(60.0)


@pytest.mark.slow
def test_health_needs_no_token_and_figures_do(server: Collector) -> None:
    """For load balancers, and for Prometheus with a token that may read."""
    server.start()
    assert server.get("/healthz", "").text == "ok\n"
    assert server.get("/readyz", "").status_code == 200
    assert server.get("/metrics", "").status_code == 401
    client = server.client()
    client.send(records(1, 7))
    client.settle()
    text = server.get("/metrics").text
    assert "logclient_records_total 7" in text and "logclient_connections 1" in text
    missing = [name for name in METRICS if f"logclient_{name}" not in text]
    assert missing == ["refused_total"], "it has a line per reason, once there is one"


@pytest.mark.slow
def test_deleted_run_is_gone_for_readers_and_comes_back_when_asked(server: Collector) -> None:
    """By the command, while it runs and while it does not."""
    server.start()
    client = server.client(run="a/../b")
    client.send(records(1, 5))
    client.settle()
    client.close()
    server.command("delete", "a/../b")
    assert server.get("/api/v1/runs").json()["total"] == 0
    server.command("delete", "no such", code=3)
    server.kill()
    server.command("undelete", "a/../b")
    server.command("undelete", "a/../b", code=3)
    server.start()
    assert server.get("/api/v1/runs").json()["total"] == 1


@pytest.mark.slow
def test_backup_of_a_working_collector_can_be_restored(server: Collector, tmp_path: Path) -> None:
    """One command each; tokens come along, and a backup that is not whole is refused."""
    server.start()
    client = server.client()
    for at in range(20):
        client.send(records(1 + 100 * at, 100))
    client.settle()
    copy = tmp_path / "copy"
    server.command("backup", str(copy))
    client.send(records(2001, 100))
    client.settle()
    assert json.loads(server.command("backup", str(tmp_path / "second"), "--json").stdout)["bytes"] > 0
    server.command("backup", str(copy), code=1)  # it is not empty
    server.command("backup", str(server.data / "inside"), code=1)
    assert server.get("/api/v1/info").json()["last_backup_ns"] > 0
    server.kill()
    restored = Collector(tmp_path / "restored", roles=())
    restored.command("restore", str(copy))
    restored.command("restore", str(copy), code=1)  # there is a store now
    (copy / "backup.json").unlink()
    refused = Collector(tmp_path / "third", roles=()).command("restore", str(copy), code=1)
    assert "holds no backup" in refused.stderr
    restored.token = server.token
    try:
        restored.start()
        held = restored.client().welcome.held
        assert held[b"s" * 16].stored.ranges() == [(1, 2000)]
    finally:
        restored.kill()


def test_what_cannot_be_is_told_in_a_sentence(server: Collector, tmp_path: Path) -> None:
    """Ports that are taken, folders that will not do, options that would let everybody in."""
    server.start()
    port = server.port
    second = Collector(tmp_path / "second", roles=())
    (tmp_path / "file").write_text("")
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home" / "thesis.tex").write_text("")
    cases = {
        (("--listen", f"127.0.0.1:{port}", "--http", "127.0.0.1:0"), 1): "another program",
        (("--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{port}"), 1): "in use",
        (("--listen", "0.0.0.0:0", "--no-auth"), 2): "--no-auth",
        (("--http", "0.0.0.0:0", "--listen", "127.0.0.1:0", "--no-auth"), 2): "--no-auth",
        (("--tls-cert", "x.pem"), 2): "go together",
        (("--tls-cert", "/nonexistent/x", "--tls-key", "/nonexistent/y"), 1): "there is no such file",
        (("--listen", "grpc://127.0.0.1:1"), 2): "HOST:PORT",
        (("--listen", "127.0.0.1:65535"), 2): "--http",
        (("--limit", "bytes=5"), 2): "queue_bytes",
        (("--limit", "queue_bytes=many"), 2): "a number",
    }
    for (words, code), text in cases.items():
        said = second.command(*words, code=code).stderr
        assert text in said and "Traceback" not in said, (words, said)
        assert not (second.data / "tokens.json").exists(), "what did not start has made no token"
    for folder, text in (("file", "no folder"), ("home", "other files")):
        said = Collector(tmp_path / folder, roles=()).command(code=1).stderr
        assert text in said and "Traceback" not in said
    said = Collector(server.data, roles=()).command("--listen", "127.0.0.1:0", code=1).stderr
    assert "Traceback" not in said and str(server.data) in said, "the folder has a collector already"
    assert server.get("/readyz").status_code == 200, "the first is not hurt"


def test_missing_extra_names_what_to_install(tmp_path: Path) -> None:
    """The base install has the command, and no collector."""
    code = (
        "import sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'fastapi' else find(name, *rest)\n"
        "from logclient_backend.cli import main\n"
        f"sys.argv = ['logclient', 'server', '--data', {str(tmp_path / 'd')!r}]\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "pip install 'logclient[server]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_login_is_saved_for_this_user_alone(
    server: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where asked for: what lies there may ship and read, no more; a file that is there is left alone."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    server.start("--save-login")
    path = tmp_path / "config" / "logclient" / "config.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    from logclient_backend.wire import credentials

    access = credentials.find()
    assert access is not None and str(access.address) == server.address
    assert server.get("/api/v1/info", access.token).json()["role"] == "ingest,read"
    server.kill()
    said = server.command("--listen", "127.0.0.1:0", "--save-login", code=2).stderr
    assert "there already" in said


def test_data_in_memory_and_no_auth_are_told_loudly(tmp_path: Path) -> None:
    """At start, and to who asks over HTTP. Nobody is asked for a token then, and none is made."""
    server = Collector(Path("/dev/shm") / f"logclient-test-{os.getpid()}-{os.urandom(4).hex()}", roles=())
    server.log = tmp_path / "log"
    try:
        facts = server.start("--no-auth")
        assert "admin_token" not in facts
        client = server.client("")
        client.send(records(1, 1))
        client.settle()
        assert server.get("/api/v1/runs", "").json()["total"] == 1
        assert any("in memory" in line for line in facts["warnings"])
        assert any("in memory" in line for line in server.get("/api/v1/info", "").json()["warnings"])
    finally:
        server.kill()
        shutil.rmtree(server.data)


@pytest.mark.slow
def test_second_signal_ends_it_at_once(server: Collector) -> None:
    """The first waits for what is queued; somebody holds the database, so that takes long."""
    server.start()
    client = server.client()
    client.send(records(1, 1))
    client.settle()
    holder = sqlite3.connect(server.data / "store" / "store.db", isolation_level=None, timeout=60)
    try:
        holder.execute("BEGIN IMMEDIATE")
        client.send(records(2, 1))
        wait_until(
            lambda: "logclient_under_way_bytes 0\n" not in server.get("/metrics").text, 60, "it has it"
        )
        process = server.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: _said(server, "stopping"), 60, "it stops")

        def has_ended() -> bool:
            """Asked again and again: what comes right after the first is taken for the same."""
            process.send_signal(signal.SIGTERM)
            return process.poll() is not None

        wait_until(has_ended, 60, "it ends")
        assert server.wait() == 1
        assert _said(server, "stopped at once"), "and waited for no deadline"
    finally:
        holder.close()
    server.start()
    assert server.client().welcome.held[b"s" * 16].stored.ranges() == [(1, 1)]


def _said(server: Collector, text: str) -> bool:
    return text in server.log.read_text()


def certificate(folder: Path, names: str) -> tuple[Path, Path]:
    """One that nobody but its maker signed, for these names, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    try:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"),
                *("-addext", f"subjectAltName={names}"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate")
    return cert, key


@pytest.mark.slow
def test_tls_on_both_ports(server: Collector, tmp_path: Path) -> None:
    """Checked by the client with the certificate it was given; without it nobody speaks."""
    cert, key = certificate(tmp_path, "DNS:localhost,IP:127.0.0.1")
    facts = server.start("--tls-cert", str(cert), "--tls-key", str(key))
    assert facts["grpc"].startswith("grpcs://") and facts["http"].startswith("https://")
    client = server.client(ca=cert.read_bytes())
    client.send(records(1, 3))
    client.settle()
    client.close()
    assert server.get("/api/v1/runs", verify=str(cert)).json()["total"] == 1
    with pytest.raises(NotTaken):
        Client(parse(server.address), server.token)  # the system does not know who signed it
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("names", ["IP:127.0.0.1", "DNS:localhost"])
def test_saved_login_works_with_a_certificate_of_ones_own(
    server: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """It names the certificate, and the server by a name that is in it: for agents and for commands."""
    config = tmp_path / 'a folder, "quoted"'
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    cert, key = certificate(tmp_path, names)
    facts = server.start("--tls-cert", str(cert), "--tls-key", str(key), "--save-login")
    assert facts["login_file"] == str(config / "logclient" / "config.toml")
    assert not facts["warnings"] or not any(
        "login" in line.replace(str(tmp_path), "") for line in facts["warnings"]
    )
    from logclient_backend.remote import access
    from logclient_backend.remote.server import Server as Remote
    from logclient_backend.wire import client, credentials

    found = credentials.find()
    assert found is not None
    assert client.describe(found, 60).role == "ingest,read"
    assert Remote(access.find(access.CONFIGURED)).json("/info")["role"] == "ingest,read"


def test_login_that_cannot_work_is_said(
    server: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate for a name that is none of this machine's, as far as it was told."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cert, key = certificate(tmp_path, "DNS:logs.invalid")
    facts = server.start("--tls-cert", str(cert), "--tls-key", str(key), "--save-login")
    assert "its certificate is for another name" in str(facts["warnings"])
