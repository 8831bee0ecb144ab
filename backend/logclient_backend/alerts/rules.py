"""`Rules`: the rules of one run, over records as they come and over facts, in constant memory.

Runs in an observer or a collector; pure: no files, no clock, no threads.

Invariants:

- at most MAX_SERIES series are watched, and MAX_VALUES values between two looks; `skipped` counts the others;
- of a stream that is over nothing is kept, and an episode that it left open ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from logclient.shm.columns import Columns, read_column

from ..detect.replicas import PREFIX, Difference, ReplicaDetector, fingerprints
from ..detect.straggler import StragglerDetector
from .conditions import Conditions, straggler_finding
from .event import BEGIN, END, Finding
from .facts import Facts
from .series import MAKERS, SeriesRule, finding_of

MAX_SERIES = 500  # a detector takes some 10 KB
MAX_VALUES = 10_000  # between two looks: 0.2 s of CPU where all are looked at by the most expensive detector
_HUGE = 1e300
_MAX_KEYS = 10_000  # whose rules are remembered
_MAX_TIMES = 20_000  # that wait for those of other ranks


def _float(value: float) -> float:
    """Return a number as a float; an int may be beyond what a float holds."""
    if type(value) is float or -_HUGE < value < _HUGE:
        return float(value)
    return math.inf if value > 0 else -math.inf


class _Series:
    """The rules of one key in one stream."""

    __slots__ = ("key", "rank", "rules", "stream")

    def __init__(self, stream: str, key: str, rank: int | None, rules: Sequence[dict[str, Any]]) -> None:
        self.stream, self.key, self.rank = stream, key, rank
        self.rules: list[tuple[dict[str, Any], SeriesRule]] = [
            (rule, MAKERS[rule["when"]](rule)) for rule in rules if rule["when"] in MAKERS
        ]

    def add(self, step: int, value: float) -> list[Finding]:
        found = []
        for rule, watched in self.rules:
            result = watched.add(step, value)
            if result is not None:
                found.append(finding_of(rule, self.key, self.stream, self.rank, result))
        return found

    def end(self) -> list[Finding]:
        """Its stream is over."""
        text = (END, "has no more values, since its process ended", 0, 0.0)
        found = []
        for rule, watched in self.rules:
            if watched.is_open:
                made = finding_of(rule, self.key, self.stream, self.rank, text)
                plain = f"{self.key} {text[1]}"
                found.append(Finding(made.kind, END, plain, made.subject, made.source, made.key, made.rank))
        return found


class _Times:
    """The times of one key by rank, for the straggler rule: each step is judged once all ranks have it."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._detector = StragglerDetector()
        self._newest: dict[int, int] = {}  # rank: its last step
        self._steps: dict[int, dict[int, float]] = {}
        self._waiting = 0  # times in all steps
        self._judged: int | None = None

    def add(self, rank: int, step: int, value: float) -> list[Finding]:
        if step < self._newest.get(rank, step):  # another attempt goes on from a checkpoint
            self._newest, self._steps, self._waiting, self._judged = {}, {}, 0, None
        self._newest[rank] = step
        if self._judged is not None and step <= self._judged:
            return []
        times = self._steps.setdefault(step, {})
        self._waiting += rank not in times
        times[rank] = value
        found: list[Finding] = []
        while self._steps:
            first = min(self._steps)
            is_late = self._waiting > _MAX_TIMES
            if len(self._steps[first]) < len(self._newest) and not is_late:
                break
            if is_late:  # ranks that have not come so far are not waited for
                self._newest = {rank: at for rank, at in self._newest.items() if at >= first}
            seconds = self._steps.pop(first)
            self._waiting -= len(seconds)
            self._judged = first
            found += [straggler_finding(each, self._key) for each in self._detector.add(first, seconds)]
        return found


