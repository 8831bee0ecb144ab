"""The processes of the run on this node, as their lane files show them: how many records, since when, who has ended.

Runs in the observer. A look reads words of shared memory that is mapped, and asks a pidfd of each process whether that
has ended; the folder is listed when it has changed. Records are read when a process is seen first, and by samples.

Invariants:

- watched are the ranks; where no process has a rank, all are. A rank that has logged too little to have a rhythm of its
  own is late when the run is: one that never logs, since rank 0 does, is not late for that;
- while a watched process is in a declared phase, nobody is late: its peers may wait for it;
- under a low limit of open files, processes that come last are not observed, and counted.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from logclient.shm import lane_file, layout
from logclient.shm.documents import read_document
from logclient.shm.proc import pid_namespace

from ...observe import ranks
from ...observe.rhythm import GAPS, Limits, Rhythm
from ...runs.live import LiveLanes, LiveShmDir
from ...signals import signal_name
from ..host import rlimits
from ..host.process_handle import Cause, Watch
from ..host.shm_dir_handle import LANES, ShmDirHandle, is_lane_file

_FDS_EACH, _FDS_ELSE = 2, 96
_NAMED = 4  # processes, in a sentence
_MAX_ENDED = 1000


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process."""

    pid: int
    rank: int | None
    is_clean: bool  # after `finish`, or with exit code 0
    text: str  # "exit code 1", "signal SIGKILL"; empty: nobody could tell
    at: float  # when it was seen, monotonic


class Seen:
    """One process that logs, or did."""

    def __init__(self, lanes: LiveLanes, limits: Limits, now: float) -> None:
        self.lanes = lanes
        self.id, self.pid = lanes.id, lanes.pid
        words = lanes.words
        namespace = words[layout.FILE_PID_NAMESPACE]
        self.is_here = bool(namespace) and namespace == pid_namespace()  # its PID means something to us
        self.ticks: int = words[layout.FILE_START_TICKS]
        self.watch = Watch(self.pid, self.ticks) if self.is_here else None
        self.ended: Ended | None = None
        self.rhythm = Rhythm(limits, now)
        self._headers = lane_file.headers(words)
        self._notices = 0  # version that was read
        self.rhythm.saw(self.count(), now)
        created_ns = words[layout.FILE_CREATED_MONO_NS]
        if self.rhythm.count and created_ns:
            records = ranks.newest(lanes, GAPS)
            gaps = ((after - before) / 1e9 for (before, _), (after, _) in pairwise(records))
            self.rhythm.learn(gaps, within_s=max(0.0, now - created_ns / 1e9))

    @property
    def rank(self) -> int | None:
        """Its rank now; it may take another one."""
        word: int = self.lanes.words[layout.FILE_RANK]
        return word - 1 if word else None

    @property
    def name(self) -> str:
        """Its name in a sentence."""
        rank = self.rank
        return f"process {self.pid}" if rank is None else f"rank {rank}"

    @property
    def is_over(self) -> bool:
        """Has it ended, or given up its lanes?"""
        return self.ended is not None or self.lanes.has_finished

    def count(self) -> int:
        """Records that it has accepted."""
        return sum(header[layout.SEQ] for header in self._headers)

    def new_notices(self) -> Any:
        """Return the data of its document `notices`, where it was written since this was asked last."""
        found = read_document(self.lanes.mem, "notices", self._notices)
        if found is None:
            return None
        self._notices, payload = found
        return self.lanes.load(payload)

    def look(self, now: float) -> None:
        """Has its process ended?"""
        if self.ended is None and (
            self.watch.has_ended() if self.watch is not None else not self.lanes.is_alive
        ):
            cause = self.watch.cause() if self.watch is not None else None
            is_clean = self.lanes.has_finished or (cause is not None and cause.exit_code == 0)
            self.ended = Ended(self.pid, self.rank, is_clean, _how(cause), now)


def _how(cause: Cause | None) -> str:
    if cause is None:
        return ""
    return str(cause) if cause.signal is None else f"signal {signal_name(cause.signal)}"


