"""The coordinator: a child of rank 0 with a connection to each rank, so that it can name each of them, rank 0 included.

One thread. `pump` is the only place that waits: it reads what came, notes which ranks have ended, and asks each several
times a second for an answer. A rank that is stopped, swapped out or starved answers late, and that is added up.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from logclient.errors import BadArgument

from .lines import MAX_BYTES, Line, Message
from .place import Place

if TYPE_CHECKING:
    from .rank import Plan

HURRY_S = 6.0  # to come to an end, once a launcher wants that: torchrun kills 30 s after it asked
PING_S = 0.25
SILENT_S = 4.0  # without an answer: nobody waits for such a rank any longer
LATE_S = 0.3  # an answer that takes longer is late
_TURN_S = 0.05
_MAX_STRANGERS, _MAX_HELLO = 64, 1 << 18  # connections beyond those of ranks; bytes
_STRANGER_S = 5.0  # for a first message
_LEAVE_S = 5.0
_SHOW_S = 60  # a terminal that takes no output


@dataclass(slots=True)
class Job:
    """One check of one rank, as the coordinator sees it."""

    number: int
    name: str
    given: Message
    stage: str = "begin"
    messages: list[Message] = field(default_factory=list)
    result: Message | None = None
    error: str = ""
    ended: str = ""

    def take(self, message: Message) -> None:
        self.stage = str(message.get("stage", self.stage))
        if "result" in message:
            self.result = message["result"]
        elif "error" in message and "pair" not in message:
            self.error = str(message["error"])
        self.messages.append(message)

    def newest(self, word: str, value: object = None) -> Message | None:
        """Return the newest message with this word, and this value if one is given."""
        for message in reversed(self.messages):
            if word in message and value in (None, message[word]):
                return message
        return None


@dataclass(slots=True)
class Member:
    """A rank that has joined."""

    rank: int
    line: Line
    host: str
    pid: int
    settings: dict[str, str]
    folders: list[str]
    torch: Message | None = None
    imported_at: float | None = None
    gone: str = ""  # how it ended, before the verdict
    jobs: dict[int, Job] = field(default_factory=dict)
    asked_at: float | None = None
    next_ping: float = 0.0
    watched_s: float = 0.0
    late_s: float = 0.0  # of these, without an answer

    @property
    def is_living(self) -> bool:
        return not self.gone

    def answered(self, now: float) -> None:
        """Count the time since we asked."""
        if self.asked_at is None:
            return
        took = now - self.asked_at
        self.asked_at = None
        self.watched_s += max(took, PING_S)
        if took > LATE_S:
            self.late_s += took

    @property
    def is_out(self) -> bool:
        """Is it gone, or does it not answer? Nobody waits for it then."""
        return bool(self.gone) or self.is_silent

    @property
    def is_silent(self) -> bool:
        return self.asked_at is not None and time.monotonic() - self.asked_at > SILENT_S


class Coordinator:
    """All ranks that have joined, and what they sent."""

    def __init__(self, server: socket.socket, place: Place, plan: Plan) -> None:
        server.setblocking(False)
        self._server = server
        self.place = place
        self.plan = plan
        self.members: dict[int, Member] = {}
        self.joined_at = self.begun_at = time.monotonic()
        self.hurry_at: float | None = None  # since when a launcher wants us to end
        self.is_interrupted = False
        self.is_open = True  # may ranks still join?
        self._strangers: list[tuple[float, Line]] = []
        self._numbers = iter(range(1, 1 << 60))
        self.on_join: Callable[[Member], None] = lambda member: None

    @property
    def living(self) -> list[Member]:
        return [self.members[rank] for rank in sorted(self.members) if self.members[rank].is_living]

    @property
    def missing(self) -> list[int]:
        """Ranks that never came."""
        return [rank for rank in range(self.place.ranks) if rank not in self.members]

    @property
    def is_complete(self) -> bool:
        return len(self.living) == self.place.ranks

    @property
    def is_ending(self) -> bool:
        """Is there no more time for anything?"""
        is_over = self.hurry_at is not None and time.monotonic() > self.hurry_at + HURRY_S
        return is_over or self.is_interrupted

    # ---- waiting ----------------------------------------------------------------------------------------

    def pump(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Serve all ranks until that is so; False at the deadline, or where we are to end."""
        deadline = time.monotonic() + timeout_s
        while not until():
            now = time.monotonic()
            if now > deadline or self.is_ending or (self.members and not self.living):
                return False
            self._turn(min(_TURN_S, deadline - now))
        return True

    def _turn(self, timeout_s: float) -> None:
        lines = [line for _, line in self._strangers] + [member.line for member in self.living]
        sending = [line for line in lines if line.is_waiting]
        select_from: list[Any] = [self._server, *lines]
        poll = select.poll()  # descriptors above 1023, too
        for each in select_from:
            poll.register(each, select.POLLIN | (select.POLLOUT if each in sending else 0))
        poll.poll(max(0.0, timeout_s) * 1e3)
        now = time.monotonic()
        self._accept(now)
        for began, line in list(self._strangers):
            self._meet(began, line, now)
        for member in self.living:
            member.line.flush()
            for message in member.line.receive():
                self._take(member, message, now)
            if member.line.is_closed and not member.gone:
                member.gone = "its process has ended"
            self._ping(member, now)

    def _accept(self, now: float) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while len(self._strangers) < self.place.ranks + _MAX_STRANGERS:
                self._strangers.append((now, Line(self._server.accept()[0], _MAX_HELLO)))

    def _meet(self, began: float, line: Line, now: float) -> None:
        """Make a member of a connection whose first message names a rank of this launch."""
        messages = line.receive()
        if not messages and not line.is_closed and now - began < _STRANGER_S:
            return
        self._strangers.remove((began, line))
        hello = messages[0] if messages else {}
        rank = hello.get("hello")
        refused = ""
        if hello.get("token") != self.place.token:
            refused = "this is the preflight of another launch"
        elif type(rank) is not int or not 0 <= rank < self.place.ranks:
            refused = "no rank of this launch"
        elif rank in self.members:
            refused = f"rank {rank} is there already: two processes have the same RANK"
        elif not self.is_open:
            refused = f"the checks have begun without rank {rank}: --join-timeout gives it more time"
        if refused or type(rank) is not int:
            line.send({"refused": refused})
            line.close()
            return
        line.send({"welcome": True})
        line.max_bytes = MAX_BYTES
        settings = {str(name): str(value) for name, value in dict(hello.get("settings", {})).items()}
        folders = [str(path) for path in hello.get("folders", [])]
        member = Member(rank, line, str(hello.get("host")), int(hello.get("pid", 0)), settings, folders)
        self.members[rank] = member
        self.joined_at = now
        self.on_join(member)

    def _take(self, member: Member, message: Message, now: float) -> None:
        if "pong" in message:
            member.answered(now)
        elif "from" in message:
            job = member.jobs.get(message["from"])
            for each in message["messages"] if job is not None else ():
                job.take(each)  # type: ignore[union-attr]
        elif "end" in message:
            if message["end"] in member.jobs:
                member.jobs[message["end"]].ended = str(message["how"])
        elif "torch" in message:
            member.torch, member.imported_at = message["torch"], now
        elif "hurry" in message and self.hurry_at is None:
            self.hurry_at = now
        elif "interrupted" in message:
            self.is_interrupted = True

    def _ping(self, member: Member, now: float) -> None:
        """Ask for an answer. While a rank imports torch it cannot give one, and is not watched."""
        if member.gone or member.asked_at is not None or now < member.next_ping:
            return
        member.next_ping = now + PING_S
        member.line.send({"ping": 1})
        if member.torch is not None:
            member.asked_at = now

    # ---- checks -----------------------------------------------------------------------------------------

    def next_number(self) -> int:
        return next(self._numbers)

    def start(self, member: Member, name: str, deadline_s: float, **given: Any) -> Job:
        """Have a rank start a check."""
        number = self.next_number()
        job = member.jobs[number] = Job(number, name, given)
        member.line.send({"start": name, "number": number, "given": given, "deadline_s": deadline_s})
        return job

    def send_to(self, member: Member, job: Job, message: Message) -> None:
        member.line.send({"to": job.number, "message": message})

    def stop(self, jobs: dict[int, Job]) -> None:
        """Have checks killed, by rank."""
        for rank, job in jobs.items():
            if not job.ended and self.members[rank].is_living:
                self.members[rank].line.send({"kill": job.number})

    def wait_for(
        self,
        jobs: dict[int, Job],
        word: str,
        timeout_s: float,
        *,
        value: object = None,
        cut: bool = False,
        but: int = 0,
    ) -> bool:
        """Wait until each rank's check has reported that or ended, or the rank is out; with `cut` until any rank is.

        `but`: so many of them need not.
        """

        def is_done() -> bool:
            if cut and any(self.members[rank].is_out for rank in jobs):
                return True
            done = [
                job.ended or job.error or job.newest(word, value) or self.members[rank].is_out
                for rank, job in jobs.items()
            ]
            return sum(map(bool, done)) + but >= len(jobs)

        return self.pump(is_done, timeout_s)

    def leave(self, code: int) -> None:
        """Send the verdict, and wait until all ranks have hung up."""
        for member in self.living:
            member.line.send({"verdict": code})
        self.hurry_at, self.is_interrupted = None, False
        self.pump(lambda: not self.living, _LEAVE_S)


