"""The agent's log: what went wrong and what was done about it, in `agent.log` of the node's folder.

Written by the copier only. Two files at most, the older one as `agent.log.old`.
"""

from __future__ import annotations

import os
import time

from logclient.shm.regular import open_regular

NAME = "agent.log"
_MAX_BYTES = 256 << 10


def write(folder: str, lines: list[tuple[int, str]]) -> None:
    """Append lines, each with its time in ns. What cannot be written is let go: the log must not hold up data."""
    text = "".join(f"{_time(time_ns)} {line}\n" for time_ns, line in lines).encode(
        "utf-8", "backslashreplace"
    )
    path = os.path.join(folder, NAME)
    try:
        fd = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, text)
            if os.fstat(fd).st_size > _MAX_BYTES:
                os.rename(path, f"{path}.old")
        finally:
            os.close(fd)
    except OSError:
        pass


def _time(time_ns: int) -> str:
    year, month, day, hour, minute, second = time.gmtime(time_ns // 1_000_000_000)[:6]
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
