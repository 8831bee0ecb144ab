"""Two looks at some processes, and what the shm directory of a live run says of their last steps and their ends.

The limit from which on a rank is late is learned from its own rhythm: LIMIT_FACTOR times the longest time between two
of the last records that its lanes still hold, and at least FLOOR_S.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

from logclient.shm import lane_file
from logclient.shm.record import PREFIX

from ..runs.live import LiveLanes, LiveShmDir
from . import process, stacks
from .stacks import Stacks
from .verdict import Look, Observed

APART_S = 1.0
TIMEOUT_S = 3.0  # for the stacks of one look
LIMIT_FACTOR, FLOOR_S = 5.0, 10.0
_RHYTHM = 200  # records
_READ_S = 0.2
_MARGIN_S = 10.0  # between the end of a rank and the last record of its peers
_NOT_LOOKED_AT = "it was not looked at"


def observe(pids: Iterable[int], *, apart_s: float = APART_S, timeout_s: float = TIMEOUT_S) -> list[Observed]:
    """Look twice at each process and at its children."""
    wanted = list(dict.fromkeys(pids))
    families = {pid: process.children(pid) for pid in wanted}
    everybody = list(dict.fromkeys([*wanted, *(child for family in families.values() for child in family)]))
    begun = time.monotonic()
    first = look(everybody, timeout_s, {})
    time.sleep(max(0.0, apart_s - (time.monotonic() - begun)))
    apart_s = time.monotonic() - begun
    second = look(everybody, timeout_s, first)
    made = {pid: Observed(pid, first[pid], second[pid], apart_s) for pid in everybody}
    for pid in wanted:
        made[pid].children = [made[child] for child in families[pid]]
    return [made[pid] for pid in wanted]


def look(pids: Sequence[int], timeout_s: float, before: dict[int, Look]) -> dict[int, Look]:
    """Look once. A stack is not read again where the process slept through since `before`: it has not changed."""
    samples = {pid: process.look(pid) for pid in pids}
    alive = [pid for pid, sample in samples.items() if sample is not None and sample.state not in "ZX"]
    found = {
        pid: before[pid].stacks
        for pid in alive
        if pid in before
        and before[pid].stacks.main is not None
        and process.slept_through(before[pid].sample, samples[pid])
    }
    found |= stacks.dump([pid for pid in alive if pid not in found], timeout_s=timeout_s)
    return {pid: Look(samples[pid], found.get(pid, Stacks(pid, reason=_NOT_LOOKED_AT))) for pid in pids}


def ended(live_dir: LiveShmDir, now_ns: int) -> list[Observed]:
    """Return the processes of this start of the run that have ended, as their agent saw it."""
    found = []
    for each in live_dir.ended():
        nothing = Look(None, Stacks(each.pid, reason=each.text))
        made = Observed(each.pid, nothing, nothing, 0.0, each.rank, end=each.text)
        made.ended_s = max(0.0, (now_ns - each.end_ns) / 1e9)
        found.append(made)
    return found


def missed(observed: Sequence[Observed], ended: Sequence[Observed]) -> list[Observed]:
    """Return those that ended when the late ones logged last, or since: who ended long before is not missed."""
    ages = [each.age_s for each in observed if each.is_late and each.age_s is not None]
    since_s = max(ages, default=-1.0) + _MARGIN_S
    return [each for each in ended if ages and each.ended_s is not None and each.ended_s <= since_s]


def records(live_dir: LiveShmDir, floor_s: float = FLOOR_S) -> list[Observed]:
    """Return the processes of a live run by their records alone, without a look at them."""
    found = []
    nothing = Look(None, Stacks(0, reason=_NOT_LOOKED_AT))
    for lanes in live_dir.processes:
        if lanes.is_open:
            found.append(Observed(lanes.pid, nothing, nothing, 0.0))
            add_records(found[-1], lanes, time.time_ns(), floor_s)
    return found


def add_records(observed: Observed, lanes: LiveLanes, now_ns: int, floor_s: float = FLOOR_S) -> None:
    """Add rank, last step, its age and the limit, which is at least `floor_s`, from the lane file of that process."""
    observed.rank = lanes.rank
    observed.phase = declared(lanes)
    seen = newest(lanes, _RHYTHM)
    if not seen:
        return
    last_ns, observed.step = seen[-1]
    observed.age_s = max(0.0, (now_ns - last_ns) / 1e9)
    gaps = [(after - before) / 1e9 for (before, _), (after, _) in pairwise(seen)]
    observed.limit_s = max(floor_s, LIMIT_FACTOR * max(gaps, default=0.0))


def declared(lanes: LiveLanes) -> str:
    """Return a sentence about the phase that the program has declared; empty where it is in none."""
    phase = lanes.phase(time.monotonic_ns())
    if phase is None:
        return ""
    what = f" {phase.what!r}" if phase.what else ""
    times = f"for {phase.since_s:.0f} s now, and for {phase.left_s:.0f} s more at most"
    return f"is in a declared phase{what} {times}"


def newest(lanes: LiveLanes, most: int) -> list[tuple[int, int]]:
    """Return time (ns since 1970) and step of the newest records of each lane, the oldest first."""
    seen: list[tuple[int, int]] = []
    deadline = time.monotonic() + _READ_S
    for header in lane_file.headers(lanes.words):
        frames = lane_file.newest_frames(lanes.mem, header, deadline)
        for frame in islice(frames, most):
            _, _, _, step, time_ns, _ = PREFIX.unpack_from(frame)
            seen.append((time_ns, step))
    return sorted(seen)
