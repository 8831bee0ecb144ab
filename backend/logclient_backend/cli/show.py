"""`logclient show`: one run on a screen."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from logclient.errors import BadArgument
from logclient.shm.side_stream import MEDIA, SYSTEM

from ..runs import contents
from ..runs.contents import Contents, Hole, Key
from ..runs.curve import GAP_MARK, ODD_MARK, Drawing
from ..runs.extremes import of_summary
from ..runs.observed import Observation
from ..runs.replicas import Comparison, compare
from ..runs.source import RunSource
from ..runs.view import RunView, Shipment
from ..signals import signal_name
from . import console_page, count_lines, environment_page, media_page, screen, system_page
from .edit_lines import edit_lines
from .options import amount, with_json, with_source
from .text import ago, clock, duration, iso, moment, number, plural, safe, safe_lines

if TYPE_CHECKING:
    from rich.text import Text

_CURVES, _ROWS, _GAPS, _SETTINGS, _NOTES = 6, 40, 10, 40, 12
_HEIGHT = 8
_TWO_COLUMNS = 110  # characters from which two curves stand side by side


@click.command(
    "show",
    epilog="Exit codes: 0 shown, 1 no answer, 3 no such run or ambiguous, 4 part of it cannot be read.",
)
@click.argument("run", required=False, metavar="[RUN]")
@click.option(
    "-k", "--key", "keys", multiple=True, metavar="PATTERN", help="Only keys like this (* and ?); repeatable."
)
@amount("--curves", click.IntRange(0), _CURVES, "N", "Draw at most this many curves.")
@click.option(
    "--all", "everything", is_flag=True, help="All keys, settings, gaps and notices; still N curves."
)
@click.option(
    "--system",
    "of_system",
    is_flag=True,
    help="Host and device metrics: their last values, and curves of --key.",
)
@click.option("--media", "of_media", is_flag=True, help="Images and other media values; see --key.")
@click.option(
    "--environment",
    "of_environment",
    is_flag=True,
    help="Commit, packages, machine, command line and variables of its program.",
)
@click.option(
    "--console",
    "of_console",
    is_flag=True,
    help="What the program printed, if it was captured: lines with the newest state of progress bars.",
)
@click.option(
    "--raw", is_flag=True, help="With --console: the output as it was written, with all control characters."
)
@click.option("--follow", is_flag=True, help="With --console: go on with what comes, until the run ends.")
@click.option("--stdout", "only_stdout", is_flag=True, help="With --console: standard output only.")
@click.option("--stderr", "only_stderr", is_flag=True, help="With --console: standard error only.")
@click.option("--replicas", is_flag=True, help="Compare the fingerprints of ranks that should hold the same.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    metavar="SHARE",
    help="With --replicas: norms and sums may differ by this share; 0: not a bit may differ.",
)
@with_source
@with_json
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    keys: tuple[str, ...],
    curves: int,
    everything: bool,
    of_system: bool,
    of_media: bool,
    of_environment: bool,
    of_console: bool,
    raw: bool,
    follow: bool,
    only_stdout: bool,
    only_stderr: bool,
    replicas: bool,
    tolerance: float,
    source: RunSource,
    as_json: bool,
) -> None:
    """Show one run: its state and why, config, last values, what was dropped and where, notices, and a curve per key.

    Without RUN, the newest. Where attempts overlap in steps, curves show the newest attempt; `export` has all.

    \b
    logclient show mlp
    logclient show ef8ecr7s --key 'train/*' --curves 12
    logclient show mlp --server http://collector:7789
    logclient show mlp --replicas
    logclient show mlp --console --follow
    """
    stored = source.run(run)
    if of_console:
        streams = {"stdout"} if only_stdout else {"stderr"} if only_stderr else {"stdout", "stderr"}
        return console_page.show(stored, streams, raw=raw, follow=follow, as_json=as_json)
    if raw or follow or only_stdout or only_stderr:
        raise BadArgument("--raw, --follow, --stdout and --stderr belong to --console")
    if of_media:
        return media_page.show(stored, _matcher(keys or ("*",)), everything=everything, as_json=as_json)
    if of_system:
        stored, curves = stored.of_side(SYSTEM), curves if keys else 0
    shown = stored.view()
    if of_environment:
        return _show_environment(shown, as_json=as_json)
    if replicas:
        return _show_replicas(compare(shown, tolerance), tolerance, as_json)
    with screen.progress("reading", shown.counts()["stored"]) as advance:
        only = _matcher(keys) if keys and not as_json else None
        found = stored.contents(shown, curves=0 if as_json else curves, only=only, progress=advance)
    if keys:
        is_meant = _matcher(keys)
        found.keys = {name: key for name, key in found.keys.items() if is_meant(name)}
    if of_system:
        _show_system(shown, found, curves, as_json=as_json)
    elif as_json:
        screen.print_json(as_dict(shown, found))
    else:
        most = 10**9 if everything else 0
        for thing in _pages(shown, found, curves, most):
            screen.show(thing)
    if found.damage or found.unsupported or any(node.problem for node in shown.nodes):
        ctx.exit(4)


def _show_system(run: RunView, found: Contents, curves: int, *, as_json: bool) -> None:
    if as_json:
        screen.print_json(system_page.as_dict(run, found))
        return
    for thing in (*_name_and_state(run), *system_page.pages(run, found), *_curves(run, found, curves)):
        screen.show(thing)


def _show_environment(run: RunView, *, as_json: bool) -> None:
    if as_json:
        screen.print_json({"id": run.id, "environments": environment_page.as_dicts(run.environments)})
        return
    for thing in environment_page.pages(run.environments):
        screen.show(thing)


def _show_replicas(found: Comparison, tolerance: float, as_json: bool) -> None:
    if as_json:
        differences = [{"attempt": attempt, **asdict(each)} for attempt, each in found.differences]
        screen.print_json({**asdict(found), "tolerance": tolerance, "differences": differences})
        return
    for attempt, each in found.differences:
        colour = "green" if each.is_over else "red"
        screen.show(screen.line((f"attempt {attempt}: ", "dim"), (safe(str(each)), colour)))
    if not found.differences:
        screen.show(
            screen.line(("no replica differs", "green") if found.compared else "no replicas to compare")
        )
    facts = f"compared: {plural(found.compared, 'tensor')} at a step each, tolerance {tolerance:g}"
    if found.late:
        facts += f"; {plural(found.late, 'value')} came too late to be compared"
    if found.without_rank:
        facts += f"; {plural(found.without_rank, 'record')} without a rank left out"
    screen.show(screen.line((facts, "dim")))


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """A key is meant by its own name, or by a pattern with * and ?."""
    return lambda name: any(name == pattern or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def as_dict(run: RunView, found: Contents) -> dict[str, Any]:
    """All of it for programs."""
    state = run.state
    return {
        "id": run.id,
        "name": run.name,
        "project": run.project,
        "group": run.group,
        "tags": run.tags,
        "notes": run.notes,
        "edits": [{**edit.as_dict(), "time": iso(edit.time_ns)} for edit in run.edits],
        "unedited": run.unedited or None,
        "path": run.found.path,
        "state": {
            "name": state.name,
            "cause": state.cause,
            "since": iso(state.since_ns),
            "exit_code": state.exit_code,
            "signal": state.signal,
            "signal_name": None if state.signal is None else signal_name(state.signal),
            "exception": state.exception or None,
        },
        "observed": _observed_dict(run.observed),
        "stalls": [
            {**asdict(stall), "begin": iso(stall.begin_ns), "end": iso(stall.end_ns)} for stall in run.stalls
        ],
        "first_start": iso(run.created_ns),
        "last_point": iso(found.last_time),
        "active_s": run.active_ns / 1e9,
        "attempts_by_time": run.attempts_by_time,
        "attempts": [
            {
                "number": attempt.number,
                "start": iso(attempt.start_ns),
                "end": iso(attempt.end_ns),
                "active_s": (attempt.end_ns - attempt.start_ns) / 1e9,
                "is_running": attempt.is_running,
                "processes": attempt.processes,
            }
            for attempt in run.attempts
        ],
        "config": run.config,
        "summary": run.summary,
        "counts": found.counts(run),
        "media": run.of_side(MEDIA).counts(),
        "servers": [
            {"address": to.server, "stored": to.stored, "acked": to.acked, "errors": to.errors}
            for to in run.shipments()
        ],
        "streams": {
            stream.hex(): {
                "process": found.spans[stream].process.hex(),
                "lane": found.spans[stream].lane,
                **found.stream_counts(stream),
            }
            for stream in sorted(found.accepted)
        },
        "gaps": [contents.as_dict(gap) for gap in found.gaps],
        "damage": [str(damage) for damage in found.damage],
        "problems": [*run.troubles(), *(f"{name}: {why}" for name, why in found.unsupported.items())],
        "keys": {name: _key_dict(key, run.summary) for name, key in found.keys.items()},
        "ranks": sorted(found.ranks.union(run.ranks)),
        "processes": [
            {
                "id": process.id,
                "pid": process.pid,
                "host": process.host,
                "rank": process.rank,
                "role": "owner" if process.is_owner else "member",
                "started": iso(process.created_ns),
                "state": run.states[process.id].name,
                "cause": run.states[process.id].cause,
            }
            for process in sorted(
                run.processes.values(), key=lambda process: (process.created_ns, process.id)
            )
        ],
        "requests": [each.as_dict() for each in run.requests()],
        "environments": [each.brief() for each in run.environments],
        "alerts": [{**alert, "time": iso(alert["time"])} for alert in run.alerts],
        "notices": run.notices,
    }


def _observed_dict(observed: Observation | None) -> dict[str, Any] | None:
    return None if observed is None else {**observed.as_dict(), "since": iso(observed.since_ns)}


def _key_dict(key: Key, summary: dict[str, Any]) -> dict[str, Any]:
    last = key.last
    assert last is not None
    return {
        "points": key.points,
        "last": last.value,
        "min": _extreme(key, summary, "min"),
        "max": _extreme(key, summary, "max"),
        "step": last.step,
        "time": iso(last.time),
        "rank": last.rank,
        "rounded": last.code == "r",
    }


def _extreme(key: Key, summary: dict[str, Any], what: str) -> Any:
    """The lowest or highest value of a key; what the program stored itself in the summary wins."""
    own = of_summary(summary, key.name, what)
    return (key.low if what == "min" else key.high) if own is None else own


# ---- for people -----------------------------------------------------------------------------------------


def _pages(run: RunView, found: Contents, curves: int, most: int) -> Iterator[Any]:
    yield from _head(run, found)
    yield from _tree("config", run.config, most or _SETTINGS)
    yield from _tree("summary", run.summary, most or _SETTINGS)
    yield from _keys(found, run.summary, most or _ROWS)
    yield from _gaps(found, most or _GAPS)
    yield from _notes(run, found, most or _NOTES)
    yield from _curves(run, found, curves)


def _name_and_state(run: RunView) -> Iterator[Any]:
    mark, colour = screen.state_mark(run.state.name)
    name = safe(run.name)
    cause = f": {safe(run.state.cause)}" if run.state.cause else ""
    yield screen.line((name, "bold"), *((("  " + safe(run.id)),) if run.name != run.id else ()))
    yield screen.line((f"{mark} {run.state.name}", colour), cause)
    if (observed := run.observed) is not None and not observed.is_ok:
        where = f" on {safe(observed.host)}" if len(run.nodes) > 1 and observed.host else ""
        since = f" (since {ago(observed.since_ns, time.time_ns())}{where})" if observed.since_ns else where
        colour = "yellow" if observed.kind == "stalled" else "dim"
        yield screen.line((safe(observed.line), colour), (since, "dim"))


def _head(run: RunView, found: Contents) -> Iterator[Any]:
    yield from _name_and_state(run)
    for at in run.state.exception.get("last_lines") or ():
        yield screen.line(("    " + safe(at), "dim"))
    facts = _facts(run, found)
    left = max(len(label) for label, _ in facts)
    for label, value in facts:
        yield screen.line((f"{label:<{left}}  ", "dim"), value)
    for trouble in run.troubles():
        yield screen.line(("! ", "yellow"), safe(trouble))


def _facts(run: RunView, found: Contents) -> list[tuple[str, Any]]:
    now = time.time_ns()
    end = found.last_time or run.last_ns
    active = duration(run.active_ns / 1e9)
    if len(run.attempts) > 1:
        idle = (run.last_ns - run.created_ns - run.active_ns) / 1e9
        active += f" in {len(run.attempts)} attempts, {duration(idle)} between them"
    facts: list[tuple[str, Any]] = []
    project = " · ".join(safe(text) for text in (run.project, run.group, *run.tags) if text)
    if project:
        facts.append(("project", project))
    began = f"{moment(run.created_ns)}, " if run.created_ns else ""
    facts.append(("started", f"{began}{ago(run.created_ns, now)}"))
    facts.append(("last point", f"{moment(end)}, {ago(end, now)}" if end else "-"))
    facts.append(("active", active))
    if run.attempts_by_time:
        which = ", ".join(f"{number - 1} and {number}" for number in run.attempts_by_time[:5])
        facts.append(
            ("order", f"by the clocks of their hosts: attempts {which} lie in folders that never met")
        )
    facts.append(("records", count_lines.of_counts(found.counts(run))))
    facts += count_lines.of_media(run)
    facts += [("server", _shipment(to)) for to in run.shipments()]
    facts.append(("processes", _processes(run)))
    facts.append(("where", safe(run.found.path)))
    facts += environment_page.commit(run.environments)
    if run.notes:
        facts.append(("notes", safe(run.notes, 400)))
    facts += [("edited", line) for line in edit_lines(run.edits, run.unedited, now)]
    return facts


def _shipment(to: Shipment) -> Any:
    """Return progress of shipping as far as the agents knew: `logclient sync` does not write to the run folder."""
    missing = to.stored - to.acked
    if not missing:
        return screen.line(safe(to.server), (": all that was stored", "dim"))
    when = " when its agent left" if to.is_closed else ""
    why = f" ({safe(to.errors[-1])})" if to.errors else ""
    return screen.line(
        safe(to.server), (f": {missing:,} of {to.stored:,} not yet there{when}{why}", "yellow")
    )


def _processes(run: RunView) -> str:
    hosts = sorted({safe(node.host) for node in run.nodes if node.host})
    on = (
        f" on {', '.join(hosts[:4])}" + (f" and {len(hosts) - 4} more hosts" if len(hosts) > 4 else "")
        if hosts
        else ""
    )
    ranks = f", ranks {run.ranks[0]} to {run.ranks[-1]}" if len(run.ranks) > 1 else ""
    running = sum(1 for state in run.states.values() if not state.is_over)
    alive = f", {running} running" if running else ""
    return f"{len(run.processes)}{on}{ranks}{alive}"


def _tree(title: str, values: dict[str, Any], most: int) -> Iterator[Any]:
    """Nested dicts stay nested: a path is shown as it was given, and two paths never look the same."""
    if not values:
        return
    yield _title(title)
    lines = list(_leaves(values, 0))
    left = min(36, max((screen.cells(label) for label, _ in lines[:most]), default=0))
    for label, value in lines[:most]:
        blanks = " " * (left - screen.cells(label))
        first, *rest = [""] if value is None else screen.folded(value, left + 4)
        yield screen.line("  ", label, blanks, "  ", (first, "cyan"))
        for piece in rest:
            yield screen.line(" " * (left + 4), (piece, "cyan"))
    if len(lines) > most:
        yield screen.line((f"  and {len(lines) - most:,} more lines (--all)", "dim"))


def _leaves(values: dict[str, Any], depth: int) -> Iterator[tuple[str, str | None]]:
    for key, value in values.items():
        label = "  " * depth + safe(key, 60)
        if isinstance(value, dict) and value:
            yield label, None
            yield from _leaves(value, depth + 1)
        else:
            yield label, _setting(value)


def _setting(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return safe(value, 200)
    if isinstance(value, bool) or not isinstance(value, (list, dict)):
        return number(value) if value is not None else "none"
    return safe(str(value), 200)


def _keys(found: Contents, summary: dict[str, Any], most: int) -> Iterator[Any]:
    if not found.keys:
        yield _title("no points")
        return
    yield _title("metrics")
    table = screen.table("", "KEY", "LAST", "MIN", "MAX", "STEP", "POINTS", right=(2, 3, 4, 5, 6))
    room = max(16, screen.width() - 70) if screen.is_terminal() else None
    for key in list(found.keys.values())[:most]:
        last = key.last
        assert last is not None
        value = _cell(last.value) + ("~" if last.code == "r" else "")
        low, high = (_extreme(key, summary, what) for what in ("min", "max"))
        table.add_row(
            "",
            screen.line(safe(key.name, room)),
            screen.line((value, "cyan")),
            screen.line("" if low is None else _cell(low)),
            screen.line("" if high is None else _cell(high)),
            f"{last.step:,}",
            f"{key.points:,}",
        )
    yield table
    if len(found.keys) > most:
        yield screen.line((f"  and {len(found.keys) - most:,} more keys (--all, or --key PATTERN)", "dim"))
    if any(key.last is not None and key.last.code == "r" for key in found.keys.values()):
        yield screen.line(
            ("  ~ rounded: the value that was logged had more digits than a float64 holds", "dim")
        )


def _cell(value: Any) -> str:
    text = number(value)
    return text if len(text) <= 28 else text[:27] + "…"


def _gaps(found: Contents, most: int) -> Iterator[Any]:
    if not found.gaps:
        return
    records = sum(gap.records for gap in found.gaps)
    yield _title(f"gaps: {plural(records, 'record')} in {plural(len(found.gaps), 'place')}")
    table = screen.table("", "RECORDS", "CAUSE", "BETWEEN STEPS", "AND TIMES", "STREAM", right=(1,))
    for gap in sorted(sorted(found.gaps, key=lambda gap: -gap.records)[:most], key=found.gaps.index):
        table.add_row(
            "",
            screen.line((f"{gap.records:,}", "yellow")),
            gap.cause,
            _edges(gap, lambda edge: f"{edge.step:,}"),
            _edges(gap, lambda edge: clock(edge.time)),
            screen.line((gap.stream[:8], "dim")),
        )
    yield table
    if len(found.gaps) > most:
        yield screen.line((f"  and {plural(len(found.gaps) - most, 'smaller gap')} (--all)", "dim"))


def _edges(gap: Hole, of: Any) -> str:
    after = of(gap.after) if gap.after is not None else "start"
    before = of(gap.before) if gap.before is not None else "end"
    return f"{after} – {before}" if screen.can_draw() else f"{after} - {before}"


def _notes(run: RunView, found: Contents, most: int) -> Iterator[Any]:
    damage = [safe(str(each)) for each in found.damage]
    damage += [f"{safe(name)}: {safe(why)}" for name, why in found.unsupported.items()]
    if damage:
        yield _title("damage")
        for text in damage[:most]:
            yield screen.line(("  " + text, "red"))
        if len(damage) > most:
            yield screen.line((f"  and {len(damage) - most:,} more (--all, or logclient wal verify)", "dim"))
    if asked := run.requests():
        yield _title("requests")
        for each in asked[-most:]:
            by = f" by {safe(each.by)}" if each.by else ""
            reason = f" ({safe(each.reason)})" if each.reason else ""
            yield screen.line(
                ("  " + moment(each.time_ns) + " ", "dim"),
                (each.what, "bold"),
                f"{by}{reason}: {safe(each.outcome)}",
                (f", by {safe(each.via)}", "dim"),
            )
    if run.alerts:
        yield _title("alerts")
        for alert in run.alerts[-most:]:
            colour = {"warn": "yellow", "error": "red"}.get(alert["level"], "cyan")
            text = f": {safe_lines(alert['text'])}" if alert["text"] else ""
            yield screen.line(
                ("  " + moment(alert["time"]) + " ", "dim"),
                (f"{safe(alert['level'])} ", colour),
                safe(alert["title"]),
                text,
            )
        if len(run.alerts) > most:
            yield screen.line((f"  and {len(run.alerts) - most:,} older ones (--all)", "dim"))
    if run.notices:
        yield _title("notices")
        for notice in run.notices[:most]:
            yield screen.line("  ", safe(notice))
        if len(run.notices) > most:
            yield screen.line((f"  and {len(run.notices) - most:,} more (--all)", "dim"))


def _curves(run: RunView, found: Contents, most: int) -> Iterator[Any]:
    drawn = [key for key in found.keys.values() if key.curves]
    if not drawn or most < 1:
        return
    yield screen.line("")
    wide = screen.width()
    side_by_side = wide >= _TWO_COLUMNS and len(drawn) > 1
    room = (wide - 4) // 2 if side_by_side else min(wide, 100)
    blocks = [_block(key, found, room) for key in drawn[:most]]
    step = 2 if side_by_side else 1
    for at in range(0, len(blocks), step):
        yield from _beside(blocks[at : at + step], room)
        yield screen.line("")
    numeric = sum(1 for key in found.keys.values() if not key.is_text)
    left = numeric - min(most, len(drawn))
    if left > 0:
        yield screen.line((f"{plural(left, 'more curve')} (--curves N, or --key PATTERN)", "dim"))
    if len(run.attempts) > 1:
        yield screen.line(("where attempts overlap in steps, the newest is drawn", "dim"))


def _block(key: Key, found: Contents, room: int) -> list[Text]:
    gaps = contents.gap_steps(found.gaps)
    drawing: Drawing = key.curve().draw(room, _HEIGHT, gaps=gaps, ascii_only=not screen.can_draw())
    lines = [screen.line((safe(key.name, room), "bold"))]
    lines += [screen.line((text, "cyan" if at < _HEIGHT else "dim")) for at, text in enumerate(drawing.lines)]
    notes = []
    if drawing.odd:
        notes.append(f"{ODD_MARK} {drawing.odd:,} not finite")
    if drawing.gaps:
        notes.append(f"{GAP_MARK} records missing")
    if drawing.hidden:
        notes.append(f"{plural(drawing.hidden, 'point')} far outside not drawn")
    if notes:
        lines.append(screen.line(("  " + ", ".join(notes), "yellow")))
    return lines


def _beside(blocks: list[list[Text]], room: int) -> Iterator[Text]:
    for at in range(max(map(len, blocks))):
        parts: list[Any] = []
        for index, block in enumerate(blocks):
            text = block[at] if at < len(block) else screen.line("")
            parts.append(text)
            if index + 1 < len(blocks):
                parts.append(" " * (room - text.cell_len + 4))
        yield screen.line(*parts)


def _title(text: str) -> Any:
    return screen.line(("\n" + text, "bold"))
