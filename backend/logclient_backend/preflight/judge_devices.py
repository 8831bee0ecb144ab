"""Findings about devices: missing, failed, or behind those of other ranks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median

from .coordinator import Coordinator
from .results import Finding, Results, names

CPU_LAG, CUDA_LAG = 0.5, 0.8  # of the median rate of the others
MIN_FREE = 0.5  # of their median free memory
MIN_CLOCK = 0.7


def findings(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    """Yield what is wrong; `explained`: the ranks that another finding has named."""
    yield from _device_errors(made, found, explained)
    yield from _missing_devices(made, found, explained)
    for turn in found.measured:
        yield from _lagging_devices(found, turn, explained)


def _missing_devices(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    """Ranks without a CUDA device of their own, and hosts with fewer than others: one is lost, or hidden."""
    uuids = {rank: each for rank, each in _uuids(found).items() if rank not in explained}
    hosts: dict[str, list[int]] = {}
    for rank in sorted(uuids):
        hosts.setdefault(made.members[rank].host, []).append(rank)
    users = Counter((made.members[rank].host, uuid) for rank, each in uuids.items() for uuid in each)
    without = [
        rank for rank, each in uuids.items() if all(users[made.members[rank].host, uuid] > 1 for uuid in each)
    ]
    if without and len(without) < len(uuids):
        named = ", ".join(sorted({made.members[rank].host for rank in without}))
        text = f"{names(without)} on {named}: no CUDA device of its own, as other ranks have"
        yield Finding("missing device", "devices", tuple(sorted(without)), named, text)
    counts = {host: len({uuid for rank in ranks for uuid in uuids[rank]}) for host, ranks in hosts.items()}
    for host, ranks in hosts.items():
        most = max(counts[other] for other in hosts if len(hosts[other]) == len(ranks))
        if counts[host] < most and not set(ranks) & set(without):
            text = f"{names(ranks)} on {host} have {counts[host]} CUDA devices, as many ranks of other hosts {most}"
            yield Finding("missing device", "devices", tuple(ranks), host, text)


def _uuids(found: Results) -> dict[int, list[str]]:
    """Return the CUDA devices of each rank that has reported its own."""
    sent = {rank: job.newest("devices") for rank, job in found.devices.items()}
    return {
        rank: [str(each) for each in one["uuids"] if each] for rank, one in sent.items() if one is not None
    }


def _device_errors(made: Coordinator, found: Results, explained: Mapping[int, str]) -> Iterator[Finding]:
    for rank, job in sorted(found.devices.items()):
        failed = job.error or (job.ended if job.ended not in ("", "over", "done") else "")
        if failed and rank not in explained:
            device = str((job.newest("device") or {}).get("device", "its devices"))
            text = f"rank {rank} on {made.members[rank].host}: {device} failed: {failed}"
            yield Finding("device", "devices", (rank,), device, text)


def _device(found: Results, rank: int, turn: int) -> tuple[str, str]:
    """Return id and name of a rank's device."""
    sent = found.devices[rank].newest("devices") or {"ids": [], "devices": []}
    return (sent["ids"][turn], sent["devices"][turn]) if turn < len(sent["ids"]) else ("", "")


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
