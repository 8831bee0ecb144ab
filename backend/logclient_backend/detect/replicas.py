"""`ReplicaDetector`: the rank whose copy of a tensor is not that of its peers, from the sums of `run.fingerprint`.

Ranks that gave the same word are compared tensor by tensor, at each step that at least two of them gave. The value that
most ranks have is the right one; the others are odd. Where no value has more than half of the ranks (two ranks, or
halves), there is no way to decide which is odd: all are named, and `is_sure` is False.

Tolerance 0 compares `bits` alone, which are equal where all elements are equal bit for bit, on whatever devices.
Above 0, norms may differ by that share of the largest one, and sums by that share of the largest norm; of tensors that
have bits only (whole numbers, 8-bit floats), these have to be equal.

False alarms: none on replicas that are equal. Misses: changes whose bits add up to a multiple of 2**52, so an exchange
of two elements; with a tolerance, all within it.

A step is judged once each known rank has given all of it, or has gone on to a later one; at the latest when KEEP newer
steps have begun, without the ranks that lag. The first one always waits that long, as nobody knows the ranks before.
Memory does not grow with the run: for KEEP steps, a few words per tensor
where all ranks agree. One detector belongs to one attempt: a resumed run goes through the same steps again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from logclient.shm.columns import Columns, read_column

PREFIX = "fingerprint/"
BITS, SUM, NORM = "bits", "sum", "norm"
KEEP = 4  # steps
_NAN = "nan"  # equal to itself

Value = float | str
Groups = dict[Value, int]  # value -> ranks, a bit each


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that begins to differ at a step, or (`is_over`) differs no longer."""

    replicas: str
    tensor: str
    step: int
    ranks: tuple[int, ...]  # those that are odd
    others: int  # ranks that agree with each other
    is_sure: bool  # False: there is no way to decide which ranks are odd
    is_over: bool = False

    def __str__(self) -> str:
        """Return a sentence."""
        who = f"rank{'s' * (len(self.ranks) != 1)} {', '.join(map(str, self.ranks))}"
        verb = "differ" if len(self.ranks) != 1 else "differs"
        if self.is_over:
            return f"{self.tensor} of {self.replicas} is equal on all ranks again at step {self.step}"
        if not self.is_sure:
            return f"{self.tensor} of {self.replicas}: {who} differ from each other at step {self.step}"
        return f"{self.tensor} of {self.replicas}: {who} {verb} from the {self.others} others at step {self.step}"


@dataclass(slots=True)
class _Rank:
    """Progress of one rank for one word."""

    bit: int
    newest: int
    count: int = 0  # values at the newest step
    wanted: int = 0  # values at the step before; 0: not known yet


@dataclass(slots=True)
class _Word:
    """All ranks that gave one word."""

    ranks: dict[int, _Rank] = field(default_factory=dict)
    bits: dict[int, int] = field(default_factory=dict)  # rank -> its bit, for good
    steps: dict[int, dict[str, dict[str, Groups]]] = field(
        default_factory=dict
    )  # step -> tensor -> sum -> groups
    judged: int | None = None  # the newest step that was
    odd: dict[str, int] = field(default_factory=dict)  # tensor -> ranks that differ now


