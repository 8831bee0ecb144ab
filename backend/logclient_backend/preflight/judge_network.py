"""Findings about connections between ranks, and about collectives. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from statistics import median

from .collectives import STAGES
from .coordinator import Coordinator, Job
from .results import Finding, Results, names

SLOW_PAIR_S, SLOW_FACTOR = 1.0, 10.0


def findings(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    """Yield what is wrong; `explained`: the ranks that another finding has named."""
    yield from _connections(made, found, explained)
    if found.no_nccl:
        yield Finding("no nccl", "nccl", (), "", f"NCCL cannot be used: {found.no_nccl}")
    for backend, jobs in found.collectives.items():
        yield from _collective(made, found, backend, jobs, explained)


def listening(found: Results, rank: int) -> tuple[str, str, int]:
    """Return interface, address and port of a rank; empty where it did not come to listen."""
    sent = found.pairs[rank].newest("listening") if rank in found.pairs else None
    interface, ip, port = sent["listening"] if sent is not None else ("", "", 0)
    return str(interface), str(ip), int(port)


def _where(found: Results, rank: int) -> str:
    interface, ip, port = listening(found, rank)
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}:{port} ({interface})" if ip else ""


def _failed_pairs(found: Results, explained: Mapping[int, str]) -> Iterator[tuple[int, int, str]]:
    """Yield (from, to, why); those from or to a rank that another finding explains are left out."""
    for rank, each in found.tried():
        if each["error"] and rank not in explained and each["rank"] not in explained:
            yield rank, int(each["rank"]), str(each["error"])


def _connections(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    for rank, job in sorted(found.pairs.items()):
        if job.error and rank not in explained:
            text = f"rank {rank} on {made.members[rank].host}: {job.error}"
            yield Finding("no port", "pairs", (rank,), made.members[rank].host, text)
    yield from _loopback(made, found)
    failed = list(_failed_pairs(found, explained))
    targets = Counter(each["rank"] for rank, each in found.tried() if rank not in explained)
    tries = Counter(rank for rank, each in found.tried() if each["rank"] not in explained)
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
            sent = found.pairs[rank].newest("listening") or {}
            text = (
                f"rank {rank} on {made.members[rank].host} is at {ip} ({sent.get('chosen_by')}), which no other host "
                f"reaches: set GLOO_SOCKET_IFNAME"
            )
            yield Finding("loopback", "pairs", (rank,), _where(found, rank), text)


def _slow_pairs(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    took: dict[tuple[int, int], float] = {}
    for rank, each in found.tried():
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


def _collective(
    made: Coordinator, found: Results, backend: str, jobs: Mapping[int, Job], explained: Mapping[int, str]
) -> Iterator[Finding]:
    is_done = len(jobs) == made.place.ranks and all(job.newest("seconds") for job in jobs.values())
    if is_done or explained:
        return
    if broken := broken_pairs(found, backend):
        yield from _pairs(found, backend, broken)
        return
    if found.has_broken_pairs:
        return  # its consequence
    ranks = behind(jobs) or sorted(jobs)
    stage = jobs[ranks[0]].stage
    error = jobs[ranks[0]].error
    how = f": {error}" if error else f" within {found.plan.timeout_s:g} s"
    where = _where(found, ranks[0]) if len(ranks) == 1 else stage
    text = f"{backend}: {names(ranks)} did not get beyond {stage!r}{how}"
    if len(ranks) < len(jobs):
        furthest = max((job.stage for job in jobs.values() if job.stage in STAGES), key=STAGES.index)
        text += f"; the others waited in {furthest!r}"
    yield Finding("collective", backend, tuple(ranks), where, text)


def behind(jobs: Mapping[int, Job]) -> list[int]:
    """Return the ranks that kept the others waiting; none where that would be more than half of them.

    Where others gave up at their deadline: those that did not even do that. Else those that failed, or those in the
    earliest stage.
    """
    first = min((STAGES.index(job.stage) for job in jobs.values() if job.stage in STAGES), default=0)
    failed = [rank for rank, job in jobs.items() if job.error]
    hanging = [rank for rank, job in jobs.items() if not job.error and job.stage != STAGES[-1]]
    early = [rank for rank, job in jobs.items() if job.stage == STAGES[first]]
    for odd in (hanging if failed else [], failed, early):
        if 0 < 2 * len(odd) <= len(jobs):
            return sorted(odd)
    return []


def broken_pairs(found: Results, backend: str) -> dict[tuple[int, int], str]:
    """Return each two ranks that could not do an all-reduce of two, with the error."""
    broken: dict[tuple[int, int], str] = {}
    for rank, job in sorted(found.collective_pairs.get(backend, {}).items()):
        for message in job.messages:
            if message.get("error") and "pair" in message:
                one, other = sorted((rank, int(message["pair"])))
                broken.setdefault((one, other), str(message["error"]))
    return broken


def common_rank(pairs: Collection[tuple[int, int]]) -> int | None:
    """Return the only rank that all of these pairs have in common, if there is one."""
    common = set.intersection(*map(set, pairs)) if pairs else set()
    return common.pop() if len(common) == 1 else None


def _pairs(found: Results, backend: str, broken: Mapping[tuple[int, int], str]) -> Iterator[Finding]:
    odd = common_rank(broken)
    if odd is not None:
        others = names(rank for pair in broken for rank in pair if rank != odd)
        error = next(iter(broken.values()))
        text = f"{backend}: rank {odd} cannot do an all-reduce of two with {others}: {error}"
        yield Finding("collective", backend, (odd,), _where(found, odd), text)
        return
    for (one, other), error in broken.items():
        text = f"{backend}: ranks {one} and {other} cannot do an all-reduce of two: {error}"
        yield Finding("pair", backend, (one, other), _where(found, other), text)
