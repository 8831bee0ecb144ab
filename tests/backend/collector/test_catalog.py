"""What a run is, from its documents; and how it is now, by the collector's clock alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from logclient_backend.collector import catalog as catalogs
from logclient_backend.collector.catalog import Catalog, Outdated, Unreadable, state_now
from logclient_backend.collector.store.interface import Description, Run
from logclient_backend.runs import folder
from logclient_backend.runs.state import State
from logclient_backend.runs.view import view
from logclient_backend.wal.coverage import Spans

from ..runs.build import NOW_NS, SECOND, NodeMaker, process_id

HOUR = 3600 * SECOND
OURS = NOW_NS + 24 * HOUR  # the collector's clock is a day ahead


class Documents(dict[str, dict[str, bytes]]):
    """What the store has, by run and node."""

    asked = 0

    def of(self, run: str) -> Mapping[str, bytes]:
        self.asked += 1
        return self.get(run, {})


def packed(node: NodeMaker, **changes: Any) -> bytes:
    return json.dumps({**node.content(), **changes}).encode()


@pytest.fixture
def documents() -> Documents:
    return Documents()


@pytest.fixture
def catalog(documents: Documents) -> Catalog:
    return Catalog(documents.of, lambda run: Spans())


def running(tmp_path: Path, node: str = "00000000000000aa", number: int = 1, **more: Any) -> NodeMaker:
    made = NodeMaker(tmp_path / node, "mlp", node)
    made.process(number, **more)
    return made


def test_description_says_what_the_local_view_says(tmp_path: Path, catalog: Catalog) -> None:
    """Config, summary, state and all: by the same code, for a run that is over."""
    made = NodeMaker(tmp_path, "mlp")
    made.process(
        1,
        rank=0,
        end={"time": NOW_NS + 60 * SECOND, "alive": False, "exit_code": 0},
        documents={
            "config": {"lr": 0.1, "deep": {"a": [1, None]}},
            "summary": {"best": 3},
            "about": {"name": "first", "tags": ["x"], "notes": "n", "group": "g"},
            "state": {"state": "finished", "by": "finish"},
        },
    )
    made.told(1, 1, accepted=10, stored=8, damaged=1)
    made.save()
    (found,) = folder.find(str(tmp_path), live_dirs=[])
    local = view(found)
    told = catalog.take("mlp", made.node, packed(made), OURS, is_sync=False)
    assert told is not None
    assert (told.name, told.project, told.group, told.notes, told.tags) == (
        "first",
        "digits",
        "g",
        "n",
        ("x",),
    )
    assert (told.config, told.summary) == (local.config, local.summary)
    assert (told.state, told.reason) == (local.state.name, local.state.cause) == ("finished", "")
    assert (told.created_ns, told.ended_ns) == (local.created_ns, local.state.since_ns)
    assert told.counts == local.counts() and told.counts["forgotten"] == 1
    assert told.attempts == {process_id(1): 1} and told.ranks == (0,)


@pytest.mark.parametrize("skew_ns", [-30 * 86400 * SECOND, 0, 30 * 86400 * SECOND])
def test_wrong_clock_of_a_host_makes_no_live_run_lost(tmp_path: Path, catalog: Catalog, skew_ns: int) -> None:
    """Two nodes, one with a clock that is a month off: both are heard, so the run runs."""
    a = running(tmp_path)
    b = running(tmp_path, "00000000000000bb", 2)
    b.heard_ns += skew_ns
    for second in range(3):
        now = OURS + second * SECOND
        catalog.take("mlp", a.node, packed(a, closed=False), now, is_sync=False)
        told = catalog.take("mlp", b.node, packed(b, closed=True), now, is_sync=False)
        assert told is not None and told.state == "running", told


def test_node_that_is_silent_for_long_is_lost_by_our_clock(tmp_path: Path, catalog: Catalog) -> None:
    """Its owner was on it; another node, whose process is none, goes on."""
    a = running(tmp_path)
    b = running(tmp_path, "00000000000000bb", 2, role="joined")
    catalog.take("mlp", a.node, packed(a), OURS, is_sync=False)
    told = catalog.take("mlp", b.node, packed(b), OURS + 59 * SECOND, is_sync=False)
    assert told is not None and told.state == "running"
    told = catalog.take("mlp", b.node, packed(b), OURS + 62 * SECOND, is_sync=False)
    assert told is not None and told.state == "lost"
    catalog.seen("mlp", a.node, OURS + 63 * SECOND)
    told = catalog.take("mlp", b.node, packed(b), OURS + 64 * SECOND, is_sync=False)
    assert told is not None and told.state == "running"


def test_second_attempt_on_another_node_is_one(tmp_path: Path, catalog: Catalog) -> None:
    """The first was never seen to end; it has been silent since."""
    a = running(tmp_path)
    b = running(tmp_path, "00000000000000bb", 2, created_ns=NOW_NS + 2 * HOUR)
    b.heard_ns = NOW_NS + 3 * HOUR
    catalog.take("mlp", a.node, packed(a), OURS, is_sync=False)
    told = catalog.take("mlp", b.node, packed(b), OURS + 2 * HOUR, is_sync=False)
    assert told is not None
    assert told.attempts == {process_id(1): 1, process_id(2): 2} and told.state == "running"


def test_started_again_it_reads_the_other_nodes_from_the_store(
    tmp_path: Path, catalog: Catalog, documents: Documents
) -> None:
    """And asks for them once."""
    a, b = running(tmp_path), running(tmp_path, "00000000000000bb", 2, role="joined")
    documents["mlp"] = {a.node: packed(a), b.node: b"{ damaged"}
    for _ in range(5):
        told = catalog.take("mlp", b.node, packed(b), OURS, is_sync=False)
    assert told is not None and set(told.attempts) == {process_id(1), process_id(2)}
    assert documents.asked == 1


def test_memory_of_documents_is_bounded(
    tmp_path: Path, catalog: Catalog, documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that nothing came for are forgotten first, and read again when they come."""
    made = running(tmp_path)
    content = packed(made)
    monkeypatch.setattr(catalogs, "_KEPT_BYTES", 3 * len(content))
    for number in range(20):
        catalog.take(f"run{number}", made.node, content, OURS, is_sync=False)
    assert len(catalog._runs) <= 4
    documents["run0"] = {made.node: content}
    told = catalog.take("run0", "00000000000000bb", content, OURS, is_sync=False)
    assert told is not None and told.more["nodes"] == 2


