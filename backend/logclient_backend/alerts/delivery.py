"""`Delivery`: a bounded queue per target; each attempt is a child with a deadline, and comes again after a failure.

Runs in a process with one thread: an observer, `sender.py`, `logclient alerts test`. `look` never waits, and what hangs
at one target delays no other.

Invariants:

- per target one attempt at a time, in the order of the events;
- an event is tried until it is delivered, refused for good, or MAX_AGE_S old; what a full queue or its age costs is
  counted in `dropped`;
- a message names a target and nothing else of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..ship.backoff import Backoff
from .attempt import Attempt
from .event import Event
from .target_file import MISSING, OK, REFUSED, SILENT, TargetFile
from .targets import Target, Targets

MAX_QUEUE = 100  # events per target
MAX_AGE_S = 3600.0
FIRST_RETRY_S, MAX_RETRY_S = 2.0, 300.0
WEBHOOK_S = 6.0  # 5 s of the connection, and the child itself
_COMMAND_EXTRA_S = 3.0  # beyond its deadline, for the end of the process group
_MAX_STUCK = 4  # children that SIGKILL does not reach: beyond it no more are forked
_BUSY_S = 0.05  # between two looks while a child runs
_IDLE_S = 3600.0
_RETRIED = frozenset(("timeout", "unreached", "tls", "proxy", "late", "failed"))
_COUNTS = ("delivered", "failed", "dropped", "waiting", "upto")
_RETRIED_STATUS = (408, 425, 429)

WORDS = {
    "redirect": "it answers with a redirect (status {status}), which is not followed",
    "status": "it answers with status {status}",
    "tls": "TLS fails: its certificate is not trusted, or it speaks no TLS (see ca in the file)",
    "proxy": "the proxy of the environment fails",
    "timeout": "no answer within 5 s",
    "unreached": "it is not reached",
    "size": "the event is too large",
    "late": "it had not ended by its deadline, and was killed",
    "stuck": "it had not ended by its deadline, and cannot be killed",
    "not_run": "its program cannot be executed",
    "exit": "it ended with exit code {status}",
    "signal": "it was ended by signal {status}",
    "failed": "a fault of logclient",
    "fork": "no process can be started",
}


def sentence(answer: Mapping[str, Any]) -> str:
    """Return why an attempt failed, for people; empty where it did not."""
    code = answer.get("code")
    if code == "delivered":
        return ""
    text = WORDS.get(str(code), "it failed").format(status=answer.get("status"))
    return f"{text} ({answer['error']})" if answer.get("error") else text


@dataclass(slots=True)
class _Item:
    number: int
    event: Event
    queued_at: float


class _Queue:
    """The events that one target is to get."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.items: deque[_Item] = deque()
        self.attempt: Attempt | None = None
        self.backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
        self.next_at = 0.0
        self.delivered = self.failed = self.dropped = 0
        self.trouble = ""  # of the last attempt
        self.upto = 0  # number of the last event that is settled


