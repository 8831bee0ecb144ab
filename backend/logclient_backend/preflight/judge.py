"""Results of all ranks -> findings. Pure but for the time since a rank answered: no sockets, no processes.

A finding names the rank, pair, port, interface, device or path that failed, or lags behind its peers. What is only the
consequence of another finding is left out: where a rank has gone, the others wait for it in vain.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from .collectives import STAGES
from .coordinator import LATE_S, Coordinator, Job
from .place import Place

if TYPE_CHECKING:
    from .rank import Plan

CPU_LAG, CUDA_LAG = 0.5, 0.8  # of the median rate of the others
MIN_FREE = 0.5  # of their median free memory
MIN_CLOCK = 0.7
SLOW_FOLDER_S, SLOW_PAIR_S, SLOW_FACTOR = 2.0, 1.0, 10.0
MIN_LATE_S, MIN_LATE_SHARE, LATE_FACTOR = 1.0, 0.15, 4.0  # of answers to the coordinator


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong. `where`: host:port, interface, device or path."""

    code: str
    check: str
    ranks: tuple[int, ...]
    where: str
    text: str


@dataclass
class Results:
    """All that the stages have found out."""

    place: Place
    plan: Plan
    folders: list[tuple[int, Job]] = field(default_factory=list)
    devices: dict[int, Job] = field(default_factory=dict)
    pairs: dict[int, Job] = field(default_factory=dict)
    collectives: dict[str, dict[int, Job]] = field(default_factory=dict)
    collective_pairs: dict[str, dict[int, Job]] = field(default_factory=dict)
    measured: dict[int, dict[int, dict[str, Any]]] = field(default_factory=dict)  # by turn and rank
    no_import: set[int] = field(
        default_factory=set
    )  # ranks that still imported torch when the others went on
    late: dict[int, str] = field(
        default_factory=dict
    )  # ranks that missed a deadline: what they did not get to
    not_tried: dict[str, str] = field(default_factory=dict)
    no_nccl: str = ""
    took_s: float = 0.0  # since the last rank has imported torch

    def note_late(
        self, made: Coordinator, jobs: Mapping[int, Job], word: str, what: str, *, value: object = None
    ) -> None:
        """Note the ranks that live and have not said that, nor failed."""
        if made.is_ending:
            return  # nobody had the time
        for rank, job in jobs.items():
            if made.members[rank].is_living and not job.error and job.said(word, value) is None:
                self.late.setdefault(rank, what)

    @property
    def has_broken_pairs(self) -> bool:
        return any(True for _ in _failed_pairs(self, {}))


def names(ranks: Iterable[int]) -> str:
    """Return `rank 5`, or `ranks 0 to 3, 7`."""
    ordered = sorted(set(ranks))
    spans: list[list[int]] = []
    for rank in ordered:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [
        str(low) if low == high else f"{low} to {high}" if high > low + 1 else f"{low}, {high}"
        for low, high in spans
    ]
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {', '.join(words)}"


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
    yield from _connections(made, found, explained)
    if found.no_nccl:
        yield Finding("no nccl", "nccl", (), "", f"NCCL cannot be used: {found.no_nccl}")
    for backend, jobs in found.collectives.items():
        yield from _collective(made, found, backend, jobs, explained)
    yield from _device_errors(made, found, explained)
    for turn in found.measured:
        yield from _lagging_devices(found, turn, explained)
    yield from _folders(made, found)


# ---- ranks ----------------------------------------------------------------------------------------------


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


# ---- connections ----------------------------------------------------------------------------------------


def listening(found: Results, rank: int) -> tuple[str, str, int]:
    """Return interface, address and port of a rank; empty where it did not come to listen."""
    said = found.pairs[rank].said("listening") if rank in found.pairs else None
    interface, ip, port = said["listening"] if said is not None else ("", "", 0)
    return str(interface), str(ip), int(port)


def _where(found: Results, rank: int) -> str:
    interface, ip, port = listening(found, rank)
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}:{port} ({interface})" if ip else ""


