"""Login and logout over HTTP: the cookie and its flags, what it opens, what it does not, and when it is over."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from logclient_backend.collector.sessions import SESSION_S, Sessions
from logclient_backend.collector.site import Site
from logclient_backend.collector.site import make as site_of
from logclient_backend.collector.tokens import EDIT, READ, Grant, Tokens
from logclient_backend.collector.web import access
from tests.backend.runs.build import simple_run
from tests.served import backing, made_store, serving, take_in

TIMEOUT_S = 60
POINTS = 60_000  # more than sockets hold: the answer is still being sent when its reader pauses


class Served:
    """A collector's HTTP side with tokens of its own."""

    def __init__(self, url: str, tokens: Tokens, sessions: Sessions) -> None:
        self.url = url
        self.tokens = tokens
        self.sessions = sessions

    def ask(self, verb: str, path: str, **headers: str) -> requests.Response:
        return requests.request(verb, self.url + path, headers=headers, timeout=TIMEOUT_S)

    def log_in(self, token: str) -> requests.Response:
        return self.ask("POST", "/api/v1/session", Authorization=f"Bearer {token}")

    def cookie(self, *roles: str, name: str = "alice") -> str:
        """The `Cookie` of somebody who has logged in with a new token of these roles."""
        return given(self.log_in(self.tokens.add(name, roles)))


def given(answer: requests.Response) -> str:
    """The cookie that an answer sets, as a browser sends it."""
    assert answer.status_code == 200, answer.text
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    base = tmp_path_factory.mktemp("session")
    simple_run(base / "runs", "one", POINTS)
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        yield store


@pytest.fixture
def served(store: Any, tmp_path: Path) -> Iterator[Served]:
    tokens = Tokens(str(tmp_path))
    sessions = Sessions(str(tmp_path), tokens.is_valid)
    with serving(backing(store, check=tokens.check, sessions=sessions)) as url:
        yield Served(url, tokens, sessions)


def test_token_is_shown_once_and_the_cookie_opens_the_rest(served: Served) -> None:
    """With the token's rights, no more; `GET /session` tells the page who it is, before and after."""
    before = served.ask("GET", "/api/v1/session").json()
    assert before["is_login_needed"] and not before["name"] and not before["may"]
    token = served.tokens.add("alice", ["read", "control"])
    answer = served.log_in(token)
    cookie = given(answer)
    assert answer.json()["name"] == "alice" and answer.json()["roles"] == ["read", "control"]
    assert token not in cookie and token not in answer.text
    after = served.ask("GET", "/api/v1/session", Cookie=cookie).json()
    assert not after["is_login_needed"] and after["may"] == ["read", "control"]
    assert abs(after["ends_ns"] - after["now_ns"] - SESSION_S * 1e9) < 600e9
    assert served.ask("GET", "/api/v1/runs", Cookie=cookie).json()["total"] == 1
    assert served.ask("GET", "/api/v1/info", Cookie=cookie).json()["role"] == "read,control"
    refused = served.ask("DELETE", "/api/v1/run?run=one", **{"Cookie": cookie, "X-Logclient": "1"})
    assert refused.status_code == 403 and "admin" in refused.json()["message"]
    by_token = served.ask("GET", "/api/v1/session", Authorization=f"Bearer {token}").json()
    assert by_token["name"] == "alice" and by_token["ends_ns"] == 0


@pytest.mark.parametrize(
    ("site", "prefix", "path", "is_secure"),
    [
        (Site(), "logclient-", "/", False),
        (site_of(None, "/logs", is_tls=False), "logclient-", "/logs/", False),
        (site_of(None, None, is_tls=True), "__Host-logclient-", "/", True),
        (site_of("https://logs.example/team", None, is_tls=False), "__Host-logclient-", "/", True),
        (site_of("http://logs.example/team", None, is_tls=False), "logclient-", "/team/", False),
    ],
)
def test_cookie_is_for_this_host_and_no_script(
    store: Any, tmp_path: Path, site: Site, prefix: str, path: str, is_secure: bool
) -> None:
    """Flags, name and path, with and without TLS; a logout clears the same cookie."""
    tokens = Tokens(str(tmp_path))
    token = tokens.add("alice", ["read"])
    with serving(
        backing(store, check=tokens.check, sessions=Sessions(str(tmp_path), tokens.is_valid), site=site)
    ) as url:
        served = Served(url, tokens, Sessions(str(tmp_path), tokens.is_valid))
        begun = served.log_in(token)
        cookie = given(begun)
        ended = served.ask("DELETE", "/api/v1/session", **{"Cookie": cookie, "X-Logclient": "1"})
    for answer, age_s in ((begun, int(SESSION_S)), (ended, 0)):
        first, *flags = answer.headers["set-cookie"].split("; ")
        assert first.startswith(prefix) and first.partition("=")[0] == cookie.partition("=")[0]
        wanted = {f"Path={path}", f"Max-Age={age_s}", "HttpOnly", "SameSite=Strict"}
        assert set(flags) == wanted | ({"Secure"} if is_secure else set())


