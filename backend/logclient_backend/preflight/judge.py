"""Results of all ranks -> findings. Pure but for the time since a rank answered: no sockets, no processes.

A finding names the rank, pair, port, interface, device or path that failed, or lags behind its peers. What is only the
consequence of another finding is left out: where a rank has gone, the others wait for it in vain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from statistics import median

from . import judge_devices, judge_network
from .coordinator import LATE_S, Coordinator
from .results import Finding, Results, names

SLOW_FOLDER_S, SLOW_FACTOR = 2.0, 10.0
MIN_LATE_S, MIN_LATE_SHARE, LATE_FACTOR = 1.0, 0.15, 4.0  # of answers to the coordinator


def findings(made: Coordinator, found: Results) -> Iterator[Finding]:
    """Yield what is wrong, in the order in which a user should look at it."""
    explained = {rank: "gone" for rank, member in made.members.items() if member.gone or member.torch is None}
    explained |= dict.fromkeys([*made.missing, *found.no_import], "not there")
    yield from _lost_ranks(made)
    yield from _without_torch(made, found)
    held_up = list(_held_up(made))
    yield from held_up
    explained |= {rank: "held up" for finding in held_up for rank in finding.ranks}
    late = {rank: what for rank, what in found.late.items() if rank not in explained}
    yield from _late(made, found, late)
    explained |= late
    yield from judge_network.findings(made, found, explained)
    yield from judge_devices.findings(made, found, explained)
    yield from _folders(made, found)


def _lost_ranks(made: Coordinator) -> Iterator[Finding]:
    if made.missing:
        text = f"{names(made.missing)} never came: no process with that RANK reached rank 0 at {made.place.address}"
        yield Finding("missing", "join", tuple(made.missing), made.place.address, text)
    for rank, member in sorted(made.members.items()):
        if member.gone:
            text = f"rank {rank} on {member.host} is gone: {member.gone} (PID {member.pid})"
            yield Finding("gone", "ranks", (rank,), member.host, text)


def _without_torch(made: Coordinator, found: Results) -> Iterator[Finding]:
    versions: dict[str, list[int]] = {}
    for rank, member in sorted(made.members.items()):
        if member.torch is not None and "error" in member.torch:
            text = f"rank {rank} on {member.host} cannot import torch: {member.torch['error']}"
            yield Finding("no torch", "torch", (rank,), member.host, text)
        elif rank in found.no_import:
            others = [
                float(each.torch.get("import_s", 0.0))
                for each in made.members.values()
                if each.torch and each.rank not in found.no_import
            ]
            text = f"rank {rank} on {member.host} was still importing torch (PID {member.pid})"
            text += f"; the others took at most {max(others):.1f} s" if others else ""
            yield Finding("slow import", "torch", (rank,), member.host, text)
        elif member.torch is not None:
            if found.place.ranks > 1 and not member.torch.get("has_distributed"):
                text = f"rank {rank} on {member.host}: its torch is built without torch.distributed"
                yield Finding("no distributed", "torch", (rank,), member.host, text)
            versions.setdefault(str(member.torch["version"]), []).append(rank)
    if len(versions) > 1:
        each = "; ".join(f"{version} on {names(ranks)}" for version, ranks in versions.items())
        odd = min(versions.values(), key=len)
        yield Finding("versions", "torch", tuple(odd), "", f"ranks have different versions of torch: {each}")


def _held_up(made: Coordinator) -> Iterator[Finding]:
    """Ranks whose process answers late, beside the others: stopped, swapped out, starved."""
    now = time.monotonic()
    late = {}
    for rank, member in made.members.items():
        waiting = now - member.asked_at if member.asked_at is not None else 0.0
        late[rank] = (member.late_s + (waiting if waiting > LATE_S else 0.0), waiting)
    for rank, (late_s, waiting) in sorted(late.items()):
        member = made.members[rank]
        if member.gone:
            continue
        others = [each for other, (each, _) in late.items() if other != rank] or [0.0]
        share = late_s / max(member.watched_s + waiting, 1e-9)
        if late_s < max(MIN_LATE_S, LATE_FACTOR * median(others)) or share < MIN_LATE_SHARE:
            continue
        if member.is_silent:
            text = f"gave no answer for {waiting:.1f} s: its process (PID {member.pid}) is stopped or hangs"
        else:
            text = f"was held up for {late_s:.1f} s: its process (PID {member.pid}) is slowed down, stopped or starved"
        yield Finding("held up", "ranks", (rank,), member.host, f"rank {rank} on {member.host} {text}")


def _late(made: Coordinator, found: Results, late: Mapping[int, str]) -> Iterator[Finding]:
    by_what: dict[str, list[int]] = {}
    for rank, what in late.items():
        by_what.setdefault(what, []).append(rank)
    for what, ranks in by_what.items():
        hosts = ", ".join(sorted({made.members[rank].host for rank in ranks}))
        text = f"{names(ranks)} on {hosts} took more than {found.plan.timeout_s:g} s {what}"
        others = len(made.living) - len(ranks)
        if others:
            text += f", {others} other{'s' * (others > 1)} did not"
        yield Finding("late", "ranks", tuple(sorted(ranks)), hosts, text)


def _folders(made: Coordinator, found: Results) -> Iterator[Finding]:
    groups: dict[tuple[str, str, str], list[int]] = {}
    seconds: dict[str, dict[int, float]] = {}
    for rank, job in found.folders:
        path = str(job.given["path"])
        if job.result is not None:
            seconds.setdefault(path, {})[rank] = sum(job.result["seconds"].values())
        elif made.members[rank].gone:
            continue
        elif job.error:
            groups.setdefault((path, "folder error", f"{job.stage} failed: {job.error}"), []).append(rank)
        elif job.ended == "deadline":
            groups.setdefault((path, "folder hangs", f"{job.stage} hangs"), []).append(rank)
    for (path, code, what), ranks in groups.items():
        yield Finding(code, "folders", tuple(sorted(ranks)), path, f"{path}: {what} on {names(ranks)}")
    for path, took in seconds.items():
        for rank, took_s in took.items():
            others = [each for other, each in took.items() if other != rank]
            if others and took_s > max(SLOW_FOLDER_S, SLOW_FACTOR * median(others)):
                text = f"{path} lags on rank {rank}: {took_s:.1f} s, the others' median is {median(others):.2f} s"
                yield Finding("slow folder", "folders", (rank,), path, text)
