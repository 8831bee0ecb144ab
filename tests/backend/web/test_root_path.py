"""The HTTP side below a path, behind a proxy that cuts the path off and behind one that does not."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
import requests

from logclient.errors import BadArgument
from logclient_backend.collector import site as sites
from tests.backend.runs.build import simple_run
from tests.served import backing, made_store, serving, take_in

TIMEOUT_S = 60
ROOT = "/team/logs"


@contextmanager
def proxy(target: str, *, cuts: bool, keeps_host: bool) -> Iterator[str]:
    """The address of a proxy that passes all below `ROOT` on, without that where it cuts it off."""

    class Pass(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix(ROOT) or "/" if cuts else self.path
            parts = urlsplit(target)
            there = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
            kept = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            if not keeps_host:
                kept["Host"] = parts.netloc
            there.request(self.command, path, headers=kept)
            answer = there.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "date", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            there.close()

        do_POST = do_DELETE = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pass)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(TIMEOUT_S)
        server.server_close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    base = tmp_path_factory.mktemp("root")
    simple_run(base / "runs", "one")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        yield store


@pytest.mark.parametrize("cuts", [True, False])
def test_browser_works_below_a_path(store: Any, cuts: bool) -> None:
    """Login, what it opens, links and redirections, and the logout."""
    with (
        serving(backing(store, site=sites.make(None, ROOT, is_tls=False))) as target,
        proxy(target, cuts=cuts, keeps_host=True) as front,
        requests.Session() as browser,
    ):
        browser.trust_env = False
        home = f"{front}{ROOT}/"
        found = browser.get(home, timeout=TIMEOUT_S)
        assert found.url.startswith(home) and found.status_code == 200, "its redirection stays below the path"
        if not cuts:  # one that cuts has nothing to redirect
            assert browser.get(f"{front}{ROOT}", timeout=TIMEOUT_S).url.startswith(home)
        page = browser.get(f"{home}docs", timeout=TIMEOUT_S)
        described = browser.get(urljoin(page.url, "openapi.json"), timeout=TIMEOUT_S).json()
        assert described["servers"] == [{"url": ROOT}]
        api = f"{home}api/v1/"
        begun = browser.post(
            f"{api}session", headers={"Authorization": "Bearer reads", "Origin": front}, timeout=TIMEOUT_S
        )
        assert begun.status_code == 200 and f"Path={ROOT}/;" in begun.headers["set-cookie"]
        assert browser.get(f"{api}runs", timeout=TIMEOUT_S).json()["total"] == 1
        missing = browser.get(f"{home}nothing", timeout=TIMEOUT_S)
        assert missing.status_code == 404 and f"{ROOT}/docs" in missing.json()["message"]
        ended = browser.delete(
            f"{api}session", headers={"X-Logclient": "1", "Origin": front}, timeout=TIMEOUT_S
        )
        assert ended.status_code == 200 and not browser.cookies
        assert browser.get(f"{api}runs", timeout=TIMEOUT_S).status_code == 401


def test_without_the_proxy_it_answers_as_before(store: Any) -> None:
    """Health checks and programs on the machine know nothing of the path; one that only begins like it is none."""
    with serving(backing(store, site=sites.make(None, ROOT, is_tls=False))) as url:
        for path, status in (
            *(
                ("/healthz", 200),
                (f"{ROOT}/healthz", 200),
                ("/api/v1/runs", 200),
                (f"{ROOT}/api/v1/runs", 200),
            ),
            *((f"{ROOT}x/api/v1/runs", 404), (f"{ROOT}{ROOT}/healthz", 404), ("/team/healthz", 404)),
        ):
            answer = requests.get(
                url + path,
                headers={"Authorization": "Bearer reads"},
                timeout=TIMEOUT_S,
                allow_redirects=False,
            )
            assert answer.status_code == status, path


def test_proxy_that_names_another_host_is_believed_for_the_public_address_alone(store: Any) -> None:
    """Pages of the public address may ask then; those of any other origin may not."""
    with (
        serving(backing(store, site=sites.make(f"https://Logs.example{ROOT}", None, is_tls=False))) as target,
        proxy(target, cuts=True, keeps_host=False) as front,
    ):
        for origin, status in (
            ("https://logs.example", 200),
            *(("http://logs.example", 403), ("https://logs.example:444", 403), ("https://evil.example", 403)),
        ):
            headers = {"Authorization": "Bearer reads", "Origin": origin}
            answer = requests.get(f"{front}{ROOT}/api/v1/runs", headers=headers, timeout=TIMEOUT_S)
            assert answer.status_code == status, origin
        by_name = requests.get(
            f"{target}/api/v1/runs",
            headers={"Authorization": "Bearer reads", "Host": "logs.example"},
            timeout=TIMEOUT_S,
        )
        assert by_name.status_code == 200, "its name need not be given twice"


@pytest.mark.parametrize(
    ("url", "root", "found"),
    [
        (None, None, ("", "", "")),
        (None, "/", ("", "", "")),
        (None, "/a-b/c.d/", ("", "/a-b/c.d", "")),
        ("https://h", None, ("https://h", "", "https://h")),
        ("https://H:443/", None, ("https://h:443", "", "https://h")),
        ("http://[::1]:80/x/", "/x/", ("http://[::1]:80/x", "/x", "http://[::1]")),
        ("https://h:8443/x", "/x", ("https://h:8443/x", "/x", "https://h:8443")),
    ],
)
def test_address_and_path_are_taken_as_they_are_meant(
    url: str | None, root: str | None, found: tuple[str, str, str]
) -> None:
    """The address has no slash at its end, and its path is the root path."""
    made = sites.make(url, root, is_tls=False)
    assert (made.url, made.root_path, made.origin) == found


@pytest.mark.parametrize(
    ("url", "root"),
    [
        *((None, wrong) for wrong in ("x", "/a//b", "/../a", "/a/./b", "/ä", "/a b", "/a?b", "/a%2f", "/;a")),
        *(
            (wrong, None)
            for wrong in ("h", "ftp://h", "https://", "https://a b", "https://u:p@h", "https://h:0")
        ),
        *(
            (wrong, None)
            for wrong in ("https://h/?x", "https://h/#x", "javascript:x", "https://h:x", "https://ü")
        ),
        *((wrong, None) for wrong in ("https://h/a;b", "https://h/" + "a" * 500)),
        ("https://h/a", "/b"),
        ("https://h", "/b"),
    ],
)
def test_addresses_and_paths_that_cannot_be_are_refused(url: str | None, root: str | None) -> None:
    """At the start, with the option's name."""
    with pytest.raises(BadArgument, match=r"--(public-url|root-path)"):
        sites.make(url, root, is_tls=False)
