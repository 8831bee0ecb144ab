"""Limits of connections that follow from the limit of descriptors, and who has shown a token on the HTTP port.

A conversation takes three descriptors (the client's, and both ends of the way to grpc), any other connection one.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

from logclient.errors import Unsupported

from ..admission.acceptor import Acceptor
from ..admission.connections import ConnectionLimits
from .sessions import Sessions
from .store.interface import StoreError
from .tokens import Tokens
from .web.origin_check import Callers

MAX_DESCRIPTORS = 65_536  # some programs close all that they might have, one by one, in each child
_OWN = 144  # the store's sessions, sockets, logs, what libraries open
_PER_CONVERSATION = 3
_SPARE = 16  # connections of known clients beyond their conversations
_MIN_CONVERSATIONS = 8
_SMALL = 4096  # descriptors, below which strangers get less


@dataclass(frozen=True, slots=True)
class Plan:
    """Room at both ports."""

    conversations: int
    wire: ConnectionLimits
    http: ConnectionLimits


def raise_limit() -> int:
    """The soft limit of descriptors to the hard one; what may be opened now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return soft if soft != resource.RLIM_INFINITY else wanted


def plan(descriptors: int, conversations: int) -> Plan:
    """Return the plan that fits. Strangers have the same room at all times, and conversations get what is left."""
    if descriptors >= _SMALL:
        wire = ConnectionLimits(outside=256, inside=64)
        http = ConnectionLimits(outside=256, inside=128, known=256)
    else:
        share = max(8, (descriptors - _OWN) // 14)  # 62 of 1,024
        wire = ConnectionLimits(outside=share, inside=max(4, share // 2))
        http = ConnectionLimits(outside=share, inside=share, known=share)
    taken = _OWN + wire.outside + _PER_CONVERSATION * wire.inside + http.outside + http.inside + http.known
    left = (descriptors - taken) // _PER_CONVERSATION - _SPARE
    fits = max(_MIN_CONVERSATIONS, min(conversations, left))
    # those that wait for their turn are known, too
    known = max(fits + _SPARE, min(2 * fits + _SPARE, left + _SPARE))
    return Plan(fits, replace(wire, known=known), http)


class AdmittedCallers(Callers):
    """Reports to the acceptor which connections of the HTTP port have shown a token."""

    def __init__(self, acceptor: Acceptor, tokens: Tokens, sessions: Sessions) -> None:
        self._acceptor = acceptor
        self._tokens = tokens
        self._sessions = sessions

    def enter(self, client: tuple[str, int] | None, token: str, session: str) -> bool:
        try:
            grant = self._tokens.check(token)
            if grant is None and not token and (found := self._sessions.check(session)) is not None:
                grant = found.grant
        except (StoreError, Unsupported):
            grant = None  # whoever answers the request reports what is wrong
        self._acceptor.enter(_key(client), grant.name if grant is not None else "")
        return grant is not None

    def leave(self, client: tuple[str, int] | None) -> None:
        self._acceptor.leave(_key(client))

    def drop(self, client: tuple[str, int] | None) -> None:
        self._acceptor.drop(_key(client))


def _key(client: tuple[str, int] | None) -> str:
    from .web.uvicorn_server import key_of

    return key_of(client)