def listen(place: Place) -> socket.socket:
    """Return the socket at which rank 0's coordinator listens. Raises BadArgument where no port is free."""
    problem = ""
    for port in place.ports or (0,):
        try:
            if socket.has_dualstack_ipv6():
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
                )
            return socket.create_server(("", port), backlog=1024)
        except OSError as error:
            problem = error.strerror or str(error)
    ports = ", ".join(map(str, place.ports))
    raise BadArgument(f"rank 0 cannot listen at port {ports}: {problem}; --port PORT names another one")


def be_coordinator(
    server: socket.socket, place: Place, plan: Plan, show: Callable[[dict[str, Any]], None]
) -> NoReturn:
    """Run all checks, print the report, and end this process."""
    code = 1
    try:
        os.setsid()  # the end of rank 0's process group is not ours
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each rank
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from . import stages

        made = Coordinator(server, place, plan)
        report = stages.run(made)
        if not made.is_interrupted:
            signal.alarm(_SHOW_S)
            show(report)
            sys.stdout.flush()
            signal.alarm(0)
        code = 0 if report["ok"] else 1
        made.leave(code)
    except Exception:  # noqa: BLE001 - this process ends here, and the ranks with it: the reason is printed
        code = 1
        traceback.print_exc()
    finally:
        os._exit(code)
