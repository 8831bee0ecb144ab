"""Checks through torch.distributed: barrier, all-reduce and an exchange of each two ranks, then pairs on their own.

`check` makes one group of all ranks, and reports each stage before it begins: the ranks that stay behind in an earlier
stage than the others are the odd ones. `check_pairs` is for a group that failed: each two ranks make a group of
their own, so that a pair that cannot is named.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from . import pairs
from .lines import Line, Message

STAGES = ("begin", "device", "store", "group", "barrier", "all-reduce", "exchange", "finished")
_ELEMENTS = 1 << 18  # of float32: 1 MiB
_EXCHANGED = 1 << 14
_ROUNDS = 3  # all-reduces, of which the fastest counts: the first one makes connections


class _Group:
    """One rank's part of the check."""

    def __init__(self, line: Line, given: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        self.torch: Any = torch
        self.dist: Any = dist
        self.line = line
        self.rank, self.ranks = int(given["rank"]), int(given["ranks"])
        self.timeout = timedelta(seconds=given["timeout_s"])
        self.backend = given["backend"]
        self.device = torch.device("cpu")
        self.took: dict[str, float] = {}
        if self.backend == "nccl":
            with self.stage("device"):
                self.device = torch.device("cuda", given["device"])
                torch.cuda.set_device(self.device)
                torch.cuda.synchronize()
        with self.stage("store"):
            is_host = given["port"] is None
            host = "127.0.0.1" if is_host else given["address"]
            self.store = self.dist.TCPStore(
                host, given["port"] or 0, self.ranks, is_host, self.timeout, wait_for_workers=False
            )
        if is_host:
            line.send({"port": self.store.port})

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.line.send({"stage": name})
        before = time.monotonic()
        yield
        self.took[name] = time.monotonic() - before

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def wait_for_end(self) -> None:
        """Stay until we are killed: rank 0 has the store, and all have connections that others still use."""
        while not self.line.is_closed:
            self.line.wait(60.0)


def check(line: Line, given: dict[str, Any]) -> Message:
    """Report the seconds of each stage, then stay."""
    group = _Group(line, given)
    torch, dist = group.torch, group.dist
    with group.stage("group"):
        dist.init_process_group(
            group.backend,
            store=group.store,
            rank=group.rank,
            world_size=group.ranks,
            timeout=group.timeout,
        )
    with group.stage("barrier"):
        if group.device.type == "cuda":
            dist.barrier(device_ids=[group.device.index])
        else:
            dist.barrier()
        group.synchronize()
    with group.stage("all-reduce"):
        fastest = float("inf")
        for _ in range(_ROUNDS):
            values = torch.full((_ELEMENTS,), float(group.rank + 1), device=group.device)
            before = time.monotonic()
            dist.all_reduce(values)
            group.synchronize()
            fastest = min(fastest, time.monotonic() - before)
            wanted = group.ranks * (group.ranks + 1) / 2
            if not bool((values == wanted).all()):
                raise ArithmeticError("the all-reduce gave a wrong sum")
    with group.stage("exchange"):
        for partner in _partners(group.rank, group.ranks):
            line.send({"partner": partner})
            _swap(group, partner)
        group.synchronize()
    line.send({"stage": "finished", "seconds": group.took, "all_reduce_s": fastest})
    group.wait_for_end()
    return {}


def _partners(rank: int, ranks: int) -> list[int]:
    """Return whom this rank meets, round by round, so that in each round all meet at once."""
    if ranks > pairs.ALL_UP_TO:
        found = [rank ^ (1 << bit) for bit in range(ranks.bit_length())]
        return [each for each in found if each < ranks]
    even = ranks + ranks % 2
    found = []
    for turn in range(even - 1):  # the circle method: the last one stays, all others move on by one
        last = even - 1
        if rank == last:
            partner = turn
        elif rank == turn:
            partner = last
        else:
            partner = (2 * turn - rank) % last
        found.append(partner)
    return [each for each in found if each < ranks]


def _swap(group: _Group, partner: int) -> None:
    """Send our pattern and get the other one's."""
    torch, dist = group.torch, group.dist
    ours = torch.full((_EXCHANGED,), float(group.rank), device=group.device)
    theirs = torch.full((_EXCHANGED,), -1.0, device=group.device)
    if group.rank < partner:
        dist.send(ours, partner)
        dist.recv(theirs, partner)
    else:
        dist.recv(theirs, partner)
        dist.send(ours, partner)
    if not bool((theirs == float(partner)).all()):
        raise ArithmeticError(f"wrong values came from rank {partner}")


def check_pairs(line: Line, given: dict[str, Any]) -> Message:
    """Make a group with one rank after the other; report each, then stay."""
    group = _Group(line, given)
    for partner in _partners(group.rank, group.ranks):
        line.send({"partner": partner})
        low, high = sorted((group.rank, partner))
        store = group.dist.PrefixStore(f"{low}-{high}", group.store)
        error = ""
        try:
            _all_reduce_of_two(group, store, int(group.rank == high), low + high)
        except Exception as raised:  # noqa: BLE001 - whatever the library raises is what was found
            error = str(raised).partition("\n")[0][:200] or type(raised).__name__
        line.send({"pair": partner, "error": error})
    line.send({"stage": "finished", "seconds": group.took})
    group.wait_for_end()
    return {}


def _all_reduce_of_two(group: _Group, store: Any, rank: int, wanted: int) -> None:
    dist, torch = group.dist, group.torch
    if group.backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = group.timeout
        made: Any = dist.ProcessGroupNCCL(store, rank, 2, options)
    else:
        made = dist.ProcessGroupGloo(store, rank, 2, group.timeout)
    values = torch.full((4,), float(group.rank), device=group.device)
    made.allreduce([values]).wait()
    group.synchronize()
    if not bool((values == float(wanted)).all()):
        raise ArithmeticError("the all-reduce of two gave a wrong sum")
