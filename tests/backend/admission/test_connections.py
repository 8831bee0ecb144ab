"""Who leaves when a port is full, and when nobody does."""

from __future__ import annotations

import pytest

from logclient_backend.admission.connections import (INSIDE, KNOWN, OUTSIDE, Guest, Guests, Rooms, share_of)
from logclient_backend.admission.openings import (http1, http2, tls)

ROOMS = Rooms(outside=4, inside=3, known=2)


def guest(share: str, since: float = 0.0, **facts: object) -> Guest:
    made = Guest(share, f"{share}:1", since, None)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def with_guests(*them: Guest, stage: str = OUTSIDE) -> Guests:
    made = Guests(ROOMS)
    for each in them:
        made.add(each)
        if stage != OUTSIDE:
            made.move(each, stage)
    return made


def test_oldest_of_the_address_with_most_leaves() -> None:
    """However old the only guest of another address is."""
    first, second = guest("crowd", 2.0), guest("crowd", 3.0)
    guests = with_guests(guest("alone", 1.0), first, second, guest("crowd", 4.0))
    assert guests.is_full(OUTSIDE)
    assert guests.least_useful(OUTSIDE, 10.0) is first
    guests.remove(first)
    assert not guests.is_full(OUTSIDE) and guests.least_useful(OUTSIDE, 10.0) is second


def test_nobody_leaves_before_an_honest_client_could_have_spoken() -> None:
    """Nor does an address with few guests pay for one that sends many."""
    many = [guest("crowd", 10.0) for _ in range(3)]
    guests = with_guests(guest("alone", 1.0), *many)
    assert guests.least_useful(OUTSIDE, 10.0 + ROOMS.opening_least_s / 2) is None
    assert guests.least_useful(OUTSIDE, 10.0 + 2 * ROOMS.opening_least_s) is many[0]


def test_silent_guest_leaves_before_one_that_has_opened() -> None:
    """It is the more likely to be nobody."""
    ready, silent = guest("a", 1.0, is_ready=True), guest("a", 2.0)
    guests = with_guests(ready, silent)
    assert guests.least_useful(OUTSIDE, 10.0) is silent
    guests.remove(silent)
    assert guests.least_useful(OUTSIDE, 10.0) is ready


def test_refused_guest_leaves_first_and_one_in_a_call_last() -> None:
    """Among those inside."""
    busy, idle, refused = guest("a", calls=1), guest("a"), guest("a", is_refused=True)
    guests = with_guests(busy, idle, refused, stage=INSIDE)
    for expected in (refused, idle, busy):
        assert guests.least_useful(INSIDE, 10.0) is expected
        guests.remove(expected)
    assert guests.least_useful(INSIDE, 10.0) is None


def test_known_guest_in_a_call_never_leaves() -> None:
    """The one that has been idle longest does, of the holder with most connections."""
    busy, idle = guest("a", calls=1, who="one", moved=1.0), guest("a", who="one", moved=2.0)
    guests = with_guests(busy, idle, stage=KNOWN)
    assert guests.least_useful(KNOWN, 10.0) is idle
    guests.remove(idle)
    assert guests.least_useful(KNOWN, 10.0) is None


def test_next_one_inside_is_of_the_address_that_has_fewest_there() -> None:
    """And has opened."""
    guests = with_guests(guest("a"), guest("a"), stage=INSIDE)
    others = [guest("b"), guest("a", is_ready=True), guest("b", is_ready=True)]
    for each in others:
        guests.add(each)
    assert guests.next_ready() is others[2]


def test_time_of_those_without_a_token_ends() -> None:
    """Sooner for those that have not opened, soonest for those that were refused."""
    silent, ready, inside = guest("a"), guest("a", is_ready=True), guest("a")
    refused, known = guest("a", is_refused=True), guest("a", who="one")
    guests = with_guests(silent, ready)
    for each, stage in ((inside, INSIDE), (refused, INSIDE), (known, KNOWN)):
        guests.add(each)
        guests.move(each, stage)
    assert guests.overdue(0.5) == []
    assert guests.overdue(ROOMS.refused_s + 0.1) == [refused]
    assert set(guests.overdue(ROOMS.opening_s + 0.1)) == {refused, silent}
    assert set(guests.overdue(1000.0)) == {silent, ready, inside, refused}


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
