"""The agent's settings: what `init` wrote into the meeting place, checked for type, with defaults for what is absent."""

from __future__ import annotations

from typing import Any


class Settings:
    """Units are in the names; meanings in `logclient.config.SETTINGS`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.poll_s = _number(given, "poll_s", 0.05, least=0.001)
        self.sync_s = _number(given, "sync_s", 0.4)
        self.seal_s = _number(given, "seal_s", 60.0)
        self.stall_s = _number(given, "stall_s", 5.0, least=0.2)
        self.linger_s = _number(given, "linger_s", 10.0)
        self.segment_bytes = int(_number(given, "segment_bytes", 4 << 20, least=64 << 10))
        self.spill_bytes = int(_number(given, "spill_bytes", 64 << 20))
        self.disk_bytes = int(_number(given, "disk_bytes", 16 << 30))
        self.restart_limit = int(_number(given, "restart_limit", 8, least=1))


def _number(given: dict[str, Any], name: str, default: float, least: float = 0.0) -> float:
    value = given.get(name, default)
    if type(value) not in (int, float) or not value >= least:
        return default
    return float(value)
