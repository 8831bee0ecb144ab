"""Questions over HTTP to servers that are none, are slow, lie, or are not there: a sentence, by a deadline."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from logclient.errors import BadArgument, NoRun
from logclient_backend.remote import access, server
from logclient_backend.remote.access import ServerError, Unreachable, WebAccess
from logclient_backend.remote.server import Server, with_hint

TOKEN = "lct_very_secret"
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[tuple[str, list[BaseHTTPRequestHandler]]]:
    """A server that gives this answer, and the requests it got."""
    seen: list[BaseHTTPRequestHandler] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self)
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}", seen
    finally:
        made.shutdown()
        made.server_close()
        thread.join(60)


def saying(status: int, body: bytes, kind: str = "application/json", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **headers,
        }.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same waits, shorter."""
    monkeypatch.setattr(server, "TRIES_S", 0.5)
    for name in (
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "no_proxy",
        "NO_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)


PAGE = b"<html>Welcome to the hotel, please log in</html>"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (saying(200, PAGE, "text/html"), "no collector of logclient"),
        (saying(302, b"", "text/html", Location="http://127.0.0.1:1/login"), "no collector of logclient"),
        (saying(502, PAGE, "text/html"), "status 502"),
        (saying(200, b"[1]"), "no JSON object"),
        (saying(200, b'{"a": NaN}'), "no JSON object"),
        (saying(200, b'{"a": 1'), "no JSON object"),
        (saying(401, b'{"error": "unauthorized", "message": "a token is needed"}'), "LOGCLIENT_TOKEN"),
        (
            saying(503, json.dumps({"error": "store", "message": "the disk\n\x1b[31mis full"}).encode()),
            "is full",
        ),
        (saying(500, b'{"message": "' + b"x" * 20_000_000 + b'"}'), "status 500"),
    ],
)
def test_an_answer_that_is_none_is_told_in_a_sentence(answer: Answer, said: str) -> None:
    """One line of bounded length, nothing that a terminal obeys, and no token."""
    with answering(answer) as (url, seen):
        asked = Server(WebAccess(url, TOKEN))
        with pytest.raises(ServerError, match=said) as caught:
            asked.json("/runs")
        text = str(caught.value)
        assert text.isprintable()
        assert len(text) < 1000
        assert TOKEN not in text
        assert len(seen) == 1  # what was answered is not asked again


def test_no_run_is_told_as_such() -> None:
    """Like a folder that does not have it."""
    body = json.dumps({"error": "no_run", "message": "there is no run 'x' here"}).encode()
    with answering(saying(404, body)) as (url, _), pytest.raises(NoRun, match="there is no run 'x'"):
        Server(WebAccess(url)).json("/run", run="x")


def test_token_goes_in_a_header_to_this_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not along with a redirection, not replaced by a .netrc, not through the environment's proxy on loopback."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://user:word@127.0.0.1:1")
    with answering(saying(200, b"{}")) as (other, elsewhere):
        with answering(saying(307, b"", Location=other)) as (url, _), pytest.raises(ServerError):
            Server(WebAccess(url, TOKEN)).json("/runs")
        assert not elsewhere
        assert Server(WebAccess(other, TOKEN)).json("/runs") == {}
        (request,) = elsewhere
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        assert TOKEN not in request.path
    assert TOKEN not in repr(WebAccess(other, TOKEN))


def test_a_proxy_of_the_environment_is_used_beyond_loopback_and_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proxy gets the question; a proxy that is not there is named as the cause."""
    with answering(saying(200, b"{}")) as (proxy, seen):
        monkeypatch.setenv("http_proxy", proxy)
        assert Server(WebAccess("http://collector.invalid:7789", TOKEN)).json("/runs") == {}
        assert seen[0].path.startswith("http://collector.invalid:7789/api/v1/runs")
    monkeypatch.setenv("http_proxy", proxy.replace("//", "//user:word@"))
    with pytest.raises(ServerError, match="proxy") as caught:
        Server(WebAccess("http://collector.invalid:7789", TOKEN)).json("/runs")
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    ("cause", "hint"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate", "set ca"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "write http://"),
        ("_ssl.c:1015: The handshake operation timed out", "write http://"),
        ("Remote end closed connection without response", "write https://"),
        ("Connection refused", "nothing listens"),
    ],
)
def test_what_helps_is_said_where_it_is_known(cause: str, hint: str) -> None:
    """And the cause as it was."""
    assert with_hint(cause).startswith(cause) and hint in with_hint(cause)
    assert with_hint("cable out") == "cable out"


def test_nobody_there_is_told_after_some_tries() -> None:
    """A refused connection, and a name that nobody knows."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(ServerError, match="is not reached"):
            Server(WebAccess(f"http://127.0.0.1:{held.getsockname()[1]}")).json("/runs")
    with pytest.raises(ServerError, match="is not reached"):
        Server(WebAccess("http://name.invalid:1")).json("/runs")


