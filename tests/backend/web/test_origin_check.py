"""R2-28: pages of other origins, names that were rebound, and who has no token get nothing."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.backend.runs.build import simple_run
from tests.served import backing, made_store, serving, take_in

OPEN = {"/healthz", "/readyz", "/api/v1/session"}  # for whoever shows nothing
PATHS = ["/api/v1/info", "/api/v1/runs", "/api/v1/run?run=one", "/api/v1/run/export?run=one", "/metrics"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    base = tmp_path_factory.mktemp("guard")
    simple_run(base / "runs", "one")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store, names=frozenset({"logs.example"}))) as found:
            yield found


def ask(url: str, path: str, verb: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A request with just these headers; `Host` as given, or none."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.putrequest(verb, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": parts.netloc, **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def routes(url: str) -> list[tuple[str, str]]:
    """Each verb and path that the description has, and the pages."""
    described = json.loads(ask(url, "/openapi.json")[2])
    found = [(verb.upper(), path) for path, verbs in described["paths"].items() for verb in verbs]
    assert len(found) >= 22
    return [*found, ("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json")]


def test_every_route_refuses_foreign_hosts_origins_and_sites(url: str) -> None:
    """Whatever comes with it: a token, a cookie, the header of the page."""
    cookie = cookie_of(url)
    netloc = urlsplit(url).netloc
    for verb, path in routes(url):
        for more in ({"Authorization": "Bearer rules"}, {"Cookie": cookie, "X-Logclient": "1"}):
            status, _, body = ask(url, path, verb, Host="evil.example", **more)
            assert (status, json.loads(body)["error"]) == (421, "foreign_host"), path
            if path in ("/healthz", "/readyz"):
                continue  # they have nothing to say
            for foreign in (
                {"Origin": "https://evil.example"},
                {"Origin": "null", "Content-Type": "application/x-www-form-urlencoded"},
                {"Origin": f"http://{netloc.partition(':')[0]}:1", "Sec-Fetch-Site": "same-site"},
                {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
                {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "websocket", "Upgrade": "websocket"},
            ):
                status, headers, body = ask(url, path, verb, **foreign, **more)
                assert (status, json.loads(body)["error"]) == (403, "foreign_origin"), (path, foreign)
                assert not [name for name in headers if name.startswith("access-control")]


def test_every_route_that_is_not_open_asks_who_it_is(url: str) -> None:
    """Nothing, a cookie that is none, and one of another collector's name."""
    for verb, path in routes(url):
        if path in OPEN or not path.startswith("/api"):
            continue
        for shown in (
            {},
            {"Cookie": "logclient-0=x"},
            {"Cookie": f"{cookie_of(url)[:-4]}", "X-Logclient": "1"},
        ):
            status, _, body = ask(url, path, verb, **shown)
            assert (status, json.loads(body)["error"]) == (401, "unauthorized"), (verb, path, shown)


def test_change_with_a_cookie_needs_the_header_that_no_form_can_send(url: str) -> None:
    """On every route that is no question, also one that is made later; a bearer's request needs none."""
    cookie = cookie_of(url)
    changing = [(verb, path) for verb, path in routes(url) if verb != "GET"]
    assert len(changing) >= 5
    for verb, path in [*changing, *(("PUT", path) for path in PATHS), *(("PATCH", path) for path in PATHS)]:
        for header in ({}, {"X-Logclient": "0"}, {"X-Logclient": ""}, {"Content-Type": "text/plain"}):
            status, _, body = ask(url, path, verb, Cookie=cookie, **header)
            assert (status, json.loads(body)["error"]) == (403, "no_header"), (verb, path)
        status, _, body = ask(url, path, verb, Cookie=cookie, X_Logclient="1")
        assert json.loads(body).get("error") != "no_header"
        cookie = cookie_of(url)  # one of them was the logout
        assert ask(url, path, verb, Cookie=cookie, Authorization="Bearer ships")[0] != 403 or "run" in path
    assert ask(url, "/api/v1/runs", Cookie=cookie)[0] == 200


