"""Edits over HTTP: who may, what holds then, lists and filters with edited values, several runs at once, bodies."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from logclient.errors import NoRun
from logclient_backend.cli import edit as verb
from logclient_backend.collector.web import request_body
from logclient_backend.remote import editing
from logclient_backend.remote.access import ServerError
from logclient_backend.remote.source import ServerSource
from logclient_backend.runs.edits import Changes
from tests.backend.runs.build import NodeMaker, simple_run
from tests.backend.store.samples import parcel, ramp
from tests.served import backing, made_store, serving, take_in

TIMEOUT_S = 60


class Api:
    """Requests with a token."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(
        self, path: str, body: Any = None, *, token: str = "edits", **parameters: Any
    ) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        how = "GET" if body is None else "POST"
        url = f"{self.url}/api/v1{path}"
        return requests.request(how, url, params=parameters, json=body, headers=headers, timeout=TIMEOUT_S)

    def good(self, path: str, body: Any = None, **more: Any) -> Any:
        answer = self.ask(path, body, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def named(self, **filters: Any) -> list[str]:
        return [
            run["id"]
            for run in self.good("/runs", token="reads", sort="name", order="asc", **filters)["runs"]
        ]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """Runs `one`, `two`, and `mlp` with a name, tags, notes and a group of its program."""
    for name in ("one", "two"):
        simple_run(tmp_path / "runs", name)
    maker = NodeMaker(tmp_path / "runs", "mlp")
    about = {"name": "first", "tags": ["draft", "kept"], "notes": "n", "group": "g"}
    maker.process(1, documents={"about": about, "config": {"lr": 0.1}})
    maker.save()
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        store.writer.write([parcel(ramp(1, 3), run="bare")])
        with serving(backing(store)) as url:
            yield Api(url)


def test_an_edit_holds_in_lists_filters_and_sorts(api: Api) -> None:
    """The answer, the run, the list and its filters have the edited values; what is below is kept, and comes back."""
    wish = {"name": "zz", "tags": ["good"], "untag": ["draft"], "notes": "a\nb", "group": ""}
    made = api.good("/run/edit", wish, run="mlp")
    assert (made["name"], made["tags"], made["notes"], made["group"]) == ("zz", ["kept", "good"], "a\nb", "")
    assert made["unedited"] == {"name": "first", "tags": ["draft", "kept"], "notes": "n", "group": "g"}
    assert {edit["who"] for edit in made["edits"]} == {"token of edit"}
    whole = api.good("/run", token="reads", run="mlp")
    assert (whole["name"], whole["notes"], whole["config"], whole["records"]) == (
        "zz",
        "a\nb",
        {"lr": 0.1},
        0,
    )
    assert whole["edited"] == ["name", "group", "notes", "tags"]
    assert api.named(tag="good") == api.named(name="zz") == ["mlp"] and api.named(tag="draft") == []
    assert api.named()[-1] == "mlp"
    undone = api.good("/run/edit", {"undo": ["name", "tags", "notes", "group"]}, run="mlp")
    assert (undone["name"], undone["tags"], undone["notes"]) == ("first", ["draft", "kept"], "n")
    assert api.named(tag="draft") == ["mlp"] and undone["unedited"] == {}
    history = api.good("/run/edits", token="reads", run="mlp")["edits"]
    assert len(history) == 10 and [edit["counter"] for edit in history] == [1] * 5 + [2] * 5


def test_only_the_role_edit_may(api: Api) -> None:
    """401 without a token, 403 with another role; nothing was changed."""
    for token, status in (("", 401), ("none such", 401), ("reads", 403), ("ships", 403), ("asks", 403)):
        assert api.ask("/run/edit", {"name": "x"}, token=token, run="one").status_code == status
        assert api.ask("/runs/edit", {"runs": ["one"], "name": "x"}, token=token).status_code == status
        for path in ("/runs/delete", "/runs/undelete"):
            assert api.ask(path, {"runs": ["one"]}, token=token).status_code == status
            assert api.ask(path, {"runs": ["one"]}, token="edits").status_code == 403
    assert api.good("/run/edits", token="reads", run="one")["edits"] == []
    assert len(api.named()) == 4


def test_a_body_is_not_read_before_the_token(api: Api) -> None:
    """Whoever has no token is answered though the body never comes."""
    parts = urlsplit(api.url)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
        connection.sendall(
            b"POST /api/v1/run/edit?run=one HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000000\r\n\r\n"
        )
        assert b" 401 " in connection.recv(4096).split(b"\r\n")[0]


def test_a_body_that_never_comes_has_a_deadline(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "READ_S", 0.2)
    parts = urlsplit(api.url)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT_S) as connection:
        connection.sendall(
            b"POST /api/v1/run/edit?run=one HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer edits\r\nContent-Length: 1000000\r\n\r\n{"
        )
        assert b" 400 " in connection.recv(4096).split(b"\r\n")[0]


