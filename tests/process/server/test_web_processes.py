"""The processes that answer over HTTP: killed, stopped, and beside a committing process that is killed or stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from logclient_backend.collector import web_processes
from tests.backend.web.streams import Page
from tests.certificates import Authority
from tests.ingest import Client, records
from tools.collector import Collector
from tools.faults import processes

from ..disturbed import wait_until

RUN, KEY = "mlp", "loss"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Collector]:
    made = Collector(tmp_path / "data", roles=("ingest", "read", "control"))
    made.start()
    try:
        yield made
    finally:
        made.kill()


def web_pids(server: Collector) -> list[int]:
    """Children of the committing process."""
    children = Path(f"/proc/{server.pid}/task").glob("*/children")
    return [int(pid) for each in children for pid in each.read_text().split()]


def ship(server: Collector, first: int, count: int) -> Client:
    """Ship records, and return the conversation once they are acknowledged."""
    client = server.client(run=RUN)
    client.send(records(first, count))
    client.settle()
    return client


def page_of(server: Collector) -> Page:
    return Page(server.url, server.token, [RUN], [KEY])


def test_what_is_acknowledged_is_answered_at_once(server: Collector) -> None:
    """Another process answers, and has each record as soon as its sender knows that it is stored."""
    client = server.client(run=RUN)
    for first in range(1, 200, 10):
        client.send(records(first, 10))
        client.settle()
        (curve,) = server.get("/api/v1/curves", params={"run": RUN, "key": KEY}).json()["curves"]
        assert curve["points"] == first + 9
    client.close()
    facts = server.get("/api/v1/info").json()
    assert facts["pid"] == server.pid
    assert server.get("/metrics").text.count("logclient_web_processes 1\n") == 1


def test_a_stream_outlives_the_processes_that_serve_it(server: Collector) -> None:
    """The web process is killed, then the whole collector: each point is there once."""
    ship(server, 1, 100).close()
    page = page_of(server)
    page.load()
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.is_set():
            try:
                page.follow(page.open())
            except OSError:  # nobody listens for a moment
                is_over.wait(0.05)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        page.wait(lambda: page.of("hello"))
        ship(server, 101, 10).close()
        page.wait(lambda: len(page.points[0]) >= 110)
        (before,) = web_pids(server)
        os.kill(before, signal.SIGKILL)
        ship(server, 111, 10).close()
        page.wait(lambda: len(page.points[0]) >= 120)
        assert before not in web_pids(server)
        server.kill()
        server.start()
        page.url = server.url
        ship(server, 121, 10).close()
        page.wait(lambda: len(page.points[0]) >= 130)
    finally:
        is_over.set()
        server.kill()
        thread.join(60)
    assert sorted(page.points[0]) == [(step, float(step)) for step in range(1, 131)]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_no_web_process_outlives_the_committing_one(server: Collector, is_stopped: bool) -> None:
    """SIGKILL of the one ends the others, also one that was stopped."""
    server.get("/healthz")
    (pid,) = web_pids(server)
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    server.kill()
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists() or _is_dead(pid), 30, "the web process ends")


def _is_dead(pid: int) -> bool:
    return processes.state_of(pid) in (processes.GONE, "Z")


def test_questions_are_answered_while_the_committing_process_hangs(server: Collector) -> None:
    """New connections too; what only that process knows is refused with a sentence, and holds nothing else up."""
    ship(server, 1, 50).close()
    server.get("/healthz")
    with server.stopped(), ThreadPoolExecutor(24) as pool:
        waiting = [pool.submit(server.get, "/metrics") for _ in range(20)]
        for _ in range(5):
            (curve,) = server.get("/api/v1/curves", params={"run": RUN, "key": KEY}).json()["curves"]
            assert curve["points"] == 50
        assert server.get("/healthz").status_code == 200
        ready = server.get("/readyz")
        assert (ready.status_code, ready.json()["error"]) == (503, "not_ready")
        assert server.get("/api/v1/info").json()["warnings"]
        assert {each.result().status_code for each in waiting} == {503}
    assert wait_until(lambda: server.get("/readyz").status_code == 200, 60, "it is ready again")


def test_several_processes_share_the_port(tmp_path: Path) -> None:
    """Each answers; while one is stopped the others do."""
    server = Collector(tmp_path / "data", "--limit", "web_processes=2")
    server.start()
    try:
        wait_until(lambda: "logclient_web_processes 2\n" in server.get("/metrics").text, 60, "both are there")
        pids = web_pids(server)
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        assert server.get("/healthz").status_code == 200
        wait_until(lambda: len(web_pids(server)) == 2 and pids[0] not in web_pids(server), 60, "it is back")
        assert server.stop() == 0
        assert all(map(_is_dead, pids))
    finally:
        server.kill()


def test_a_browser_is_served_over_tls_until_its_token_is_revoked(tmp_path: Path) -> None:
    """The page, a login whose cookie goes over TLS only, and a stream by that cookie, which ends with the token."""
    cert, key = (str(path) for path in Authority(tmp_path / "ca").certificate("good"))
    server = Collector(tmp_path / "data", "--tls-cert", cert, "--tls-key", key, roles=("read",))
    try:
        server.start()
        with requests.Session() as browser:
            browser.trust_env, browser.verify = False, str(tmp_path / "ca" / "ca.pem")
            page = browser.get(f"{server.url}/", timeout=60)
            assert page.status_code == 200 and "<title>" in page.text
            assert browser.get(f"{server.url}/api/v1/runs", timeout=60).status_code == 401
            login = {"Authorization": f"Bearer {server.token}"}
            made = browser.post(f"{server.url}/api/v1/session", headers=login, timeout=60)
            cookie = made.headers["set-cookie"]
            assert cookie.startswith("__Host-logclient-")
            assert {"Secure", "HttpOnly", "Path=/"} <= set(cookie.split("; "))
            reader = Page(server.url, "", [], [], follows_runs=True)
            ended: list[str] = []
            stream = browser.get(f"{server.url}/api/v1/stream?runs=1", stream=True, timeout=60)
            thread = threading.Thread(target=lambda: ended.append(reader.follow(stream)), daemon=True)
            thread.start()
            reader.wait(lambda: reader.of("hello"))
            server.command("token", "revoke", "test")
            thread.join(30)
            assert ended == ["unauthorized"]
            assert browser.get(f"{server.url}/api/v1/runs", timeout=60).status_code == 401
    finally:
        server.kill()


@pytest.mark.slow
def test_a_web_process_that_hangs_is_replaced(server: Collector) -> None:
    """It was stopped, so it gives no sign; who connects waits until another one answers."""
    server.get("/healthz")
    (pid,) = web_pids(server)
    os.kill(pid, signal.SIGSTOP)
    wait_until(
        lambda: pid not in web_pids(server), 4 * web_processes.HUNG_S, "the one that was stopped is killed"
    )
    assert server.get("/healthz").status_code == 200


def test_without_web_processes_the_committing_one_answers(tmp_path: Path) -> None:
    """As on a machine with little memory."""
    server = Collector(tmp_path / "data", "--limit", "web_processes=0")
    server.start()
    try:
        assert server.get("/api/v1/info").json()["pid"] == server.pid
        assert not web_pids(server)
    finally:
        server.kill()
