"""The agent's settings: what `init` wrote into the shm directory, checked for type, else the defaults.

Invariant: what is out of range is brought into it, never refused: a run goes on whatever it was asked for.
"""

from __future__ import annotations

import math
from typing import Any

from logclient.config import capture_of, system_s
from logclient.spawn import lifetime

from .host import rlimits

_CONFINED_SYNC_S = 0.4  # all but the last half second is in the run folder there
_SEGMENTS = 4  # that fit into the spill at least
_MIN_SEGMENT_BYTES = 64 << 10
_MAX_SEGMENT_BYTES = 256 << 20  # a reader takes no file of a GiB or more for a segment


class Settings:
    """Units are in the names; meanings in `logclient.config.SETTINGS`."""

    def __init__(self, facts: dict[str, Any]) -> None:
        """`facts`: what the shm directory says."""
        given = facts.get("settings")
        given = given if isinstance(given, dict) else {}
        self.poll_s = _number(given, "poll_s", 0.05, least=0.001)
        self.sync_s = _number(given, "sync_s", 0.8)
        # where all that is ours here ends with the trainer, nothing may wait: it is copied as soon as it is staged
        self.is_confined = bool(facts.get("confined"))
        if self.is_confined:
            self.sync_s = min(self.sync_s, _CONFINED_SYNC_S)
        self.network_sync_s = 0.0 if self.is_confined else _number(given, "network_sync_s", 5.0)
        self.seal_s = _number(given, "seal_s", 60.0)
        spool_dir = given.get("spool_dir")
        self.spool_dir = spool_dir if isinstance(spool_dir, str) else ""
        self.spool_bytes = int(_number(given, "spool_bytes", 4 << 30))
        self.stall_s = _number(given, "stall_s", 5.0, least=0.5)
        self.leave_s = _number(given, "leave_s", 60.0) if lifetime.why() else math.inf
        self.ship_leave_s = min(_number(given, "ship_leave_s", 300.0), self.leave_s)
        self.ship_rest_s = _number(given, "ship_rest_s", 30.0)
        self.keep_bytes = int(_number(given, "keep_bytes", 1 << 30))
        stop_file = given.get("stop_file")
        self.stop_file = stop_file if isinstance(stop_file, str) else ""
        self.follows_remote = given.get("remote_stop") != "off"  # requests that come from a collector
        # without an address there may be one in the configuration file of the user, which is on a disk
        self.may_ship = given.get("mode", "online") == "online"
        self.linger_s = _number(given, "linger_s", 10.0)
        self.observes = given.get("observe") != "off"
        self.system_s = system_s(str(given.get("system", "10")))
        asked = capture_of(str(given.get("capture", "on")))
        self.captures = frozenset({"on"}) if asked is None else asked  # on, diff, env; empty: off
        self.observe_s = _number(given, "observe_s", 2.0, least=0.05)
        self.late_after_s = _number(given, "late_after_s", 10.0)
        self.late_factor = _number(given, "late_factor", 5.0, least=1.0)
        self.stall_samples_s = _number(given, "stall_samples_s", 5.0, least=0.1)
        self.disk_bytes = int(_number(given, "disk_bytes", 16 << 30))
        self.media_disk_bytes = int(_number(given, "media_disk_bytes", 8 << 30))
        self.console_disk_bytes = int(_number(given, "console_disk_bytes", 64 << 20))
        self.restart_limit = int(_number(given, "restart_limit", 8, least=1))
        share = _number(facts, "budget_bytes", 1 << 40) / 2
        spill_bytes = int(min(_number(given, "spill_bytes", 64 << 20), share))
        most_bytes = min(_MAX_SEGMENT_BYTES, rlimits.most_bytes() & ~0xFFF)
        wanted_bytes = min(int(_number(given, "segment_bytes", 4 << 20)), most_bytes)
        self.segment_bytes = max(_MIN_SEGMENT_BYTES, min(wanted_bytes, spill_bytes // _SEGMENTS))
        self.spill_bytes = max(spill_bytes, _SEGMENTS * self.segment_bytes)


def _number(given: dict[str, Any], name: str, default: float, least: float = 0.0) -> float:
    value = given.get(name, default)
    return max(least, float(value)) if type(value) in (int, float) and value == value else default
