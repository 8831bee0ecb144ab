"""`Place`: which rank this process is, of how many, and where the coordinator of rank 0 listens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from logclient import config
from logclient.errors import BadArgument
from logclient.launching import launcher_variables

PORTS = 8  # tried in turn: another program may have one
_DERIVED_FROM, _DERIVED = 23_000, 8_000  # below the ports that kernels hand out
_SHOWN = ("NCCL_", "GLOO_", "TORCH_NCCL_")
_ALSO_SHOWN = (
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCH_DISTRIBUTED_DEBUG",
)


@dataclass(frozen=True, slots=True)
class Place:
    """One rank of a launch."""

    rank: int
    ranks: int
    launcher: str  # "" for a process on its own
    address: str  # of rank 0's host
    ports: tuple[int, ...]  # of the coordinator, in the order in which they are tried; none: any that is free
    token: str  # equal for the ranks of one launch
    base_port: int | None  # rank r exchanges at base_port + 1 + r; None: at any that is free


def find_place(base_port: int | None = None) -> Place:
    """Return the place of this process, from its launcher's variables. Raises BadArgument where they are not enough."""
    env = config.environment()
    launch = launcher_variables.find(env)
    if launch is None or launch.world_size is None or launch.rank is None:
        return Place(0, 1, "", "127.0.0.1", (), _token(env, 1), base_port)
    size, rank = launch.world_size, launch.rank
    if not 0 <= rank < size:
        raise BadArgument(f"rank {rank} of {size} ranks: RANK and WORLD_SIZE do not fit")
    address = env.get("MASTER_ADDR") or _first_host(env)
    if not address:
        raise BadArgument("no address of rank 0's host: set MASTER_ADDR to it, on every rank")
    token = _token(env, size)
    return Place(rank, size, launch.kind, address, _ports(env, base_port, token), token, base_port)


def _ports(env: Mapping[str, str], base_port: int | None, token: str) -> tuple[int, ...]:
    """Return the given one, else those behind MASTER_PORT (where torchrun's own store is), else some of the token."""
    if base_port is not None:
        return (base_port,)
    given = env.get("MASTER_PORT", "")
    if given.isdecimal() and 0 < int(given) <= 65_535 - PORTS:
        first = int(given) + 1
    else:
        first = _DERIVED_FROM + int(token, 16) % _DERIVED
    return tuple(range(first, first + PORTS))


def _token(env: Mapping[str, str], size: int) -> str:
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    slurm = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
    words = [env.get(name, "") for name in (*names, *slurm)]
    return hashlib.sha256("\0".join([*words, str(size)]).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _first_host(env: Mapping[str, str]) -> str:
    """Return the first host of a SLURM step: `node[003-010,12],other` has node003. One node's name need not resolve."""
    if (env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES")) == "1":
        return "127.0.0.1"
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    found = re.match(r"([^,\[]*)(?:\[([^\],-]*)[^\]]*\])?([^,\[]*)", hosts)
    return "".join(part or "" for part in found.groups()) if found else ""


def settings() -> dict[str, str]:
    """Return the variables that steer NCCL, gloo and torch's use of them."""
    return {
        name: value
        for name, value in sorted(config.environment().items())
        if name.startswith(_SHOWN) or name in _ALSO_SHOWN
    }