class _Replicas:
    """Fingerprints of all ranks: one episode for each word of `run.fingerprint(replicas=...)`."""

    def __init__(self, rule: dict[str, Any]) -> None:
        self._tolerance: float = rule["tolerance"]
        self._detector = ReplicaDetector(self._tolerance)
        self._odd: dict[str, set[str]] = {}  # word: tensors that differ now

    def feed(self, columns: Columns) -> Iterator[Finding]:
        """Take the next records of one rank."""
        if columns.rank is None:
            return
        for step, values in fingerprints(columns):
            found = self._detector.add(step, columns.rank, values)
            for word in dict.fromkeys(each.replicas for each in found):
                yield from self._of_word(word, [each for each in found if each.replicas == word])

    def _of_word(self, word: str, found: list[Difference]) -> Iterator[Finding]:
        odd = self._odd.setdefault(word, set())
        subject = f"{word} {self._tolerance:g}" if self._tolerance else word
        was_odd = bool(odd)
        for each in found:
            (odd.discard if each.is_over else odd.add)(each.tensor)
        begun = [each for each in found if not each.is_over]
        if odd and begun and not was_odd:
            first = begun[0]
            more = len(begun) - 1
            others = f"; the same of {more:,} more tensor{'s' * (more != 1)}" if more else ""
            rank = first.ranks[0] if first.is_sure and len(first.ranks) == 1 else None
            yield Finding("replica", BEGIN, f"{first}{others}", subject, rank=rank, step=first.step)
        elif was_odd and not odd:
            yield Finding(
                "replica", END, f"all tensors of {word} are equal again", subject, step=found[-1].step
            )


class Rules:
    """The rules of one run."""

    def __init__(self, rules: Iterable[dict[str, Any]]) -> None:
        """`rules`: as `logclient.shm.alert_rules.checked` returns them."""
        self.rules = list(rules)
        self.conditions = Conditions(self.rules)
        self.skipped = 0  # values that no rule has seen
        self._keyed = [rule for rule in self.rules if rule.get("key")]
        self._by_key: dict[str, tuple[dict[str, Any], ...]] = {}
        self._series: dict[tuple[str, str, int | None], _Series] = {}
        self._times: dict[str, _Times] = {}
        self._replicas = [_Replicas(rule) for rule in self.rules if rule["when"] == "replica"]
        self._values = 0  # since the last look

    @property
    def has_keys(self) -> bool:
        """Does any rule look at values?"""
        return bool(self._keyed or self._replicas)

    @property
    def has_series(self) -> bool:
        """Was any value looked at?"""
        return bool(self._series)

    def wants(self, key: str) -> bool:
        """Does any rule look at this key? Values of others need not be decoded."""
        return bool(self._of_key(key)) or (bool(self._replicas) and key.startswith(PREFIX))

    def feed(
        self, stream: str, key: str, steps: Sequence[int], values: Sequence[Any], rank: int | None = None
    ) -> list[Finding]:
        """Take the next values of one key in one stream, in the order in which they were logged."""
        rules = self._of_key(key)
        if not rules:
            return []
        series = self._series.get((stream, key, rank))
        if series is None and len(self._series) < MAX_SERIES:
            series = self._series[stream, key, rank] = _Series(stream, key, rank, rules)
        self._values += len(values)
        if series is None or self._values > MAX_VALUES:
            self.skipped += len(values)
            return []
        has_times = rank is not None and any(rule["when"] == "straggler" for rule in rules)
        if has_times and key not in self._times:
            self._times[key] = _Times(key)
        times = self._times[key] if has_times else None
        found: list[Finding] = []
        for step, value in zip(steps, values, strict=True):
            if not isinstance(value, (int, float)):
                continue
            number = _float(value)
            found += series.add(step, number)
            if times is not None and rank is not None:
                found += times.add(rank, step, number)
        return found

    def feed_columns(self, stream: str, columns: Columns) -> list[Finding]:
        """Take the next records of a stream; only the values that a rule looks at are decoded."""
        found = [finding for each in self._replicas for finding in each.feed(columns)]
        shape = columns.shape
        for name, code, cell in zip(shape.names, shape.codes, columns.cells, strict=True):
            if code != "s" and self._of_key(name):
                found += self.feed(stream, name, columns.step, read_column(code, cell), columns.rank)
        return found

    def look(self, facts: Facts) -> list[Finding]:
        """Return what the facts of this look begin or end; from here on more values are taken."""
        self._values = 0
        found = self.conditions.look(facts)
        if facts.streams is not None:
            over = [at for at in self._series if at[0] not in facts.streams]
            for at in over:
                found += self._series.pop(at).end()
        return found

    def _of_key(self, key: str) -> tuple[dict[str, Any], ...]:
        rules = self._by_key.get(key)
        if rules is None:
            rules = tuple(rule for rule in self._keyed if fnmatchcase(key, rule["key"]))
            if len(self._by_key) >= _MAX_KEYS:
                self._by_key.clear()
            self._by_key[key] = rules
        return rules