class Delivery:
    """Sends events to the targets of one file."""

    def __init__(self, path: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = TargetFile(path, clock=clock)
        self._clock = clock
        self._queues: dict[str, _Queue] = {}
        self._early: list[tuple[int, Event]] = []  # before the file was read for the first time
        self._stuck: list[Attempt] = []
        self._known: Targets | None = None
        self._restored: dict[str, Any] = {}
        self._state_before = ""  # of the file, as an earlier process knew it
        self._old_upto = 0
        self.dropped = 0  # for targets that are in the file no longer, or before it was read

    def offer(self, number: int, event: Event) -> None:
        """Queue an event for each target that wants it. `number`: grows with each event."""
        if self._known is None:
            self._early.append((number, event))
            self.dropped += max(0, len(self._early) - MAX_QUEUE)
            del self._early[:-MAX_QUEUE]
            return
        for queue in self._queues.values():
            self._put(queue, number, event)

    def _put(self, queue: _Queue, number: int, event: Event) -> None:
        if number <= queue.upto or not queue.target.wants(event.kind):
            return
        if len(queue.items) >= MAX_QUEUE:
            at = 1 if queue.attempt is not None else 0  # the first one is under way
            del queue.items[at]
            queue.dropped += 1
        queue.items.append(_Item(number, event, self._clock()))

    def look(self) -> None:
        """Go on with what is under way, and begin what is due."""
        now = self._clock()
        self._stuck = [child for child in self._stuck if not child.reap()]
        self.file.look(is_wanted=any(queue.items for queue in self._queues.values()))
        if self.file.targets is not self._known and self.file.state in (OK, MISSING):
            self._take_targets()
        for queue in self._queues.values():
            self._go_on(queue, now)
            if queue.items and queue.attempt is None and now >= queue.next_at:
                self._begin(queue, now)

    @property
    def due_in_s(self) -> float:
        """Seconds until `look` has something to do, if nothing is offered."""
        if self.file.is_reading or any(queue.attempt for queue in self._queues.values()):
            return _BUSY_S
        now = self._clock()
        waits = [max(_BUSY_S, queue.next_at - now) for queue in self._queues.values() if queue.items]
        return min(waits, default=_IDLE_S)

    @property
    def is_idle(self) -> bool:
        """Is nothing under way, and nothing queued that could be sent?"""
        if self.file.is_reading or any(queue.attempt for queue in self._queues.values()):
            return False
        is_empty = not self._early and not any(queue.items for queue in self._queues.values())
        return is_empty or self.file.state == REFUSED

    def report(self) -> dict[str, Any]:
        """Return counts and troubles by the name of the target, and those of the file; no secret is in it."""
        return {
            "file": {"state": self.file.state or self._state_before, "trouble": self.file.trouble},
            "dropped": self.dropped,
            # what an earlier process had settled stays known until the file is read
            "targets": (self._restored if self._known is None else {})
            | {
                name: {
                    "delivered": queue.delivered,
                    "failed": queue.failed,
                    "dropped": queue.dropped,
                    "waiting": len(queue.items),
                    "trouble": queue.trouble,
                    "upto": queue.upto,
                }
                for name, queue in self._queues.items()
            },
        }

    def restore(self, report: Mapping[str, Any], events: list[tuple[int, Event]]) -> None:
        """Go on where an earlier process stopped: `report` is its last one, `events` are those that it had offered."""
        known, file = report.get("targets"), report.get("file")
        for name, counts in dict(known).items() if isinstance(known, dict) else ():
            self._restored[str(name)] = {count: int(counts[count]) for count in _COUNTS} | {"trouble": ""}
        self._early = list(events)[-MAX_QUEUE:]
        self._state_before = str(file.get("state") or "") if isinstance(file, dict) else ""
        if self._early and self._state_before:
            self._old_upto = self._early[-1][0]  # a target that was not there is sent none of them

    def close(self) -> None:
        """Give up what is under way; it is killed. A command goes on to its deadline, which its child sees to."""
        self.file.close()
        for queue in self._queues.values():
            if queue.attempt is not None and not queue.target.command:
                queue.attempt.end()
        for child in self._stuck:
            child.end()

    # ---- targets ------------------------------------------------------------------------------------------

    def _take_targets(self) -> None:
        self._known = self.file.targets
        before, self._queues = self._queues, {}
        for target in self._known.targets:
            queue = before.pop(target.name, None)
            if queue is None:
                queue = _Queue(target)
                self._resume(queue)
            queue.target = target
            queue.next_at = 0.0  # what was wrong may have been put right
            self._queues[target.name] = queue
            if self._early:
                for number, event in self._early:
                    self._put(queue, number, event)
        self._early.clear()
        for queue in before.values():
            self.dropped += len(queue.items)
            if queue.attempt is not None:
                queue.attempt.kill()
                self._stuck.append(queue.attempt)

    def _resume(self, queue: _Queue) -> None:
        """Take over the counts of an earlier process; what that had settled is not sent again."""
        known = self._restored.get(queue.target.name)
        queue.upto = self._old_upto
        if known is not None:
            queue.upto, queue.delivered = known["upto"], known["delivered"]
            queue.failed, queue.dropped = known["failed"], known["dropped"]

    # ---- attempts -----------------------------------------------------------------------------------------

    def _begin(self, queue: _Queue, now: float) -> None:
        while queue.items and now - queue.items[0].queued_at > MAX_AGE_S:
            queue.upto = queue.items.popleft().number
            queue.dropped += 1
        can_send = self.file.state in (OK, SILENT) and (self.file.is_fresh() or self.file.state == SILENT)
        if not queue.items or not can_send or len(self._stuck) >= _MAX_STUCK:
            return
        target, event, ca = queue.target, queue.items[0].event, self.file.targets.ca
        try:
            queue.attempt = Attempt(lambda: send(target, event, ca), limit_of(target))
        except OSError:
            self._settle(queue, {"code": "fork"}, now)

    def _go_on(self, queue: _Queue, now: float) -> None:
        if queue.attempt is None or (answer := queue.attempt.poll()) is None:
            return
        if not queue.attempt.reap():
            self._stuck.append(queue.attempt)
        queue.attempt = None
        self._settle(queue, answer, now)

    def _settle(self, queue: _Queue, answer: Mapping[str, Any], now: float) -> None:
        code, status = answer.get("code"), answer.get("status")
        queue.trouble = sentence(answer)
        if code == "delivered":
            queue.delivered += 1
        else:
            queue.failed += 1
            is_busy = (
                code == "status" and isinstance(status, int) and (status >= 500 or status in _RETRIED_STATUS)
            )
            if is_busy or code == "fork" or (code in _RETRIED and not queue.target.command):
                queue.next_at = now + queue.backoff.next()
                return
            queue.dropped += 1  # it would fail again; a command is not run twice
        queue.backoff.reset()
        queue.next_at = now
        if queue.items:
            queue.upto = queue.items.popleft().number


def limit_of(target: Target) -> float:
    """Return the seconds that a child has which sends to this target."""
    return target.timeout_s + _COMMAND_EXTRA_S if target.command else WEBHOOK_S


def send(target: Target, event: Event, ca: bytes | None) -> dict[str, Any]:
    """Send an event to a target; in a child with a deadline."""
    if target.command:
        from .command import run

        return run(target.command, event.to_json(), target.timeout_s)
    from .webhook import (
        body,
        post,
    )  # `prepare` has loaded it, where there was a target when the process began

    return post(target.url, body(event, target), ca)
