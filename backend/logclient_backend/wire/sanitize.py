"""Words from elsewhere, made fit to be shown: one line, short, no control characters.

A collector, or what poses as one, may send 20 MB of text, or bytes that move a terminal's cursor.
"""

from __future__ import annotations

import re

MOST = 400

_SPACE = re.compile(r"\s+")


def one_line(text: object, most: int = MOST) -> str:
    """At most `most` characters of it, each of which can be printed."""
    raw = text if isinstance(text, str) else str(text)
    is_cut = len(raw) > 8 * most
    line = _SPACE.sub(" ", raw[: 8 * most]).strip()
    line = "".join(char if char.isprintable() else "?" for char in line)
    if len(line) > most or is_cut:
        line = line[: most - 1].rstrip() + "…"
    return line
