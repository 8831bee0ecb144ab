"""The layer of edits: whose edit holds, that merging is a union, its bounds, and its bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.errors import BadArgument, LogclientError, Unsupported
from logclient_backend.runs import edits as layer
from logclient_backend.runs.edits import COLLECTOR, FOLDER, NONE, TAG, Changes, Edit, Edits

WHO = "uid 1000 (anna)"


def edit(field: str = "name", value: Any = "x", counter: int = 1, origin: int = 1, tag: str = "") -> Edit:
    return Edit(field, tag, value, counter, f"{origin:016x}", WHO, FOLDER, 0)


_TEXT_EDITS = st.builds(
    edit,
    st.sampled_from(layer.TEXTS),
    st.sampled_from(["a", "b", None]),
    st.integers(1, 12),
    st.integers(0, 3),
)
_TAG_EDITS = st.builds(
    edit,
    st.just(TAG),
    st.sampled_from([True, False, None]),
    st.integers(1, 12),
    st.integers(0, 3),
    st.sampled_from("abc"),
)
_SETS = st.lists(st.one_of(_TEXT_EDITS, _TAG_EDITS), max_size=60).map(Edits)


@given(_SETS, _SETS, _SETS)
def test_merging_is_a_union(one: Edits, two: Edits, three: Edits) -> None:
    """In any order, any number of times, through any place in between."""
    assert one.merged(two) == two.merged(one)
    assert one.merged(two).merged(three) == one.merged(two.merged(three)) == three.merged(two, one)
    assert one.merged(one) == one.merged(NONE) == one
    assert one.merged(two).merged(two) == one.merged(two)


@given(st.data())
def test_merging_is_a_union_where_tags_are_cut(data: st.DataObject) -> None:
    """Also beyond the most tag edits that a run keeps: what is cut first is what would be cut last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer, "MAX_TAG_EDITS", 6)
        one, two, three = (data.draw(st.lists(_TAG_EDITS, max_size=30).map(Edits)) for _ in range(3))
        assert len(one) <= 6
        assert one.merged(two) == two.merged(one)
        assert one.merged(two).merged(three) == one.merged(two.merged(three)) == one.merged(two, three)


@given(_SETS)
def test_bytes_give_the_same_edits(edits: Edits) -> None:
    """And the same edits the same bytes."""
    data = edits.dumps()
    assert layer.loads(data) == edits
    assert layer.loads(data).dumps() == data and layer.loads(data).digest == edits.digest


def test_an_edit_holds_until_it_is_undone() -> None:
    """The last writer of a field wins; undone, what the program has set is there again."""
    edits = NONE.edited(Changes(name="a", notes="n"), WHO, FOLDER, 5).edited(
        Changes(name="b"), WHO, FOLDER, 3
    )
    assert [edits.text(field, "below") for field in layer.TEXTS] == ["b", "below", "n"]
    assert edits.fields == ["name", "notes"], "an earlier time of a later edit changes nothing"
    undone = edits.edited(Changes(undo=["name"]), WHO, FOLDER, 9)
    assert undone.text("name", "below") == "below" and undone.fields == ["notes"]
    assert undone.edited(Changes(undo=["name", "tags"]), WHO, FOLDER, 9) is undone
    assert undone.edited(Changes(name="c"), WHO, FOLDER, 9).text("name", "below") == "c"


def test_tags_of_two_people_merge() -> None:
    """Each tag is a field of its own; the order is that of the program, then of the edits."""
    base = NONE.edited(Changes(tags=["x"]), WHO, FOLDER, 0)
    anna = base.edited(Changes(tags=["anna"], untag=["draft"]), "anna", FOLDER, 0)
    bert = base.edited(Changes(tags=["bert"]), "bert", COLLECTOR, 0)
    merged = anna.merged(bert)
    assert set(merged.tags(["draft", "kept"])) == {"kept", "x", "anna", "bert"}
    assert merged.tags(["draft", "kept"])[:2] == ["kept", "x"]
    assert merged.edited(Changes(undo=["tags"]), WHO, FOLDER, 0).tags(["draft", "kept"]) == ["draft", "kept"]


def test_the_same_edit_wins_everywhere() -> None:
    """Two edits that did not see each other: the counter decides, then the origin."""
    low, high = edit(value="low", counter=2, origin=9), edit(value="high", counter=3, origin=1)
    assert Edits([low, high]).text("name", "") == "high"
    one, other = edit(value="one", counter=3, origin=1), edit(value="other", counter=3, origin=2)
    assert Edits([one, other]).text("name", "") == Edits([other, one]).text("name", "") == "other"
    assert Edits([other]).edited(Changes(name="later"), WHO, FOLDER, 0).newest["name", ""].counter == 4