def test_a_run_of_many_nodes_is_derived_seldom_and_in_the_end(tmp_path: Path, documents: Documents) -> None:
    """Where it takes long it is put off, never left out: `overdue` names it when it is due."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # so deriving takes a second
        return now[0]

    catalog = Catalog(documents.of, lambda run: Spans(), clock=clock)
    made = running(tmp_path)
    assert catalog.take("mlp", made.node, packed(made, closed=False), OURS, is_sync=False) is not None
    assert catalog.take("mlp", made.node, packed(made, closed=False), OURS, is_sync=False) is None
    assert catalog.overdue() == []
    now[0] += 100.0
    assert catalog.overdue() == [("mlp", made.node)]
    assert catalog.again("mlp", OURS) is not None
    assert catalog.overdue() == []
    made.process(2)
    assert catalog.take("mlp", made.node, packed(made), OURS, is_sync=False) is not None, "news do not wait"


def test_a_round_costs_the_same_however_many_runs_are_known(
    tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done at each commit; counted in lines of code, which no other load changes."""
    made = running(tmp_path)
    content = packed(made, closed=False)

    def lines() -> int:
        count = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            count += event == "line" and frame.f_code.co_filename == catalogs.__file__
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            catalog.take("mlp", made.node, content, OURS, is_sync=False, is_urgent=True)
            assert not list(catalog.overdue())
        finally:
            sys.settrace(before)
        return count

    lines()
    few = lines()
    for number in range(200):
        catalog.take(f"run{number}", made.node, content, OURS, is_sync=False)
    assert len(catalog._runs) == 201
    assert lines() == few


