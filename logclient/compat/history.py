"""Rows and steps as W&B has them: what is logged for one step is one row, the newest value of a key counts.

Runs in the training process, in whatever thread logs.

Invariants:

- a call without `step` ends the row and the step, unless `commit=False`; one with `step` ends the row of an earlier
  step and leaves its own open, unless `commit=True`; a step before the current one is a row of its own, stored under
  that step at once;
- a value in an open row is what it was when it was logged: host values are read, device values copied on the device.
"""

from __future__ import annotations

import sys
from threading import RLock

from logclient.encode import tensor, values
from logclient.guest import foreign
from logclient.run import refuse

from .config_and_summary import entries_of
from .media import Media, Stored
from .stand_ins import Inert, warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from logclient.null import NullRun
    from logclient.run import Run

    from .config_and_summary import Summary

_SEPARATOR = "."  # between the keys of nested dicts
_MAX_KEYS = 10_000  # of which the summary has the last value


class Rule:
    """A rule of `define_metric` about a key, or about all that begin with it."""

    __slots__ = ("kinds", "step_metric")

    def __init__(self, kinds: frozenset[str], step_metric: str | None) -> None:
        self.kinds = kinds
        self.step_metric = step_metric


class History:
    """The rows of one run."""

    def __init__(self, run: Run | NullRun, summary: Summary, step: int = 0) -> None:
        self.step = self.first_step = step  # the next row's
        self._run = run
        self._summary = summary
        self._row: dict[Any, Any] = {}
        self._rules: dict[str, Rule] = {}  # a name that ends in `*` stands for all that begin so
        self._known: dict[str, Rule | None] = {}
        self._means: dict[str, tuple[float, int]] = {}
        self._lock = RLock()  # a signal handler may log, too

    def define(self, name: str, rule: Rule) -> None:
        """A rule from now on; a name may end in `*`."""
        with self._lock:
            self._rules[name] = rule
            self._known.clear()

    def log(self, data: Mapping[str, Any], step: object = None, commit: bool | None = None) -> None:
        """One call of `wandb.log`. A failure of ours is counted and said once."""
        try:
            self._log(data, step, commit)
        except Exception as error:
            if not foreign.is_own(error):
                raise
            self._refuse("failure", f"a failure of logclient itself: {type(error).__name__}")

    def _log(self, data: Mapping[str, Any], step: object, commit: bool | None) -> None:
        if not issubclass(type(data), dict):
            try:
                data = foreign.call(dict, data)
            except foreign.Failed:
                return self._refuse(
                    "metrics", f"log takes a dict of key to value, not a {type(data).__name__}"
                )
        with self._lock:
            if step is not None:
                whole = _whole(step)
                if whole is None:
                    return self._refuse("step", "a step that is no whole number known to the host")
                if whole < self.step:
                    return self._log_back(data, whole)
                if whole > self.step:
                    self._write()
                    self.step = whole
            does_end = step is None if commit is None else bool(commit)
            self._take(data, "", 1, copies=not does_end)
            if does_end:
                self._write()
                self.step += 1

    def _log_back(self, data: Mapping[str, Any], step: int) -> None:
        """A row of a step that is over: stored under its own step; the open row and the next step stay as they are."""
        warn(
            self._run,
            f"wandb.log(step={step}) comes after step {self.step}: such rows are stored under the steps they name",
            "step back",
        )
        open_row, open_step = self._row, self.step
        self._row, self.step = {}, step
        try:
            self._take(data, "", 1, copies=False)
            self._write()
        finally:
            self._row, self.step = open_row, open_step

    def log_apart(self, step: int, row: dict[str, Any]) -> None:
        """A record beside the rows, at a step of its own; the summary has its values."""
        with self._lock:
            self._run.log(step, row)
            self._summarize(row)

    def flush(self) -> None:
        """End the row that is open."""
        with self._lock:
            if self._row:
                self._write()
                self.step += 1

    def forget_row(self) -> None:
        """In a forked child: the open row is the parent's."""
        self._row = {}
        self._lock = RLock()

    def _take(self, data: Mapping[Any, Any], prefix: str, depth: int, copies: bool) -> None:
        for key, value in data.items():
            name = f"{prefix}{key}" if type(key) in (str, int) else key
            if issubclass(type(value), dict) and depth < values.MAX_DEPTH and type(name) is str:
                self._take(value, name + _SEPARATOR, depth + 1, copies)
                continue
            if type(value) in (list, tuple) and value and all(isinstance(each, Stored) for each in value):
                # a list of images is one value of W&B's
                self._take(
                    {f"{key}/{at}" if at else key: each for at, each in enumerate(value)},
                    prefix,
                    depth,
                    copies,
                )
                continue
            if isinstance(value, (Media, Inert)) and not isinstance(value, Stored):
                kind = type(value).__name__ if isinstance(value, Media) else repr(value)
                warn(self._run, f"{kind}: left out and counted, nothing is kept of what is to be shown")
            self._row[name] = _as_it_is(value, copies)

    def _write(self) -> None:
        row, self._row = self._row, {}
        if not row:
            return
        if self._rules:
            for key in tuple(row):
                rule = self._rule(key)
                metric = rule.step_metric if rule is not None else None
                if metric is not None and metric not in row and metric in entries_of(self._summary):
                    row[metric] = entries_of(self._summary)[metric]
        self._run.log(self.step, row)
        self._summarize(row)

    def _summarize(self, row: dict[Any, Any]) -> None:
        data = entries_of(self._summary)
        for key, value in row.items():
            if type(key) is not str or type(value) not in (float, int, bool, str):
                continue
            rule = self._rule(key) if self._rules else None
            if rule is None or not rule.kinds:
                if key in data or len(data) < _MAX_KEYS:
                    data[key] = value
            elif type(value) is not str:
                self._apply(key, value, rule.kinds)

    def _apply(self, key: str, value: float, kinds: frozenset[str]) -> None:
        data = entries_of(self._summary)
        for kind in kinds:
            name = f"{key}.{kind}"
            known: Any = data.get(name)
            if kind == "last":
                data[key] = value
            elif kind == "mean":
                total, count = self._means.get(key, (0.0, 0))
                self._means[key] = total + value, count + 1
                data[name] = (total + value) / (count + 1)
            elif kind == "first":
                data.setdefault(name, value)
            elif kind in ("min", "max"):
                # else nothing is there, or what a user put there
                is_number = isinstance(known, (int, float)) and known == known
                if not is_number or (value < known if kind == "min" else value > known):
                    data[name] = value

    def _rule(self, key: object) -> Rule | None:
        if type(key) is not str:
            return None
        if key not in self._known:
            if len(self._known) >= _MAX_KEYS:
                self._known.clear()
            globs = [name for name in self._rules if name.endswith("*") and key.startswith(name[:-1])]
            found = key if key in self._rules else max(globs, key=len, default="")
            self._known[key] = self._rules.get(found)
        return self._known[key]

    def _refuse(self, cause: str, why: str) -> None:
        refuse(self._run, cause, why)


def _whole(step: object) -> int | None:
    """Return the value as an int; None where it is none, or lies on a device."""
    if type(step) is int:
        return step
    try:
        code, number = values.convert(step)
    except values.LeftOut:
        return None
    return int(number) if code in "qbidr" and number - number == 0 else None


def _as_it_is(value: Any, copies: bool) -> Any:
    """A value that nobody changes afterwards; of a device's value a copy there, where it will wait for its row."""
    kind = type(value)
    if kind in (float, int, bool, str):
        return value
    is_tensor = tensor.is_tensor(value)
    if is_tensor or kind.__module__ == "numpy":
        try:
            code, number = values.convert(value)
        except values.LeftOut:
            return value  # `Run.log` says why
        if code != tensor.CODE:
            return bool(number) if code == "b" else number
        if copies and is_tensor:
            try:
                return foreign.call(_copy, value)
            except foreign.Failed:
                return value
    return value


def _copy(value: Any) -> Any:
    with sys.modules["torch"].no_grad():
        return value.detach().clone()
