"""Joining: a rank finds the coordinator, which listens at one of a few ports of rank 0's host.

The name of that host is looked up by a check, since a name server may be silent for longer than anybody wants to wait.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import select
import socket
import time
from collections.abc import Callable, Sequence

from logclient.errors import LogclientError

from . import network
from .check import Check
from .lines import Line, Message
from .place import Place

CONNECT_S = 3.0
ENDED = "rank {} has not reached rank 0: the launcher asked for an end (SIGTERM)"
_AGAIN_S = 0.1
_REFUSED, _SILENT, _NO_CONNECTION = 2, 1, 0  # the higher, the more it explains


def join(
    place: Place, ports: Sequence[int], hello: Message, timeout_s: float, is_over: Callable[[], bool]
) -> tuple[Line, list[Message]]:
    """Return a connection to the coordinator, and what came with its welcome. Raises LogclientError at the deadline."""
    deadline = time.monotonic() + timeout_s
    ips = ["127.0.0.1"] if place.rank == 0 else _addresses(place, deadline, is_over)
    known = (_NO_CONNECTION, "it did not answer")
    for ip, port in itertools.cycle(itertools.product(ips, ports)):
        if time.monotonic() > deadline or is_over():
            break
        line, answers, problem = _try(ip, port, hello, max(0.1, min(CONNECT_S, deadline - time.monotonic())))
        if line is not None:
            return line, answers
        known = max(known, problem, key=lambda each: each[0])
        if (ip, port) == (ips[-1], ports[-1]):
            time.sleep(_AGAIN_S)
    if is_over():
        raise LogclientError(ENDED.format(place.rank))
    tried = f"port {ports[0]}" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]}"
    raise LogclientError(
        f"rank {place.rank} on {socket.gethostname()} cannot reach rank 0 at {place.address}, {tried}: {known[1]}. "
        f"Is MASTER_ADDR the address of rank 0's host, and are these ports open?"
    )


def _try(
    ip: str, port: int, hello: Message, timeout_s: float
) -> tuple[Line | None, list[Message], tuple[int, str]]:
    """Return the connection and what came with the welcome; without one, why."""
    try:
        line = Line(socket.create_connection((ip, port), timeout_s))
    except OSError as error:
        return None, [], (_NO_CONNECTION, error.strerror or str(error))
    line.send(hello)
    answers = line.wait(timeout_s)
    if answers and "welcome" in answers[0]:
        return line, answers[1:], (_NO_CONNECTION, "")
    how = "hung up" if line.is_closed else f"gave no answer for {timeout_s:.0f} s"
    line.close()
    if answers:
        return None, [], (_REFUSED, str(answers[0].get("refused", "another program answers"))[:200])
    return None, [], (_SILENT, f"a process took the connection at port {port} and {how}")


def _addresses(place: Place, deadline: float, is_over: Callable[[], bool]) -> list[str]:
    """Return the addresses of rank 0's host. A name that leads nowhere is looked up again: the host may be starting."""
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(place.address))]
    problem = "no name server answered"
    while time.monotonic() < deadline and not is_over():
        lookup = Check(0, network.look_up, {"host": place.address}, deadline - time.monotonic())
        messages: list[Message] = []
        while not lookup.ended:
            messages += lookup.poll()
            if is_over():
                lookup.kill("over")
            elif not lookup.ended:
                select.select([lookup.line], [], [], _AGAIN_S)
        for message in messages:
            if "result" in message:
                return [str(ip) for ip in message["result"]["ips"]]
            problem = str(message.get("error", problem))
        time.sleep(_AGAIN_S)
    if is_over():
        raise LogclientError(ENDED.format(place.rank))
    raise LogclientError(
        f"rank {place.rank} on {socket.gethostname()}: {place.address!r}, where rank 0 should be, leads to no address: "
        f"{problem}. Is MASTER_ADDR the name of rank 0's host?"
    )