def test_upload_of_an_old_run_does_not_look_alive(tmp_path: Path, catalog: Catalog) -> None:
    """It is as old as it says; between two uploads only the time that passed there counts."""
    made = running(tmp_path)

    def upload(heard_ns: int, now_ns: int) -> int:
        content = packed(made, heard_ns=heard_ns, closed=False)
        catalog.take("mlp", made.node, content, now_ns, is_sync=True)
        return catalog.alive_ns("mlp", made.node, now_ns)

    assert upload(NOW_NS, OURS) == NOW_NS
    assert upload(NOW_NS, OURS + HOUR) == 0, "nothing new"
    # its clock is a day behind ours, and it goes on: ten minutes there are ten minutes here
    assert upload(NOW_NS + 600 * SECOND, OURS + HOUR + 600 * SECOND) == OURS + HOUR + 600 * SECOND
    assert upload(NOW_NS + 601 * SECOND, OURS + 9 * HOUR) == OURS + HOUR + 601 * SECOND
    assert upload(NOW_NS + 99 * HOUR, OURS + 10 * HOUR) == OURS + 10 * HOUR, "never later than now"


def test_upload_of_an_older_copy_changes_nothing(tmp_path: Path, catalog: Catalog) -> None:
    """A copy that was taken while the run went on, and is synced when it is over."""
    made = running(tmp_path)
    over = packed(made, heard_ns=NOW_NS + HOUR, closed=True)
    early = packed(made, heard_ns=NOW_NS, closed=False)
    assert catalog.take("mlp", made.node, over, OURS, is_sync=False) is not None
    with pytest.raises(Outdated):
        catalog.take("mlp", made.node, early, OURS, is_sync=True)
    catalog.take("mlp", made.node, over, OURS, is_sync=True)
    catalog.take("mlp", made.node, early, OURS, is_sync=False)  # its clock was set back: it must know


@pytest.mark.parametrize("is_sync", [True, False])
def test_the_higher_revision_wins_whatever_the_clock_says(
    tmp_path: Path, catalog: Catalog, is_sync: bool
) -> None:
    """A node whose clock was set back by an hour has news; one whose clock was set forth is still an old copy."""
    made = running(tmp_path)
    first = packed(made, revision=7, heard_ns=NOW_NS + HOUR)
    later = packed(made, revision=8, heard_ns=NOW_NS, closed=True)
    copied = packed(made, revision=6, heard_ns=NOW_NS + 2 * HOUR)
    assert catalog.take("mlp", made.node, first, OURS, is_sync=is_sync) is not None
    assert catalog.take("mlp", made.node, later, OURS, is_sync=is_sync) is not None
    for older in (first, copied, packed(made, heard_ns=NOW_NS + 3 * HOUR)):  # the last: an earlier build's
        with pytest.raises(Outdated, match="revision 8 is stored"):
            catalog.take("mlp", made.node, older, OURS, is_sync=is_sync)
    assert catalog.take("mlp", made.node, later, OURS, is_sync=is_sync) is not None


def test_documents_of_an_earlier_build_are_followed_by_those_with_a_revision(
    tmp_path: Path, catalog: Catalog
) -> None:
    """The update took place while the run went on, on a host whose clock was set back meanwhile."""
    made = running(tmp_path)
    assert (
        catalog.take("mlp", made.node, packed(made, heard_ns=NOW_NS + HOUR), OURS, is_sync=True) is not None
    )
    assert catalog.take("mlp", made.node, packed(made, revision=1, heard_ns=NOW_NS), OURS, is_sync=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b"{", b'{"version": 2}', b"[" * 100_000, b"\xff\xfe", b'{"a": 1e999999}' * 2],
)
def test_what_is_no_document_is_unreadable(catalog: Catalog, content: bytes) -> None:
    """With a reason, and nothing else is raised."""
    with pytest.raises(Unreadable):
        catalog.take("mlp", "aa", content, OURS, is_sync=False)


def test_half_of_a_surrogate_pair_can_be_stored(tmp_path: Path, catalog: Catalog) -> None:
    """Python's JSON takes it; no database does."""
    made = running(tmp_path, documents={"config": {"odd \ud800": "\udfff", "fine": "😀"}})
    told = catalog.take("mlp", made.node, packed(made), OURS, is_sync=False)
    assert told is not None
    json.dumps(told.config, ensure_ascii=False).encode()
    assert told.config["fine"] == "😀"


def seen(state: str, silent_s: float, rest_s: int = 0) -> str:
    run = Run("mlp", Description(state=state, reason="why", more={"rest_s": rest_s}), OURS, 0, 0, 0)
    return state_now(run, OURS + int(silent_s * 1e9)).name


