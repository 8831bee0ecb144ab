"""The space of a search, as a sweep's `parameters` describe it: a grid's points, and random ones.

Pure but for its own source of random numbers: the program's `random.seed` neither repeats a search nor is disturbed.

A parameter is a constant (`value`), a list (`values`, perhaps with `probabilities`), a range (`min`, `max`: of ints
where both are, else of floats), a `distribution`, or a dict of parameters (`parameters`), whose entries are nested.
"""

from __future__ import annotations

import math
import os
from random import Random

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

_MAX_POINTS = 10_000_000  # of one range in a grid


class Parameter:
    """One parameter: the values that a grid tries, if they can be listed, and how one is drawn."""

    def __init__(self, draw: Callable[[Random], Any], listed: Sequence[Any] | None = None) -> None:
        self.draw = draw
        self.listed = listed


class Space:
    """All parameters of a search."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.troubles: list[str] = []
        self._random = Random(os.urandom(16))
        self._parameters = dict(self._flat(parameters, ()))
        self.names = [".".join(path) for path in self._parameters]
        self.drawn = [".".join(path) for path, each in self._parameters.items() if each.listed is None]
        self.size = math.prod(
            len(each.listed) for each in self._parameters.values() if each.listed is not None
        )

    def point(self, number: int) -> dict[str, Any]:
        """The grid's point of this number, from 0; the last parameter changes first."""
        made: dict[str, Any] = {}
        chosen: dict[tuple[str, ...], Any] = {}
        for path, each in reversed(self._parameters.items()):
            if each.listed is None:
                chosen[path] = each.draw(self._random)
            else:
                number, at = divmod(number, len(each.listed))
                chosen[path] = each.listed[at]
        for path in self._parameters:
            _put(made, path, chosen[path])
        return made

    def draw(self) -> dict[str, Any]:
        """A random point."""
        made: dict[str, Any] = {}
        for path, each in self._parameters.items():
            _put(made, path, each.draw(self._random))
        return made

    def _flat(self, parameters: Mapping[str, Any], above: tuple[str, ...]) -> Any:
        for name, given in parameters.items():
            path = (*above, str(name))
            if isinstance(given, dict) and isinstance(given.get("parameters"), dict):
                yield from self._flat(given["parameters"], path)
                continue
            try:
                yield path, _parameter(given)
            except (ArithmeticError, KeyError, TypeError, ValueError) as error:
                what = f"parameter {'.'.join(path)} makes no sense and is left out"
                self.troubles.append(f"{what} ({type(error).__name__}: {error})")


def _put(made: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        made = made.setdefault(name, {})
    made[path[-1]] = value


def _parameter(given: Any) -> Parameter:
    if not isinstance(given, dict):
        return _list([given])
    if "value" in given:
        return _list([given["value"]])
    if "values" in given:
        return _list(list(given["values"]), given.get("probabilities"))
    kind = str(given.get("distribution") or _usual(given))
    if kind == "int_uniform":
        low, high = int(given["min"]), int(given["max"])
        points = range(low, high + 1)
        if not points:
            raise ValueError(f"min {low} is above max {high}")
        return Parameter(
            lambda random: random.randint(low, high), points if len(points) <= _MAX_POINTS else None
        )
    quantum = given.get("q", 1) if kind.startswith("q_") else None
    draw = _DRAWS[kind.removeprefix("q_")](given)
    if quantum is None:
        return Parameter(draw)
    listed = _steps(given, float(quantum)) if kind == "q_uniform" else None
    return Parameter(lambda random: _rounded(draw(random), quantum), listed)


def _usual(given: Mapping[str, Any]) -> str:
    """The distribution of a parameter that names none."""
    if "min" in given and "max" in given:
        are_ints = all(type(given[end]) is int for end in ("min", "max"))
        return "int_uniform" if are_ints else "uniform"
    return "normal" if "mu" in given or "sigma" in given else "none"


def _list(values: list[Any], weights: Any = None) -> Parameter:
    if not values:
        raise ValueError("no values")
    if weights is None:
        return Parameter(lambda random: random.choice(values), values)
    shares = [float(weight) for weight in weights]
    if len(shares) != len(values) or min(shares) < 0 or not sum(shares) > 0:
        raise ValueError("probabilities that do not fit the values")
    return Parameter(lambda random: random.choices(values, shares)[0], values)


def _rounded(value: float, quantum: Any) -> Any:
    """The nearest multiple, an int where the quantum is one."""
    steps = round(value / quantum)
    return steps * quantum


def _steps(given: Mapping[str, Any], quantum: float) -> list[Any] | None:
    low, high = float(given["min"]), float(given["max"])
    count = int((high - low) / quantum + 1e-9) + 1
    return (
        [_rounded(low + at * quantum, given.get("q", 1)) for at in range(count)] if count <= 10_000 else None
    )


def _ends(given: Mapping[str, Any]) -> tuple[float, float]:
    low, high = float(given["min"]), float(given["max"])
    if not low <= high or not math.isfinite(high - low):
        raise ValueError(f"min {low} and max {high} are no range")
    return low, high


def _uniform(given: Mapping[str, Any]) -> Callable[[Random], float]:
    low, high = _ends(given)
    return lambda random: random.uniform(low, high)


def _log_uniform(given: Mapping[str, Any]) -> Callable[[Random], float]:
    """The ends are those of the logarithm."""
    low, high = _ends(given)
    return lambda random: math.exp(random.uniform(low, high))


def _log_uniform_values(given: Mapping[str, Any]) -> Callable[[Random], float]:
    """The ends are those of the value."""
    low, high = _ends(given)
    from_, to = math.log(low), math.log(high)
    return lambda random: min(high, max(low, math.exp(random.uniform(from_, to))))


def _inverse_log_uniform(given: Mapping[str, Any]) -> Callable[[Random], float]:
    low, high = _ends(given)
    return lambda random: math.exp(-random.uniform(low, high))


def _normal(given: Mapping[str, Any]) -> Callable[[Random], float]:
    mu, sigma = float(given.get("mu", 0.0)), float(given.get("sigma", 1.0))
    return lambda random: random.gauss(mu, sigma)


def _log_normal(given: Mapping[str, Any]) -> Callable[[Random], float]:
    draw = _normal(given)
    return lambda random: math.exp(draw(random))


def _beta(given: Mapping[str, Any]) -> Callable[[Random], float]:
    alpha, beta = float(given.get("a", 1.0)), float(given.get("b", 1.0))
    return lambda random: random.betavariate(alpha, beta)


_DRAWS: dict[str, Callable[[Mapping[str, Any]], Callable[[Random], float]]] = {
    "beta": _beta,
    "inv_log_uniform": _inverse_log_uniform,
    "inv_log_uniform_values": _log_uniform_values,  # 1/X from 1/max to 1/min: the same
    "log_normal": _log_normal,
    "log_uniform": _log_uniform,
    "log_uniform_values": _log_uniform_values,
    "normal": _normal,
    "uniform": _uniform,
}
