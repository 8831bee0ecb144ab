"""`SeqSet`: which seqs of one stream are meant, as ranges.

A run's seqs are nearly always one range, so a set of millions is two numbers.

Invariants: ranges are sorted, disjoint and not adjacent (once settled); seqs that come interleaved (a stream that
logs two shapes in turn) are kept aside and settled together, when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, pairwise

_ASIDE = 1 << 14  # seqs kept aside at most: a mebibyte, sorted in a few ms


class SeqSet:
    """A set of whole numbers, kept as ranges of (first, last)."""

    __slots__ = ("_aside", "_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._aside: set[int] = set()
        for first, last in ranges:
            self.add(first, last)

    def __repr__(self) -> str:
        return f"SeqSet({self.ranges()!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SeqSet) and self.ranges() == other.ranges()

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._firsts or self._aside)

    def __len__(self) -> int:
        self._settle()
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __contains__(self, seq: int) -> bool:
        return self.covers(seq, seq)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges():
            yield from range(first, last + 1)

    def ranges(self) -> list[tuple[int, int]]:
        """Sorted, disjoint (first, last)."""
        self._settle()
        return list(zip(self._firsts, self._lasts, strict=True))

    @property
    def first(self) -> int:
        """The lowest; only where the set is not empty."""
        self._settle()
        return self._firsts[0]

    @property
    def last(self) -> int:
        """The highest; only where the set is not empty."""
        self._settle()
        return self._lasts[-1]

    def copy(self) -> SeqSet:
        made = SeqSet()
        self._settle()
        made._firsts = self._firsts[:]
        made._lasts = self._lasts[:]
        return made

    def add(self, first: int, last: int) -> None:
        """Add the range from `first` to `last`, both meant."""
        if first > last:
            raise ValueError(f"a range from {first} to {last} is empty")
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
            return
        low = bisect_left(lasts, first - 1)  # the first range that touches or lies behind
        high = bisect_right(firsts, last + 1)  # behind the last range that touches
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
        firsts[low:high] = [first]
        lasts[low:high] = [last]

    def add_seqs(self, seqs: Sequence[int]) -> None:
        """Add increasing seqs."""
        if not seqs:
            return
        if seqs[-1] - seqs[0] == len(seqs) - 1:
            self.add(seqs[0], seqs[-1])
            return
        self._aside.update(seqs)
        if len(self._aside) > _ASIDE:
            self._settle()

    def update(self, other: SeqSet) -> None:
        for first, last in other.ranges():
            self.add(first, last)

    def covers(self, first: int, last: int) -> bool:
        """All of `first` to `last` are in the set."""
        self._settle()
        at = bisect_left(self._lasts, first)
        return at < len(self._firsts) and self._firsts[at] <= first and last <= self._lasts[at]

    def includes(self, other: SeqSet) -> bool:
        return all(self.covers(first, last) for first, last in other.ranges())

    def minus(self, other: SeqSet) -> SeqSet:
        """Return the seqs of this set that are not in `other`."""
        made = SeqSet()
        theirs = other.ranges()
        at = 0
        for first, last in self.ranges():
            while at < len(theirs) and theirs[at][1] < first:
                at += 1
            look = at
            while look < len(theirs) and theirs[look][0] <= last:
                if theirs[look][0] > first:
                    made.add(first, theirs[look][0] - 1)
                first = theirs[look][1] + 1
                look += 1
            if first <= last:
                made.add(first, last)
        return made

    def unseen(self, seqs: Sequence[int]) -> list[int] | None:
        """Positions in `seqs` (increasing) that are not in the set; None where that is all of them."""
        if not self or not seqs:
            return None
        first, last = seqs[0], seqs[-1]
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low == high and self._aside.isdisjoint(seqs):
            return None  # without settling: it is asked for each block of streams that log several shapes
        if self.covers(first, last):
            return []
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        seen: set[int] = set()
        for a, b in zip(self._firsts[low:high], self._lasts[low:high], strict=True):
            seen.update(seqs[bisect_left(seqs, a) : bisect_right(seqs, b)])
        if not seen:
            return None
        return list(compress(range(len(seqs)), [seq not in seen for seq in seqs]))

    def _settle(self) -> None:
        if not self._aside:
            return
        seqs = sorted(self._aside)
        self._aside = set()
        if seqs[-1] - seqs[0] == len(seqs) - 1:
            self.add(seqs[0], seqs[-1])
            return
        start = 0
        ends = [at for at, (a, b) in enumerate(pairwise(seqs)) if b - a != 1]
        for end in [*ends, len(seqs) - 1]:
            self.add(seqs[start], seqs[end])
            start = end + 1