def test_cookies_of_two_collectors_on_one_host_have_two_names(
    store: Any, tmp_path: Path, served: Served
) -> None:
    """A browser sends cookies to all ports of a host: logging in at one logs nobody out at the other."""
    with made_store(tmp_path / "other") as other, serving(backing(other)) as url:
        there = given(Served(url, served.tokens, served.sessions).log_in("reads"))
    here = served.cookie("read")
    assert here.partition("=")[0] != there.partition("=")[0]
    assert served.ask("GET", "/api/v1/runs", Cookie=f"{there}; {here}").status_code == 200
    assert served.ask("GET", "/api/v1/runs", Cookie=there).status_code == 401


def test_logout_ends_the_session_at_the_collector(served: Served) -> None:
    """Whoever kept the cookie has nothing, other sessions go on, and to log out twice is no error."""
    cookie = served.cookie("read")
    other = served.cookie("read", name="bob")
    for _ in range(2):
        answer = served.ask("DELETE", "/api/v1/session", **{"Cookie": cookie, "X-Logclient": "1"})
        assert answer.status_code == 200 and answer.json()["is_login_needed"]
    assert served.ask("GET", "/api/v1/runs", Cookie=cookie).status_code == 401
    assert "session is over" in served.ask("GET", "/api/v1/runs", Cookie=cookie).json()["message"]
    assert served.ask("GET", "/api/v1/runs", Cookie=other).status_code == 200
    assert served.ask("DELETE", "/api/v1/session").status_code == 200


def test_revoked_token_ends_its_sessions(served: Served) -> None:
    """Soon, as it ends requests with the token itself."""
    cookie = served.cookie("read")
    assert served.ask("GET", "/api/v1/runs", Cookie=cookie).status_code == 200
    served.tokens.revoke("alice")
    assert served.ask("GET", "/api/v1/runs", Cookie=cookie).status_code == 401
    assert served.ask("GET", "/api/v1/session", Cookie=cookie).json()["is_login_needed"]


def test_code_in_a_header_begins_a_session_once(served: Served) -> None:
    """In an address it is refused, used or not."""
    code = served.sessions.new_code(Grant("ui", frozenset((READ, EDIT))))
    assert served.ask("POST", f"/api/v1/session?code={code}").status_code in (400, 401)
    for wrong in ("x", code[:-1], "x" * 101):
        refused = served.ask("POST", "/api/v1/session", **{"X-Logclient-Code": wrong})
        assert refused.status_code in (400, 401) and wrong not in refused.text.replace("unknown", "")
    answer = served.ask("POST", "/api/v1/session", **{"X-Logclient-Code": code})
    assert answer.json()["name"] == "ui" and answer.json()["may"] == ["read", "edit"]
    assert served.ask("GET", "/api/v1/runs", Cookie=given(answer)).status_code == 200
    again = served.ask("POST", "/api/v1/session", **{"X-Logclient-Code": code})
    assert again.status_code == 401 and "used" in again.json()["message"]
    assert "set-cookie" not in again.headers


def test_nothing_but_a_token_or_a_code_begins_a_session(served: Served) -> None:
    """No token, a wrong one, one in the address, and a session of before."""
    cookie = served.cookie("read")
    for path, headers in (
        ("", {}),
        ("", {"Authorization": "Bearer nonsense"}),
        ("", {"Authorization": "Basic YTpi"}),
        ("?token=x", {}),
        ("", {"Cookie": cookie, "X-Logclient": "1"}),
    ):
        answer = served.ask("POST", f"/api/v1/session{path}", **headers)
        assert answer.status_code in (400, 401) and "set-cookie" not in answer.headers


