"""The connections of one port: `Guests` counts them by address and selects which one leaves when room is needed.

Pure bookkeeping, without sockets and clocks. Methods are called with the door's lock held.

A guest goes through stages: OUTSIDE (its opening is not whole yet, or it waits for room), INSIDE (handed to the server,
no token seen), KNOWN (a token was seen on it). It leaves by itself, by a deadline, or to make room.

Invariants:

- each stage has a limit, and reaching that of one stage costs no guest of another stage its place;
- who leaves belongs to the address with most guests in that stage, so one address alone never crowds out another;
- within that address, guests that are of least use leave first (refused, idle, then oldest), and none before it had
  the time that an honest client needs.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OUTSIDE, INSIDE, KNOWN = "outside", "inside", "known"


@dataclass(frozen=True, slots=True)
class Rooms:
    """Limits of a port: connections at once, and how long those without a token may stay."""

    outside: int = 256
    inside: int = 64
    known: int = 512
    opening_s: float = 5.0  # from the connection to a whole opening
    token_s: float = 15.0  # from the connection to a valid token
    refused_s: float = 1.0  # for the client to read why it was refused
    opening_least_s: float = 0.02  # so long a guest outside is left alone, however many others come
    token_least_s: float = 0.25  # and so long one inside: its server may be busy


class Guest:
    """One connection."""

    __slots__ = (
        *("share", "peer", "stage", "since", "handed_at", "moved", "calls", "who", "is_ready", "is_refused"),
        *("is_leaving", "connection"),
    )

    def __init__(self, share: str, peer: str, now: float, connection: Any) -> None:
        self.share = share  # the address by which shares are counted
        self.peer = peer  # for logs
        self.stage = OUTSIDE
        self.since = self.moved = now
        self.handed_at = now
        self.calls = 0  # under way
        self.who = ""  # whose token; empty: none
        self.is_ready = False  # its opening is whole
        self.is_refused = False
        self.is_leaving = False
        self.connection = connection  # what the door closes


class Guests:
    """All guests of one port."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        # stage -> share (address, or holder of the token) -> its guests, oldest first
        self._shares: dict[str, dict[str, dict[Guest, None]]] = {OUTSIDE: {}, INSIDE: {}, KNOWN: {}}
        self._counts = {OUTSIDE: 0, INSIDE: 0, KNOWN: 0}

    def count(self, stage: str) -> int:
        return self._counts[stage]

    def is_full(self, stage: str) -> bool:
        most = {OUTSIDE: self.rooms.outside, INSIDE: self.rooms.inside, KNOWN: self.rooms.known}[stage]
        return self._counts[stage] >= most

    def __iter__(self) -> Iterator[Guest]:
        for shares in self._shares.values():
            for guests in list(shares.values()):
                yield from list(guests)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def add(self, guest: Guest) -> None:
        """A newcomer, OUTSIDE."""
        self._put(guest, OUTSIDE)

    def move(self, guest: Guest, stage: str) -> None:
        """To another stage."""
        self._take(guest)
        self._put(guest, stage)

    def remove(self, guest: Guest) -> None:
        """It has left; nothing where it had left before."""
        if guest.stage:
            self._take(guest)
            guest.stage = ""

    # ---- who leaves -----------------------------------------------------------------------------------------

    def least_useful(self, stage: str, now: float) -> Guest | None:
        """The guest of that stage that leaves next to make room; None where each is young, or (KNOWN) in a call."""
        shares = self._shares[stage]
        most = max(map(len, shares.values()), default=0)
        for share in sorted(shares, key=lambda each: len(shares[each]), reverse=True):
            if stage != KNOWN and 2 * len(shares[share]) < most:
                return None  # an address with few guests does not pay for the haste of one with many
            found = self._least_useful_of(shares[share], stage, now)
            if found is not None:
                return found
        return None

    def _least_useful_of(self, guests: dict[Guest, None], stage: str, now: float) -> Guest | None:
        if stage == KNOWN:
            idle = [guest for guest in guests if not guest.calls]
            return min(idle, key=lambda guest: guest.moved, default=None)
        later = found = None  # who leaves where nobody is of less use
        for guest in guests:
            if guest.is_refused:
                return guest
            if stage == OUTSIDE and now - guest.since < self.rooms.opening_least_s:
                break  # and all behind it are younger
            if stage == INSIDE and now - guest.handed_at < self.rooms.token_least_s:
                continue
            if guest.is_ready if stage == OUTSIDE else guest.calls:
                later = later or guest
            elif stage == OUTSIDE:
                return guest
            else:
                found = found or guest  # one behind it may have been refused
        return found or later

    def next_ready(self) -> Guest | None:
        """The guest that goes inside next: of the address that has fewest inside, the oldest."""
        inside = self._shares[INSIDE]
        best: Guest | None = None
        fewest = 0
        for share, guests in self._shares[OUTSIDE].items():
            found = next((guest for guest in guests if guest.is_ready), None)
            if found is not None:
                count = len(inside.get(share, ()))
                if best is None or count < fewest:
                    best, fewest = found, count
        return best

    def overdue(self, now: float) -> list[Guest]:
        """Guests whose time is over."""
        rooms = self.rooms
        found = []
        for stage in (OUTSIDE, INSIDE):
            for guests in self._shares[stage].values():
                for guest in guests:
                    limit_s = rooms.token_s if stage == INSIDE or guest.is_ready else rooms.opening_s
                    if now - guest.since > limit_s or (
                        guest.is_refused and now - guest.moved > rooms.refused_s
                    ):
                        found.append(guest)
        return found

    # ---- within -----------------------------------------------------------------------------------------------

    def _put(self, guest: Guest, stage: str) -> None:
        guest.stage = stage
        share = guest.who if stage == KNOWN else guest.share
        self._shares[stage].setdefault(share, {})[guest] = None
        self._counts[stage] += 1

    def _take(self, guest: Guest) -> None:
        shares = self._shares[guest.stage]
        share = guest.who if guest.stage == KNOWN else guest.share
        of = shares[share]
        del of[guest]
        if not of:
            del shares[share]
        self._counts[guest.stage] -= 1


def share_of(host: str) -> str:
    """The address by which a host's share is counted: an IPv6 network of 64 bits is usually one host's."""
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv4Address):
        return host
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.ip_network((int(ip) & ~((1 << 64) - 1), 64)))
