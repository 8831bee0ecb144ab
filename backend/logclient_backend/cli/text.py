"""Text for people: names made safe for a terminal, numbers, times, durations, sizes.

Pure functions. Whatever a user or a file named goes through `safe` before it reaches a screen.
"""

from __future__ import annotations

import math
import time
from typing import Any

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def safe(text: object, most: int | None = None) -> str:
    """The text with what a terminal could obey, or not show, written as an escape; cut to `most` characters."""
    found = str(text)
    if not found.isprintable():
        found = "".join(char if char.isprintable() else _escape(char) for char in found)
    if most is not None and len(found) > most:
        found = found[: max(0, most - 1)] + "…"
    return found


def _escape(char: str) -> str:
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char)
    if named is not None:
        return named
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def safe_lines(text: str) -> str:
    """Return the text as a terminal may show it, with its line breaks kept."""
    return "\n".join(safe(line) for line in text.split("\n"))


def number(value: Any) -> str:
    """A value for people: six digits of a float, ints whole, texts quoted where they could be mistaken."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            return repr(value)
        return f"{value:.6g}"
    if isinstance(value, int):
        text = str(value)
        return text if len(text) <= 24 else f"{text[:20]}… ({len(text)} digits)"
    if isinstance(value, str):
        return f'"{safe(value)}"'
    return safe(value)


def count(value: int) -> str:
    return f"{value:,}"


def short_count(value: int) -> str:
    """12,345 as it is, 1.23M beyond."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:,}"


def plural(value: int, one: str, many: str | None = None) -> str:
    """1 record, 2 records."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def size(value: float) -> str:
    """Bytes as KiB, MiB, GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:,.0f} {unit}" if value >= 100 or unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def duration(seconds: float) -> str:
    """0.3 s, 42 s, 3 m 05 s, 2 h 07 m, 3 d 04 h."""
    if seconds < 0:
        return "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} m {whole % _MINUTE:02d} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE:02d} m"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR:02d} h"


def ago(then_ns: int, now_ns: int) -> str:
    """12 s ago; in words that fit a column; `unknown` where there is no such time."""
    if not then_ns:
        return "unknown"
    seconds = (now_ns - then_ns) / 1e9
    if seconds < 1:
        return "now"
    for limit, unit, name in ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "m"), (_DAY, _HOUR, "h")):
        if seconds < limit:
            return f"{int(seconds // unit)} {name} ago"
    return f"{int(seconds // _DAY)} d ago"


def moment(time_ns: int, *, parts: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Local time; - for none."""
    if not time_ns:
        return "-"
    try:
        return time.strftime(parts, time.localtime(time_ns // 10**9))
    except (OverflowError, ValueError, OSError):
        return str(time_ns)


def clock(time_ns: int) -> str:
    """Local time of day with milliseconds."""
    return f"{moment(time_ns, parts='%H:%M:%S')}.{time_ns // 10**6 % 1000:03d}"


def iso(time_ns: int) -> str | None:
    """UTC with nanoseconds, for JSON; None for none."""
    if not time_ns:
        return None
    try:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(time_ns // 10**9))}.{time_ns % 10**9:09d}Z"
    except (OverflowError, ValueError, OSError):
        return None
