"""New records of a run of a folder at each look, for `logclient tail`.

Runs in a command, beside a live writer. A run that is followed is looked up again now and then: new attempts bring new
node folders, and data that lay elsewhere may have been brought home.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from logclient.shm.side_stream import side_of

from ..wal.encoded import StreamColumns
from ..wal.reader import Follower, WalReader
from ..wal.scan import Gap, Item
from . import folder, live
from .folder import Found
from .view import RunView, view

_SEARCHED_S = 10.0  # how often all folders are looked through


class FolderFollower:
    """`last` once, then `poll` and `look_again` in turn."""

    poll_s = 0.5

    def __init__(self, run: RunView, base: str) -> None:
        """`base`: the folder that the run was found in."""
        self.run = run
        self._base = base
        self._side = run.found.side
        self._followers: dict[str, Follower] = {}
        self._searched = time.monotonic()

    def last(self, count: int) -> Iterator[StreamColumns]:
        """At least the last `count` records over all streams, and from now on those that come."""
        for node in self.run.nodes:
            spans = WalReader(node.path).spans()
            since = {span.stream: max(0, (span.last or 0) - count) for span in spans.values()}
            follower = self._followers[node.path] = Follower(node.path, since=since)
            for item in follower.poll():
                if isinstance(item, StreamColumns) and side_of(item.stream) == self._side:
                    yield item

    def poll(self) -> Iterator[Item]:
        """All that is new: records, gaps, damage."""
        for node in self.run.nodes:
            follower = self._followers.get(node.path)
            if follower is None:
                follower = self._followers[node.path] = Follower(node.path)
            for item in follower.poll():
                if not isinstance(item, StreamColumns | Gap) or side_of(item.stream) == self._side:
                    yield item

    def notices(self) -> list[str]:
        """A folder is always there."""
        return []

    @property
    def is_over(self) -> bool:
        """Has it ended, and is known how? A process that is gone is lost until its agent has said more."""
        live_dirs = self.run.found.live.values()
        if self.run.state.name == "lost" and any(
            live_dir.has_agent or not live_dir.is_there for live_dir in live_dirs
        ):
            return False  # an agent that has left since has said it: the next look sees that
        return self.run.state.is_over

    def look_again(self) -> None:
        """The run as it is now: its own folder each time, now and then the folders where else it may lie."""
        now = time.monotonic()
        found: Found | None = None
        if now - self._searched < _SEARCHED_S:
            found = self._reload()
        else:
            self._searched = now
            found = self._search()
        if found is not None and not found.problem:
            self.run = view(found)
            if self._side:
                self.run = self.run.of_side(self._side)
        else:  # stored elsewhere: what is known is all that will be
            live = self.run.found.live
            for node in [node for node, live_dir in live.items() if not live_dir.is_there]:
                del live[node]

    def _search(self) -> Found | None:
        return next((run for run in folder.find(self._base) if run.name == self.run.found.name), None)

    def _reload(self) -> Found | None:
        nodes = [node.path for node in self.run.nodes]
        loaded = folder.load(self.run.found.name, self.run.found.path)
        if loaded.problem or {node.path for node in loaded.nodes} != set(nodes):
            return self._search()
        for node in loaded.nodes:
            live_dir = self.run.found.live.get(node.id)
            if live_dir is not None:
                again = live.look(live_dir.shm_dir.path)
                if again is not None:
                    loaded.live[node.id] = again
        return loaded
