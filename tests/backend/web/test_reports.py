"""Reports of nodes over the HTTP API: who may read them, how much one answer has, and what is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner, Result

from logclient_backend.cli import cli
from logclient_backend.collector.node_reports import NodeReports
from logclient_backend.collector.web import reports
from logclient_backend.remote.access import NoPath, WebAccess
from logclient_backend.remote.server import Server
from logclient_backend.remote.source import ServerSource
from logclient_backend.wire import node_report
from logclient_backend.wire.node_report import NodeReport
from tests.backend.runs.build import simple_run
from tests.served import backing, made_store, serving, take_in

TIMEOUT_S = 60


def report(content: bytes, *, kind: str = "stalled", size: int | None = None) -> NodeReport:
    packed = node_report.pack(content)
    assert packed is not None
    return NodeReport(kind, size=len(content) if size is None else size, packed=packed)


@pytest.fixture
def kept() -> NodeReports:
    return NodeReports()


@pytest.fixture
def url(tmp_path: Path, kept: NodeReports) -> Iterator[str]:
    simple_run(tmp_path / "runs", "mlp", 3)
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        with serving(backing(store, node_reports=kept)) as address:
            yield address


def ask(url: str, *, token: str = "reads", **parameters: str) -> requests.Response:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return requests.get(f"{url}/api/v1/run/reports", params=parameters, headers=headers, timeout=TIMEOUT_S)


def test_report_comes_as_it_was_sent(url: str, kept: NodeReports) -> None:
    """With its age and that of the last sign of the node; a node that gets on has none."""
    kept.take("mlp", "aa", report(b'{"why": 1}'))
    kept.take("mlp", "bb", NodeReport("ok"))
    kept.seen("mlp", "cc")
    kept.take("other", "dd", report(b"{}"))
    found = ask(url, run="mlp").json()
    assert [(row["node"], row["kind"], row["report"]) for row in found["nodes"]] == [
        ("aa", "stalled", '{"why": 1}'),
        ("bb", "ok", None),
        ("cc", None, None),
    ]
    assert [row["age_s"] is None for row in found["nodes"]] == [False, True, True]
    assert all(0 <= row["silent_s"] < TIMEOUT_S for row in found["nodes"])
    assert found["next"] == ""


@pytest.mark.parametrize(
    ("token", "run", "status", "error"),
    [
        ("", "mlp", 401, "unauthorized"),
        ("wrong", "mlp", 401, "unauthorized"),
        ("ships", "mlp", 403, "forbidden"),
        ("asks", "mlp", 403, "forbidden"),
        ("reads", "absent", 404, "no_run"),
    ],
)
def test_reports_take_a_token_that_may_read_and_a_run(
    url: str, kept: NodeReports, token: str, run: str, status: int, error: str
) -> None:
    """Nothing of a report is in the answer."""
    kept.take("mlp", "aa", report(b'{"secret": 1}'))
    kept.take("absent", "aa", report(b'{"secret": 1}'))
    answer = ask(url, token=token, run=run)
    assert (answer.status_code, answer.json()["error"]) == (status, error)
    assert "secret" not in answer.text


def test_answer_is_bounded_and_goes_on(url: str, kept: NodeReports, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has at least one report; the client reads all pages."""
    monkeypatch.setattr(reports, "PAGE_BYTES", 3000)
    monkeypatch.setenv("LOGCLIENT_TOKEN", "reads")
    for number in range(7):
        size = 5000 if number == 2 else 1200
        kept.take("mlp", f"n{number}", report(json.dumps("x" * size).encode()))
    first = ask(url, run="mlp").json()
    assert ([row["node"] for row in first["nodes"]], first["next"]) == (["n0", "n1"], "n1")
    second = ask(url, run="mlp", after="n1").json()
    assert ([row["node"] for row in second["nodes"]], second["next"]) == (["n2"], "n2")
    rows = list(ServerSource(url, token="reads").node_reports("mlp"))
    assert [row["node"] for row in rows] == [f"n{number}" for number in range(7)]


@pytest.mark.parametrize(
    "bad",
    [
        report(b"{}", size=5_000_000),
        report(b"{}", size=5),
        NodeReport("stalled", size=2, packed=b"no zstd"),
        NodeReport("stalled", size=2, packed=report(b"{}").packed[:-1]),
    ],
)
def test_damaged_report_is_a_sentence(url: str, kept: NodeReports, bad: NodeReport) -> None:
    """Whatever it declares, no more than that is unpacked; the others are there."""
    kept.take("mlp", "aa", bad)
    kept.take("mlp", "bb", report(b"{}"))
    first, second = ask(url, run="mlp").json()["nodes"]
    assert first["report"] is None and first["trouble"].startswith("its report is damaged: ")
    assert second["report"] == "{}"


def why(*words: str) -> Result:
    return CliRunner().invoke(cli, ["why", *words], prog_name="logclient", env={"LOGCLIENT_TOKEN": "reads"})


def test_command_over_a_run_that_is_over_and_options_that_do_not_go_together(url: str) -> None:
    """Sentences; a collector without this path, as an earlier one is, has one of its own."""
    done = why("mlp", "--server", url)
    assert done.exit_code != 0 and "The run has ended." in done.output
    done = why("absent", "--server", url)
    assert done.exit_code != 0 and "has 'absent' as its id" in done.output
    for words in (("--pid", "1"), ("--local",), ("--merge",), ("--calls", "1"), ("another",)):
        done = why("mlp", "--server", url, *words)
        assert done.exit_code == 2, done.output
    assert why("mlp", "--token-file", "x").exit_code == 2
    with pytest.raises(NoPath):
        Server(WebAccess(url, "reads")).json("/run/none", run="mlp")


def test_verdict_over_a_run_that_is_over_blames_nobody(url: str, kept: NodeReports) -> None:
    """Whatever a node sent about it before; a run that is not here is refused."""
    kept.take("mlp", "aa", report(b'{"why": "nonsense"}'))
    headers = {"Authorization": "Bearer reads"}
    ask_why = partial(requests.get, f"{url}/api/v1/run/why", headers=headers, timeout=TIMEOUT_S)
    found = ask_why(params={"run": "mlp"}).json()
    assert (found["run"], found["stuck"], found["blamed"]) == ("mlp", False, [])
    assert [node["text"] for node in found["nodes"]] == ["its processes have ended"]
    assert ask_why(params={"run": "absent"}).status_code == 404