NO_EDITS: list[Any] = [
    [],
    {},
    "x",
    {"name": ""},
    {"name": 3},
    {"nam": "x"},
    {"tags": "x"},
    {"tags": [1]},
    {"name": "x\n"},
    {"undo": ["state"]},
    {"runs": ["one"], "name": "x"},
    {"notes": "x" * 70_000},
    {"tags": ["x" * 300_000] * 4},
]


def test_what_is_no_edit_is_refused(api: Api) -> None:
    """400 and a sentence; nothing is changed. So is a body that a form of a page could send."""
    for body in NO_EDITS:
        answer = api.ask("/run/edit", body, run="one")
        assert answer.status_code == 400 and answer.json()["error"] == "bad_request", answer.text
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = {"Authorization": "Bearer edits", "Content-Type": kind}
        url = f"{api.url}/api/v1/run/edit?run=one"
        answer = requests.post(url, data=b'{"name":"x"}', headers=headers, timeout=TIMEOUT_S)
        assert answer.status_code == 400
    assert api.good("/run/edits", token="reads", run="one")["edits"] == []


def test_runs_that_are_not_there(api: Api) -> None:
    """404 of one that is unknown, 409 of a deleted one; a deleted one that is taken back has its edits."""
    assert api.ask("/run/edit", {"name": "x"}, run="none").status_code == 404
    api.good("/run/edit", {"name": "x"}, run="one")
    api.good("/runs/delete", {"runs": ["one"]}, token="rules")
    assert api.ask("/run/edit", {"name": "y"}, run="one").status_code == 409
    api.good("/runs/undelete", {"runs": ["one"]}, token="rules")
    assert api.good("/run", token="reads", run="one")["name"] == "x"


def test_a_run_without_documents_can_be_edited(api: Api) -> None:
    """Its records came first: the edit holds, and what is below is empty."""
    made = api.good("/run/edit", {"name": "x", "tags": ["a"]}, run="bare")
    assert (made["name"], made["tags"], made["unedited"]["name"]) == ("x", ["a"], "")
    assert api.named(tag="a") == ["bare"]


def test_several_runs_at_once(api: Api) -> None:
    """Tagged, deleted and taken back; each run is named with what became of it."""
    told = api.good("/runs/edit", {"runs": ["one", "none", "two", "one"], "tags": ["a"]})["runs"]
    assert [(run["run"], run["done"], run["error"]) for run in told] == [
        ("one", True, ""),
        ("none", False, "no_run"),
        ("two", True, ""),
    ]
    assert api.named(tag="a") == ["one", "two"]
    told = api.good("/runs/delete", {"runs": ["one", "none", "two"]}, token="rules")["runs"]
    assert [run["done"] for run in told] == [True, False, True] and "one" not in api.named()
    told = api.good("/runs/undelete", {"runs": ["one", "mlp"]}, token="rules")["runs"]
    assert [(run["done"], run["error"]) for run in told] == [(True, ""), (False, "not_deleted")]
    assert api.named(tag="a") == ["one"]
    wrong: list[dict[str, Any]] = [
        {"runs": []},
        {"runs": "one"},
        {"runs": [3]},
        {"runs": ["x"] * 1001},
        {"tags": ["a"]},
    ]
    for body in wrong:
        assert api.ask("/runs/edit", {"tags": ["a"], **body}).status_code == 400
    assert api.ask("/runs/delete", {"runs": ["one"], "name": "x"}, token="rules").status_code == 400


def test_programs_and_the_command_edit_by_address(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """`logclient.edit` and `logclient edit --server`; a token that may only edit names a run by its id."""
    import logclient

    held = logclient.edit("mlp", where=api.url, token="edits", name="better", tags=["x"])
    assert (held["id"], held["name"], held["tags"]) == ("mlp", "better", ["draft", "kept", "x"])
    with pytest.raises(NoRun):
        logclient.edit("better", where=api.url, token="edits", name="again")
    with pytest.raises(ServerError, match="role `edit`"):
        logclient.edit("mlp", where=api.url, token="reads", name="again")
    assert logclient.edit("better", where=api.url, token="rules", untag=["x"])["tags"] == ["draft", "kept"]
    run = ServerSource(api.url, token="reads").run("better")
    shown = run.view()
    assert (shown.name, shown.unedited["name"], run.row.edited) == ("better", "first", ["name", "tags"])
    assert [edit.who for edit in shown.edits] == ["token of edit", "token of admin"]
    monkeypatch.setenv("LOGCLIENT_TOKEN", "rules")
    assert editing.edit(api.url, "better", Changes())["name"] == "better"
    with pytest.raises(ValueError, match="http"):
        verb.command.main(["mlp", "--server", "ftp://x", "--name", "x"], standalone_mode=False)
