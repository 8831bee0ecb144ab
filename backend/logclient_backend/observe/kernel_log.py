"""Lines of the kernel's log that may explain a hang, of the last hour.

`/dev/kmsg` is read without waiting. `dmesg` is not started: it reads the same file. Where it may not be read, or is not
there, as in most containers, the reason is kept instead.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

PATH = "/dev/kmsg"
SINCE_S = 3600.0
MAX_LINES = 20
_MAX_TEXT = 300
_READ_S = 0.5  # a log of 16 MiB takes less
# (code, what a line holds)
_KINDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (code, re.compile(text, re.IGNORECASE))
    for code, text in (
        ("xid", r"NVRM: .*\bXid\b|\bNVRM: .*fallen off the bus|\bSXid\b"),
        ("hung task", r"blocked for more than \d+ seconds|\bhung task|\bhung_task"),
        ("out of memory", r"out of memory: killed process|oom-kill:|memory cgroup out of memory"),
        ("nfs", r"\bnfs: server .* (not responding|ok|timed out)"),
        (
            "i/o error",
            r"\bI/O error|buffer i/o error|critical medium error|remounting filesystem read-only|ext4-fs error",
        ),
        ("ecc", r"\bECC\b.*\berrors?\b|\bEDAC\b.*\b(CE|UE)\b|hardware error|machine check events? logged"),
    )
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log."""

    code: str
    age_s: float
    text: str


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The newest lines of interest, oldest first, or the reason why there are none to be seen."""

    lines: tuple[Line, ...] = ()
    left_out: int = 0  # older ones of the same hour
    absent: str = ""


def read(path: str = PATH, *, now_s: float | None = None) -> KernelLog:
    """Return the lines of the last hour. `now_s`: seconds since boot, as the log counts them."""
    now_s = time.monotonic() if now_s is None else now_s
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return KernelLog(absent=f"{path}: {error.strerror}")
    try:
        if not stat.S_ISCHR(os.fstat(fd).st_mode):
            return KernelLog(absent=f"{path} is no kernel log")
        found = [line for record in _records(fd) if (line := line_of(record, now_s)) is not None]
    except OSError as error:
        return KernelLog(absent=f"{path}: {error.strerror}")
    finally:
        os.close(fd)
    return KernelLog(tuple(found[-MAX_LINES:]), max(0, len(found) - MAX_LINES))


def _records(fd: int) -> Iterator[bytes]:
    """Yield the records that there are, in their order."""
    deadline = time.monotonic() + _READ_S
    while time.monotonic() < deadline:
        try:
            record = os.read(fd, 1 << 13)
        except BlockingIOError:
            return
        except BrokenPipeError:  # overwritten before it was read: the next one is there
            continue
        if not record:
            return
        yield record


def line_of(record: bytes, now_s: float) -> Line | None:
    """Return a record, `priority,number,microseconds,flags;text`, if it is of interest and the kernel wrote it."""
    head, _, rest = record.partition(b";")
    words = head.split(b",")
    try:
        priority, age_s = int(words[0]), now_s - int(words[2]) / 1e6
    except (ValueError, IndexError):
        return None
    if priority >> 3 or age_s > SINCE_S:  # a program may write here too, under a facility of its own
        return None
    text = rest.partition(b"\n")[0].decode("utf-8", "replace")[:_MAX_TEXT]
    code = next((code for code, pattern in _KINDS if pattern.search(text)), None)
    return None if code is None else Line(code, max(0.0, age_s), text)
