"""Rules of alerts: whatever is given, a rule comes out whole or a BadArgument names it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient import BadArgument
from logclient.shm.alert_rules import ALWAYS, KINDS, checked

ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["when", "key", "value", "steps", "by", "free", "used", "x"])
RULES = st.dictionaries(NAMES, ODD | st.sampled_from(sorted(KINDS)), max_size=6)
KEYS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="<>"), min_size=1, max_size=20
)


@given(
    st.lists(ODD | RULES | st.text(st.sampled_from("loss ><.0123456789efor*spike"), max_size=20), max_size=4)
)
def test_anything_is_a_rule_or_a_bad_argument(rules: list[Any]) -> None:
    """And what came out is taken again as it is: the agent checks what `init` wrote."""
    try:
        found = checked(rules)
    except BadArgument as error:
        assert str(error).startswith("alerts")
        return
    assert checked(found) == found
    for rule in found:
        assert rule.keys() == {"when", *KINDS[rule["when"]]}
        assert all(math.isfinite(value) for value in rule.values() if type(value) is float)


@given(
    KEYS,
    st.sampled_from("<>"),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(1, 1_000_000),
    st.sampled_from(["{k}{s}{v!r} for {n}", "{k} {s} {v!r}  for  {n} steps"]),
)
def test_texts_say_what_dicts_say(key: str, sign: str, value: float, steps: int, form: str) -> None:
    """Whatever the spaces."""
    kind = {">": "over", "<": "under"}[sign]
    text = form.format(k=key, s=sign, v=value, n=steps)
    assert checked([text]) == [{"when": kind, "key": key, "value": value, "steps": steps}]


def test_rules_of_every_run_need_no_field() -> None:
    """They are what holds without a word."""
    assert [rule["when"] for rule in checked(ALWAYS)] == list(ALWAYS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_can_be_written_as_a_dict(kind: str) -> None:
    """With the fields that must be there."""
    needed = {"key": "k", "value": 1}
    rule = {name: needed[name] for name, default in KINDS[kind].items() if default is None}
    assert checked([{"when": kind, **rule}])[0] == {"when": kind, **KINDS[kind], **rule}