def test_silence_makes_a_running_run_late_then_lost_and_no_other() -> None:
    """Fifteen seconds, a minute; what ended has ended."""
    assert [seen("running", s) for s in (-5, 0, 14, 16, 59, 61, 1e6)] == [
        *("running", "running", "running", "late", "late", "lost", "lost"),
    ]
    assert {seen("failed", 1e6), seen("failed", 0)} == {"failed"}
    # its agent promised to say something every 40 s instead of 10
    assert [seen("running", s, 30) for s in (44, 46, 89, 91)] == ["running", "late", "late", "lost"]


def test_run_that_was_uploaded_while_it_lived_is_late_and_never_lost(
    tmp_path: Path, catalog: Catalog
) -> None:
    """Silence says nothing of it later; of one that was dead by then, or that its agent ships, it does."""
    made = running(tmp_path)

    def taken(after_s: int, *, is_sync: bool = True) -> State:
        content = packed(made, heard_ns=NOW_NS, closed=False)
        now_ns = NOW_NS + after_s * SECOND
        told = catalog.take("mlp", made.node, content, OURS, is_sync=is_sync, is_urgent=True, now_ns=now_ns)
        assert told is not None
        return state_now(Run("mlp", told, NOW_NS, 0, 0, 0), NOW_NS + HOUR)

    assert (taken(5).name, taken(600).name) == ("late", "lost")
    assert "uploaded while it was running: its state as of 20" in taken(5).cause
    again = catalog.again("mlp", OURS)
    assert again is not None and again.brief()["uploaded_ns"] == NOW_NS
    assert taken(5, is_sync=False).name == "lost"


def test_a_run_is_as_slow_as_the_fastest_of_its_nodes(tmp_path: Path, catalog: Catalog) -> None:
    """Each node promises for itself; nobody waits longer for a run while one of its nodes logs."""
    promises: list[dict[str, Any]] = [{"heartbeat_s": 40}, {"heartbeat_s": 100}, {}, {"heartbeat_s": "x"}]
    for number, (promise, rest_s) in enumerate(zip(promises, (30, 30, 0, 0), strict=True)):
        made = running(tmp_path / str(number), number=number + 1)
        documents = packed(made, closed=False, **promise)
        told = catalog.take("mlp", f"{number:016x}", documents, OURS, is_sync=False)
        assert told is not None
        assert told.more["rest_s"] == rest_s


def test_finding_of_an_observer_is_shown_while_the_run_goes_on(tmp_path: Path, catalog: Catalog) -> None:
    """In lists, where it does not get on; the stalls stay when it is over."""
    stall = {"begin_ns": 5, "end_ns": 0, "verdict": "stopped", "text": "rank 1 is stopped"}
    observed = {
        "kind": "stalled",
        "verdict": "stopped",
        "text": "rank 1 is stopped",
        "since_ns": 5,
        "rank": 1,
    }
    made = running(tmp_path)
    documents = packed(made, closed=False, revision=1, observed=observed | {"stalls": [stall]})
    told = catalog.take("mlp", made.node, documents, OURS, is_sync=False)
    assert told is not None and told.state == "running"
    assert told.more["observed"]["kind"] == "stalled" and len(told.more["stalls"]) == 1
    brief = told.brief()["observed"]
    assert (brief["verdict"], brief["text"], brief["rank"]) == ("stopped", "rank 1 is stopped", 1)
    documents = packed(made, closed=False, revision=2, observed={"kind": "ok", "stalls": [stall]})
    told = catalog.take("mlp", made.node, documents, OURS, is_sync=False, is_urgent=True)
    assert told is not None and told.more["observed"]["kind"] == "ok"
    assert told.brief()["observed"] is None
    made.process(1, end={"time": NOW_NS, "alive": False, "exit_code": 1})
    documents = packed(made, revision=3, observed=observed | {"stalls": [stall]})
    told = catalog.take("mlp", made.node, documents, OURS, is_sync=False, is_urgent=True)
    assert told is not None and told.state == "failed"
    assert (
        told.more["observed"] is None and told.brief()["observed"] is None and len(told.more["stalls"]) == 1
    )
