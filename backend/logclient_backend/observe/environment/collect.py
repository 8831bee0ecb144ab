"""All that a run's program runs in, each part asked in a child of its own, with a deadline.

A part that hangs costs itself: it is named in `missing` with the reason. What is made has at most `MAX_BYTES`, and
`MAX_DIFF_BYTES` more where the diff is asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from .. import gpu
from ..deadline import NoAnswer, Question
from . import git, machine, packages, program

VERSION = 1
MAX_BYTES = 192 << 10
_PROGRAM_S, _MACHINE_S, _PACKAGES_S = 3.0, 5.0, 10.0
_CODE_S = git.LIMIT_S + 2.0  # and the folders above, where .git is looked for
_MAX_GPUS = 64


def collect(
    pid: int,
    *,
    script: str,
    paths: Sequence[str],
    variables: Mapping[str, str],
    scratch: str,
    wants_diff: bool = False,
    every_variable: bool = False,
) -> dict[str, Any]:
    """Return the environment of a process.

    `script`: its main file; `paths`: folders of its modules; `variables`: those that it has now, as far as they are
    known; `scratch`: an empty folder on tmpfs.
    """
    missing: dict[str, str] = {}
    ask_program = partial(program.read, pid, every_variable=every_variable, more=variables)
    first = _begin(ask_program, _PROGRAM_S, "the program")
    others = {
        "machine": _begin(partial(machine.read, pid), _MACHINE_S, "the machine"),
        "packages": _begin(partial(packages.find, list(paths)), _PACKAGES_S, "the folders of packages"),
    }
    gpus = gpu.ask() if gpu.may_be_there() else None
    made: dict[str, Any] = {"version": VERSION, "command": _take(first, "command", missing) or {}}
    folders = [made["command"].get("folder") or "", os.path.dirname(script)]
    path = variables.get("PATH") or os.defpath
    look = partial(git.describe, folders, scratch, path, wants_diff=wants_diff)
    others["code"] = _begin(look, _CODE_S, "the repository")
    for name, question in others.items():
        made[name] = _take(question, name, missing)
    found = gpu.answered(gpus) if gpus is not None else gpu.Gpus(absent=gpu.NO_DRIVER)
    made["gpus"] = [
        {"name": each.name, "memory_mib": each.memory_total_mib} for each in found.devices[:_MAX_GPUS]
    ]
    if found.is_fault:
        missing["gpus"] = found.absent
    made["missing"] = missing
    return bounded(made)


def _begin(ask: Callable[[], Any], timeout_s: float, of: str) -> Question:
    return Question(ask, timeout_s=timeout_s, of=of)


def _take(question: Question, name: str, missing: dict[str, str]) -> Any:
    try:
        return question.answer()
    except NoAnswer as error:
        missing[name] = str(error)
        return None


def bounded(made: dict[str, Any]) -> dict[str, Any]:
    """Return it within `MAX_BYTES`, without the diff: what is largest and says least goes first, and is named."""
    for cut in (("packages",), ("command", "variables"), ("command", "arguments")):
        code = made.get("code") or {}
        if len(json.dumps({**made, "code": {**code, "diff": ""}})) <= MAX_BYTES:
            break
        holder = made if len(cut) == 1 else made[cut[0]]
        holder[cut[-1]] = None
        made["missing"][cut[-1]] = f"more than the {MAX_BYTES >> 10} KiB that are kept"
    return made
