"""Two looks at some processes, and what the lane files of a live run say of their last steps.

The limit from which on a rank is late is learned from its own rhythm: LIMIT_FACTOR times the longest time between two
of the last records that its lanes still hold, and at least FLOOR_S.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise

from logclient.shm import lane_file
from logclient.shm.record import PREFIX

from ..runs.live import LiveLanes, LiveShmDir
from . import process, stacks
from .stacks import Stacks
from .verdict import Look, Observed

APART_S = 1.0
LIMIT_FACTOR, FLOOR_S = 5.0, 10.0
_RHYTHM = 200  # records
_READ_S = 0.2
_MARGIN_S = 10.0  # between the end of a rank and the last record of its peers
_NOT_LOOKED_AT = "it was not looked at"


def observe(pids: Iterable[int], *, apart_s: float = APART_S, timeout_s: float = 3.0) -> list[Observed]:
    """Look twice at each process and at its children."""
    wanted = list(dict.fromkeys(pids))
    families = {pid: process.children(pid) for pid in wanted}
    everybody = [*wanted, *(child for family in families.values() for child in family)]
    begun = time.monotonic()
    first = _look(everybody, timeout_s)
    time.sleep(max(0.0, apart_s - (time.monotonic() - begun)))
    apart_s = time.monotonic() - begun
    second = _look(everybody, timeout_s)
    made = {pid: Observed(pid, first[pid], second[pid], apart_s) for pid in everybody}
    for pid in wanted:
        made[pid].children = [made[child] for child in families[pid]]
    return [made[pid] for pid in wanted]


def _look(pids: Sequence[int], timeout_s: float) -> dict[int, Look]:
    samples = {pid: process.look(pid) for pid in pids}
    alive = [pid for pid, sample in samples.items() if sample is not None and sample.state not in "ZX"]
    found = stacks.dump(alive, timeout_s=timeout_s)
    return {pid: Look(samples[pid], found.get(pid, Stacks(pid, reason=_NOT_LOOKED_AT))) for pid in pids}


def ended_with(live_dir: LiveShmDir, observed: Sequence[Observed], now_ns: int) -> list[Observed]:
    """Return the processes that ended when the late ones logged last, or since: who ended long before is not missed."""
    ages = [each.age_s for each in observed if each.is_late and each.age_s is not None]
    if not ages:
        return []
    since_ns = now_ns - int((max(ages) + _MARGIN_S) * 1e9)
    found = []
    for each in live_dir.ended():
        if each.end_ns >= since_ns:
            nothing = Look(None, Stacks(each.pid, reason=each.text))
            found.append(Observed(each.pid, nothing, nothing, 0.0, each.rank, end=each.text))
    return found


def add_records(observed: Observed, lanes: LiveLanes, now_ns: int, floor_s: float = FLOOR_S) -> None:
    """Add rank, last step, its age and the limit, which is at least `floor_s`, from the lane file of that process."""
    observed.rank = lanes.rank
    phase = lanes.phase(time.monotonic_ns())
    if phase is not None:
        what = f" {phase.what!r}" if phase.what else ""
        times = f"for {phase.since_s:.0f} s now, and for {phase.left_s:.0f} s more at most"
        observed.phase = f"is in a declared phase{what} {times}"
    seen: list[tuple[int, int]] = []
    deadline = time.monotonic() + _READ_S
    for header in lane_file.headers(lanes.words):
        for number, frame in enumerate(lane_file.newest_frames(lanes.mem, header, deadline)):
            _, _, _, step, time_ns, _ = PREFIX.unpack_from(frame)
            seen.append((time_ns, step))
            if number >= _RHYTHM:
                break
    if not seen:
        return
    seen.sort()
    last_ns, observed.step = seen[-1]
    observed.age_s = max(0.0, (now_ns - last_ns) / 1e9)
    gaps = [(after - before) / 1e9 for (before, _), (after, _) in pairwise(seen)]
    observed.limit_s = max(floor_s, LIMIT_FACTOR * max(gaps, default=0.0))
