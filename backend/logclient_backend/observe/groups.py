"""Processes with equal stacks put together; the smallest group, which is the odd one, first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .stacks import Frame, Stacks

K = TypeVar("K")  # names a process: its PID, or node and PID
Normal = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Group(Generic[K]):
    """Some processes whose main threads are in the same functions."""

    members: tuple[K, ...]
    frames: tuple[Frame, ...]  # of the first of them, innermost first


def normal(frames: tuple[Frame, ...]) -> Normal:
    """Return what is compared: functions and files, without lines and folders, which differ between nodes."""
    return tuple((frame.function, os.path.basename(frame.file)) for frame in frames)


def grouped(found: Mapping[K, Stacks]) -> list[Group[K]]:
    """Return the groups of those that have a stack, the smallest first, then in the order given."""
    members: dict[Normal, list[K]] = {}
    for key, stacks in found.items():
        if stacks.main is not None:
            members.setdefault(normal(stacks.main.frames), []).append(key)
    groups: list[Group[Any]] = []
    for keys in members.values():
        main = found[keys[0]].main
        groups.append(Group(tuple(keys), main.frames if main is not None else ()))
    return sorted(groups, key=lambda group: len(group.members))
