"""Whatever answers at a collector's address, a session ends with one sentence, by its deadline."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logclient_backend.wire import channel, messages
from logclient_backend.wire.address import Address
from logclient_backend.wire.client import Patience, Session, describe
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Hello, NotTaken, Parcel
from logclient_backend.wire.server import ServerTls
from tests import badpeers
from tests.backend.ship.samples import item
from tests.badpeers import Peer, Proxy
from tests.collectors import MemoryCollector
from tests.process.disturbed import ROOT, wait_until

HELLO = Hello("run", "node")
SHORT = Patience(connect_s=1.0, ack_s=1.0)
WAIT_S = 60


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the developer's reaches no test."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def refusal(access: Access, patience: Patience | None = None) -> NotTaken:
    """How opening a session there fails."""
    session = Session(access, HELLO, patience)
    try:
        with pytest.raises(NotTaken) as caught:
            session.open()
    finally:
        session.close()
    return caught.value


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 502, 503])
def test_status_of_a_proxy_is_named_and_pauses_are_ordinary(status: int) -> None:
    """It is no word of a collector: no token is blamed, and no long rest follows at once."""
    with Peer(badpeers.proxy(status)) as peer:
        trouble = refusal(Access(peer.address, "secret"), SHORT)
    assert f"HTTP status {status}" in trouble.text and "TOKEN" not in trouble.text
    assert trouble.retry_after_s is None and not trouble.is_final
    for_now = trouble.reason == messages.UNREACHABLE
    assert for_now == (status in (429, 502, 503))


@pytest.mark.parametrize(
    "answer",
    [badpeers.garbage, badpeers.portal, badpeers.long_error, badpeers.reset, badpeers.silence],
    ids=lambda answer: answer.__name__,
)
def test_nonsense_is_one_short_sentence(answer: Callable[[socket.socket], None]) -> None:
    """It names the address, is not final, and the deadline is kept."""
    with Peer(answer) as peer:
        access = Access(peer.address, "secret")
        begun = time.monotonic()
        trouble = refusal(access, SHORT)
        assert time.monotonic() - begun < WAIT_S
        assert not trouble.is_final
        assert trouble.reason in (messages.UNREACHABLE, messages.WRONG_PROTOCOL)
        assert peer.address.target in trouble.text
        assert len(trouble.text) < 500
        assert trouble.text.isprintable()
        assert "secret" not in trouble.text
        with pytest.raises(NotTaken):
            describe(access, 1.0)


def test_nobody_there() -> None:
    """A port on which nobody listens, and a name that no one knows."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "refused" in refusal(Access(Address("127.0.0.1", port))).text
    trouble = refusal(Access(Address("no-such-host.invalid", 1)), SHORT)
    assert trouble.reason == messages.UNREACHABLE
    assert "no-such-host.invalid" in trouble.text
    assert "field:" not in trouble.text  # grpc's own words


@pytest.fixture
def collector_process() -> Iterator[tuple[subprocess.Popen[bytes], Address]]:
    """A collector that can be stopped and killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.collectors", "0"], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        yield process, Address("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


def test_a_stopped_collector_is_noticed(
    collector_process: tuple[subprocess.Popen[bytes], Address],
) -> None:
    """SIGSTOP: the connection stands and nothing is answered; sending waits for nobody."""
    process, address = collector_process
    session = Session(Access(address), HELLO, Patience(ack_s=1.0))
    try:
        session.open()
        os.kill(process.pid, signal.SIGSTOP)
        records = item(5000)
        while session.has_room:  # until the window is full: none of it is acknowledged
            session.send(Parcel(0, [records]))
        with pytest.raises(NotTaken, match="has not answered"):
            wait_until(lambda: session.poll(1.0) and False, WAIT_S, "the silence is noticed")
    finally:
        os.kill(process.pid, signal.SIGCONT)
        session.close()


def test_a_killed_collector_is_noticed(
    collector_process: tuple[subprocess.Popen[bytes], Address],
) -> None:
    """SIGKILL in mid-conversation."""
    process, address = collector_process
    session = Session(Access(address), HELLO)
    try:
        session.open()
        process.kill()
        with pytest.raises(NotTaken, match=address.target):
            wait_until(lambda: session.poll(1.0) and False, WAIT_S, "the end is noticed")
    finally:
        session.close()


def test_a_proxy_gets_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password with an escaped sign arrives as it is meant, and what is shipped arrives behind the proxy."""
    with MemoryCollector() as collector, Proxy(collector.address, "user:p@ss") as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:p%40ss@{proxy.address.target}")
        session = Session(Access(Address("collector.test", 7788)), HELLO)
        try:
            session.open()
            session.send(Parcel(0, [item(10)]))
            wait_until(lambda: session.poll(1.0) and not session.under_way, WAIT_S, "the ack comes")
        finally:
            session.close()
        assert proxy.logins == ["user:p@ss"]
        assert proxy.asked[0].startswith("CONNECT collector.test:7788 ")
        assert collector.records == 10


def test_loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dead proxy in the environment, and no word of exceptions."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, f"http://user:secret@127.0.0.1:{port}")
    with MemoryCollector() as collector:
        for host in ("127.0.0.1", "localhost"):
            session = Session(Access(Address(host, collector.address.port)), HELLO)
            session.open()
            assert session.close(30)


@pytest.mark.parametrize("is_dead", [True, False], ids=["dead", "wants another login"])
def test_a_useless_proxy_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    """The sentence says which proxy it was."""
    with MemoryCollector() as collector, Proxy(collector.address, "other:login") as proxy:
        target = proxy.address.target
        if is_dead:
            proxy.__exit__()
        monkeypatch.setenv("https_proxy", f"http://user:s%40cret@{target}")
        trouble = refusal(Access(Address("collector.test", 7788)))
        assert f"through the proxy {target}" in trouble.text
        for secret in ("s%40cret", "s@cret", "user"):
            assert secret not in trouble.text


def test_which_proxy_leads_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """As grpc reads the variables."""
    there = Address("collector.example", 1)
    assert channel.proxy_of(there) == ""
    monkeypatch.setenv("http_proxy", "http://proxy:3128/")
    assert channel.proxy_of(there) == "proxy:3128"
    assert channel.proxy_of(Address("127.0.0.1", 1)) == ""
    monkeypatch.setenv("no_proxy", "other, .example")
    assert channel.proxy_of(there) == ""
    monkeypatch.setenv("no_proxy", "10.0.0.0/8")
    assert channel.proxy_of(Address("10.1.2.3", 1)) == ""
    assert channel.proxy_of(Address("11.1.2.3", 1)) == "proxy:3128"


def test_tls_that_does_not_fit_is_told_apart(tmp_path: Path) -> None:
    """A certificate that nobody knows, one for another name, TLS on one side only: each has its sentence."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here to make a certificate")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    collector = MemoryCollector()
    tls = ServerTls(certificate.read_bytes(), key.read_bytes())
    port = collector.server.listen(Address("127.0.0.1", 0, is_tls=True), tls).port
    collector.start()
    try:
        ca = certificate.read_bytes()
        session = Session(Access(Address("localhost", port, is_tls=True), ca=ca), HELLO)
        session.open()
        assert session.close(WAIT_S)
        for access, word in (
            (Access(Address("localhost", port, is_tls=True)), "signed its certificate"),
            (Access(Address("127.0.0.1", port, is_tls=True), ca=ca), "for another name"),
            (Access(Address("localhost", port)), "grpcs://"),
            (Access(Address("127.0.0.1", collector.address.port, is_tls=True)), "does not speak TLS"),
        ):
            assert word in refusal(access).text
    finally:
        collector.stop()
