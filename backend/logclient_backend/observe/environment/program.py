"""Command line, folder and variables of a process, from /proc, with secrets masked.

Runs in a child with a deadline: /proc waits for a process that is stuck in the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import masking

MAX_ARGUMENTS_BYTES = 8 << 10
MAX_VARIABLES_BYTES = 32 << 10
_MAX_WORD = 2_000
_MAX_READ = 4 << 20

# variables that are kept unless all are asked for: what decides how a training runs
_PREFIXES = (
    *("CUDA_", "NCCL_", "SLURM_", "SLURMD_", "ROCM_", "HIP_", "HSA_", "ROCR_", "RCCL_", "NVIDIA_", "NVTE_"),
    *(
        "TORCH_",
        "TORCHELASTIC_",
        "PYTORCH_",
        "TORCHINDUCTOR_",
        "XLA_",
        "JAX_",
        "TF_CPP_",
        "TF_XLA_",
        "TPU_",
        "LIBTPU_",
        "PJRT_",
    ),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "UCX_", "FI_", "GLOO_", "MPI", "OMPI_", "PMI_", "PMIX_"),
    *("MASTER_", "LOCAL_", "GROUP_", "ROLE_", "ACCELERATE_", "DEEPSPEED_", "FSDP_", "LOGCLIENT_"),
)
_NAMES = (
    *("RANK", "WORLD_SIZE", "NODE_RANK", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "TZ", "LANG"),
    *("TRITON_CACHE_DIR", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONHASHSEED"),
)


def read(pid: int, *, every_variable: bool, more: Mapping[str, str]) -> dict[str, Any]:
    """Return what is known of a process. `more`: variables that the program has set since it was started."""
    words = [each.decode("utf-8", "replace") for each in _file(pid, "cmdline").split(b"\0")]
    found = {**_variables(pid), **more}
    chosen = found if every_variable else {name: found[name] for name in found if is_kept(name)}
    arguments, are_whole = _bounded(masking.arguments(words[:-1] if words and not words[-1] else words))
    return {
        "arguments": arguments,
        "arguments_cut": not are_whole,
        "folder": _link(pid, "cwd"),
        "executable": _executable(pid, words[0] if words else "", found.get("PATH", "")),
        "variables": _bounded_table(masking.variables(chosen)),
    }


def is_kept(name: str) -> bool:
    """Is a variable of this name kept although nobody has asked for all?"""
    return name in _NAMES or name.startswith(_PREFIXES)


def _file(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(_MAX_READ)
    except OSError:
        return b""


def _executable(pid: int, word: str, path: str) -> str:
    """Return the program by the name it was started by, where that leads to it: the link in a venv names the venv."""
    exe, folder = _link(pid, "exe"), _link(pid, "cwd")
    tried = [word] if "/" in word else [os.path.join(each, word) for each in path.split(os.pathsep) if word]
    for each in tried:
        found = os.path.normpath(os.path.join(folder, each))
        if exe and os.path.realpath(found) == exe:
            return found
    return exe


def _link(pid: int, name: str) -> str:
    try:
        return (
            os.readlink(f"/proc/{pid}/{name}").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        )
    except OSError:
        return ""


def _variables(pid: int) -> dict[str, str]:
    found = {}
    for each in _file(pid, "environ").split(b"\0"):
        name, mark, value = each.decode("utf-8", "replace").partition("=")
        if mark and name:
            found[name] = value
    return found


def _bounded(words: list[str]) -> tuple[list[str], bool]:
    """Return words within their limits, and whether nothing was cut."""
    made: list[str] = []
    left = MAX_ARGUMENTS_BYTES
    for word in words:
        part = word[:_MAX_WORD]
        left -= len(part.encode()) + 1
        if left < 0:
            return made, False
        made.append(part)
    return made, all(len(word) <= _MAX_WORD for word in words)


def _bounded_table(table: dict[str, str]) -> dict[str, str]:
    made: dict[str, str] = {}
    left = MAX_VARIABLES_BYTES
    for name in sorted(table):
        value = table[name][:_MAX_WORD]
        left -= len(name.encode()) + len(value.encode()) + 6
        if left < 0:
            break
        made[name] = value
    return made