def tried(found: Results) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each rank with each of its tries."""
    for rank, job in found.pairs.items():
        said = job.said("pairs")
        for each in said["pairs"] if said is not None else ():
            yield rank, each


def _failed_pairs(found: Results, explained: Mapping[int, str]) -> Iterator[tuple[int, int, str]]:
    """Yield (from, to, why); those from or to a rank that another finding explains are left out."""
    for rank, each in tried(found):
        if each["error"] and rank not in explained and each["rank"] not in explained:
            yield rank, int(each["rank"]), str(each["error"])


def _connections(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    for rank, job in sorted(found.pairs.items()):
        if job.error and rank not in explained:
            text = f"rank {rank} on {made.members[rank].host}: {job.error}"
            yield Finding("no port", "pairs", (rank,), made.members[rank].host, text)
    yield from _loopback(made, found)
    failed = list(_failed_pairs(found, explained))
    targets = Counter(each["rank"] for rank, each in tried(found) if rank not in explained)
    tries = Counter(rank for rank, each in tried(found) if each["rank"] not in explained)
    to, by = Counter(pair[1] for pair in failed), Counter(pair[0] for pair in failed)
    closed = {rank for rank, count in to.items() if count > 1 and count == targets[rank]}
    cut_off = {rank for rank, count in by.items() if count > 1 and count == tries[rank]}
    if len(closed) * 2 > len(found.pairs):  # nobody reaches anybody: no rank is odd
        closed, cut_off = set(), set()
        ranks = tuple(sorted({*to, *by}))
        where = ", ".join(sorted({listening(found, rank)[0] for rank in ranks}))
        text = f"{len(failed)} of {sum(tries.values())} connections failed, over {where}: {failed[0][2]}"
        yield Finding("unreachable", "pairs", ranks, where, text)
        return
    for rank in sorted(closed):
        why = next(pair[2] for pair in failed if pair[1] == rank)
        text = f"no rank reaches rank {rank} on {made.members[rank].host} at {_where(found, rank)}: {why}"
        yield Finding("unreachable", "pairs", (rank,), _where(found, rank), text)
    for rank in sorted(cut_off - closed):
        why = next(pair[2] for pair in failed if pair[0] == rank)
        interface = listening(found, rank)[0]
        text = f"rank {rank} on {made.members[rank].host} reaches no other rank from {interface}: {why}"
        yield Finding("cut off", "pairs", (rank,), interface, text)
    for one, other, why in failed:
        if other not in closed and one not in cut_off and one not in closed:
            text = f"rank {one} does not reach rank {other} at {_where(found, other)}: {why}"
            yield Finding("pair", "pairs", (one, other), _where(found, other), text)
    yield from _slow_pairs(made, found, explained)


def _loopback(made: Coordinator, found: Results) -> Iterator[Finding]:
    hosts = {made.members[rank].host for rank in found.pairs}
    for rank in sorted(found.pairs):
        ip = listening(found, rank)[1]
        if len(hosts) > 1 and (ip.startswith("127.") or ip == "::1"):
            said = found.pairs[rank].said("listening") or {}
            text = (
                f"rank {rank} on {made.members[rank].host} is at {ip} ({said.get('chosen_by')}), which no other host "
                f"reaches: set GLOO_SOCKET_IFNAME"
            )
            yield Finding("loopback", "pairs", (rank,), _where(found, rank), text)


def _slow_pairs(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    took: dict[tuple[int, int], float] = {}
    for rank, each in tried(found):
        if not each["error"] and rank not in explained and each["rank"] not in explained:
            took[rank, each["rank"]] = each["connect_s"] + each["echo_s"]
    if len(took) < 3:
        return
    limit = max(SLOW_PAIR_S, SLOW_FACTOR * median(took.values()))
    slow = {}
    for rank in found.pairs:
        own = [each for pair, each in took.items() if rank in pair]
        if own and median(own) > limit:
            slow[rank] = median(own)
    for rank, took_s in sorted(slow.items()):
        text = f"connections of rank {rank} on {made.members[rank].host} lag: 64 KiB take {took_s:.2f} s"
        yield Finding("slow pairs", "pairs", (rank,), _where(found, rank), text)
    for (one, other), took_s in sorted(took.items()):
        if took_s > 2 * limit and one not in slow and other not in slow:
            text = f"rank {one} to rank {other} at {_where(found, other)} lags: 64 KiB take {took_s:.2f} s"
            yield Finding("slow pair", "pairs", (one, other), _where(found, other), text)


# ---- collectives ----------------------------------------------------------------------------------------


def _collective(
    made: Coordinator, found: Results, backend: str, jobs: Mapping[int, Job], explained: Mapping[int, str]
) -> Iterator[Finding]:
    is_done = len(jobs) == made.place.ranks and all(job.said("seconds") for job in jobs.values())
    if is_done or explained:
        return
    broken = list(_broken_pairs(found, backend))
    if broken:
        yield from broken
        return
    if found.has_broken_pairs:
        return  # its consequence
    failed = {rank: job.error for rank, job in jobs.items() if job.error}
    stages = {rank: STAGES.index(job.stage) for rank, job in jobs.items() if job.stage in STAGES}
    first = min(stages.values(), default=0)
    odd = sorted(rank for rank, stage in stages.items() if stage == first)
    if failed and len(failed) * 2 <= len(jobs):
        odd = sorted(failed)
    ranks = odd if len(odd) * 2 <= len(jobs) else sorted(jobs)
    stage = jobs[ranks[0]].stage
    how = f": {failed[ranks[0]]}" if ranks[0] in failed else f" within {found.plan.timeout_s:g} s"
    where = _where(found, ranks[0]) if len(ranks) == 1 else stage
    text = f"{backend}: {names(ranks)} did not get beyond {stage!r}{how}"
    if len(ranks) < len(jobs):
        text += f"; the others waited in {jobs[max(stages, key=lambda rank: stages[rank])].stage!r}"
    yield Finding("collective", backend, tuple(ranks), where, text)


def _broken_pairs(found: Results, backend: str) -> Iterator[Finding]:
    seen = set()
    for rank, job in sorted(found.collective_pairs.get(backend, {}).items()):
        for message in job.messages:
            partner = message.get("pair")
            if partner is None or not message["error"] or (partner, rank) in seen:
                continue
            seen.add((rank, partner))
            text = f"{backend}: ranks {rank} and {partner} cannot do an all-reduce of two: {message['error']}"
            yield Finding("pair", backend, (rank, partner), _where(found, partner), text)


# ---- devices --------------------------------------------------------------------------------------------


def _device_errors(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    for rank, job in sorted(found.devices.items()):
        failed = job.error or (job.ended if job.ended not in ("", "over", "done") else "")
        if failed and rank not in explained:
            device = str((job.said("device") or {}).get("device", "its devices"))
            text = f"rank {rank} on {made.members[rank].host}: {device} failed: {failed}"
            yield Finding("device", "devices", (rank,), device, text)


def _device(found: Results, rank: int, turn: int) -> tuple[str, str]:
    """Return id and name of a rank's device."""
    said = found.devices[rank].said("devices") or {"ids": [], "devices": []}
    return (said["ids"][turn], said["devices"][turn]) if turn < len(said["ids"]) else ("", "")


