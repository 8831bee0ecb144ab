"""Processes with equal stacks put together; the smallest group, which is the odd one, first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from .stacks import Frame, Stacks

Normal = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Some processes whose main threads are in the same functions."""

    pids: tuple[int, ...]
    frames: tuple[Frame, ...]  # of the first of them, innermost first


def normal(frames: tuple[Frame, ...]) -> Normal:
    """Return what is compared: functions and files, without lines and folders, which differ between nodes."""
    return tuple((frame.function, os.path.basename(frame.file)) for frame in frames)


def grouped(found: Mapping[int, Stacks]) -> list[Group]:
    """Return the groups of those that have a stack, the smallest first, then by the first PID."""
    members: dict[Normal, list[int]] = {}
    for pid, stacks in found.items():
        if stacks.main is not None:
            members.setdefault(normal(stacks.main.frames), []).append(pid)
    groups = []
    for pids in members.values():
        main = found[pids[0]].main
        groups.append(Group(tuple(pids), main.frames if main is not None else ()))
    return sorted(groups, key=lambda group: (len(group.pids), group.pids[0]))