def test_a_server_that_comes_back_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are tried again with a pause."""
    monkeypatch.setattr(server, "TRIES_S", 60.0)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    made: list[ThreadingHTTPServer] = []

    class Handler(BaseHTTPRequestHandler):
        do_GET = saying(200, b"{}")

        def log_message(self, *_: object) -> None:
            pass

    def start(_: float) -> None:
        if not made:
            made.append(ThreadingHTTPServer(("127.0.0.1", port), Handler))
            threading.Thread(target=made[0].serve_forever, daemon=True).start()

    monkeypatch.setattr("time.sleep", start)  # the pause after the first try
    try:
        assert Server(WebAccess(f"http://127.0.0.1:{port}")).json("/runs") == {}
    finally:
        made[0].shutdown()
        made[0].server_close()


def test_silence_and_half_an_answer_end_by_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes the question and says nothing; one that stops in the middle; one that never ends."""
    monkeypatch.setattr(server, "MAX_BYTES", 1 << 20)
    ended = threading.Event()

    def silent(_: BaseHTTPRequestHandler) -> None:
        ended.wait(60)

    try:
        with monkeypatch.context() as patch, answering(silent) as (url, _):
            patch.setattr(server, "READ_S", 0.3)
            with pytest.raises(ServerError, match="gave no answer"):
                Server(WebAccess(url)).json("/runs")
            ended.set()
        with (
            answering(saying(200, b"{", **{"Content-Length": "100"})) as (url, _),
            pytest.raises(ServerError, match="broke its answer off"),
        ):
            Server(WebAccess(url)).json("/runs")

        def endless(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Type", "application/json")
            handler.end_headers()
            try:
                while True:
                    handler.wfile.write(b" " * 65536)
            except OSError:
                pass

        with answering(endless) as (url, _), pytest.raises(ServerError, match="more than 1 MiB"):
            Server(WebAccess(url)).json("/runs")
    finally:
        ended.set()


def test_handshake_that_does_not_come_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody takes connections and says nothing: no word of an answer, since nothing was asked."""
    monkeypatch.setattr(server, "READ_S", 0.3)
    monkeypatch.setattr(server, "TRIES_S", 0.0)
    said = r"is not reached: .*handshake.*timed out; .* write http://"
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Unreachable, match=said):
        Server(WebAccess(f"https://127.0.0.1:{silent.getsockname()[1]}")).json("/runs")


def test_handshake_may_take_longer_than_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that has just started takes connections before it can answer them."""
    monkeypatch.setattr(server, "CONNECT_S", 0.5)
    monkeypatch.setattr(server, "TRIES_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def say_no() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(1 << 16)
                time.sleep(1.0)  # longer than CONNECT_S, on any machine
                taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        late = threading.Thread(target=say_no, daemon=True)
        late.start()
        with pytest.raises(ServerError, match=r"TLS fails: .*WRONG_VERSION_NUMBER"):
            Server(WebAccess(f"https://127.0.0.1:{listening.getsockname()[1]}")).json("/runs")
        late.join(60)


def test_which_server_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses, and where the token comes from: given, a file, the environment, a config file that names the host."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LOGCLIENT_SERVER", raising=False)
    monkeypatch.delenv("LOGCLIENT_TOKEN", raising=False)
    folder = tmp_path / "logclient"
    folder.mkdir()
    config = folder / "config.toml"
    config.write_text('server = "grpc://one.example:7788"\ntoken = "of-file"\n')
    config.chmod(0o600)
    assert access.find("http://one.example:7789/").token == "of-file"
    assert access.find("http://two.example:7789").token == ""
    assert access.find("http://one.example:7789", token="given").token == "given"
    monkeypatch.setenv("LOGCLIENT_TOKEN", "of-environment")
    assert access.find("http://two.example:7789").token == "of-environment"
    (tmp_path / "token").write_text("in-file\n")
    (tmp_path / "token").chmod(0o600)
    assert access.find("https://two.example", token_file=str(tmp_path / "token")).token == "in-file"
    assert access.find("HTTP://Host.example:1/base/").url == "http://host.example:1/base"
    assert access.find("http://[::1]:7789").url == "http://[::1]:7789"
    assert access.find("http://[::1]:7789").is_loopback
    for wrong in ("http://", "http://host:port", "http://a:b@host", "http://host/?a=b", "https://host:99999"):
        with pytest.raises(BadArgument):
            access.find(wrong)
    config.unlink()
    with pytest.raises(BadArgument, match=r"http:// or https://.*grpc:// or grpcs://") as caught:
        access.find("ftp://me:secret@host")
    assert "'ftp://...@host'" in str(caught.value) and "secret" not in str(caught.value)
    with pytest.raises(BadArgument, match="no server is set"):
        access.find(access.CONFIGURED)
    with pytest.raises(ServerError):
        access.find("grpc://127.0.0.1:1")
