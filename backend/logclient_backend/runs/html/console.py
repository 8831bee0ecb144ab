"""Captured output of a run in its page: the last lines, with a note of how many came before them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from html import escape

from ..console import ConsoleLine
from .elements import count, moment

MAX_LINES = 5_000
MAX_CHARACTERS = 1 << 20
_NONE = (
    "No output was captured. A program asks for it with "
    "<code>init(console=&quot;tee&quot;)</code> or <code>LOGCLIENT_CONSOLE=tee</code>."
)


def section(lines: Iterable[ConsoleLine]) -> Iterator[str]:
    """Yield the section."""
    kept, total, size = deque[ConsoleLine](), 0, 0
    for line in lines:
        total += 1
        size += len(line.text)
        kept.append(line)
        while len(kept) > MAX_LINES or (size > MAX_CHARACTERS and len(kept) > 1):
            size -= len(kept.popleft().text)
    yield f"<details open><summary>Console ({count(total, 'line')})</summary>"
    if total > len(kept):
        yield f'<p class="dim">{count(total - len(kept), "earlier line")} left out.</p>'
    if not kept:
        yield f'<p class="dim">{_NONE}</p></details>'
        return
    has_many = len({line.process for line in kept}) > 1
    yield '<div class="console" tabindex="0" role="log" aria-label="Output"><pre>'
    for line in kept:
        yield _row(line, has_many)
    yield "</pre></div></details>"


def _row(line: ConsoleLine, has_many: bool) -> str:
    head = moment(line.time_ns, "%H:%M:%S")
    if has_many:
        head += f" {line.process[-6:] if line.rank is None else f'rank {line.rank}'}"
    lost = f"<i>{count(line.lost, 'piece')} missing here</i>\n" if line.lost > 0 else ""
    cut = f"<i> …{count(line.cut, 'character')} cut</i>" if line.cut > 0 else ""
    text = escape(line.text)
    if line.stream == "stderr":
        text = f'<b title="standard error">{text}</b>'
    return f"{lost}<i>{escape(head)}</i>  {text}{cut}\n"
