"""The order of the checks, over all ranks.

join -> folders (in the background) and import of torch -> pairs -> collectives -> devices -> folders -> verdict

Each stage has a deadline of its own, counted from its begin, and goes on with the ranks that live. Collectives need all
ranks: with one missing, gone or late they are not tried, since that is the finding already.
"""

from __future__ import annotations

import time
from typing import Any

from . import judge_devices, judge_network, report
from .coordinator import Coordinator, Job, Member
from .results import Results, names

IMPORT_S = 600.0  # on a cold network folder
MORE_IMPORT_S, IMPORT_FACTOR = 20.0, 2.0  # for some ranks, once the others have it
FOLDER_S = 10.0
_MARGIN_S = 2.0  # for a rank to kill a check and report it
_MAX_PORT_S = 5.0  # to connect
_DEVICES_LIVE_S = 900.0  # a device's check waits through the other stages


def run(made: Coordinator) -> dict[str, Any]:
    """Run all stages and return the report."""
    found = Results(made.place, made.plan)
    made.on_join = lambda member: _greet(made, found, member)
    _join(made)
    _import(made, found)
    devices = _find_devices(made, found)
    for stage in (_pairs, _collectives, _measure):
        if made.is_ending:
            found.not_tried[stage.__name__.strip("_")] = "the launcher asked for an end"
        else:
            stage(made, found)
    made.stop(devices)
    _folders(made, found)
    imported = [each.imported_at for each in _ready(made, found) if each.imported_at is not None]
    found.took_s = time.monotonic() - max(imported, default=made.begun_at)
    return report.report(made, found)


def _greet(made: Coordinator, found: Results, member: Member) -> None:
    """Begin with what needs no other rank, at once."""
    for path in member.folders:
        found.folders.append((member.rank, made.start(member, "folder", FOLDER_S, path=path)))
    member.line.send({"import": True})


def _join(made: Coordinator) -> None:
    """Wait for all ranks."""
    while made.missing and not made.is_ending:
        left = made.joined_at + made.plan.join_s - time.monotonic()
        if left <= 0 or (made.members and not made.living):
            break
        before = len(made.members)
        made.pump(lambda: len(made.members) > before, left)  # noqa: B023 - called now
    made.is_open = False  # a rank that came later would have missed checks, and nobody would name it


def _import(made: Coordinator, found: Results) -> None:
    """Wait until all living ranks have torch; for the last half of them by how long it took the others."""
    begun = time.monotonic()

    def is_done() -> bool:
        came = [each.imported_at for each in made.living if each.imported_at is not None]
        if len(came) == len(made.living):
            return True
        if 2 * len(came) < len(made.living):
            return False
        last = max(came)
        return time.monotonic() > last + max(MORE_IMPORT_S, IMPORT_FACTOR * (last - begun))

    made.pump(is_done, IMPORT_S)
    if not made.is_ending:
        # for good: what comes in a moment is as late as what does not come
        found.no_import = {each.rank for each in made.living if each.imported_at is None}


def _ready(made: Coordinator, found: Results) -> list[Member]:
    """Return the ranks that live and are through with the import."""
    return [each for each in made.living if each.torch is not None and each.rank not in found.no_import]


def _able(made: Coordinator, found: Results) -> list[Member]:
    """Return those that have torch."""
    return [each for each in _ready(made, found) if each.torch and "error" not in each.torch]


def _find_devices(made: Coordinator, found: Results) -> dict[int, Job]:
    by_host: dict[str, list[int]] = {}
    for member in made.members.values():
        by_host.setdefault(member.host, []).append(member.rank)
    jobs = {}
    for member in _able(made, found):
        local = sorted(by_host[member.host])
        jobs[member.rank] = made.start(
            member,
            "devices",
            _DEVICES_LIVE_S,
            local_rank=local.index(member.rank),
            local_ranks=len(local),
        )
    found.devices = jobs
    made.wait_for(jobs, "devices", made.plan.timeout_s)
    found.note_late(made, jobs, "devices", "to find its devices")
    return jobs


def _pairs(made: Coordinator, found: Results) -> None:
    """Connections: all ranks listen, then each tries the others."""
    connect_s = min(_MAX_PORT_S, made.plan.timeout_s)
    base = made.place.base_port
    jobs = {}
    for member in _ready(made, found):
        jobs[member.rank] = made.start(
            member,
            "pairs",
            2 * made.plan.timeout_s + _MARGIN_S,
            port=0 if base is None else base + 1 + member.rank,
            token=made.place.token,
            timeout_s=connect_s,
            wait_s=made.plan.timeout_s,
        )
    found.pairs = jobs
    made.wait_for(jobs, "listening", made.plan.timeout_s)
    found.note_late(made, jobs, "listening", "to open a port")
    peers = []
    for rank, job in jobs.items():
        sent = job.newest("listening")
        if sent is not None and made.members[rank].is_living:
            peers.append([rank, *sent["listening"][1:]])
    for rank, *_ in peers:
        made.send_to(made.members[rank], jobs[rank], {"peers": peers})
    reached = {rank: jobs[rank] for rank, *_ in peers}
    made.wait_for(reached, "pairs", connect_s + _MARGIN_S)
    found.note_late(made, reached, "pairs", "to try the ports of the other ranks")
    made.stop(jobs)


