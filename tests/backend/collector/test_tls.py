"""Certificates that do not work: each cause in its own words, where a collector starts and where a client connects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logclient.errors import LogclientError
from logclient_backend.collector import tls
from logclient_backend.wire import client
from logclient_backend.wire.address import Address
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import UNREACHABLE, Hello, NotTaken
from logclient_backend.wire.server import ServerTls
from tests.certificates import Authority
from tests.collectors import MemoryCollector

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.mark.parametrize(
    ("kind", "knows_the_signer", "words"),
    [
        ("expired", True, "its certificate has expired"),
        ("young", True, "not valid yet; is the clock"),
        ("elsewhere", True, "for another name"),
        ("good", False, "nobody whom this machine trusts signed"),
    ],
)
def test_client_names_the_cause(authority: Authority, kind: str, knows_the_signer: bool, words: str) -> None:
    """For a conversation and for a question alike."""
    certificate, key = (path.read_bytes() for path in authority.certificate(kind))
    ca = (authority.folder / "ca.pem").read_bytes() if knows_the_signer else None
    collector = MemoryCollector()
    try:
        where = collector.server.listen(Address("127.0.0.1", 0, True), ServerTls(certificate, key))
        collector.server.start()
        access = Access(where, "", ca)
        with pytest.raises(NotTaken, match=words) as caught:
            client.describe(access, 30.0)
        assert caught.value.reason == UNREACHABLE
        session = client.Session(access, Hello("run", "node"))
        with pytest.raises(NotTaken, match=words):
            session.open()
    finally:
        collector.stop()


def test_client_that_knows_the_signer_is_served(authority: Authority) -> None:
    """By a certificate that is as it should be."""
    certificate, key = (path.read_bytes() for path in authority.certificate("good"))
    collector = MemoryCollector()
    try:
        where = collector.server.listen(Address("127.0.0.1", 0, True), ServerTls(certificate, key))
        collector.server.start()
        session = client.Session(
            Access(where, "", (authority.folder / "ca.pem").read_bytes()), Hello("run", "node")
        )
        assert session.open().collector == collector.id
        session.close(30.0)
    finally:
        collector.stop()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("expired", "has expired"),
        ("young", "is not valid yet"),
        ("elsewhere", "is not for the name 127.0.0.1"),
    ],
)
def test_start_warns_of_what_clients_refuse(authority: Authority, kind: str, words: str) -> None:
    """And of nothing where all is well."""
    files = authority.certificate(kind)
    (said,) = tls.read((str(files[0]), str(files[1])), ["127.0.0.1"]).troubles()
    assert words in said and str(files[0]) in said
    good = authority.certificate("good")
    assert tls.read((str(good[0]), str(good[1])), ["127.0.0.1", "localhost"]).troubles() == []


def test_certificate_that_ends_soon_is_reported(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the days that are left; a collector that runs on reports the end, too."""
    files = authority.certificate("good")
    found = tls.read((str(files[0]), str(files[1])))
    for left_s, words in ((3 * 86400, "expires in 3 days"), (-1, "has expired")):
        monkeypatch.setattr("time.time", lambda left_s=left_s: found.ends_s - left_s)
        (said,) = found.troubles()
        assert words in said


def test_start_names_the_cause(authority: Authority, tmp_path: Path) -> None:
    """Of what can never work; each sentence names the file."""
    certificate, key = (str(path) for path in authority.certificate("good"))
    other = str(authority.certificate("elsewhere")[1])
    text, folder = tmp_path / "text", tmp_path / "folder"
    text.write_text("no PEM at all")
    folder.mkdir()
    cut = tmp_path / "cut.pem"
    cut.write_bytes(Path(certificate).read_bytes()[:200])
    cases = {
        (certificate, other): (other, "belongs to another certificate"),
        ("/nonexistent.pem", key): ("/nonexistent.pem", "no such file"),
        (certificate, "/nonexistent.key"): ("/nonexistent.key", "no such file"),
        (str(text), key): (str(text), "holds no certificate"),
        (certificate, str(text)): (str(text), "holds no private key"),
        (key, certificate): (key, "swapped"),
        (str(folder), key): (str(folder), "cannot be read"),
        (str(cut), key): (str(cut), "cannot be used"),
    }
    for files, (named, words) in cases.items():
        with pytest.raises(LogclientError) as caught:
            tls.read(files)
        assert named in str(caught.value) and words in str(caught.value), (files, str(caught.value))


def test_key_that_nobody_may_read_is_named(authority: Authority) -> None:
    """To a user who is not root."""
    certificate, key = authority.certificate("good")
    if os.getuid() == 0:
        pytest.skip("root may read everything")
    key.chmod(0)
    with pytest.raises(LogclientError, match="cannot be read by this user"):
        tls.read((str(certificate), str(key)))
