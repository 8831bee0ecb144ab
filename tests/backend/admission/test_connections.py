"""Which connections are closed when a port is full, and when none is."""

from __future__ import annotations

import pytest

from logclient_backend.admission.connections import (
    INSIDE,
    KNOWN,
    OUTSIDE,
    Connection,
    ConnectionLimits,
    Connections,
    share_of,
)
from logclient_backend.admission.openings import http1, http2, tls

LIMITS = ConnectionLimits(outside=4, inside=3, known=2)


def connection(share: str, since: float = 0.0, **facts: object) -> Connection:
    made = Connection(share, f"{share}:1", since, None)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def with_connections(*them: Connection, stage: str = OUTSIDE) -> Connections:
    made = Connections(LIMITS)
    for each in them:
        made.add(each)
        if stage != OUTSIDE:
            made.move(each, stage)
    return made


def test_oldest_of_the_address_with_most_leaves() -> None:
    """However old the only connection of another address is."""
    first, second = connection("crowd", 2.0), connection("crowd", 3.0)
    connections = with_connections(connection("alone", 1.0), first, second, connection("crowd", 4.0))
    assert connections.is_full(OUTSIDE)
    assert connections.least_useful(OUTSIDE, 10.0) is first
    connections.remove(first)
    assert not connections.is_full(OUTSIDE) and connections.least_useful(OUTSIDE, 10.0) is second


def test_nobody_leaves_before_an_honest_client_could_have_spoken() -> None:
    """Nor does an address with few connections pay for one that sends many."""
    many = [connection("crowd", 10.0) for _ in range(3)]
    connections = with_connections(connection("alone", 1.0), *many)
    assert connections.least_useful(OUTSIDE, 10.0 + LIMITS.opening_least_s / 2) is None
    assert connections.least_useful(OUTSIDE, 10.0 + 2 * LIMITS.opening_least_s) is many[0]


def test_silent_connection_leaves_before_one_that_has_opened() -> None:
    """It is the more likely to be nobody."""
    ready, silent = connection("a", 1.0, is_ready=True), connection("a", 2.0)
    connections = with_connections(ready, silent)
    assert connections.least_useful(OUTSIDE, 10.0) is silent
    connections.remove(silent)
    assert connections.least_useful(OUTSIDE, 10.0) is ready


def test_refused_connection_leaves_first_and_one_in_a_call_last() -> None:
    """Among those inside."""
    busy, idle, refused = connection("a", calls=1), connection("a"), connection("a", is_refused=True)
    connections = with_connections(busy, idle, refused, stage=INSIDE)
    for expected in (refused, idle, busy):
        assert connections.least_useful(INSIDE, 10.0) is expected
        connections.remove(expected)
    assert connections.least_useful(INSIDE, 10.0) is None


def test_known_connection_in_a_call_never_leaves() -> None:
    """The one that has been idle longest does, of the holder with most connections."""
    busy, idle = connection("a", calls=1, who="one", moved=1.0), connection("a", who="one", moved=2.0)
    connections = with_connections(busy, idle, stage=KNOWN)
    assert connections.least_useful(KNOWN, 10.0) is idle
    connections.remove(idle)
    assert connections.least_useful(KNOWN, 10.0) is None


def test_next_one_inside_is_of_the_address_that_has_fewest_there() -> None:
    """And has opened."""
    connections = with_connections(connection("a"), connection("a"), stage=INSIDE)
    others = [connection("b"), connection("a", is_ready=True), connection("b", is_ready=True)]
    for each in others:
        connections.add(each)
    assert connections.next_ready() is others[2]


def test_time_of_those_without_a_token_ends() -> None:
    """Sooner for those that have not opened, soonest for those that were refused."""
    silent, ready, inside = connection("a"), connection("a", is_ready=True), connection("a")
    refused, known = connection("a", is_refused=True), connection("a", who="one")
    connections = with_connections(silent, ready)
    for each, stage in ((inside, INSIDE), (refused, INSIDE), (known, KNOWN)):
        connections.add(each)
        connections.move(each, stage)
    assert connections.overdue(0.5) == []
    assert connections.overdue(LIMITS.refused_s + 0.1) == [refused]
    assert set(connections.overdue(LIMITS.opening_s + 0.1)) == {refused, silent}
    assert set(connections.overdue(1000.0)) == {silent, ready, inside, refused}


@pytest.mark.parametrize(
    ("host", "share"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_share_of_an_address(host: str, share: str) -> None:
    """A network of 64 bits is one host's."""
    assert share_of(host) == share


@pytest.mark.parametrize(
    ("opening", "whole"),
    [
        (http2, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (http1, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (tls, b"\x16\x03\x01\x00\x05hello"),
    ],
)
def test_opening_is_whole_at_its_last_byte(opening, whole: bytes) -> None:
    """And not before; what is none at all goes on to the server, which refuses it."""
    assert not any(opening(whole[:size]) for size in range(1, len(whole)))
    assert opening(whole) and opening(whole + b"more")
    assert opening(b"\xff\xff")