def _backends(made: Coordinator, found: Results) -> list[str]:
    """Return what is tried; NCCL needs a device of its own for each rank."""
    wanted = made.plan.backend
    backends = ["gloo"] if wanted in ("auto", "gloo") else []
    if wanted == "gloo":
        return backends
    reason = ""
    seen: dict[tuple[str, str], int] = {}
    for rank, job in found.devices.items():
        sent = job.newest("devices") or {}
        identity = (made.members[rank].host, str((sent.get("uuids") or [""])[0]))
        torch = made.members[rank].torch or {}
        if not identity[1]:
            reason = f"rank {rank} sees no CUDA device"
        elif not torch.get("has_nccl"):
            reason = f"torch of rank {rank} has no NCCL"
        elif identity in seen:
            reason = f"ranks {seen[identity]} and {rank} share one device"
        if reason:
            break
        seen[identity] = rank
    if not reason:
        return [*backends, "nccl"]
    if wanted == "nccl":
        found.no_nccl = reason
    else:
        found.not_tried["nccl"] = reason
    return backends


def _collectives(made: Coordinator, found: Results) -> None:
    able = _able(made, found)
    reason = ""
    if not made.is_complete:
        reason = "not all ranks are there"
    elif len(able) < made.place.ranks or not all((each.torch or {}).get("has_distributed") for each in able):
        reason = "not all ranks have torch.distributed"
    elif found.late:
        reason = f"{names(found.late)} did not get that far in time"
    if reason:
        found.not_tried["collectives"] = reason
        return
    for backend in _backends(made, found):
        jobs = _start_group(made, found, "collectives", backend)
        found.collectives[backend] = jobs
        is_done = _wait_for_group(made, jobs)
        made.stop(jobs)
        if is_done or not made.is_complete or found.has_broken_pairs:
            continue
        behind = judge_network.behind(jobs)
        if len(behind) == 1:
            found.behind[backend] = behind[0]
            continue
        alone = _start_group(made, found, "collective-pairs", backend)
        found.collective_pairs[backend] = alone
        made.wait_for(
            alone, "seconds", made.plan.timeout_s + _MARGIN_S, cut=True, but=1
        )  # a pair is two reports
        made.stop(alone)
        odd = judge_network.common_rank(judge_network.broken_pairs(found, backend))
        if odd is not None:
            found.behind[backend] = odd


def _start_group(made: Coordinator, found: Results, name: str, backend: str) -> dict[int, Job]:
    """Rank 0's check has the store; the others begin once its port is known."""
    timeout_s = made.plan.timeout_s
    given: dict[str, Any] = {"backend": backend, "ranks": made.place.ranks, "timeout_s": timeout_s}
    if name == "collective-pairs":
        given["timeout_s"] = max(1.0, timeout_s / 4)  # of one pair

    def begin(rank: int, port: int | None) -> Job:
        sent = found.devices[rank].newest("devices") if rank in found.devices else None
        device = str((sent or {}).get("ids", ["cpu"])[0]).partition(":")[2]
        return made.start(
            made.members[rank],
            name,
            timeout_s + 2 * _MARGIN_S,
            port=port,
            device=int(device) if device else 0,
            **given,
        )

    jobs = {0: begin(0, None)}
    made.wait_for(jobs, "port", timeout_s)
    sent = jobs[0].newest("port")
    if sent is not None:
        jobs |= {rank: begin(rank, sent["port"]) for rank in range(1, made.place.ranks)}
    return jobs


def _wait_for_group(made: Coordinator, jobs: dict[int, Job]) -> bool:
    """Wait until all have finished, or one rank has gone: the others wait for it in vain."""
    made.wait_for(jobs, "seconds", made.plan.timeout_s + _MARGIN_S, cut=True)
    return len(jobs) == made.place.ranks and all(job.newest("seconds") is not None for job in jobs.values())


def _measure(made: Coordinator, found: Results) -> None:
    """All ranks multiply at the same time, device by device. Where one lags they do once more, to be sure."""
    turn, odd = 0, {*found.late, *found.behind.values()}  # nobody waits for those once more
    while not made.is_ending:
        here = {
            rank: job
            for rank, job in found.devices.items()
            if made.members[rank].is_living and rank not in odd and _count(job) > turn
        }
        if not here:
            break
        warm = _ask(made, found, here, "warm", turn)
        ready = {rank: here[rank] for rank in warm}
        measured = _ask(made, found, ready, "measure", turn)
        if judge_devices.lagging(found, turn, _rates(measured)):
            for rank, again in _ask(made, found, ready, "measure", turn).items():
                if rank not in measured or again["rate"] > measured[rank]["rate"]:
                    measured[rank] = again
        found.measured[turn] = {rank: warm[rank] | answer for rank, answer in measured.items()}
        turn += 1


def _ask(
    made: Coordinator, found: Results, jobs: dict[int, Job], what: str, turn: int
) -> dict[int, dict[str, Any]]:
    """Have all devices of this turn do that at once; return the answers that came in time."""
    seq = made.next_number()
    for rank, job in jobs.items():
        made.send_to(made.members[rank], job, {what: turn, "seq": seq})
    made.wait_for(jobs, "done", made.plan.timeout_s, value=seq)
    found.note_late(made, jobs, "done", f"to {what} its device", value=seq)
    answers = {rank: job.newest("done", seq) for rank, job in jobs.items()}
    return {rank: answer for rank, answer in answers.items() if answer is not None}


def _count(job: Job) -> int:
    """Return the number of devices that a rank has reported."""
    return len((job.newest("devices") or {}).get("devices", ()))


def _rates(measured: dict[int, dict[str, Any]]) -> dict[int, float]:
    return {rank: float(answer["rate"]) for rank, answer in measured.items()}


def _folders(made: Coordinator, found: Results) -> None:
    """Wait for what has begun long ago; a rank that still imports torch passes nothing on."""
    awaited = [(rank, job) for rank, job in found.folders if rank not in found.no_import]
    made.pump(lambda: all(job.ended or made.members[rank].is_out for rank, job in awaited), FOLDER_S)
