"""`logclient status`: what runs on this host now."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from ..agent.settings import Settings
from ..runs import live
from ..runs.live import LiveShmDir
from ..runs.live_media import media_of
from ..runs.requests import asked
from . import alert_lines, screen
from .ls import dropped
from .options import with_json
from .text import ago, count, duration, iso, plural, safe, size

_DEVICE_S = 60.0  # a device may be some long steps behind its process
_REQUESTS = 5  # the newest
_LAG_S = 5.0  # the agent syncs every 0.5 s, or as `copied_every_s` says: beyond this something is wrong


@click.command("status", epilog="Exit codes: 0 all is well, 1 something needs doing.")
@click.option("-f", "--follow", is_flag=True, help="Print alerts of these runs as they come, until Ctrl-C.")
@with_json
def command(follow: bool, as_json: bool) -> None:
    """Show the live runs of this user on this host: processes, lag, how full the lanes are, drops, the agent's health.

    Lag is what was logged and is not on disk: how many records, and how old the oldest is. What waits for values of
    a device is told apart.

    \b
    logclient status
    logclient status --follow
    """
    if follow:
        alert_lines.follow(as_json)
    found = [entry for live_dir in live.scan() if (entry := describe(live_dir))["agent"]["state"] != "left"]
    if as_json:
        screen.print_json({"runs": found})
    elif not found:
        screen.show(screen.line(("no live runs of this user on this host", "dim")))
    else:
        for at, entry in enumerate(found):
            if at:
                screen.show(screen.line(""))
            for thing in _page(entry):
                screen.show(thing)
    if any(entry["problems"] for entry in found):
        raise click.exceptions.Exit(1)


def describe(live_dir: LiveShmDir) -> dict[str, Any]:
    """All about one shm directory, for programs; its agent has `left` where all is stored by now."""
    now = time.time_ns()
    agent = live_dir.agent()
    processes: list[dict[str, Any]] = []
    for process in live_dir.processes:
        counts = process.counts()
        waiting = process.waiting()
        processes.append(
            {
                "id": process.id,
                "pid": process.pid,
                "rank": process.rank,
                "started": iso(process.created_ns),
                "alive": process.is_alive,
                "open": process.is_open,
                "streams": len(process.streams()),
                "fill": round(process.fill(), 4),
                "lag_records": waiting.records,
                "lag_s": _age_s(waiting.oldest_ns, now),
                "device_records": waiting.device_records,
                "device_s": _age_s(waiting.device_oldest_ns, now),
                "counts": counts,
            }
        )
    total: dict[str, int] = {}
    for entry in processes:
        for name, value in entry["counts"].items():
            total[name] = total.get(name, 0) + value
    created = live_dir.shm_dir.facts.get("created_ns")
    settings = Settings(live_dir.shm_dir.facts)
    made = {
        "id": live_dir.run_id,
        "name": live_dir.name,
        "project": str(live_dir.shm_dir.facts.get("project") or ""),
        "node": live_dir.node,
        "started": iso(created if type(created) is int else 0),
        "created_ns": created if type(created) is int else 0,
        "meeting_place": live_dir.shm_dir.path,
        "dir": live_dir.dir,
        "network": live_dir.network,
        "copied_every_s": settings.network_sync_s if live_dir.network else 0.0,
        "confined": str(live_dir.shm_dir.facts.get("confined") or ""),
        "memory_bytes": live_dir.shm_dir.taken_bytes(),
        "agent": agent,
        "observed": None if (observed := live_dir.observed()) is None else observed.as_dict(),
        "observer_restarts": live_dir.observer_restarts,
        "server": live_dir.server(),
        "requests": [each.as_dict() for each in asked([(live_dir.node, live_dir.requests())])],
        "follows_server": settings.follows_remote,
        "stop_file": settings.stop_file,
        "stop_file_silent_s": live_dir.stop_file_silent_s if settings.stop_file else 0.0,
        "lag_records": sum(entry["lag_records"] for entry in processes),
        "lag_s": max((entry["lag_s"] for entry in processes), default=0.0),
        "device_records": sum(entry["device_records"] for entry in processes),
        "device_s": max((entry["device_s"] for entry in processes), default=0.0),
        "counts": total,
        "media": media_of(live_dir.shm_dir.path),
        "processes": processes,
        "bad_files": live_dir.bad,
        "alerts": alert_lines.described(live_dir),
    }
    if not live_dir.is_there:  # what was read last may be wrong
        agent["state"] = "left"
    made["problems"] = [] if agent["state"] == "left" else list(_problems(made))
    return made


def _age_s(time_ns: int | None, now_ns: int) -> float:
    return 0.0 if time_ns is None else max(0.0, (now_ns - time_ns) / 1e9)


def _problems(entry: dict[str, Any]) -> Iterator[str]:
    agent = entry["agent"]
    if agent["state"] in ("gone", "gave up"):
        yield f"the agent is {agent['state']}: `logclient recover` brings one"
    elif agent["state"] == "stalled":
        yield "the agent does not answer just now; a worker that hangs is restarted"
    if not entry["dir"]:
        yield "in shared memory only, since its run folder could not be used: `logclient recover --dir FOLDER`"
    elif agent["disk_silent_s"]:
        yield f"the disk under {entry['dir']} is {agent['disk']}"
    elif entry["lag_s"] > _LAG_S + entry["copied_every_s"] and agent["state"] == "running":
        yield f"what was logged {duration(entry['lag_s'])} ago is not on disk yet"
    for process in entry["processes"]:
        if process["device_s"] > _DEVICE_S:
            yield (
                f"values that process {process['pid']} logged {duration(process['device_s'])} ago have not come from "
                f"the device: it is far behind, or hangs (`py-spy dump --pid {process['pid']}`)"
            )
    if entry["stop_file_silent_s"] > _LAG_S and agent["state"] == "running":
        yield (
            f"the stop file {entry['stop_file']} could not be looked for in the last "
            f"{duration(entry['stop_file_silent_s'])}: does its disk answer?"
        )
    observed = entry["observed"]
    if observed is not None and observed["kind"] == "stalled":
        yield f"stalled: {observed['verdict']}: {observed['text']}"
    if observed is None and entry["observer_restarts"] and agent["state"] == "running":
        yield (
            f"nobody observes the run: its observer ended {entry['observer_restarts']} times; "
            f"{entry['meeting_place']}/why.txt may say why"
        )
    if agent["disk_errno"]:
        yield f"writing to {entry['dir']} fails: {agent['disk_error']}"
    server = entry["server"]
    if server["error"] or server["state"] in ("refused", "stalled"):
        yield f"shipping to {server['address'] or 'the server'}: {server['error'] or 'it ' + server['state']}"
    yield from alert_lines.problems(entry["alerts"])
    if entry["bad_files"]:
        yield from entry["bad_files"]


def _page(entry: dict[str, Any]) -> Iterator[Any]:
    good = not entry["problems"]
    mark, colour = screen.state_mark("running" if good else "terminated")
    name = [(safe(entry["name"]), "bold")]
    if entry["name"] != entry["id"]:
        name.append(("  " + safe(entry["id"]), ""))
    yield screen.line(
        (f"{mark} ", colour), *name, (f"  started {ago(entry['created_ns'], time.time_ns())}", "dim")
    )
    agent = entry["agent"]
    alive = sum(1 for process in entry["processes"] if process["alive"])
    dead = len(entry["processes"]) - alive
    facts = [
        ("agent", _agent(agent)),
        ("processes", f"{alive} alive" + (f", {dead} dead" if dead else "")),
        *([("observed", _observed(entry["observed"]))] if entry["observed"] is not None else []),
        ("lag", _lag(entry)),
        ("dropped", _dropped(entry["counts"])),
        ("memory", f"{size(entry['memory_bytes'])} in {safe(entry['meeting_place'])}"),
        ("goes to", _where(entry)),
    ]
    if any(entry["media"].values()):
        facts.insert(-2, ("media", _media(entry["media"])))
    if entry["device_records"]:
        facts.insert(3, ("device", _device(entry)))
    if entry["server"]["state"] != "off":
        facts.append(("server", _server(entry["server"])))
    if entry["alerts"] is not None and entry["alerts"]["number"]:
        facts.append(("alerts", safe(alert_lines.summary(entry["alerts"]))))
    if entry["confined"]:
        facts.append(("ends with", safe(entry["confined"])))
    if entry["stop_file"]:
        facts.append(("stop file", safe(entry["stop_file"])))
    if entry["server"]["state"] != "off" and not entry["follows_server"]:
        facts.append(("requests", "of the server are refused (LOGCLIENT_REMOTE_STOP=off)"))
    facts += [("asked", _request(each)) for each in entry["requests"][-_REQUESTS:]]
    for label, value in facts:
        yield screen.line((f"  {label:<10} ", "dim"), value)
    for problem in entry["problems"]:
        yield screen.line(("  ! ", "yellow"), safe(problem))
    if entry["processes"]:
        table = screen.table(
            "",
            "PID",
            "RANK",
            "STATE",
            "STREAMS",
            "RECORDS",
            "LAG",
            "LANE FILL",
            "DROPPED",
            right=(1, 2, 4, 5, 6, 7, 8),
        )
        for process in entry["processes"][:32]:
            table.add_row("", *_process(process))
        yield table
        if len(entry["processes"]) > 32:
            yield screen.line((f"  and {len(entry['processes']) - 32} more (--json)", "dim"))


def _request(each: dict[str, Any]) -> Any:
    what = "stop and save" if each["save"] else each["kind"]
    by = f" by {safe(each['by'])}" if each["by"] else ""
    reason = f" ({safe(each['reason'])})" if each["reason"] else ""
    when = (f", {ago(each['time_ns'], time.time_ns())}", "dim")
    return screen.line((what, "bold"), f"{by}{reason}: {safe(each['outcome'])}", when)


def _observed(observed: dict[str, Any]) -> Any:
    kind, since = observed["kind"], observed["since_ns"]
    for_s = f" for {duration(max(0.0, (time.time_ns() - since) / 1e9))}" if since and kind != "ok" else ""
    found = ": ".join(filter(None, (observed["verdict"], observed["text"])))
    colour = {"ok": "", "quiet": "dim"}.get(kind, "yellow")
    return screen.line(
        (kind, colour), (for_s, "dim"), f": {safe(found)}" if kind == "quiet" and found else ""
    )


def _where(entry: dict[str, Any]) -> str:
    network = f" ({safe(entry['network'])}: a network file system)" if entry["network"] else ""
    return safe(entry["dir"]) + network if entry["dir"] else "nowhere yet"


def _server(server: dict[str, Any]) -> Any:
    good = not server["error"] and server["state"] not in ("refused", "stalled")
    refused = server["refused_records"]
    late = server["lag_records"] - refused
    left = f", {plural(late, 'record')} not yet there" if late else "" if refused else ", has all"
    left += f", refuses {plural(refused, 'record')}" if refused else ""
    return screen.line(
        safe(server["address"] or "unknown"), (f": {server['state']}", "" if good else "yellow"), left
    )


def _process(process: dict[str, Any]) -> list[Any]:
    lost = dropped(process["counts"])
    state = "open" if process["open"] else "alive" if process["alive"] else "dead"
    fill = process["fill"]
    return [
        str(process["pid"]),
        "-" if process["rank"] is None else str(process["rank"]),
        screen.line((state, "cyan" if process["open"] else "dim" if process["alive"] else "yellow")),
        str(process["streams"]),
        count(process["counts"]["accepted"]),
        count(process["lag_records"]),
        screen.line((f"{fill:.0%}", "yellow" if fill > 0.5 else "")),
        screen.line((count(lost) if lost else "-", "yellow" if lost else "dim")),
    ]


def _agent(agent: dict[str, Any]) -> Any:
    colour = {"running": "green", "starting": "cyan"}.get(agent["state"], "yellow")
    parts: list[Any] = [(agent["state"], colour)]
    if agent["state"] in ("running", "stalled"):
        parts.append(f", worker {agent['worker']} under {agent['supervisor']}")
    if agent.get("restarts"):
        parts.append(f", {plural(agent['restarts'], 'restart')}")
    if agent.get("spill_bytes"):
        parts.append((f", {size(agent['spill_bytes'])} staged", "dim"))
    return screen.line(*parts)


def _lag(entry: dict[str, Any]) -> str:
    if not entry["lag_records"]:
        return "none: all else is on disk" if entry["device_records"] else "none: all is on disk"
    return f"{plural(entry['lag_records'], 'record')}, the oldest {duration(entry['lag_s'])} old"


def _device(entry: dict[str, Any]) -> str:
    records, verb = plural(entry["device_records"], "record"), "wait" + "s" * (entry["device_records"] == 1)
    return f"{records} {verb} for its values, the oldest {duration(entry['device_s'])} old"


def _media(counts: dict[str, int]) -> Any:
    bad = ("lost", "forgotten", "damaged", "over_budget", "refused")
    parts = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in bad if counts[name]]
    stored = f"{counts['stored']:,} of {plural(counts['accepted'], 'value')} stored"
    return screen.line(stored, (f", {', '.join(parts)}" if parts else "", "yellow"))


def _dropped(counts: dict[str, int]) -> Any:
    parts = [f"{counts[name]:,} {name}" for name in ("forgotten", "refused", "damaged") if counts.get(name)]
    if counts.get("left_out"):
        parts.append(f"{plural(counts['left_out'], 'point')} left out")
    return screen.line((", ".join(parts) or "nothing", "yellow" if parts else ""))
