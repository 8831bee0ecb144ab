"""Sections of a process that logs, from the words of its lane file: where it is, since when, and its time in each.

Runs in any process of the same user. Nothing is written, and nothing is waited for: of a process that enters sections
all the time a look is taken again a few times, and then as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logclient.shm import layout

# A section with one of these names is time spent with peers. A synchronous job slows down together, so that time shows
# no rank; all other sections are a rank's own work.
COLLECTIVE = frozenset({"allreduce", "barrier", "collective", "comm", "reduce", "sync", "wait"})
_LOOKS = 8


@dataclass(frozen=True, slots=True)
class SectionTime:
    """The time of one process in one section."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Sections:
    """All sections that a process has used."""

    current: str  # empty: it is in none
    since_s: float  # in it, or outside of all
    times: tuple[SectionTime, ...]  # with the time in the current one up to now

    @property
    def work_s(self) -> float:
        """Time in sections outside collectives."""
        return sum(each.seconds for each in self.times if each.name.lower() not in COLLECTIVE)


def read(words: memoryview, now_ns: int) -> Sections | None:
    """Return the sections in a lane file; None where its process used none. `now_ns`: `time.monotonic_ns`."""
    for _ in range(_LOOKS):
        since = words[layout.SECTION_SINCE]
        number, other = words[layout.SECTION], words[layout.SECTION_OTHER_NS]
        end = layout.SECTION_TABLE + layout.MAX_SECTIONS * layout.SECTION_WORDS
        table = words[layout.SECTION_TABLE : end].tobytes()
        if words[layout.SECTION_SINCE] == since:
            break
    if not since:
        return None
    so_far_ns = max(0, now_ns - since)
    found, current = [], ""
    for each, (name, ns) in {**_entries(table), layout.SECTION_OTHER: ("other", other)}.items():
        if each == number:
            current = name
            ns += so_far_ns
        if each != layout.SECTION_OTHER or ns:
            found.append(SectionTime(name, ns / 1e9))
    return Sections(current, so_far_ns / 1e9, tuple(found))


def _entries(table: bytes) -> dict[int, tuple[str, int]]:
    size, found = 8 * layout.SECTION_WORDS, {}
    for number in range(1, layout.MAX_SECTIONS + 1):
        entry = table[(number - 1) * size : number * size]
        name = entry[8 * layout.SECTION_NAME :].rstrip(b"\0")
        if entry[8 * layout.SECTION_NAME]:  # its first byte is stored last
            ns = int.from_bytes(entry[8 * layout.SECTION_NS :][:8], "little")
            found[number] = name.decode("utf-8", "replace"), ns
    return found


def work_between(before: Mapping[int, Sections], after: Mapping[int, Sections]) -> dict[int, float]:
    """Return the seconds of each rank in sections outside collectives between two looks, for a straggler detector."""
    return {rank: max(0.0, now.work_s - before[rank].work_s) for rank, now in after.items() if rank in before}
