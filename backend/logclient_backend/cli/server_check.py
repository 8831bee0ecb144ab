"""Checks of `logclient doctor` on this user's collector: is it there, and would it take runs?

The collector is asked as agents and commands ask it, with the same address, token and certificate. The findings contain
no token. They are there by a deadline, whatever the other side, the network or the config file's disk does.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from logclient import config as settings
from logclient.errors import BadArgument, LogclientError

from ..wire import credentials, messages
from ..wire.messages import NotTaken
from .doctor_checks import PROBE_S, Finding
from .text import duration

if TYPE_CHECKING:
    from ..wire.credentials import Access
    from ..wire.messages import Description

ANSWER_S = 5.0  # for one question
_WHOLE_S = 3 * ANSWER_S  # until nothing is waited for any more: names may be looked up several times
_CLOCK_NOTE_S, _CLOCK_DO_S = 5.0, 60.0
_NAP_S = 0.01
_SUBJECT = "server"
_LATER = "runs are stored here meanwhile; the agent of a run, or `logclient sync`, sends them once it answers"
_NEW_TOKEN = (
    "have one made there with `logclient server token add NAME --role ingest --role read --data DIR`, and put it into "
    "LOGCLIENT_TOKEN or the config file"
)
T = TypeVar("T")


def server() -> list[Finding]:
    """Address, connection, token, versions, clocks."""
    path = settings.config_file() or ""
    if path and not _answers(path):
        text = f"the config file {path} did not answer within {PROBE_S:g} s: its disk may be frozen"
        return [_do(text, "an agent cannot read it either: set LOGCLIENT_SERVER and LOGCLIENT_TOKEN instead")]
    try:
        access = credentials.find()
    except BadArgument as error:
        return [_do(str(error), "")]
    if access is None:
        advice = "for one: LOGCLIENT_SERVER or the config file, see docs/server.md"
        return [Finding(_SUBJECT, "note", "none is set: runs stay on this machine", advice)]
    try:
        described = _within(lambda: _describe(access))
    except NotTaken as error:
        return [_do(error.text, _LATER)]
    except TimeoutError:
        return [_do(f"{access.address} has not answered for {_WHOLE_S:g} s", _LATER)]
    found = [*_connection(access, described), *_token(access, described)]
    if described.role:
        found += _web(access)
    return found


def _do(text: str, advice: str) -> Finding:
    return Finding(_SUBJECT, "do", text, advice)


def _answers(path: str) -> bool:
    """Read it, in a process that is left behind if it hangs; True also where there is no such file."""
    code = "import sys\ntry: open(sys.argv[1], 'rb').read()\nexcept OSError: pass"
    streams = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    words = [sys.executable, "-I", "-c", code, path]
    child = os.posix_spawn(words[0], words, settings.environment(), file_actions=streams)
    deadline = time.monotonic() + PROBE_S
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)  # in state D it stays until the disk answers; nobody waits for it
            return False
        time.sleep(_NAP_S)
    return True


def _within(ask: Callable[[], T]) -> T:
    """Its answer, or what it raised; `TimeoutError` where neither came: whatever it hangs in is left behind."""
    answers: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:  # noqa: BLE001  # raised where it was asked
            answers.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        answer, error = answers.get(timeout=_WHOLE_S)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # None only with an error


def _describe(access: Access) -> Description:
    from ..wire import client  # grpc: only where there is a server

    return client.describe(access, ANSWER_S)


def _connection(access: Access, described: Description) -> list[Finding]:
    from ..wire import channel

    where = f"{access.address}{channel.through(access.address)}"
    tls = ", over TLS" if access.address.is_tls else ""
    found = [Finding(_SUBJECT, "ok", f"{where} answers{tls}: logclient {described.version}")]
    if described.protocol < messages.PROTOCOL:
        text = f"it speaks protocol {described.protocol}, this logclient {messages.PROTOCOL}"
        found.append(_do(text, "update the collector: what it does not understand stays on this machine"))
    if not access.address.is_tls and not access.address.is_loopback:
        advice = "start it with --tls-cert and --tls-key, and write grpcs:// here"
        found.append(
            Finding(
                _SUBJECT, "note", "the connection is not encrypted: others may read token and data", advice
            )
        )
    return found


def _token(access: Access, described: Description) -> list[Finding]:
    origin = "LOGCLIENT_TOKEN" if settings.token_variable() else "the config file"
    roles = set(described.role.split(",")) if described.role else set()
    if not access.token and not roles:
        return [_do("it asks for a token, and none is set", _NEW_TOKEN)]
    if not roles:
        return [
            _do(
                f"it does not know the token in {origin}: it was revoked, or is another collector's",
                _NEW_TOKEN,
            )
        ]
    if not access.token:
        return [
            Finding(
                _SUBJECT, "note", "it asks nobody for a token: everybody there may read, write and delete"
            )
        ]
    if not roles & {"ingest", "admin"}:
        return [
            _do(
                f"the token in {origin} may {' and '.join(sorted(roles))} only: no run is shipped", _NEW_TOKEN
            )
        ]
    text = f"the token in {origin} has the role {described.role}"
    if not roles & {"read", "admin"}:
        return [
            Finding(_SUBJECT, "note", f"{text}: runs are shipped, and no command can read there", _NEW_TOKEN)
        ]
    return [Finding(_SUBJECT, "ok", text)]


def _web(access: Access) -> list[Finding]:
    """The other port, by which commands read, and the time there."""
    from ..remote.access import CONFIGURED, find
    from ..remote.server import Server

    def ask() -> tuple[str, int, int, int]:
        asked = Server(find(CONFIGURED))
        try:
            asked.json("/info")  # the first answer takes longer than the way
            before = time.time_ns()
            there = asked.json("/info").get("now_ns")
            return asked.url, before, int(there or 0), time.time_ns()
        finally:
            asked.close()

    try:
        url, before, there, after = _within(ask)
    except LogclientError as error:
        return [_do(str(error), "runs are shipped all the same; commands with --server need its HTTP API")]
    except TimeoutError:
        return [
            _do(f"the HTTP API of {access.address} has not answered for {_WHOLE_S:g} s", "look into its log")
        ]
    found = [Finding(_SUBJECT, "ok", f"its HTTP API answers at {url}")]
    off_s = max(before - there, there - after, 0) / 1e9
    if off_s > _CLOCK_NOTE_S:
        ahead = "behind" if there < before else "ahead of"
        text = f"its clock is {duration(off_s)} {ahead} that of this machine"
        advice = "set both by NTP: states are right all the same, times of points are those of the trainers"
        found.append(Finding(_SUBJECT, "do" if off_s > _CLOCK_DO_S else "note", text, advice))
    return found
