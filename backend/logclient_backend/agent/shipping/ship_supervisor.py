"""Keeps the process that ships running: forks it, replaces it when it died or hangs, for as long as there is an agent.

Runs in the supervisor, with each of its looks; waits for nothing. What the process does is in `ship_process.py`.

Invariants:

- shipping stops nothing else: grpc is loaded and used in that process alone, neither in supervisor nor in worker;
- however often it dies, another one is forked, with growing pauses: what is not shipped is in the run folder, late
  and not lost;
- a process whose supervisor died is taken over by the next one.
"""

from __future__ import annotations

import math
import time

from logclient.shm import layout
from logclient.shm.health import page_address, ship_texts

from ..host.kept_process import KeptProcess
from ..host.pauses import Pipes
from ..host.process_handle import Cause, Watch
from ..host.shm_dir_handle import ShmDirHandle
from ..host.status import StatusPage
from ..settings import Settings
from . import ship_process

_STALLS = 6  # stall times: to connect may take a few without a sign of life
_STARTING_S = 60.0  # the same for one that loads its modules
_LONG_LIFE_S = 60.0
_MAX_BACKOFF_S = 30.0
_REFUSED_PAUSE_S = 600.0  # a deleted run may be brought back while it goes on


class ShipKeeper:
    """One per supervisor."""

    def __init__(
        self,
        handle: ShmDirHandle,
        status: StatusPage,
        settings: Settings,
        pipes: Pipes,
        only_server: str | None,
    ) -> None:
        """`only_server`: to another address this agent's token must not go."""
        self._handle = handle
        self._status = status
        self._settings = settings
        self._pipes = pipes
        server = handle.shm_dir.facts.get("server") or ""
        self._is_off = not settings.may_ship or (only_server is not None and server != only_server)
        self._process = KeptProcess(status, layout.AGENT_SHIPPER, layout.AGENT_SHIPPER_TICKS)
        self._not_before = 0.0
        self._deaths = 0
        self._shipped = 0
        words = status.words
        if self._is_off:
            words[layout.AGENT_SHIP_STATE] = layout.SHIP_OFF
        elif not self._process.is_there:  # before there is a worker that might take us for off
            words[layout.AGENT_SHIP_STATE] = layout.SHIP_LOOKING

    def watches(self) -> list[Watch]:
        """Handles of the ship process, whose end is to be seen at once."""
        return self._process.watches()

    def due_in_s(self, now: float) -> float:
        """Seconds until another one is to be started; infinite: none is."""
        if self._is_off or self._process.is_there:
            return math.inf
        return max(0.0, self._not_before - now)

    def look(self) -> None:
        """Is there a process that ships, and does it get on?"""
        self._process.reap()
        if self._is_off:
            return
        if not self._process.is_there:
            if time.monotonic() >= self._not_before:
                self._start()
        elif self._process.has_ended():
            self._has_ended(self._process.cause())
        elif self._is_stuck():
            self._process.kill()
            self._has_ended(None)

    def end(self) -> None:
        """Let it leave, for a moment; then it is killed."""
        self._status.words[layout.AGENT_SHIP_STOP] = 1
        self._pipes.shipper.ring()
        self._process.wait_ended()
        self._process.kill()
        self._process.let_go()

    def _start(self) -> None:
        words = self._status.words
        words[layout.AGENT_SHIP_STOP] = 0
        self._status.beat(layout.AGENT_SHIP_BEAT)
        is_started = self._process.start(
            lambda: ship_process.run(self._handle, self._status, self._settings, self._pipes)
        )
        if is_started:
            self._shipped = words[layout.AGENT_SHIPPED]
        else:  # no process left for this user: the worker goes on, and so do we
            self._not_before = time.monotonic() + _MAX_BACKOFF_S

    def _is_stuck(self) -> bool:
        state = self._status.words[layout.AGENT_SHIP_STATE]
        limit_s = _STARTING_S if state <= layout.SHIP_STARTING else _STALLS * max(1.0, self._settings.stall_s)
        # one that was taken over, from a supervisor that was stopped together with it, beats first
        silent_s = min(self._status.age_s(layout.AGENT_SHIP_BEAT), time.monotonic() - self._process.started)
        return silent_s > limit_s

    def _has_ended(self, cause: Cause | None) -> None:
        words = self._status.words
        self._process.let_go()
        if cause is not None and cause.exit_code == ship_process.NOWHERE:
            self._is_off = True
            words[layout.AGENT_SHIP_STATE] = layout.SHIP_OFF
            return
        if cause is not None and cause.exit_code == ship_process.REFUSED:
            self._not_before = time.monotonic() + _REFUSED_PAUSE_S
            return
        got_on = words[layout.AGENT_SHIPPED] != self._shipped
        if got_on or time.monotonic() - self._process.started > _LONG_LIFE_S:
            self._deaths = 0
        self._deaths += 1
        pause_s = min(_MAX_BACKOFF_S, 0.25 * 2 ** min(self._deaths - 2, 10)) if self._deaths > 1 else 0.0
        self._not_before = time.monotonic() + pause_s
        words[layout.AGENT_SHIP_RESTARTS] += 1
        if words[layout.AGENT_SHIP_STATE] > layout.SHIP_LOOKING:
            address, error, _ = ship_texts(words) or ("", "", "")
            if cause is None or cause.exit_code != ship_process.FAILED:  # else it told why
                error = f"the process that ships {'hung' if cause is None else f'ended with {cause}'}"
            self._status.write_server(address, f"{error}; another one starts", page=page_address(words))
            words[layout.AGENT_SHIP_STATE] = ship_process.WAITING
