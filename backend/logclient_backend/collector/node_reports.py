"""The newest report of each node whose run does not get on, for `logclient why --server`; and when each was seen last.

In memory alone: a node sends its report anew in each conversation. Any thread.

Invariants:

- a report is kept as it came, packed, and is not read here: whoever asks gets it, and checks it;
- a node that gets on again, or is shipped by another observer, has no report any more;
- memory is bounded: of the nodes that were seen longest ago nothing is kept beyond `most_bytes` and `most_nodes`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from ..wire.node_report import NodeReport

_NODE_BYTES = 500  # of an entry, besides its report


@dataclass(frozen=True, slots=True)
class SeenNode:
    """One node of a run."""

    report: NodeReport | None  # None: its agent sends none
    seen_at: float  # monotonic
    conversations: int = 0  # that are open

    @property
    def silent_s(self) -> float:
        """Seconds since anything came from it."""
        return max(0.0, time.monotonic() - self.seen_at)

    @property
    def size(self) -> int:
        return _NODE_BYTES + (len(self.report.packed) if self.report is not None else 0)


_now = time.monotonic
_NOBODY = SeenNode(None, 0.0)


class NodeReports:
    """The nodes of all runs."""

    def __init__(self, most_bytes: int = 64 << 20, most_nodes: int = 20_000) -> None:
        self._most_bytes = most_bytes
        self._most_nodes = most_nodes
        self._lock = threading.Lock()
        self._nodes: OrderedDict[tuple[str, str], SeenNode] = OrderedDict()  # seen longest ago first
        self._bytes = 0

    def opened(self, run: str, node: str) -> None:
        """A conversation of a live node has begun."""
        with self._lock:
            before = self._nodes.get((run, node), _NOBODY)
            self._put(run, node, replace(before, conversations=before.conversations + 1, seen_at=_now()))

    def closed(self, run: str, node: str) -> None:
        """It is over; that is no sign of the node."""
        with self._lock:
            before = self._nodes.get((run, node), _NOBODY)
            if before.conversations:
                self._nodes[run, node] = replace(before, conversations=before.conversations - 1)

    def seen(self, run: str, node: str) -> None:
        """Something came from a live node."""
        with self._lock:
            self._put(run, node, replace(self._nodes.get((run, node), _NOBODY), seen_at=_now()))

    def take(self, run: str, node: str, report: NodeReport) -> None:
        """Its observer saw something new."""
        with self._lock:
            before = self._nodes.get((run, node), _NOBODY)
            self._put(run, node, replace(before, report=report, seen_at=_now()))

    def of_run(self, run: str) -> dict[str, SeenNode]:
        """Return the nodes of a run that are known here."""
        with self._lock:
            return {node: seen for (of, node), seen in self._nodes.items() if of == run}

    def page(
        self, run: str, after: str, *, most_bytes: int, most_nodes: int
    ) -> tuple[list[tuple[str, SeenNode]], bool]:
        """Return nodes behind that one, by id, as far as these limits go (at least one), and whether there are more.

        `most_bytes`: of reports, unpacked.
        """
        nodes = sorted((node, seen) for node, seen in self.of_run(run).items() if node > after)
        found: list[tuple[str, SeenNode]] = []
        size = 0
        for node, seen in nodes:
            size += seen.report.size if seen.report is not None else 0
            if found and (size > most_bytes or len(found) >= most_nodes):
                break
            found.append((node, seen))
        return found, len(found) < len(nodes)

    def forget(self, run: str) -> None:
        """It was deleted."""
        with self._lock:
            for key in [key for key in self._nodes if key[0] == run]:
                self._bytes -= self._nodes.pop(key).size

    def _put(self, run: str, node: str, made: SeenNode) -> None:
        before = self._nodes.pop((run, node), None)
        self._nodes[run, node] = made
        self._bytes += made.size - (before.size if before is not None else 0)
        while len(self._nodes) > 1 and (
            self._bytes > self._most_bytes or len(self._nodes) > self._most_nodes
        ):
            _, gone = self._nodes.popitem(last=False)
            self._bytes -= gone.size