def test_an_edit_that_changes_nothing_is_none() -> None:
    """Asked for twice, it is kept once."""
    edits = NONE.edited(Changes(tags=["a"], name="n"), WHO, FOLDER, 0)
    assert edits.edited(Changes(tags=["a"], name="n"), "another", COLLECTOR, 1) is edits


def test_history_is_bounded() -> None:
    """The newest edits of each field stay; a run has at most 250 edited tags, and says so."""
    edits = NONE
    for number in range(50):
        edits = edits.edited(Changes(name=str(number), notes=str(number)), WHO, FOLDER, 0)
    assert [each.value for each in edits if each.field == "name"] == [str(each) for each in range(42, 50)]
    assert len([each for each in edits if each.field == "notes"]) == layer.KEPT_LONG
    tags = [str(number) for number in range(layer.MAX_TAGS)]
    edits = edits.edited(Changes(tags=tags), WHO, FOLDER, 0)
    for number in range(10):
        edits = edits.edited(Changes(tags=tags) if number % 2 else Changes(untag=tags), WHO, FOLDER, 0)
    assert len(edits.holding) == layer.MAX_TAGS + 2 and len(edits) <= layer.MAX_TAG_EDITS + 12
    with pytest.raises(BadArgument, match="at most 250"):
        edits.edited(Changes(tags=["one more"]), WHO, FOLDER, 0)
    assert edits.edited(Changes(tags=["1"], untag=["2"]), WHO, FOLDER, 0).tags([])


def test_largest_edits_fit_their_file() -> None:
    """With texts of characters that take most bytes."""
    char = "\U0001f600"
    edits = NONE
    for number in range(layer.KEPT):
        texts: Any = {field: str(number) + char * (layer.MAX_TEXT[field] - 1) for field in layer.TEXTS}
        names = [f"{tag:03d}" + char * (layer.MAX_TEXT[TAG] - 3) for tag in range(layer.MAX_TAGS)]
        added, gone = (names, list[str]()) if number % 2 else (list[str](), names)
        edits = edits.edited(Changes(**texts, tags=added, untag=gone), char * 200, FOLDER, 0)
    assert 2 << 20 < len(edits.dumps()) < layer.MAX_BYTES
    assert layer.loads(edits.dumps()) == edits


@pytest.mark.parametrize(
    "changes",
    [
        Changes(name=""),
        Changes(name=" "),
        Changes(name="a\nb"),
        Changes(name="x" * 513),
        Changes(notes="\x1b[2J"),
        Changes(notes="x" * 65537),
        Changes(group="\ud800"),
        Changes(tags=[""]),
        Changes(tags=["x" * 257]),
        Changes(tags=["a"], untag=["a"]),
        Changes(undo=["state"]),
    ],
)
def test_what_no_run_can_have_is_refused(changes: Changes) -> None:
    """With a sentence, and nothing is changed."""
    with pytest.raises(BadArgument):
        NONE.edited(changes, WHO, FOLDER, 0)


GOOD = json.loads(Edits([edit()]).dumps())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"version": 1}',
        json.dumps(GOOD | {"digest": "0" * 32}).encode(),
        json.dumps(GOOD | {"edits": [None]}).encode(),
        *(
            json.dumps(GOOD | {"edits": [GOOD["edits"][0] | wrong]}).encode()
            for wrong in (
                {"field": "state"},
                {"field": ["name"]},
                {"value": 1},
                {"value": "\x00"},
                {"tag": "x"},
                {"counter": 0},
                {"counter": True},
                {"counter": 1 << 60},
                {"origin": "../"},
                {"who": "\x1b"},
                {"place": "moon"},
                {"time_ns": 1 << 63},
            )
        ),
    ],
)
def test_damage_is_seen(raw: bytes) -> None:
    """Bytes that are no edits of ours raise `ValueError`, whatever they are."""
    with pytest.raises(ValueError):
        layer.loads(raw)


def test_edits_of_a_newer_version_are_not_guessed() -> None:
    with pytest.raises(Unsupported):
        layer.loads(json.dumps(GOOD | {"version": 2}).encode())


def test_a_counter_at_its_end_is_said() -> None:
    """Whoever brought it: no edit is lost silently."""
    with pytest.raises(LogclientError, match="cannot be edited again"):
        Edits([edit(counter=(1 << 53) - 1)]).edited(Changes(name="y"), WHO, FOLDER, 0)
