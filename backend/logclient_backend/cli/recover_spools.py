"""Brings segments of a spool that has no agent to its network folder, for `logclient recover`.

Done by a process that may hang in either disk; the command waits for it until a deadline.
"""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

from logclient.config import Config

from ..agent.output import spool
from .screen import line, show
from .text import plural, safe

_GONE_S = 1.0


def bring_home(run: str | None, timeout_s: float) -> list[dict[str, Any]]:
    """id, dir, segments and trouble (empty: none is left) of each run whose segments were found; of those named."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _work(run, writer)
        finally:
            os._exit(0)
    os.close(writer)
    found: dict[str, dict[str, Any]] = {}
    for text in _lines(reader, time.monotonic() + timeout_s):
        result = json.loads(text)
        found[result["path"]] = result
    os.kill(child, 9)  # it is done, or hangs: in state D it stays, and nobody waits for it
    deadline = time.monotonic() + _GONE_S
    while not os.waitpid(child, os.WNOHANG)[0] and time.monotonic() < deadline:
        time.sleep(0.005)
    for result in found.values():
        if result["segments"] is None:
            result |= {"segments": 0, "trouble": f"{result['dir']} did not take them within {timeout_s:g} s"}
    return list(found.values())


def _work(run: str | None, writer: int) -> None:
    for one in spool.left(Config.from_env().spool_dir):
        id, folder = str(one.facts.get("run_id")), str(one.facts.get("folder"))
        if run is not None and run not in id:
            continue
        result: dict[str, Any] = {"id": id, "dir": folder, "path": one.path, "segments": None, "trouble": ""}
        _send(writer, result)
        try:
            result["segments"] = spool.Spool(one.path).bring_home()
        except (OSError, ValueError) as error:
            result |= {"segments": 0, "trouble": f"{folder}: {getattr(error, 'strerror', None) or error}"}
        _send(writer, result)


def _send(writer: int, result: dict[str, Any]) -> None:
    os.write(writer, json.dumps(result).encode() + b"\n")


def _lines(reader: int, deadline: float) -> list[bytes]:
    data = b""
    try:
        while (left := deadline - time.monotonic()) > 0:
            if select.select([reader], [], [], left)[0]:
                more = os.read(reader, 1 << 16)
                if not more:
                    break
                data += more
    finally:
        os.close(reader)
    return data[: data.rfind(b"\n") + 1].splitlines()


def print_spooled(spooled: list[dict[str, Any]]) -> None:
    """For people."""
    for result in spooled:
        count = plural(result["segments"], "segment")
        show(line(f"{safe(result['id'])}: {count} brought home from the spool {safe(result['path'])}"))
        show(line(("  in ", "dim"), safe(result["dir"])))
        if result["trouble"]:
            show(line(("  ! ", "yellow"), f"what is left stays there: {safe(result['trouble'])}"))
