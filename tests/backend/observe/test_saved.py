"""Dataclasses as JSON and back, and what untrusted JSON is told."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import BadArgument
from logclient_backend.observe import report
from logclient_backend.observe.process import Sample
from logclient_backend.observe.report import Node, Report
from logclient_backend.observe.saved import Damaged, from_json, to_json
from logclient_backend.observe.stacks import Frame, Stacks, Thread
from logclient_backend.observe.verdict import Look, Observed

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=5),
    bool: st.booleans(),
}


def values(expected: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any value of the type of a field; children have no children."""
    if dataclasses.is_dataclass(expected):
        hints = typing.get_type_hints(expected)
        fields = {field.name: values(hints[field.name], depth + 1) for field in dataclasses.fields(expected)}
        return st.builds(typing.cast(Any, expected), **fields)
    origin, inner = typing.get_origin(expected), typing.get_args(expected)
    if origin is types.UnionType:
        return st.none() | values(inner[0], depth)
    if origin in (tuple, list):
        if inner[0] is Observed and depth > 2:
            return st.just([])
        return st.lists(values(inner[0], depth + 1), max_size=2).map(origin)
    return PLAIN[expected]


@given(values(Report))
def test_report_comes_back_as_it_was(made: Report) -> None:
    """Through text, whatever it holds."""
    assert from_json(Report, json.loads(json.dumps(to_json(made)))) == made


def a_report() -> dict[str, Any]:
    frames = (Frame("f", "/x.py", 3),)
    look = Look(Sample(7, 1, "python", "S", 1, 0.5), Stacks(7, (Thread(7, "", True, False, frames),)))
    return to_json(Report(Node("host", "node", "boot", 1, "run"), [Observed(7, look, look, 1.0, 0)]))


def without(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(made: dict[str, Any]) -> None:
        inner: Any = made
        for word in path[:-1]:
            inner = inner[word]
        del inner[path[-1]]

    return change


def with_(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    def change(made: dict[str, Any]) -> None:
        inner: Any = made
        for word in path[:-1]:
            inner = inner[word]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("node"), "node is missing"),
        (without("processes", 0, "second", "stacks"), "processes[0].second.stacks is missing"),
        (with_("7", "processes", 0, "pid"), "processes[0].pid is a text, not a whole number"),
        (with_(True, "processes", 0, "pid"), "processes[0].pid is true or false"),
        (with_(1 << 70, "processes", 0, "pid"), "processes[0].pid is a number of more than 64 bits"),
        (with_(float("nan"), "processes", 0, "apart_s"), "processes[0].apart_s is no finite number"),
        (with_({}, "processes"), "processes is an object, not a list"),
        (with_([None], "processes"), "processes[0] is null, not an object"),
        (with_(["f"], "processes", 0, "second", "stacks", "threads", 0, "frames"), "frames[0] is a text"),
        (with_(None, "node", "host"), "node.host is null, not a text"),
    ],
)
def test_untrusted_json_is_refused_with_the_place(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    """Missing and wrong values, at any depth."""
    made = a_report()
    assert from_json(Report, made).processes[0].pid == 7
    change(made)
    with pytest.raises(Damaged) as caught:
        from_json(Report, made)
    assert said in str(caught.value)


def test_fields_of_newer_versions_are_passed_over_and_depth_is_bounded() -> None:
    """A report with more in it is read; one whose children never end is not."""
    made = a_report()
    made["tomorrow"] = made["node"]["tomorrow"] = [1]
    assert from_json(Report, made) == from_json(Report, a_report())
    inner = made["processes"][0]
    for _ in range(100):
        inner["children"] = [json.loads(json.dumps(a_report()["processes"][0]))]
        inner = inner["children"][0]
    with pytest.raises(Damaged, match="nested too deeply"):
        from_json(Report, made)


def output(*reports_: dict[str, Any]) -> bytes:
    return json.dumps({"why": report.VERSION, "reports": list(reports_)}).encode()


def test_outputs_one_after_the_other_are_read() -> None:
    """Several nodes that write to one file leave their outputs one after the other; each is read."""
    data = output(a_report()) + b"\n" + output(a_report(), a_report())
    assert len(report.reports_in(data, "x")) == 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b"{", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\xff\xfe", "not JSON"),
        (b"9" * 5000, "not JSON"),
        (b"9", "`why` is missing"),
        (b"[]", "`why` is missing"),
        (b'{"why": 2, "reports": []}', "it is of version 2"),
        (b'{"why": 1}', "`reports` is missing"),
        (b'{"why": 1, "reports": [{}]}', "reports[0].node is missing"),
        (b'{"why": 1, "reports": []} x', "not JSON"),
    ],
)
def test_file_that_is_no_report_is_named(data: bytes, said: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(BadArgument) as caught:
        report.reports_in(data, "node7.json")
    text = str(caught.value)
    assert text.startswith("node7.json is no output of `logclient why --json`") and said in text
