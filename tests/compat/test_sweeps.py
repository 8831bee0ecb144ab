"""The space of a sweep: what a grid lists, and that each distribution stays where its settings put it."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest

from logclient.compat.sweeps import Space

RANGES: list[tuple[dict[str, Any], float, float]] = [
    ({"min": 1, "max": 3}, 1, 3),
    ({"min": 0.5, "max": 2.0}, 0.5, 2.0),
    ({"distribution": "int_uniform", "min": 1, "max": 3}, 1, 3),
    ({"distribution": "uniform", "min": -1, "max": 1}, -1, 1),
    ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25}, 0, 1),
    ({"distribution": "log_uniform", "min": -3, "max": 0}, 0.049, 1.0),
    ({"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1}, 1e-5, 1e-1),
    ({"distribution": "q_log_uniform", "min": 0, "max": 3, "q": 1}, 1, 20),
    ({"distribution": "q_log_uniform_values", "min": 1, "max": 256, "q": 8}, 0, 256),
    ({"distribution": "inv_log_uniform", "min": 0, "max": 3}, 0.049, 1.0),
    ({"distribution": "inv_log_uniform_values", "min": 1e-3, "max": 1.0}, 1e-3, 1.0),
    ({"distribution": "beta", "a": 2, "b": 5}, 0, 1),
    ({"distribution": "log_normal", "mu": 0, "sigma": 0.1}, 0.3, 3),
]


@pytest.mark.parametrize(("given", "low", "high"), RANGES)
def test_random_values_stay_in_their_range(given: dict[str, Any], low: float, high: float) -> None:
    space = Space({"x": given})
    assert not space.troubles
    drawn = [space.draw()["x"] for _ in range(300)]
    assert all(low <= value <= high for value in drawn) and len(set(drawn)) > 1


def test_kinds_of_values() -> None:
    """Ints of ranges of ints and of whole quanta; multiples of the quantum; both ends come."""
    space = Space(
        {
            "int": {"min": 1, "max": 3},
            "whole": {"distribution": "q_log_uniform_values", "min": 1, "max": 256, "q": 8},
            "quarter": {"distribution": "q_normal", "mu": 0, "sigma": 1, "q": 0.25},
            "constant": {"value": [1, 2]},
            "plain": 7,
            "choice": {"values": ["a", None, 3]},
        }
    )
    points = [space.draw() for _ in range(300)]
    assert {point["int"] for point in points} == {1, 2, 3} and type(points[0]["int"]) is int
    assert all(type(point["whole"]) is int and point["whole"] % 8 == 0 for point in points)
    assert all((4 * point["quarter"]).is_integer() for point in points)
    assert all(point["constant"] == [1, 2] and point["plain"] == 7 for point in points)
    assert {point["choice"] for point in points} == {"a", None, 3}


def test_means() -> None:
    """Normal, weighted and log-uniform values lie about where they should."""
    space = Space(
        {
            "normal": {"distribution": "normal", "mu": 10, "sigma": 2},
            "weighted": {"values": [0, 1], "probabilities": [0.1, 0.9]},
            "log": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1.0},
        }
    )
    points = [space.draw() for _ in range(2000)]
    assert 9.5 < statistics.mean(point["normal"] for point in points) < 10.5
    assert 0.85 < statistics.mean(point["weighted"] for point in points) < 0.95
    assert 0.4 < statistics.mean(point["log"] < 1e-2 for point in points) < 0.6


def test_grid_lists_each_point_once() -> None:
    """Nested parameters and ranges of ints, too; the last one changes first; what is continuous is drawn."""
    space = Space(
        {
            "a": {"values": [1, 2]},
            "deep": {
                "parameters": {"b": {"min": 0, "max": 2}, "more": {"parameters": {"c": {"value": "x"}}}}
            },
            "q": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
            "free": {"min": 0.0, "max": 1.0},
        }
    )
    assert space.size == 18 and space.drawn == ["free"]
    points = [space.point(number) for number in range(space.size)]
    seen = [(point["a"], point["deep"]["b"], point["q"]) for point in points]
    assert len(set(seen)) == 18 and seen[0] == (1, 0, 0) and seen[1] == (1, 0, 0.5) and seen[-1] == (2, 2, 1)
    assert all(point["deep"]["more"]["c"] == "x" and 0 <= point["free"] <= 1 for point in points)


def test_what_makes_no_sense_costs_that_parameter_alone() -> None:
    space = Space(
        {"bad": {"min": 3}, "worse": {"distribution": "odd"}, "none": {"values": []}, "good": {"value": 1}}
    )
    assert space.draw() == {"good": 1} and len(space.troubles) == 3


def test_search_and_programs_random_numbers_are_apart() -> None:
    """A seed repeats no search, and a search takes none of the program's numbers."""
    space = Space({"x": {"min": 0.0, "max": 1.0}})
    drawn = []
    for _ in range(2):
        random.seed(0)
        drawn.append(space.draw()["x"])
        number = random.random()
    random.seed(0)
    assert drawn[0] != drawn[1] and number == random.random()
