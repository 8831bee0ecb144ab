"""A rank of the job: joins the coordinator, starts the checks that it asks for, and ends with its verdict.

Runs in the process that the launcher started, with one thread. It touches nothing that may hang, but for the import of
torch, which the coordinator watches: it reads sockets, forks, and kills at deadlines. SIGTERM, which torchrun sends to
all ranks when one has ended, is passed on: the coordinator ends with what it has.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from logclient.errors import LogclientError

from . import check, collectives, coordinator, devices, folders, pairs
from .check import Check
from .join import join
from .lines import Line, Message
from .place import Place, settings

CHECKS: dict[str, check.Function] = {
    "folder": folders.check,
    "pairs": pairs.check,
    "collectives": collectives.check,
    "collective-pairs": collectives.check_pairs,
    "devices": devices.check,
}
SILENT_S = 90.0  # without a word of the coordinator, which asks several times a second
_TURN_S = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of one preflight, the same on all ranks."""

    folders: tuple[str, ...]
    backend: str  # "auto", "gloo" or "nccl"
    timeout_s: float  # of one check
    join_s: float  # for a rank that has not come, since the last one that has


def run(place: Place, plan: Plan, show: Callable[[dict[str, Any]], None]) -> int:
    """Take part as a rank; return the exit code. `show` prints the report, in a process of rank 0's host."""
    sys.stdout.flush()
    server = coordinator.listen(place) if place.rank == 0 else None
    ports = place.ports if server is None else (server.getsockname()[1],)
    rank = _Rank(place, ports, plan)  # before the fork: from here on SIGTERM ends nothing without a word
    if server is not None:
        if not os.fork():
            coordinator.be_coordinator(server, place, plan, show)
        server.close()
    try:
        return rank.run()
    except KeyboardInterrupt:
        rank.send({"interrupted": True})
        raise
    finally:
        rank.end()


class _Rank:
    """The loop of one rank."""

    def __init__(self, place: Place, ports: tuple[int, ...], plan: Plan) -> None:
        self._place = place
        self._ports = ports
        self._plan = plan
        self._line: Line | None = None
        self._early: list[Message] = []  # came together with the answer to our hello
        self._checks: dict[int, Check] = {}
        self._is_terminated = False
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, *_: object) -> None:
        self._is_terminated = True

    def send(self, message: Message) -> None:
        if self._line is not None:
            self._line.send(message)

    def end(self) -> None:
        """Kill the checks that still run, and hang up."""
        for each in self._checks.values():
            each.kill("over")
        if self._line is not None:
            self._line.wait_sent(1.0)
            self._line.close()

    def run(self) -> int:
        """Return the exit code of the coordinator's verdict."""
        self._line, self._early = join(
            self._place, self._ports, self._hello(), self._plan.join_s, lambda: self._is_terminated
        )
        line = self._line
        last, has_passed_on = time.monotonic(), False
        while True:
            if self._is_terminated and not has_passed_on:
                has_passed_on = True
                self.send({"hurry": "SIGTERM"})
            early, self._early = self._early, []
            for message in [*early, *line.receive()]:
                if "verdict" in message:
                    return int(message["verdict"])
                self._obey(message)
                last = time.monotonic()
            self._poll()
            line.flush()
            if line.is_closed or time.monotonic() - last > SILENT_S:
                where = f"the coordinator at {self._place.address}, a process of rank 0,"
                how = "has ended" if line.is_closed else f"gave no sign for {SILENT_S:.0f} s"
                raise LogclientError(f"rank {self._place.rank}: {where} {how}: no verdict")
            waiting = [line, *(each.line for each in self._checks.values() if not each.ended)]
            select.select(waiting, [line] if line.is_waiting else [], [], _TURN_S)

    def _obey(self, message: Message) -> None:
        """Do as the coordinator asks."""
        if "ping" in message:
            self.send({"pong": message["ping"]})
        elif "start" in message:
            number, given = message["number"], message["given"]
            given |= {"rank": self._place.rank, "address": self._place.address}
            begun = Check(number, CHECKS[message["start"]], given, message["deadline_s"])
            self._checks[number] = begun
        elif "import" in message:
            self.send({"torch": _import_torch()})
        elif message.get("to") in self._checks and not self._checks[message["to"]].ended:
            self._checks[message["to"]].line.send(message["message"])
        elif message.get("kill") in self._checks:
            self._checks[message["kill"]].kill("over")

    def _poll(self) -> None:
        """Pass on the messages of the checks."""
        for number, each in list(self._checks.items()):
            was = each.ended
            messages = [] if was else each.poll()
            if messages:
                self.send({"from": number, "messages": messages})
            if each.ended:
                del self._checks[number]
                self.send({"end": number, "how": each.ended})
            else:
                each.line.flush()

    def _hello(self) -> Message:
        return {
            "hello": self._place.rank,
            "token": self._place.token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "settings": settings(),
            "folders": list(self._plan.folders),
        }


def _import_torch() -> Message:
    """Return its version and how long the import took; in its place why there is none."""
    import asyncio  # noqa: F401 - for the checks, which are forked

    before = time.monotonic()
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:  # noqa: BLE001 - whatever its parts raise, there is no torch
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    return {
        "version": str(torch.__version__),
        "import_s": time.monotonic() - before,
        "has_distributed": dist.is_available(),
        "has_nccl": dist.is_available() and dist.is_nccl_available(),
    }
