"""Episodes: one begin and one end for all who find it, the same id everywhere, and not too many messages."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from logclient_backend.alerts import episodes as module
from logclient_backend.alerts.episodes import Episodes
from logclient_backend.alerts.event import BEGIN, END, ONCE, Finding, RunName, of_document
from logclient_backend.alerts.user_alerts import UserAlerts

RUN = RunName("r1", "mlp", "digits", "node1")


def begin(kind: str = "spike", subject: str = "loss", source: str = "a") -> Finding:
    return Finding(kind, BEGIN, "rose", subject, source, key=subject, rank=0)


def end(kind: str = "spike", subject: str = "loss", source: str = "a") -> Finding:
    return Finding(kind, END, "fell", subject, source, key=subject)


def test_all_who_find_it_make_one_episode() -> None:
    """Eight ranks log the same loss: one begin, and one end when the last of them sees it."""
    made = Episodes(RUN)
    events = [made.take(begin(source=f"s{rank}"), 0.0) for rank in range(8)]
    events += [made.take(end(source=f"s{rank}"), 1.0) for rank in range(8)]
    sent = [event for event in events if event is not None]
    assert [event.phase for event in sent] == [BEGIN, END] and sent[0].episode == sent[1].episode
    assert events[-1] is not None and made.take(end(), 2.0) is None


def test_id_is_the_same_on_each_node_and_differs_otherwise() -> None:
    other = Episodes(RunName("r1", node="node2"))
    made = Episodes(RUN)
    assert made.id_of(begin()) == other.id_of(begin(source="else"))
    ids = {made.id_of(each) for each in (begin(), begin(kind="drop"), begin(subject="acc"))}
    ids.add(Episodes(RunName("r2")).id_of(begin()))
    assert len(ids) == 4 and all(len(each) == 16 for each in ids)


def test_what_is_held_back_is_counted_and_told_in_the_next_message() -> None:
    """A bucket per kind; the end of what was held back is not sent, that of the others is."""
    made = Episodes(RUN)
    sent = [made.take(begin(subject=f"k{number}"), 0.0) for number in range(25)]
    assert sum(event is not None for event in sent) == module.KIND_BURST
    assert made.take(end(subject="k20"), 1.0) is None
    last = made.take(begin("drop"), 1.0)
    assert last is not None and last.held_back == {"spike": 15} and "15 of kind spike" in last.line()
    ended = made.take(end(subject="k3"), 2.0)
    assert ended is not None and ended.held_back == {}
    assert made.take(begin(subject="new"), 2.0 + module.KIND_EVERY_S) is not None


def test_all_kinds_share_a_limit() -> None:
    made = Episodes(RUN)
    kinds = [f"kind{number}" for number in range(10)]
    sent = [made.take(Finding(kind, ONCE, "x"), 0.0) for kind in kinds for _ in range(10)]
    assert sum(event is not None for event in sent) == module.ALL_BURST


def test_next_observer_goes_on_with_what_is_open() -> None:
    """An episode is not begun again; it ends with its cause, or after a while if no detector finds that again."""
    made = Episodes(RUN)
    for subject in ("loss", "acc"):
        made.take(begin(subject=subject), 0.0)
    made.take(Finding("stalled", BEGIN, "x"), 0.0)
    following = Episodes(RUN)
    following.restore(json.loads(json.dumps(made.saved())), 100.0)
    assert following.take(begin(), 101.0) is None
    late = following.expire(100.0 + module.CONFIRM_S)
    assert [(event.key, event.phase) for event in late] == [("acc", END)]
    ended = following.take(end(), 102.0)
    stalled = following.take(Finding("stalled", END, "moves"), 103.0)
    assert ended is not None and stalled is not None


def test_everything_ends_with_the_run() -> None:
    made = Episodes(RUN)
    made.take(begin(), 0.0)
    made.take(Finding("stalled", BEGIN, "x"), 0.0)
    assert [event.kind for event in made.end_all("over", ("spike",))] == ["spike"]
    assert [(event.kind, event.text) for event in made.end_all("over")] == [("stalled", "over")]


STEPS = st.lists(
    st.tuples(st.sampled_from("be"), st.sampled_from("xy"), st.sampled_from("abc"), st.floats(0, 100)),
    max_size=60,
)


@given(STEPS)
def test_begins_and_ends_alternate_whatever_is_found(steps: list[tuple[str, str, str, float]]) -> None:
    """Also where messages are held back, and over a change of the observer."""
    made, now, phases = Episodes(RUN), 0.0, {"x": [], "y": []}  # type: ignore[var-annotated]
    for number, (phase, subject, source, wait_s) in enumerate(steps):
        now += wait_s
        if number % 20 == 19:
            following = Episodes(RUN)
            following.restore(json.loads(json.dumps(made.saved())), now)
            made = following
        event = made.take((begin if phase == "b" else end)(subject=subject, source=source), now)
        if event is not None:
            phases[subject].append(event.phase)
            assert of_document(json.loads(event.to_json())) == event
    for found in phases.values():
        assert found == ([BEGIN, END] * len(found))[: len(found)]


ALERTS = st.lists(
    st.dictionaries(
        st.sampled_from(["number", "time", "title", "text", "level", "rank"]), st.integers() | st.text()
    )
)


@given(st.lists(ALERTS | st.integers(), max_size=4))
def test_alerts_of_documents_are_new_once_whatever_they_hold(documents: list[object]) -> None:
    """Documents are anybody's."""
    made = UserAlerts()
    for document in documents:
        found = made.new("p", {"alerts": document})
        assert all(each.missing >= 0 for each in found)
        assert made.new("p", {"alerts": document}) == []


def test_alerts_that_were_not_kept_are_counted() -> None:
    """By the gap between numbers, also over a change of the observer; alerts of old clients have times alone."""
    made = UserAlerts()
    first = made.new("p", {"alerts": [{"number": 1, "title": "a"}, {"number": 4, "title": "b"}]})
    assert [(each.title, each.missing) for each in first] == [("a", 0), ("b", 2)]
    following = UserAlerts(made.saved())
    found = following.new("p", {"alerts": [{"number": 4, "title": "b"}, {"number": 6, "title": "c"}]})
    assert [(each.title, each.missing) for each in found] == [("c", 1)]
    assert [each.title for each in following.new("old", {"alerts": [{"time": 99, "title": "d"}]})] == ["d"]