def lagging(found: Results, turn: int, values: Mapping[int, float], share: float = 0.0) -> dict[int, float]:
    """Return the ranks whose value is far below that of others with such a device, with the median of those."""
    odd = {}
    for rank, value in values.items():
        device, name = _device(found, rank, turn)
        others = [
            each for other, each in values.items() if other != rank and _device(found, other, turn)[1] == name
        ]
        limit = share or (CPU_LAG if device == "cpu" else CUDA_LAG)
        if others and value < limit * median(others):
            odd[rank] = median(others)
    return odd


def _lagging_devices(found: Results, turn: int, explained: Mapping[int, str]) -> Iterator[Finding]:
    kinds = (
        ("slow device", "rate", 0.0, 1e9, "GFLOP/s", "its matmul rate lags"),
        ("low clock", "clock_mhz", MIN_CLOCK, 1.0, "MHz", "its clock is low"),
        ("little memory", "free_bytes", MIN_FREE, float(1 << 30), "GiB free", "it has little memory"),
    )
    for code, fact, share, unit, unit_name, what in kinds:
        values = {
            rank: float(answer[fact])
            for rank, answer in found.measured[turn].items()
            if answer.get(fact) and rank not in explained
        }
        for rank, usual in sorted(lagging(found, turn, values, share).items()):
            device, name = _device(found, rank, turn)
            reasons = found.measured[turn][rank].get("throttle_reasons")
            why = f" (throttle reasons {reasons})" if code == "low clock" and reasons else ""
            text = (
                f"rank {rank}, device {device} ({name}): {what}: {values[rank] / unit:.3g} {unit_name}, the others' "
                f"median is {usual / unit:.3g}{why}"
            )
            yield Finding(code, "devices", (rank,), device, text)


# ---- folders --------------------------------------------------------------------------------------------


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
