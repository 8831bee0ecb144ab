"""One run over all its nodes, processes and attempts, from documents alone: cheap enough for a list of thousands.

Pure but for the lane files of live processes, which are mapped already (`live.py`), and for one question that only
segments answer: until when a process lived that nobody saw end, if another came after it.

Invariants:

- documents of several processes are merged attempt by attempt and in time order within one, the newest wins, key by
  key for config and summary;
- a resumed run has several attempts (`attempts.py`), and what two processes do at the same time is one;
- a process whose `init` raised was never part of the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from . import state as states
from .attempts import Attempt, Attempts
from .edits import Edit
from .environment import Environment, environments_of
from .folder import Found
from .live import LiveShmDir
from .node import Node, Process, listed, table, text, whole
from .observed import Observation, StallSpan, worst
from .requests import Asked, asked
from .state import State

_FITS = "fits"  # in a config
COUNTS = ("accepted", "stored", "forgotten", "damaged", "refused", "left_out")


@dataclass(slots=True)
class Shipment:
    """Records that went to a server, as the agents knew last: `logclient sync` may have brought more there since."""

    server: str
    stored: int = 0  # records here
    acked: int = 0  # of them there
    is_closed: bool = True  # the agents have left
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RunView:
    """The documents of a run, merged."""

    found: Found
    id: str
    name: str
    project: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    unedited: dict[str, Any] = field(
        default_factory=dict
    )  # name, group, notes, tags below edits; empty: none hold
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    alerts: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    processes: dict[str, Process] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)  # by process
    attempts: list[Attempt] = field(default_factory=list)
    attempts_by_time: list[int] = field(default_factory=list)  # numbers of those that only clocks order
    state: State = field(default_factory=lambda: State("lost"))

    @property
    def nodes(self) -> list[Node]:
        return self.found.nodes

    @property
    def created_ns(self) -> int:
        return self.attempts[0].start_ns if self.attempts else self.found.created_ns

    @property
    def last_ns(self) -> int:
        """Time at which anything was heard of the run last."""
        return max((attempt.end_ns for attempt in self.attempts), default=self.found.created_ns)

    @property
    def active_ns(self) -> int:
        """Time in which it ran: gaps between attempts are not counted."""
        return sum(attempt.end_ns - attempt.start_ns for attempt in self.attempts)

    @property
    def ranks(self) -> list[int]:
        return sorted({process.rank for process in self.processes.values() if process.rank is not None})

    def of_side(self, side: str) -> RunView:
        """Return the same run with the records of a side in the place of what was logged."""
        found = self.found.of_side(side)
        processes = {id: each for node in found.nodes for id, each in node.processes.items()}
        nothing: dict[str, Any] = {
            "config": {},
            "summary": {},
            "tags": [],
            "notes": "",
            "group": "",
            "unedited": {},
        }
        states = dict.fromkeys(processes, self.state)
        return replace(
            self, found=found, processes=processes, states=states, alerts=[], notices=[], **nothing
        )

    @property
    def observed(self) -> Observation | None:
        """The finding of its observers, of the worst node; None where it does not run, or nobody observes it."""
        if self.state.name != "running":
            return None
        live = {self.processes[id].node for id, state in self.states.items() if not state.is_over}
        return worst(node.observed for node in self.nodes if node.observed is not None and node.id in live)

    @property
    def stalls(self) -> list[StallSpan]:
        """The times in which it was stalled, the oldest first."""
        return sorted(
            (stall for node in self.nodes for stall in node.stalls), key=lambda stall: stall.begin_ns
        )

    @property
    def environments(self) -> list[Environment]:
        """Environments of its program, by node, the newest last."""
        return environments_of(self.nodes)

    def attempt_numbers(self) -> dict[str, int]:
        """Number of the attempt that each process is part of."""
        return {process: attempt.number for attempt in self.attempts for process in attempt.processes}

    @property
    def edits(self) -> list[Edit]:
        """Edits that cover what the documents contain, the newest last."""
        return self.found.edits.holding if self.unedited else []

    def requests(self) -> list[Asked]:
        """Requests to stop or to save, the oldest first."""
        return asked((node.id, node.requests) for node in self.nodes)

    def counts(self) -> dict[str, int]:
        """Records as the agents told them last, and as live processes count them now; exact once the run is over."""
        total = dict.fromkeys((*COUNTS, "waiting"), 0)
        live = {each.id: each for live_dir in self.found.live.values() for each in live_dir.processes}
        for node in self.nodes:
            for told in node.streams.values():
                if told.process not in live:
                    total["accepted"] += told.accepted
                    total["stored"] += told.stored
                    total["damaged"] += told.damaged
                    total["forgotten"] += max(0, told.accepted - told.stored - told.damaged)
        for node in self.nodes:
            live_dir = self.found.live.get(node.id)
            total["refused"] += max(node.refused, live_dir.refused if live_dir is not None else 0)
        for id, process in self.processes.items():
            if id not in live:
                total["refused"] += process.refused
                total["left_out"] += process.left_out
        for lanes in live.values():
            for name, number in lanes.counts().items():
                if name in total:
                    total[name] += number
        return total

    def shipments(self) -> list[Shipment]:
        """Servers that the run was shipped to while it ran, and how much of it got there."""
        found: dict[str, Shipment] = {}
        for node in self.nodes:
            server, error = text(node.ship.get("server")), text(node.ship.get("error"))
            if not node.ship:
                continue
            to = found.setdefault(server, Shipment(server))
            to.stored += sum(told.stored for told in node.streams.values())
            to.acked += sum(min(told.acked, told.stored) for told in node.streams.values())
            to.is_closed &= node.closed
            if error and error not in to.errors:
                to.errors.append(error)
        return list(found.values())

    def troubles(self) -> Iterator[str]:
        """Sentences about things that somebody should act on."""
        for node in self.nodes:
            if node.problem:
                yield f"node {node.id}: {node.problem}"
            for name, why in node.odd.items():
                yield f"node {node.id}: {name} is passed over: {why}"
        if self.found.edits_problem:
            yield self.found.edits_problem
        for live_dir in self.found.live.values():
            told = list(_troubles_here(live_dir))
            if live_dir.is_there:  # else all is stored, and what was read last may be wrong
                yield from told


def _troubles_here(live_dir: LiveShmDir) -> Iterator[str]:
    agent = live_dir.agent()
    if agent["state"] in ("gone", "gave up"):
        yield f"its agent is {agent['state']}: `logclient recover` stores what is in shared memory"
    elif agent["state"] == "stalled":
        yield "its agent does not answer just now; a worker that hangs is restarted"
    if not live_dir.dir:
        yield "it is in shared memory only: `logclient recover --dir FOLDER` before a reboot"
    elif agent["disk_silent_s"]:
        yield f"its disk is {agent['disk']}"
    if agent["disk_errno"]:
        yield f"writing to {live_dir.dir} fails: {agent['disk_error']}"


def view(found: Found, now_ns: int | None = None) -> RunView:
    """Merge what the nodes of a run say."""
    now_ns = time.time_ns() if now_ns is None else now_ns
    run = RunView(found, found.id, found.own_name)
    heard: dict[str, int] = {}
    rest_s = {node.id: node.rest_s for node in found.nodes}
    now = {node.id: node.clock_ns(now_ns) for node in found.nodes}
    for node in sorted(found.nodes, key=lambda node: (whole(node.run.get("created_ns")), node.id)):
        run.project = text(node.run.get("project")) or run.project
        for process in node.processes.values():
            if not process.is_abandoned:
                run.processes[process.id] = process
                heard[process.id] = node.heard_ns
    for process in run.processes.values():
        run.states[process.id] = states.of_process(
            process,
            is_open=_is_open(found, process),
            heard_ns=heard[process.id],
            now_ns=now[process.node],
            rest_s=rest_s[process.node],
        )
    attempts = Attempts(run, heard, now_ns)
    run.attempts, run.attempts_by_time = attempts.all, attempts.by_time
    _merge(run)
    _note_requeues(run)
    newest = run.attempts[-1].processes if run.attempts else []
    owners = [run.processes[id] for id in newest if run.processes[id].is_owner]
    run.state = states.of_run(
        [run.states[each.id] for each in owners or [run.processes[id] for id in newest]]
    )
    _note_unwritten(run)
    return run


def _is_open(found: Found, process: Process) -> bool | None:
    """Has the process the run open? None where only another host knows."""
    live_dir = found.live.get(process.node)
    if live_dir is None:
        return None
    lanes = live_dir.process(process.id)
    return lanes is not None and lanes.is_open


def _note_unwritten(run: RunView) -> None:
    """Processes that live here and whose documents have not come to disk yet make the run running."""
    for live_dir in run.found.live.values():
        for lanes in live_dir.processes:
            if lanes.id not in run.processes and lanes.is_open:
                if not run.attempts:
                    run.attempts.append(Attempt(1, lanes.created_ns, time.time_ns(), [], is_running=True))
                if run.state.name != "running":
                    run.state = State("running", since_ns=lanes.created_ns)


def _merge(run: RunView) -> None:
    numbers = run.attempt_numbers()
    written = [
        (numbers.get(process.id, 1), document.time, process.id, kind, document.data)
        for process in run.processes.values()
        for kind, document in process.documents.items()
    ]
    for _, when, id, kind, data in sorted(written, key=lambda item: item[:4]):
        if kind == "config":
            _take_config(run.config, data)
        elif kind == "summary":
            run.summary.update(data)
        elif kind == "about":
            _take_about(run, data)
        elif kind == "notices":
            _take_notices(run, id, data, when)
    run.alerts.sort(key=lambda alert: (alert["time"], alert["process"]))
    _take_edits(run)


def _take_edits(run: RunView) -> None:
    edits = run.found.edits
    if edits.holding:
        run.unedited = {"name": run.name, "group": run.group, "notes": run.notes, "tags": run.tags}
        run.name, run.group = edits.text("name", run.name), edits.text("group", run.group)
        run.notes, run.tags = edits.text("notes", run.notes), edits.tags(run.tags)


def _take_config(config: dict[str, Any], data: dict[str, Any]) -> None:
    """Trainings that integrations list under `fits` go behind those of earlier attempts and of other processes."""
    before = config.get(_FITS)
    config.update(data)
    if _are_fits(before) and _are_fits(data.get(_FITS)):
        config[_FITS] = [*before, *data[_FITS]]  # type: ignore[misc]


def _are_fits(value: Any) -> bool:
    """Was it written by `add_fit` of the integrations' guard, and not by the user under the same name?"""
    return isinstance(value, list) and all(isinstance(fit, dict) and "first_step" in fit for fit in value)


