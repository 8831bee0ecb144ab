"""Addresses of collectors as people write them."""

from __future__ import annotations

import pytest

from logclient.errors import BadArgument
from logclient_backend.wire.address import Address, is_loopback, parse
from logclient_backend.wire.sanitize import one_line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("grpc://collector:7788", Address("collector", 7788)),
        ("grpcs://collector.example:443", Address("collector.example", 443, is_tls=True)),
        ("GRPC://collector", Address("collector", 7788)),
        ("collector:1", Address("collector", 1)),
        (" 10.0.0.7 ", Address("10.0.0.7", 7788)),
        ("grpc://[::1]:9", Address("::1", 9)),
        ("grpc://[2001:db8::1]", Address("2001:db8::1", 7788)),
        ("grpc://host/", Address("host", 7788)),
    ],
)
def test_addresses_that_are_understood(text: str, expected: Address) -> None:
    """With and without a scheme, a port, brackets; what is shown is understood again."""
    assert parse(text) == expected
    assert parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "grpc://",
        "http://collector:7788",
        "grpc://::1",
        "grpc://[::1",
        "grpc://[::1]x",
        "grpc://[host]:1",
        "grpc://host:0",
        "grpc://host:65536",
        "grpc://host:port",
        "grpc://host:７７",
        "grpc://host/path",
        "grpc://a b",
        "grpc://-host",
        "unix:/tmp/socket",
        "grpc://" + "h" * 300,
    ],
)
def test_what_is_no_address_gets_a_sentence(text: str) -> None:
    """That shows what was given and what to write."""
    with pytest.raises(BadArgument, match="server"):
        parse(text)


def test_a_password_in_an_address_is_not_shown() -> None:
    """It is refused, and the sentence does not have it."""
    with pytest.raises(BadArgument) as caught:
        parse("grpc://user:secret@host:1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "answer"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_which_hosts_are_this_machine(host: str, answer: bool) -> None:
    """Names and addresses that lead over no network."""
    assert is_loopback(host) is answer


def test_words_from_elsewhere_become_one_short_line() -> None:
    """Whatever somebody sends is short, printable and on one line."""
    shown = one_line("a\n\nb\x1b[31mc\t" + "x" * 20_000_000, 50)
    assert shown.startswith("a b?[31mc x")
    assert len(shown) == 50
    assert shown.isprintable()
    assert one_line("whole", 5) == "whole"
