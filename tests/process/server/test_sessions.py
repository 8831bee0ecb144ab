"""Sessions of browsers at a `logclient server`: they outlive it, and nothing secret is in its log."""

from __future__ import annotations

import socket

import requests

from logclient_backend.collector.sessions import Sessions
from logclient_backend.collector.tokens import READ, Grant, Tokens
from tools.collector import Collector

from ..disturbed import wait_until

TIMEOUT_S = 60


def ask(server: Collector, verb: str, path: str, **headers: str) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return session.request(verb, server.url + path, headers=headers, timeout=TIMEOUT_S)


def test_session_outlives_its_collector_and_nothing_secret_is_logged(server: Collector) -> None:
    """After a SIGKILL a session goes on, and one that was ended stays so; the log has no token, cookie or code."""
    facts = server.start("--public-url", "https://tools.example/logs")
    assert facts["public_url"] == "https://tools.example/logs"
    folder = str(server.data)
    reads = Tokens(folder).add("alice", ["read"])
    code = Sessions(folder, lambda grant: True).new_code(Grant("ui", frozenset({READ})))
    secrets = [server.token, reads, code]
    cookies = []
    for headers in (
        {"Authorization": f"Bearer {server.token}"},
        {"Authorization": f"Bearer {reads}"},
        {"X-Logclient-Code": code},
    ):
        answer = ask(server, "POST", "/logs/api/v1/session", **headers)
        cookies.append(answer.headers["set-cookie"].partition(";")[0])
        assert cookies[-1].startswith("__Host-logclient-") and "; Secure" in answer.headers["set-cookie"]
        secrets.append(cookies[-1].partition("=")[2])
    kept, ended, by_code = cookies
    page = {"X-Logclient": "1", "Origin": "https://tools.example"}
    assert ask(server, "DELETE", "/api/v1/session", Cookie=ended, **page).status_code == 200
    assert ask(server, "DELETE", "/api/v1/run?run=none", Cookie=kept, **page).status_code == 404
    for path in (f"/api/v1/runs?token={reads}", f"/{reads}", f"/api/v1/runs?a=%FF{reads}"):
        assert ask(server, "GET", path, Cookie=kept).status_code in (400, 404)
    for broken in (f"GET /{reads} HTTP/9\r\n\r\n", f"GET / HTTP/1.1\r\nCookie: {kept}\r\nbad header\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port + 1), TIMEOUT_S) as connection:
            connection.sendall(broken.encode())
            assert b" 400 " in connection.recv(1 << 16)
    server.kill()
    server.start()
    assert ask(server, "GET", "/api/v1/info", Cookie=kept.removeprefix("__Host-")).json()["role"] == "admin"
    assert ask(server, "GET", "/api/v1/info", Cookie=by_code.removeprefix("__Host-")).json()["role"] == "read"
    assert ask(server, "GET", "/api/v1/info", Cookie=ended.removeprefix("__Host-")).status_code == 401
    server.command("token", "revoke", "admin")
    wait_until(
        lambda: ask(server, "GET", "/api/v1/info", Cookie=kept.removeprefix("__Host-")).status_code == 401,
        TIMEOUT_S,
        "the session of a revoked token goes on",
    )
    assert ask(server, "GET", "/api/v1/info", Cookie=by_code.removeprefix("__Host-")).status_code == 200
    server.stop()
    said = server.said() + str(facts["warnings"])
    assert not [secret for secret in secrets if secret in said or secret[:24] in said]
