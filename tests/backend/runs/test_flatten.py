"""Names of what is nested: one rule for filters, sorting and columns."""

from __future__ import annotations

from typing import Any

import pytest

from logclient_backend.runs.flatten import MAX_DEPTH, flattened


@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        ({}, {}),
        ({"a": 1, "b": None}, {"a": 1, "b": None}),
        ({"a": {"b": {"c": True}}, "a::d": 2}, {"a::b::c": True, "a::d": 2}),
        ({"a": [1, [2, {"b": 3}]]}, {"a::0": 1, "a::1::0": 2, "a::1::1::b": 3}),
        ({"a": {}, "b": [], "c": [{}, []]}, {"a": {}, "b": [], "c::0": {}, "c::1": []}),
        ({"": {"": 1}, "::": 2}, {"::": 2}),
        ({"a": (1, 2)}, {"a::0": 1, "a::1": 2}),
    ],
)
def test_what_is_nested_has_one_name(nested: Any, flat: Any) -> None:
    """Of two values of one name the last counts."""
    assert dict(flattened(nested)) == flat


def test_what_lies_too_deep_has_no_name() -> None:
    """And costs nothing: the stack of no thread ends there."""
    nested: Any = {}
    inner = nested
    for _ in range(100_000):
        inner["d"] = {"here": 1}
        inner = inner["d"]
    found = dict(flattened(nested))
    assert len(found) == MAX_DEPTH - 1
    assert max(found, key=len) == "::".join(["d"] * (MAX_DEPTH - 1) + ["here"])
