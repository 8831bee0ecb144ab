"""The report of a preflight, for programs: findings, a row for each rank, the settings in force."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .coordinator import Coordinator, Member
from .judge import findings
from .judge_network import listening
from .results import Finding, Results

_PER_RANK = {"CUDA_VISIBLE_DEVICES"}


def report(made: Coordinator, found: Results) -> dict[str, Any]:
    """Return all of it for programs."""
    wrong = list(findings(made, found))
    if made.is_ending and not wrong:
        text = "the launcher asked for an end (SIGTERM) before all checks were made"
        wrong.append(Finding("ended early", "ranks", (), "", text))
    return {
        "ok": not wrong,
        "took_s": round(found.took_s, 3),
        "ranks": found.place.ranks,
        "launcher": found.place.launcher,
        "hosts": sorted({member.host for member in made.members.values()}),
        "findings": [asdict(finding) for finding in wrong],
        "not_tried": found.not_tried,
        "members": [_member(made, found, made.members[rank]) for rank in sorted(made.members)],
        "settings": _settings(made),
    }


def _member(made: Coordinator, found: Results, member: Member) -> dict[str, Any]:
    """Return one rank's row."""
    interface, ip, port = listening(found, member.rank)
    sent = found.devices[member.rank].newest("devices") if member.rank in found.devices else None
    devices = []
    for turn, (id, name) in enumerate(zip(sent["ids"], sent["devices"], strict=True) if sent else ()):
        facts = found.measured.get(turn, {}).get(member.rank, {})
        shown = {key: value for key, value in facts.items() if key not in ("done", "stage", "device")}
        devices.append({"id": id, "name": name, **shown})
    times = [
        each["echo_s"] + each["connect_s"]
        for rank, each in found.tried()
        if rank == member.rank and "echo_s" in each
    ]
    return {
        "rank": member.rank,
        "host": member.host,
        "pid": member.pid,
        "gone": member.gone,
        "held_up_s": round(member.late_s, 3),
        "torch": member.torch,
        "interface": interface,
        "address": f"{ip}:{port}" if ip else "",
        "pairs_s": round(max(times), 6) if times else None,
        "collectives": {
            backend: {"stage": jobs[member.rank].stage, **(jobs[member.rank].newest("seconds") or {})}
            for backend, jobs in found.collectives.items()
            if member.rank in jobs
        },
        "devices": devices,
        "folders": {
            str(job.given["path"]): {"stage": job.stage, "error": job.error, **(job.result or {})}
            for rank, job in found.folders
            if rank == member.rank
        },
    }


def _settings(made: Coordinator) -> list[dict[str, Any]]:
    """Return each variable with its values, and the ranks that have them."""
    by_name: dict[str, dict[str, list[int]]] = {}
    for rank, member in sorted(made.members.items()):
        for name, value in member.settings.items():
            by_name.setdefault(name, {}).setdefault(value, []).append(rank)
    return [
        {
            "name": name,
            "values": [{"value": value, "ranks": ranks} for value, ranks in values.items()],
            "differs": name not in _PER_RANK
            and (len(values) > 1 or len(next(iter(values.values()))) < len(made.members)),
        }
        for name, values in sorted(by_name.items())
    ]
