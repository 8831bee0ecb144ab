"""The page of a run: what it is, how it ended, its values, its curves, what is missing.

Pure. Every text of the run is escaped; none is used as a name, an address or a class. Sections that hold more than
documents and curves (`media.py`, `console.py`, `variables.py`) are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from .. import contents
from ..contents import Contents, Key
from ..environment import commit
from ..flatten import flattened
from ..observed import StallSpan
from ..view import RunView
from .chart import chart
from .elements import as_text, fact_table, moment
from .style import STYLE, policy

_COUNTS = (
    ("accepted", "records written by the program"),
    ("stored", "of them stored"),
    ("forgotten", "overwritten before they were stored"),
    ("damaged", "damaged, or in a file that is missing"),
    ("refused", "calls that wrote no record"),
    ("left_out", "values that could not be stored"),
)


def page(
    run: RunView, found: Contents, more: Iterable[Iterable[str]] = (), *, version: str, now_ns: int
) -> Iterator[str]:
    """Yield the document in parts, a chart at a time. `more`: further sections, behind the curves."""
    title = escape(run.name or run.id)
    yield (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy())}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
    )
    yield from _title(run)
    yield '<div class="columns"><div>'
    yield from _facts(run)
    yield from _events(run)
    yield from _counts(run, found)
    yield "</div><div>"
    yield from _tree("Config", run.config)
    yield from _tree("Summary", run.summary)
    yield "</div></div>"
    yield from _curves(found)
    for section in more:
        yield from section
    yield (
        f'<p class="dim">Written by logclient {escape(version)} at {moment(now_ns)}. Each column of a curve reaches '
        "from the lowest to the highest of its points; × marks NaN and infinities, coloured ground missing records.</p>"
        "</body></html>\n"
    )


def _title(run: RunView) -> Iterator[str]:
    state = run.state
    yield f"<h1>{escape(run.name or run.id)}</h1>"
    kind = "" if state.name in ("running", "finished") else ' class="bad"'
    yield f"<p{kind}>{escape(state.name)}{': ' + escape(state.cause) if state.cause else ''}</p>"
    if run.observed is not None and not run.observed.is_ok:
        yield f'<p class="bad">{escape(run.observed.line)}</p>'


def _facts(run: RunView) -> Iterator[str]:
    hosts = sorted({node.host for node in run.nodes if node.host})
    facts = {
        "Id": run.id,
        "Project": run.project,
        "Group": run.group,
        "Tags": ", ".join(run.tags),
        "Began": moment(run.created_ns),
        "Last sign": moment(run.last_ns),
        "Attempts": str(len(run.attempts)) if len(run.attempts) > 1 else "",
        "Ranks": str(len(run.ranks)) if run.ranks else "",
        "Hosts": ", ".join(hosts),
        "Commit": commit(run.environments),
    }
    yield fact_table((name, escape(text)) for name, text in facts.items() if text)
    if run.notes:
        yield f"<h2>Notes</h2><pre>{escape(run.notes)}</pre>"


def _tree(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    rows = [(key, escape(as_text(value))) for key, value in flattened(values)]
    if rows:
        yield f"<h2>{title}</h2>{fact_table(rows)}"


def _events(run: RunView) -> Iterator[str]:
    exception = run.state.exception
    if exception:
        lines = [
            f"{exception.get('type')}: {exception.get('text')}",
            *map(str, exception.get("last_lines") or ()),
        ]
        yield f'<h2>Exception</h2><pre class="bad">{escape(chr(10).join(lines))}</pre>'
    if run.alerts:
        rows = [
            (
                moment(each.get("time", 0)),
                f"{escape(str(each.get('title', '')))} {escape(str(each.get('text', '')))}",
            )
            for each in run.alerts
        ]
        yield f"<h2>Alerts</h2>{fact_table(rows)}"
    if run.stalls:
        rows = [
            (
                moment(stall.begin_ns),
                f"{_lasted(stall)}: {escape(': '.join(filter(None, (stall.verdict, stall.text))))}",
            )
            for stall in run.stalls
        ]
        yield f"<h2>Stalls</h2>{fact_table(rows)}"
    if run.notices:
        items = "".join(f"<li>{escape(line)}</li>" for line in run.notices)
        yield f"<h2>Notices</h2><ul>{items}</ul>"


def _lasted(stall: StallSpan) -> str:
    return f"{(stall.end_ns - stall.begin_ns) / 1e9:,.0f} s" if stall.end_ns else "not over"


def _counts(run: RunView, found: Contents) -> Iterator[str]:
    counts = found.counts(run)
    rows = [
        (about, f"{counts[name]:,}")
        for name, about in _COUNTS
        if counts[name] or name in ("accepted", "stored")
    ]
    yield f"<h2>Records</h2>{fact_table(rows)}"


def _curves(found: Contents) -> Iterator[str]:
    """Yield a section for each prefix of the keys, in the order in which they were logged first."""
    sections: dict[str, list[Key]] = {}
    for key in found.keys.values():
        prefix, slash, _ = key.name.partition("/")
        sections.setdefault(prefix if slash else "", []).append(key)
    gaps = contents.gap_steps(found.gaps)
    for prefix, keys in sections.items():
        yield f"<details open><summary>{escape(prefix) or 'Curves'} ({len(keys):,})</summary>"
        yield '<div class="charts">'
        for key in keys:
            yield _figure(key, gaps)
        yield "</div></details>"


def _figure(key: Key, gaps: list[tuple[int, int]]) -> str:
    last = "" if key.last is None else f"last {escape(as_text(key.last.value))} at step {key.last.step:,}"
    drawn = chart(key.name, key.curve(), gaps) if key.curves else ""
    ends = ", ".join(
        f"{name} {as_text(value)}"
        for name, value in (("lowest", key.low), ("highest", key.high))
        if value is not None
    )
    facts = ", ".join(filter(None, (last, ends, f"{key.points:,} points")))
    return f'<figure><figcaption>{escape(key.name)}<br><span class="dim">{facts}</span></figcaption>{drawn}</figure>'
