"""The nodes of a run as a collector has them, put together: reports that are current, and why others have none.

Pure. A report counts while its agent says that the run does not get on, and while something comes from the node. A node
that is silent may have moved on since, so its report is not used: what its observer last concluded is quoted with the
time that has passed.

Reports come from a collector that did not check them, so they are read as files of somebody else's are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from logclient.errors import BadArgument

from ..runs.node import Node, text
from ..runs.view import RunView
from .report import Job, NodeState, Report, put_together, reports_in
from .report import Node as Place
from .stacks import Stacks
from .verdict import CANNOT_TELL, NOT_STUCK, Look, Observed

LATE_S = (
    20.0  # without a sign of a node beyond what it promised; in an open conversation one comes every 10 s
)
_OFF, _OK, _LATE = "off", "ok", ("quiet", "stalled")
_MAX_TEXT = 500


def job_of(run: RunView, rows: Iterable[Mapping[str, Any]], *, is_upload: bool = False) -> Job:
    """Return the job of the newest attempt.

    `rows`: nodes as `GET /run/reports` has them; `is_upload`: what is known was uploaded, no agent sends anything.
    """
    by_node = {text(row.get("node")): row for row in rows}
    newest = run.attempts[-1].processes if run.attempts else []
    nodes = {run.processes[id].node for id in newest}
    states: list[NodeState] = []
    reports: list[Report] = []
    for node in sorted(run.nodes, key=lambda node: (node.host, node.id)):
        if node.id in nodes:
            row = by_node.get(node.id, {})
            state, report = _node(run, node, row, newest)
            if is_upload and not state.is_known and state.silent_s is None:
                state.text = f"it was uploaded, and sends nothing itself{_last(node)}"
            states.append(state)
            reports += [report] if report is not None else []
    return put_together(reports, states)


def _node(
    run: RunView, node: Node, row: Mapping[str, Any], newest: list[str]
) -> tuple[NodeState, Report | None]:
    """Return what is known of one node, and its report where that is current."""
    silent_s, kind = _seconds(row.get("silent_s")), row.get("kind")
    observed = node.observed
    if not isinstance(kind, str):  # an agent that sends no reports; its documents have the state
        kind = observed.kind if observed is not None else _OFF
    made = NodeState(node.host or node.id, node.id, kind, silent_s=silent_s)
    if node.closed:
        made.text, made.is_known = "its processes have ended", True
        return made, _ended(run, node, silent_s, newest)
    last = _last(node)
    if silent_s is None:
        made.text = f"nothing has come from it since the collector was started{last}"
    elif silent_s > LATE_S + (0 if row.get("is_open") is True else node.rest_s):
        made.text = f"nothing has come from it for {silent_s:.0f} s{last}"
    elif kind == _OK:
        made.text, made.is_known = "no rank is late", True
    elif kind not in _LATE:
        made.text = "it has no observer"
    else:
        return _looked_at(run, node, row, made)
    return made, None


def in_folder(run: RunView, silent_s: float) -> dict[str, Any]:
    """Return the finding that lies in the run folder, for `logclient ui`, to which no agent sends a report.

    Its keys replace those of `described`. `silent_s`: since something was written there.
    """
    observed, rest_s = run.observed, max((node.rest_s for node in run.nodes if not node.closed), default=0)
    more = f"`logclient why {run.id}` on its host looks now"
    is_old = silent_s > LATE_S + rest_s
    kind, is_stuck = CANNOT_TELL, False
    if observed is None:
        text = f"no observer has written a finding into the folder; {more}"
    elif is_old:
        last = observed.line[:_MAX_TEXT]
        text = f"nothing was written into the folder for {silent_s:.0f} s; the last state was {last}; {more}"
    elif observed.is_ok:
        kind, text = NOT_STUCK, "no rank is late"
    else:
        kind, is_stuck = observed.verdict or observed.kind, observed.kind == _LATE[1]
        text = f"{observed.text[:_MAX_TEXT]}; {more}"
    return {"verdict": kind, "stuck": is_stuck, "text": text, "nodes": []}


def _last(node: Node) -> str:
    return "" if node.observed is None else f"; its last state was {node.observed.line[:_MAX_TEXT]}"


def _looked_at(
    run: RunView, node: Node, row: Mapping[str, Any], made: NodeState
) -> tuple[NodeState, Report | None]:
    """Take the report of a node that does not get on."""
    content, age_s = row.get("report"), _seconds(row.get("age_s")) or 0.0
    if not isinstance(content, str):
        made.text = (
            text(row.get("trouble"))[:_MAX_TEXT] or f"it is {made.kind}, and no report has come from it"
        )
        return made, None
    try:
        report = reports_in(content.encode("utf-8", "replace"), f"the report of {made.host}")[0]
    except BadArgument as error:
        made.text = str(error)[:_MAX_TEXT]
        return made, None
    if (report.node.run_id, report.node.node) != (run.id, node.id):
        made.text = "its report is of another run or node"
        return made, None
    made.host, made.is_seen, made.is_known, made.age_s = report.node.host, True, True, age_s
    made.text = f"as it was {age_s:.0f} s ago"
    if report.left_out:
        made.text += f"; left out, since the report was too large: {report.left_out[:_MAX_TEXT]}"
    for each in (*report.processes, *report.ended):
        _age(each, age_s)
    return made, report


def _age(each: Observed, age_s: float) -> None:
    """Make ages those of now; who was not late then may have logged since."""
    each.shows_age = True
    if each.ended_s is not None:
        each.ended_s += age_s
    if each.is_late and each.age_s is not None:
        each.age_s += age_s
        if each.sections is not None:
            each.sections = replace(each.sections, since_s=each.sections.since_s + age_s)


def _ended(run: RunView, node: Node, silent_s: float | None, newest: list[str]) -> Report | None:
    """Return the ends of the ranks of a node on which nobody is left."""
    if silent_s is None:
        return None
    found = Report(Place(node.host, node.id, "", node.heard_ns, run.id))
    for id in newest:
        process = run.processes[id]
        if process.node != node.id or process.rank is None or process.end is None:
            continue
        state = run.states[id]
        how = f"has ended ({', '.join(filter(None, (state.name, state.cause)))})"
        nothing = Look(None, Stacks(process.pid, reason=how))
        made = Observed(process.pid, nothing, nothing, 0.0, process.rank, end=how)
        made.ended_s = silent_s + max(0.0, (node.heard_ns - process.end.time) / 1e9)
        found.ended.append(made)
    return found


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else None