def _take_about(run: RunView, data: dict[str, Any]) -> None:
    """Keep what a later attempt did not name again."""
    name = text(data.get("name"))
    if name and name != run.id:
        run.name = name
    tags = data.get("tags")
    if isinstance(tags, list) and tags:
        run.tags = [str(tag) for tag in tags]
    run.notes = text(data.get("notes")) or run.notes
    run.group = text(data.get("group")) or run.group


def _take_notices(run: RunView, process: str, data: dict[str, Any], when: int) -> None:
    its_rank = run.processes[process].rank
    for alert in listed(data.get("alerts")):
        alert = table(alert)
        run.alerts.append(
            {
                "time": whole(alert.get("time")) or when,
                "level": text(alert.get("level")) or "info",
                "title": text(alert.get("title")),
                "text": text(alert.get("text")),
                "process": process,
                **({"number": alert["number"]} if isinstance(alert.get("number"), int) else {}),
                **({"rank": rank} if isinstance(rank := alert.get("rank", its_rank), int) else {}),
            }
        )
    for line in listed(data.get("notices")):
        if isinstance(line, str) and line not in run.notices:
            run.notices.append(line)


def _note_requeues(run: RunView) -> None:
    """An attempt that nobody saw the scheduler end was requeued all the same, if its job came again in a later one."""
    latest: dict[str, int] = {}
    for attempt in reversed(run.attempts):
        jobs = {id: table(run.processes[id].data("start").get("job")) for id in attempt.processes}
        for id, job in jobs.items():
            if whole(job.get("restarts")) < latest.get(text(job.get("name")), 0):
                run.states[id] = states.taken_away(run.processes[id], run.states[id], "requeued")
        for job in filter(None, jobs.values()):
            name = text(job.get("name"))
            latest[name] = max(latest.get(name, 0), whole(job.get("restarts")))