def fingerprints(columns: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield step and fingerprints of each record; nothing where no key is one."""
    shape = columns.shape
    values = {
        name: read_column(code, cells)
        for name, code, cells in zip(shape.names, shape.codes, columns.cells, strict=True)
        if name.startswith(PREFIX) and code != "s"
    }
    if values:
        for at, step in enumerate(columns.step):
            yield step, {name: column[at] for name, column in values.items()}


class ReplicaDetector:
    """All fingerprints of one attempt of a run."""

    def __init__(self, tolerance: float = 0.0) -> None:
        if not 0 <= tolerance < 1:
            raise ValueError("a tolerance is a share: from 0 to 1")
        self._tolerance = tolerance
        self._words: dict[str, _Word] = {}
        self.compared = 0  # (tensor, step) pairs of at least two ranks
        self.late = 0  # values of steps that were judged already: not compared

    def add(self, step: int, rank: int, values: Mapping[str, float]) -> list[Difference]:
        """Return what begins or ends with this record; keys that are no fingerprints are skipped."""
        touched = set()
        for key, value in values.items():
            if not key.startswith(PREFIX):
                continue
            word, _, rest = key.removeprefix(PREFIX).partition("/")
            tensor, _, what = rest.rpartition("/")
            if tensor and what in (BITS, SUM, NORM):
                self._add(self._words.setdefault(word, _Word()), step, rank, (tensor, what), value)
                touched.add(word)
        return [found for word in sorted(touched) for found in self._judge_ready(word)]

    def close(self) -> list[Difference]:
        """Judge what is left, with the ranks that have come."""
        found: list[Difference] = []
        for name, word in self._words.items():
            for step in sorted(word.steps):
                found += self._judge(name, word, step)
        return found

    def _add(self, word: _Word, step: int, rank: int, which: tuple[str, str], value: float) -> None:
        bit = word.bits.setdefault(rank, 1 << len(word.bits))
        state = word.ranks.setdefault(rank, _Rank(bit, step))
        if word.judged is not None and step <= word.judged:
            self.late += 1
            return
        if step > state.newest:
            state.newest, state.wanted, state.count = step, state.count, 0
        groups = word.steps.setdefault(step, {}).setdefault(which[0], {}).setdefault(which[1], {})
        if any(ranks & bit for ranks in groups.values()):
            return  # the first one of a step counts
        state.count += step == state.newest
        known: Value = _NAN if math.isnan(value) else value
        groups[known] = groups.get(known, 0) | bit

    def _judge_ready(self, name: str) -> Iterator[Difference]:
        """Judge the oldest steps as long as they are complete, or too many are open."""
        word = self._words[name]
        while word.steps:
            step = min(word.steps)
            lagging = [rank for rank, state in word.ranks.items() if not _has_given(state, step)]
            if (lagging or word.judged is None) and len(word.steps) <= KEEP:
                return
            for rank in lagging:
                del word.ranks[rank]  # nobody waits for it until it comes again
            yield from self._judge(name, word, step)

    def _judge(self, name: str, word: _Word, step: int) -> Iterator[Difference]:
        word.judged = step
        for tensor, sums in word.steps.pop(step).items():
            ranks = 0
            for groups in sums.values():
                for each in groups.values():
                    ranks |= each
            if ranks.bit_count() < 2:
                continue
            self.compared += 1
            right = self._right(sums)
            is_sure = 2 * right.bit_count() > ranks.bit_count()
            odd = ranks & ~right if is_sure else ranks
            before = word.odd.pop(tensor, 0)
            if odd:
                word.odd[tensor] = odd
            if odd & ~before or (before and not odd):
                named = tuple(sorted(rank for rank, bit in word.bits.items() if bit & odd))
                others = right.bit_count()
                yield Difference(name, tensor, step, named, others, is_sure, is_over=not odd)

    def _right(self, sums: dict[str, Groups]) -> int:
        """Return the ranks that agree with the most, in all sums that count."""
        if not self._tolerance or NORM not in sums:
            return _most(sums.get(BITS, {}), lambda one, other: one == other)
        largest = max((abs(value) for value in sums[NORM] if not isinstance(value, str)), default=0.0)
        right = _most(sums[NORM], lambda one, other: self._is_near(one, other, largest))
        return right & _most(sums.get(SUM, {}), lambda one, other: self._is_near(one, other, largest))

    def _is_near(self, one: Value, other: Value, scale: float) -> bool:
        if isinstance(one, str) or isinstance(other, str) or math.isinf(one) or math.isinf(other):
            return one == other
        return abs(one - other) <= self._tolerance * scale


def _has_given(state: _Rank, step: int) -> bool:
    """Has this rank given all of that step, as far as its step before shows?"""
    return state.newest > step or (state.newest == step and 0 < state.wanted <= state.count)


def _most(groups: Groups, is_near: Callable[[Value, Value], bool]) -> int:
    """Return the ranks of the value that most ranks are near, with those that are near it."""
    best = 0
    for value in sorted(groups, key=lambda each: -groups[each].bit_count()):
        near = 0
        for other, ranks in groups.items():
            if is_near(value, other):
                near |= ranks
        if near.bit_count() > best.bit_count():
            best = near
    return best
