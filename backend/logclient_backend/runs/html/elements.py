"""Small pieces of the page: tables of facts, numbers and times as text. Pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from typing import Any


def fact_table(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a table of facts; names are escaped here, values by the caller."""
    made = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{value}</td></tr>' for name, value in pairs)
    return f"<table><tbody>{made}</tbody></table>"


def data_address(mime: str, data: bytes) -> str:
    """Return bytes as an address. `mime` is one of a list of ours, so is no text of the run."""
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def as_text(value: Any) -> str:
    """Return a value as text that is not escaped yet: six digits of a float."""
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else repr(value)
    return str(value)


def moment(ns: Any, parts: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """Return a time in UTC; empty where it is none."""
    if not isinstance(ns, int) or not 0 < ns < 1 << 62:
        return ""
    return datetime.fromtimestamp(ns / 1e9, UTC).strftime(parts)


def count(number: int, one: str, many: str = "") -> str:
    """Return 1 value, 2 values."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