class Processes:
    """All of them, by the id of their lane files."""

    def __init__(self, handle: ShmDirHandle, limits: Limits) -> None:
        self.run = Rhythm(limits, time.monotonic())  # of all watched processes together
        self.all: dict[str, Seen] = {}
        self.ended: deque[Ended] = deque(maxlen=_MAX_ENDED)  # those whose lane files are gone
        self.left: set[int] = set()  # ranks in which the run is over and whose processes live on
        self._gone: list[Seen] = []  # since `take_gone`
        self.unseen = 0  # lane files for which no descriptor is left
        self._handle = handle
        self._limits = limits
        self._listed_ns = 0

    def look(self, now: float) -> None:
        """Look at the words of all lanes."""
        if self._handle.has_changed_since(self._listed_ns):
            self._list(now)
        for each in self.all.values():
            each.look(now)
            each.rhythm.saw(each.count(), now)
        watched = self.watched()
        self.run.saw(sum(each.rhythm.count for each in watched), now)
        now_ns = time.monotonic_ns()
        if not watched or any(each.lanes.phase(now_ns) is not None for each in watched):
            self.restart(now)

    def _list(self, now: float) -> None:
        self._listed_ns = self._handle.changed_ns()
        try:
            names = [name for name in os.listdir(self._handle.path) if is_lane_file(name)]
        except OSError:
            return
        ids = {name[: -len(LANES)] for name in names}
        for id in self.all.keys() - ids:
            gone = self.all.pop(id)  # all that it logged is stored, and it has ended
            gone.look(now)
            self._gone.append(gone)
            if gone.ended is not None:
                self.ended.append(gone.ended)
            elif gone.rank is not None:
                self.left.add(gone.rank)
            if gone.watch is not None:
                gone.watch.close()
        self.unseen = 0
        for id in ids - self.all.keys():
            if len(self.all) * _FDS_EACH + _FDS_ELSE > rlimits.most_files():
                self.unseen += 1
                continue
            try:
                self.all[id] = Seen(LiveLanes(self._handle.path, id + LANES), self._limits, now)
            except (OSError, ValueError):
                continue  # swept since the listing, or none of ours: the worker says so

    def take_gone(self) -> list[Seen]:
        """Return the processes whose lane files have gone since this was asked last; what they hold is readable yet."""
        gone, self._gone = self._gone, []
        return gone

    def watched(self) -> list[Seen]:
        """Return the processes that have the run open and whose records count."""
        some = [each for each in self.all.values() if not each.is_over]
        return [each for each in some if each.rank is not None] or some

    def looked_at(self) -> list[Seen]:
        """Return the processes that a sample looks at: also those of ranks in which the run is over, as one may hang.

        None that is in another PID namespace: its PID means another process here, or none.
        """
        watched = self.watched()
        ranks = {each.rank for each in watched}
        over = (each for each in self.all.values() if each.is_over and each.ended is None)
        some = [*watched, *(each for each in over if each.rank is not None and each.rank not in ranks)]
        return [each for each in some if each.is_here]

    def late(self, now: float) -> list[Seen]:
        """Return those that are late."""
        watched = self.watched()
        own = [each for each in watched if each.rhythm.is_own]
        late = [each for each in own if each.rhythm.is_late(now)]
        if self.run.is_late(now):
            late += [each for each in watched if not each.rhythm.is_own]
        return late

    def restart(self, now: float) -> None:
        """Wait anew for the next record of each."""
        self.run.restart(now)
        for each in self.all.values():
            each.rhythm.restart(now)

    def rhythm_of(self, each: Seen) -> Rhythm:
        """Return the rhythm by which a process is late."""
        return each.rhythm if each.rhythm.is_own else self.run

    def watches(self) -> Iterator[Watch]:
        """Yield the handles of processes whose end is to be seen at once."""
        for each in self.all.values():
            if each.watch is not None and each.ended is None:
                yield each.watch

    def ends(self) -> list[Ended]:
        """Return the processes that have ended, the newest _MAX_ENDED."""
        return [*self.ended, *(each.ended for each in self.all.values() if each.ended is not None)]

    def is_all_here(self) -> bool:
        """Can all that are watched be looked at from outside?"""
        return not self.unseen and all(each.is_here for each in self.watched())

    def live_dir(self) -> LiveShmDir:
        """Return the shm directory as readers have it."""
        return LiveShmDir(self._handle.shm_dir, (0, 0), [each.lanes for each in self.all.values()])

    def sentence(self, late: list[Seen], now: float) -> str:
        """Return who is late, and by how much; empty where nobody is."""
        if not late:
            return ""
        names = ", ".join(each.name for each in late[:_NAMED])
        names += f" and {len(late) - _NAMED} more" if len(late) > _NAMED else ""
        rhythm = self.rhythm_of(late[0])
        what = "no record" if rhythm.count == 0 else "no new record"
        return f"{names}: {what} for {rhythm.age_s(now):.0f} s; the limit is {rhythm.limit_s:.0f} s"