@pytest.mark.parametrize("path", PATHS)
def test_without_a_token_nothing_is_told(url: str, path: str) -> None:
    """Nor with a wrong one, one in the address, one in another scheme, or one that only ships."""
    assert ask(url, path)[0] == 401
    for given in ("Bearer nonsense", "Bearer ", "Bearer rules rules", "Basic cnVsZXM6", "rules"):
        status, headers, body = ask(url, path, Authorization=given)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert b"rules" not in body
    mark = "&" if "?" in path else "?"
    assert ask(url, f"{path}{mark}token=rules&access_token=rules")[0] == 401
    expected = 200 if path.endswith("info") else 403
    assert ask(url, path, Authorization="Bearer ships")[0] == expected
    assert ask(url, path, Authorization="Bearer reads")[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "[::1",
        "a b",
    ],
)
def test_foreign_host_is_refused(url: str, host: str) -> None:
    """A page that lets its own name point here (DNS rebinding) asks with that name."""
    for path in (*PATHS, "/healthz", "/docs", "/openapi.json"):
        status, _, body = ask(url, path, Host=host, Authorization="Bearer rules")
        assert status in (400, 421)
        if status == 421:
            assert json.loads(body)["error"] == "foreign_host"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost:1", "LOCALHOST", "[::1]:80", "10.1.2.3", "logs.example", "Logs.Example.:443"],
)
def test_addresses_and_known_names_are_answered(url: str, host: str) -> None:
    """Nobody can make an address point elsewhere; other names are configured."""
    assert ask(url, "/api/v1/runs", Host=host, Authorization="Bearer reads")[0] == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "http://localhost:1"])
def test_foreign_origin_is_refused(url: str, origin: str) -> None:
    """Also of another port on this host, and of a form that is sent across sites; nothing is shared across origins."""
    for verb, path in (
        ("GET", "/api/v1/runs"),
        ("POST", "/api/v1/run/undelete?run=one"),
        ("DELETE", "/api/v1/run?run=one"),
    ):
        status, headers, body = ask(url, path, verb, Origin=origin, Authorization="Bearer rules")
        assert (status, json.loads(body)["error"]) == (403, "foreign_origin")
        assert not [name for name in headers if name.startswith("access-control")]
    status, headers, _ = ask(
        url, "/api/v1/runs", "OPTIONS", Origin=origin, Access_Control_Request_Method="GET"
    )
    assert status == 403
    assert not [name for name in headers if name.startswith("access-control")]


def cookie_of(url: str) -> str:
    """The cookie of a reader who has just logged in."""
    _, headers, _ = ask(url, "/api/v1/session", "POST", Authorization="Bearer reads")
    return headers["set-cookie"].partition(";")[0]


def test_own_origin_is_answered(url: str) -> None:
    """What a page of the collector itself sends."""
    netloc = urlsplit(url).netloc
    for origin in (f"http://{netloc}", f"https://{netloc}"):
        assert ask(url, "/api/v1/runs", Origin=origin, Authorization="Bearer reads")[0] == 200


def test_other_sites_may_link_but_not_load(url: str) -> None:
    """A link to /docs opens; an image or script of another site does not."""
    for site in ("cross-site", "same-site"):
        assert ask(url, "/docs", Sec_Fetch_Mode="navigate", Sec_Fetch_Site=site)[0] == 200
        assert ask(url, "/docs", Sec_Fetch_Mode="no-cors", Sec_Fetch_Site=site)[0] == 403
    assert ask(url, "/docs", Sec_Fetch_Mode="cors", Sec_Fetch_Site="same-origin")[0] == 200


def test_websocket_is_refused(url: str) -> None:
    """There is none."""
    status, _, _ = ask(
        url,
        "/api/v1/runs",
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
    )
    assert status in (400, 401, 403, 426)


def test_every_answer_has_headers_that_keep_browsers_safe(url: str) -> None:
    """Also errors."""
    for path, given in (("/api/v1/runs", "Bearer reads"), ("/nothing", ""), ("/docs", ""), ("/healthz", "")):
        headers = ask(url, path, Authorization=given)[1]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in headers


def test_query_that_is_no_utf8_is_refused(url: str) -> None:
    """Two ids that differ in a byte would be one."""
    status, _, body = ask(url, "/api/v1/run?run=%FF", Authorization="Bearer reads")
    assert (status, json.loads(body)["error"]) == (400, "bad_request")
