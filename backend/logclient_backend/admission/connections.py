"""The connections of one port, counted by address: `Connections` selects which one is closed when there are too many.

Pure bookkeeping, without sockets and clocks. Methods are called with the acceptor's lock held.

A connection goes through stages: OUTSIDE (its opening is not whole yet, or it waits for room), INSIDE (handed to the
server, no token seen), KNOWN (a token was seen on it). It leaves by itself, by a deadline, or to make room.

Invariants:

- each stage has a limit, and reaching that of one stage costs no connection of another stage its place;
- the connection that is closed belongs to the address with most connections in that stage, so one address alone never
  crowds out another;
- within that address, connections that are of least use are closed first (refused, idle, then oldest), and none before
  it had the time that an honest client needs.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OUTSIDE, INSIDE, KNOWN = "outside", "inside", "known"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """ConnectionLimits of a port: connections at once, and how long those without a token may stay."""

    outside: int = 256
    inside: int = 64
    known: int = 512
    opening_s: float = 5.0  # from the connection to a whole opening
    token_s: float = 15.0  # from the connection to a valid token
    refused_s: float = 1.0  # for the client to read why it was refused
    opening_least_s: float = 0.02  # so long a connection outside is left alone, however many others come
    token_least_s: float = 0.25  # and so long one inside: its server may be busy


class Connection:
    """One connection."""

    __slots__ = (
        *("share", "peer", "stage", "since", "handed_at", "moved", "calls", "who", "is_ready", "is_refused"),
        *("is_leaving", "handler"),
    )

    def __init__(self, share: str, peer: str, now: float, handler: Any) -> None:
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
        self.handler = handler  # what the acceptor closes


class Connections:
    """All connections of one port."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        # stage -> share (address, or holder of the token) -> its connections, oldest first
        self._shares: dict[str, dict[str, dict[Connection, None]]] = {OUTSIDE: {}, INSIDE: {}, KNOWN: {}}
        self._counts = {OUTSIDE: 0, INSIDE: 0, KNOWN: 0}

    def count(self, stage: str) -> int:
        return self._counts[stage]

    def is_full(self, stage: str) -> bool:
        most = {OUTSIDE: self.limits.outside, INSIDE: self.limits.inside, KNOWN: self.limits.known}[stage]
        return self._counts[stage] >= most

    def __iter__(self) -> Iterator[Connection]:
        for shares in self._shares.values():
            for connections in list(shares.values()):
                yield from list(connections)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def add(self, connection: Connection) -> None:
        """A newcomer, OUTSIDE."""
        self._put(connection, OUTSIDE)

    def move(self, connection: Connection, stage: str) -> None:
        """To another stage."""
        self._take(connection)
        self._put(connection, stage)

    def remove(self, connection: Connection) -> None:
        """It has left; nothing where it had left before."""
        if connection.stage:
            self._take(connection)
            connection.stage = ""

    # ---- which one is closed -----------------------------------------------------------------------------------------

    def least_useful(self, stage: str, now: float) -> Connection | None:
        """Return the connection of that stage that is closed next; None: each is young, or (KNOWN) in a call."""
        shares = self._shares[stage]
        most = max(map(len, shares.values()), default=0)
        for share in sorted(shares, key=lambda each: len(shares[each]), reverse=True):
            if stage != KNOWN and 2 * len(shares[share]) < most:
                return None  # an address with few connections does not pay for the haste of one with many
            found = self._least_useful_of(shares[share], stage, now)
            if found is not None:
                return found
        return None

    def _least_useful_of(
        self, connections: dict[Connection, None], stage: str, now: float
    ) -> Connection | None:
        if stage == KNOWN:
            idle = [connection for connection in connections if not connection.calls]
            return min(idle, key=lambda connection: connection.moved, default=None)
        later = found = None  # closed where none is of less use
        for connection in connections:
            if connection.is_refused:
                return connection
            if stage == OUTSIDE and now - connection.since < self.limits.opening_least_s:
                break  # and all behind it are younger
            if stage == INSIDE and now - connection.handed_at < self.limits.token_least_s:
                continue
            if connection.is_ready if stage == OUTSIDE else connection.calls:
                later = later or connection
            elif stage == OUTSIDE:
                return connection
            else:
                found = found or connection  # one behind it may have been refused
        return found or later

    def next_ready(self) -> Connection | None:
        """The connection that goes inside next: of the address that has fewest inside, the oldest."""
        inside = self._shares[INSIDE]
        best: Connection | None = None
        fewest = 0
        for share, connections in self._shares[OUTSIDE].items():
            found = next((connection for connection in connections if connection.is_ready), None)
            if found is not None:
                count = len(inside.get(share, ()))
                if best is None or count < fewest:
                    best, fewest = found, count
        return best

    def overdue(self, now: float) -> list[Connection]:
        """Connections whose time is over."""
        limits = self.limits
        found = []
        for stage in (OUTSIDE, INSIDE):
            for connections in self._shares[stage].values():
                for connection in connections:
                    limit_s = limits.token_s if stage == INSIDE or connection.is_ready else limits.opening_s
                    if now - connection.since > limit_s or (
                        connection.is_refused and now - connection.moved > limits.refused_s
                    ):
                        found.append(connection)
        return found

    # ---- within -----------------------------------------------------------------------------------------------

    def _put(self, connection: Connection, stage: str) -> None:
        connection.stage = stage
        share = connection.who if stage == KNOWN else connection.share
        self._shares[stage].setdefault(share, {})[connection] = None
        self._counts[stage] += 1

    def _take(self, connection: Connection) -> None:
        shares = self._shares[connection.stage]
        share = connection.who if connection.stage == KNOWN else connection.share
        of = shares[share]
        del of[connection]
        if not of:
            del shares[share]
        self._counts[connection.stage] -= 1


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
