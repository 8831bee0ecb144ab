"""Counters of a run in this process, and sums over its lanes.

Runs in the training process; `lane_counts` also in readers. `itertools.count` is the counter: `next` on it is atomic,
an addition is not.
"""

from __future__ import annotations

from itertools import count, islice

from . import layout
from .lane_file import headers
from .ring import read_counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ring import Mark


class Counter:
    """Counts exactly from any thread and handler, and publishes into one word."""

    __slots__ = ("_count", "_index", "_mark", "_words", "uncalled")

    def __init__(self, index: int) -> None:
        self._count = count(1)
        self.uncalled = 0  # counted by a caller at the recursion limit: `+=` is one step there, and no call
        self._index = index
        self._words: memoryview | None = None
        self._mark: Mark = b"\0"

    def add(self, amount: int = 1) -> None:
        if amount > 0:
            next(islice(self._count, amount - 1, None))
            try:
                self.publish()
            except RecursionError:  # it is counted, and published with the next one
                return

    def attach(self, words: memoryview, mark: Mark, index: int | None = None) -> None:
        """Publish into `words` as long as `mark[0]` is set: not from a process that was forked since."""
        self._words = None  # a handler that counts now must not publish into the wrong word
        self._index = self._index if index is None else index
        self._words, self._mark = words, mark
        self.publish()

    def detach(self) -> None:
        """Go on counting without the shared word."""
        self._words = None

    def publish(self) -> None:
        """Again until nobody counted meanwhile: whoever comes last leaves the newest value."""
        value = -1
        while value != self.value:
            value = self.value
            if not self._mark[0]:
                return
            words = self._words  # no call between the look at the mark and the store
            if words is None:
                return
            words[self._index] = value

    @property
    def value(self) -> int:
        called = (
            int(repr(self._count)[len("count(") : -1]) - 1
        )  # the one way to read it that all versions have
        return called + self.uncalled


class Counters:
    """Counts of one process beside its lanes: records refused, points left out."""

    __slots__ = ("left_out", "refused")

    def __init__(self) -> None:
        self.refused = Counter(layout.REFUSED)
        self.left_out = Counter(layout.LEFT_OUT)

    def attach(self, words: memoryview, mark: Mark) -> None:
        self.refused.attach(words, mark)
        self.left_out.attach(words, mark)

    def count_in(self, slot: memoryview | None, mark: Mark) -> None:
        """Publish what a process without lanes refuses: in a slot of `refusals`, if it has got one."""
        if slot is not None:
            self.refused.attach(slot, mark, index=0)

    def detach(self) -> None:
        self.refused.detach()
        self.left_out.detach()

    def publish(self) -> None:
        self.refused.publish()
        self.left_out.publish()


def lane_counts(words: memoryview) -> dict[str, int]:
    """Counts over all lanes of one lane file, from its words: also of a process that is gone."""
    total = dict.fromkeys(("accepted", "forgotten", "damaged", "durable", "stored", "acked"), 0)
    for lane in headers(words):
        durable, stored, damaged = read_counts(lane)
        total["accepted"] += lane[layout.SEQ]
        total["durable"] += durable
        total["stored"] += stored
        total["damaged"] += damaged
        total["forgotten"] += max(0, durable - stored - damaged)
        total["acked"] += lane[layout.ACKED_SEQ]
    return total


def missing_there(counts: dict[str, int]) -> int:
    """Records that are accepted, not known to be gone, and not committed at a collector."""
    return max(0, counts["accepted"] - counts["forgotten"] - counts["damaged"] - counts["acked"])