def test_wrong_token_is_wrong_whatever_cookie_comes_with_it(served: Served) -> None:
    """A program that means to use its token is not answered with somebody's session."""
    cookie = served.cookie("read")
    answer = served.ask("GET", "/api/v1/runs", Cookie=cookie, Authorization="Bearer nonsense")
    assert answer.status_code == 401


def test_with_no_auth_nobody_logs_in(store: Any, tmp_path: Path) -> None:
    """The page learns that, and a login sets no cookie."""
    tokens = Tokens(str(tmp_path), no_auth=True)
    with serving(
        backing(store, check=tokens.check, sessions=Sessions(str(tmp_path), tokens.is_valid))
    ) as url:
        for verb in ("GET", "POST", "DELETE"):
            answer = requests.request(verb, f"{url}/api/v1/session", timeout=TIMEOUT_S)
            assert answer.status_code == 200
            assert not answer.json()["is_login_needed"] and "admin" in answer.json()["may"]
            assert verb == "DELETE" or "set-cookie" not in answer.headers


def test_connection_of_a_session_is_known(served: Served) -> None:
    """It stays open as that of a token does; who shows nothing makes room after each answer."""
    tokens, sessions = served.tokens, served.sessions

    class Accepting:
        def enter(self, key: str, who: str) -> None:
            entered.append(who)

    from logclient_backend.collector.descriptor_limits import AdmittedCallers

    entered: list[str] = []
    callers = AdmittedCallers(Accepting(), tokens, sessions)  # type: ignore[arg-type]
    value = served.cookie("read").partition("=")[2]
    assert callers.enter(("127.0.0.1", 1), "", value)
    assert not callers.enter(("127.0.0.1", 1), "", value[:-2])
    assert not callers.enter(("127.0.0.1", 1), "nonsense", value)
    assert entered == ["alice", "", ""]


@pytest.mark.parametrize("how", ["cookie", "token"])
def test_answer_that_lasts_breaks_off_when_its_token_is_revoked(
    served: Served, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """In the middle, so that nobody takes it for whole."""
    monkeypatch.setattr(access, "LOOK_S", 0.0)
    token = served.tokens.add("alice", ["read"])
    headers = {"Authorization": f"Bearer {token}"}
    if how == "cookie":
        headers = {"Cookie": given(served.log_in(token))}
    parts = urlsplit(served.url)
    whole = 0
    for is_revoked in (False, True):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/api/v1/run/export?run=one&format=jsonl", headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200
            if is_revoked:
                served.tokens.revoke("alice")
                with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                    answer.read()
            else:
                whole = len(answer.read())
        finally:
            connection.close()
    assert whole > POINTS


def test_check_for_answers_that_last_follows_token_and_session(store: Any, served: Served) -> None:
    """For streams that ask it each second: a logout, and a token's end."""
    cookie = served.cookie("read")
    value = cookie.partition("=")[2]
    stands_on = backing(store, check=served.tokens.check, sessions=served.sessions)
    by_cookie = access.still(stands_on, access.Shown(None, value))
    assert by_cookie()
    session = served.sessions.check(value)
    assert session is not None
    served.sessions.end(session)
    assert not by_cookie()
    token = served.tokens.add("bob", ["read"])
    by_token = access.still(stands_on, access.Shown(token, ""))
    assert by_token() and token not in repr(access.Shown(token, value))
    served.tokens.revoke("bob")
    deadline = time.monotonic() + TIMEOUT_S
    while by_token():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_secret_is_in_answers_that_refuse(served: Served) -> None:
    """Neither what was sent nor what would be right."""
    cookie = served.cookie("read")
    for headers in (
        {"Cookie": cookie[:-3]},
        {"Authorization": "Bearer lct_secret"},
        {"X-Logclient-Code": "secret"},
    ):
        for verb, path in (("GET", "/api/v1/runs"), ("POST", "/api/v1/session"), ("DELETE", "/api/v1/run")):
            answer = served.ask(verb, path, **headers)
            assert answer.status_code >= 400
            assert set(json.loads(answer.text)) == {"error", "message"}
            assert "secret" not in answer.text and cookie[20:40] not in answer.text
