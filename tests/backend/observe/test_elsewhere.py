"""Nodes of a run as a collector has them: which reports count, and what stands for a node without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.observe import elsewhere, saved
from logclient_backend.observe.described import described
from logclient_backend.observe.report import Job, Node, Report
from logclient_backend.observe.verdict import Observed
from logclient_backend.runs.folder import find
from logclient_backend.runs.view import RunView, view
from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker

from .test_verdict import BARRIER, MAIN, observed

A, B = "00000000000000aa", "00000000000000bb"
HOSTS = {A: "host-a", B: "host-b"}


def run_of(folder: Path, **more: Any) -> RunView:
    """Two live nodes with two ranks each; `more`: what the documents of A or B have besides."""
    for number, node in enumerate((A, B)):
        made = NodeMaker(folder, "mlp", node)
        for at in (0, 1):
            role, end = "member" if at else "owner", more.get(f"end_{node}")
            made.process(10 * number + at + 1, role=role, rank=2 * number + at, end=end)
        content = {**made.content(), "closed": False, "host": HOSTS[node], **more.get(node, {})}
        made.save(content)
    (found,) = find(str(folder), live_dirs=[], home="/nonexistent")
    for each in found.nodes:
        each.now_ns = each.heard_ns
    return view(found)


def content(node: str, *processes: Observed, **place: Any) -> str:
    where = {"host": HOSTS[node], "node": node, "boot_id": "", "time_ns": 0, "run_id": "mlp", "world_size": 4}
    made = Report(Node(**{**where, **place}), list(processes))
    return json.dumps({"why": 1, "reports": [saved.to_json(made)]})


def row(node: str, report: str | None = None, **more: Any) -> dict[str, Any]:
    given = {"kind": "stalled" if report else "ok", "age_s": 3.0 if report else None, "silent_s": 1.0}
    return {"node": node, "report": report, "trouble": "", **given, **more}


def lines(job: Job) -> dict[str, str]:
    return {node.node: node.text for node in job.nodes}


WAITS = [observed(rank, BARRIER, MAIN) for rank in range(4)]
LATE = content(B, observed(2, MAIN), observed(3, BARRIER, MAIN))


def test_reports_of_all_nodes_make_one_verdict(tmp_path: Path) -> None:
    """As `why --merge` does; ages are those of now."""
    job = elsewhere.job_of(
        run_of(tmp_path), [row(A, content(A, *WAITS[:2]), age_s=1.0), row(B, LATE, age_s=30.0)]
    )
    assert job.verdict.kind == "user code"
    assert job.verdict.text.startswith("rank 2 on host-b waits in user code at train")
    assert "last record 90 s ago" in job.verdict.text
    assert [each.age_s for each in job.processes] == [61.0, 61.0, 90.0, 90.0]
    assert (job.missing, [node.is_seen for node in job.nodes]) == ([], [True, True])
    assert lines(job) == {A: "as it was 1 s ago", B: "as it was 30 s ago"}
    assert [node["host"] for node in described(job)["nodes"]] == ["host-a", "host-b"]


def test_age_is_not_added_where_a_rank_was_not_late(tmp_path: Path) -> None:
    """It may have logged since: its report says nothing about that."""
    moves = observed(0, MAIN, before=(BARRIER, MAIN), age_s=1.0)
    job = elsewhere.job_of(run_of(tmp_path), [row(A, content(A, moves), age_s=50.0), row(B, LATE)])
    assert job.processes[0].age_s == 1.0 and not job.processes[0].is_late


def test_node_on_which_nobody_is_late_is_no_trouble(tmp_path: Path) -> None:
    """Its ranks are not looked at; where no node has a report, nothing is stuck."""
    run = run_of(tmp_path)
    job = elsewhere.job_of(run, [row(A), row(B, LATE)])
    assert job.verdict.kind == "user code" and job.verdict.text.endswith("ranks 0 to 1 were not looked at")
    assert lines(job)[A] == "no rank is late"
    assert [each.name for each in job.processes] == ["rank 2 on host-b", "rank 3 on host-b"]
    job = elsewhere.job_of(run, [row(A), row(B)])
    assert (job.verdict.kind, job.verdict.text) == ("not stuck", "no rank is late on any node")
    assert described(job)["spread_s"] == 0, "nobody was looked at"


STALLED = {"kind": "stalled", "verdict": "user code", "text": "rank 2 waits", "since_ns": NOW_NS}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            row(B, LATE, silent_s=40.0),
            "nothing has come from it for 40 s; its last state was stalled: user code",
        ),
        (
            row(B, silent_s=40.0),
            "nothing has come from it for 40 s; its last state was stalled: user code: rank 2",
        ),
        ({"node": B}, "nothing has come from it since the collector was started; its last state"),
        (row(B, kind=None), "it is stalled, and no report has come from it"),
        (row(B, kind="quiet"), "it is quiet, and no report has come from it"),
        (row(B, kind="stalled", trouble="its report is damaged"), "its report is damaged"),
        (row(B, kind="off"), "it has no observer"),
        (row(B, "{"), "the report of host-b is no output of `logclient why --json`: not JSON"),
        (row(B, "[" * 100_000), "nested too deeply"),
        (row(B, LATE.replace('"pid"', '"dip"')), "reports[0].processes[0].pid is missing"),
        (row(B, content(B, run_id="other")), "its report is of another run or node"),
        (row(B, content(A)), "its report is of another run or node"),
        (row(B, LATE, silent_s="nan"), "nothing has come from it since the collector was started"),
    ],
)
def test_node_that_is_not_known_is_named(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    """Whatever stands in the report; with nothing stuck elsewhere nobody can tell."""
    run = run_of(tmp_path, **{B: {"observed": STALLED}})
    job = elsewhere.job_of(run, [row(A), given])
    assert job.verdict.kind == "cannot tell"
    assert said in lines(job)[B] and f"host-b: {lines(job)[B]}" == job.verdict.text
    job = elsewhere.job_of(run, [row(A, content(A, *WAITS[:2])), given])
    assert job.verdict.kind == "collective or peer"
    assert "ranks 2 to 3 were not looked at; host-b: " in job.verdict.text
    job = elsewhere.job_of(run, [row(A, content(A, observed(0, MAIN, age_s=1.0))), given])
    assert job.verdict.kind == "cannot tell"


def test_run_at_rest_may_be_silent_for_longer(tmp_path: Path) -> None:
    """As its agent promised, but in an open conversation, where something comes every few seconds."""
    run = run_of(tmp_path, **{B: {"heartbeat_s": 100}})
    assert lines(elsewhere.job_of(run, [row(A), row(B, silent_s=100.0)]))[B] == "no rank is late"
    assert lines(elsewhere.job_of(run, [row(A), row(B, LATE, silent_s=100.0)]))[B] == "as it was 3 s ago"
    for given in (row(B, LATE, silent_s=30.0, is_open=True), row(B, LATE, silent_s=120.0)):
        late = lines(elsewhere.job_of(run, [row(A), given]))[B]
        assert late.startswith(f"nothing has come from it for {given['silent_s']:.0f} s")


def test_ranks_of_a_node_that_is_over_are_gone(tmp_path: Path) -> None:
    """By its documents; those that ended long before are not missed."""
    end = {"time": NOW_NS + 3590 * SECOND, "alive": False, "signal": 9}
    run = run_of(tmp_path, **{B: {"closed": True}, f"end_{B}": end})
    rows = [row(A, content(A, *WAITS[:2])), row(B, silent_s=20.0)]
    job = elsewhere.job_of(run, rows)
    assert job.verdict.kind == "process gone"
    assert job.verdict.text.startswith("rank 2 on host-b, rank 3 on host-b: each has ended (killed, SIGKILL)")
    assert lines(job)[B] == "its processes have ended"
    rows[1]["silent_s"] = 2000.0
    assert elsewhere.job_of(run, rows).verdict.kind == "collective or peer"


def test_only_nodes_of_the_newest_attempt_count(tmp_path: Path) -> None:
    """A node of another attempt, or one that the documents do not have, is passed over."""
    first = NodeMaker(tmp_path, "mlp", A)
    first.process(1, end={"time": NOW_NS + 100 * SECOND, "alive": False, "signal": 9})
    first.save({**first.content(), "host": "host-a"})
    second = NodeMaker(tmp_path, "mlp", B)
    second.process(2, created_ns=NOW_NS + 200 * SECOND)
    second.save({**second.content(), "closed": False, "host": "host-b"})
    (found,) = find(str(tmp_path), live_dirs=[], home="/nonexistent")
    for each in found.nodes:
        each.now_ns = each.heard_ns
    rows = [row(A, content(A, *WAITS[:2])), row(B, LATE), row("cc", LATE)]
    job = elsewhere.job_of(view(found), rows)
    assert [node.node for node in job.nodes] == [B]
    assert [each.rank for each in job.processes] == [2, 3]


def test_number_of_ranks_that_nobody_has_is_not_believed(tmp_path: Path) -> None:
    """A report may promise 2**60 ranks."""
    job = elsewhere.job_of(
        run_of(tmp_path), [row(A), row(B, content(B, observed(2, MAIN), world_size=1 << 60))]
    )
    assert job.missing == []


def test_nodes_of_an_upload_and_of_a_folder_have_what_their_documents_hold(tmp_path: Path) -> None:
    """No agent sends a report to `logclient ui`, nor of a run that was synced."""
    late = {
        "observed": {"kind": "stalled", "verdict": "user code", "text": "rank 2 waits", "since_ns": NOW_NS}
    }
    run = run_of(tmp_path / "late", **{B: late})
    uploaded = elsewhere.job_of(run, [], is_upload=True).verdict
    assert uploaded.kind == "cannot tell"
    assert "host-b: it was uploaded, and sends nothing itself; its last state was stalled" in uploaded.text
    found = elsewhere.in_folder(run, 1.0)
    assert (found["verdict"], found["stuck"], found["nodes"]) == ("user code", True, [])
    assert found["text"] == "rank 2 waits; `logclient why mlp` on its host looks now"
    old = elsewhere.in_folder(run, 999.0)
    assert old["verdict"] == "cannot tell" and "nothing was written into the folder for 999 s" in old["text"]
    well = run_of(tmp_path / "well", **{A: {"observed": {**late["observed"], "kind": "ok"}}})
    assert elsewhere.in_folder(well, 1.0) == {
        "verdict": "not stuck",
        "stuck": False,
        "text": "no rank is late",
        "nodes": [],
    }
    assert "no observer" in elsewhere.in_folder(run_of(tmp_path / "none"), 1.0)["text"]
