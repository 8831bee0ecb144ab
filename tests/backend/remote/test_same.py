"""What the command line and readers get from a server is what they get from the folder that it was shipped from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
from click.testing import CliRunner

import logclient
from logclient_backend.cli import cli
from logclient_backend.collector.store.interface import Store
from logclient_backend.remote import contents, follow
from logclient_backend.remote.access import Unreachable
from logclient_backend.remote.runs import ServerRun
from logclient_backend.remote.server import Server
from tests.backend.runs.build import NodeMaker, rec
from tests.served import backing, made_store, sample_runs, serving, take_in

RUNS = ["plain", "mixed", "twice", "a/../b%2e?&=+#"]


class Both(NamedTuple):
    """The same runs in a folder and behind a server."""

    folder: Path
    url: str
    store: Store


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    base = tmp_path_factory.mktemp("same")
    sample_runs(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store)) as url:
            yield Both(base / "runs", url, store)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of whoever runs the tests."""
    monkeypatch.setenv("LOGCLIENT_TOKEN", "reads")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("LOGCLIENT_SERVER", raising=False)


def say(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, words)
    return done.exit_code, done.output


def here(both: Both) -> tuple[str, str]:
    return "--dir", str(both.folder)


def there(both: Both) -> tuple[str, str]:
    return "--server", both.url


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("format", ["jsonl", "csv", "parquet"])
def test_export_is_the_same_byte_for_byte(both: Both, tmp_path: Path, run: str, format: str) -> None:
    """Points in the canonical order, and run.json with documents, streams, gaps and counts."""
    if format == "parquet":
        pytest.importorskip("pyarrow")
    for name, source in (("here", here(both)), ("there", there(both))):
        code, said = say("export", run, "--format", format, "--out", str(tmp_path / name), *source)
        assert code == 0, said
    for file in (f"points.{format}", "run.json"):
        assert (tmp_path / "there" / file).read_bytes() == (tmp_path / "here" / file).read_bytes(), file


@pytest.mark.parametrize("run", RUNS)
def test_the_page_s_export_is_the_same_too(both: Both, run: str) -> None:
    """What a browser downloads is what the command writes."""
    for format in ("jsonl", "csv"):
        answer = requests.get(
            f"{both.url}/api/v1/run/export",
            params={"run": run, "format": format},
            headers={"Authorization": "Bearer reads"},
            timeout=60,
        )
        code, said = say("export", run, "--format", format, *here(both))
        assert (code, answer.status_code) == (0, 200)
        assert answer.text == said


@pytest.mark.parametrize("run", RUNS)
def test_show_says_the_same(both: Both, run: str) -> None:
    """State, counts, gaps with their edges, keys and last values; only where it lies differs."""
    answers: list[dict[str, Any]] = []
    for source in (here(both), there(both)):
        code, said = say("show", run, "--json", *source)
        assert code == 0, said
        answers.append(json.loads(said))
        answers[-1].pop("path")
    assert answers[0] == answers[1]


@pytest.mark.parametrize("run", RUNS)
def test_show_of_a_large_run_asks_instead_of_reading(
    both: Both, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    """The same but for ranks that only records tell; no record is fetched but those beside gaps."""
    monkeypatch.setattr(contents, "SMALL_RECORDS", 0)
    fetched = []
    fetch = ServerRun.fetch

    def noted(*asked: Any) -> Any:
        fetched.append(asked)
        return fetch(*asked)

    monkeypatch.setattr(ServerRun, "fetch", noted)
    answers: list[dict[str, Any]] = []
    for source in (here(both), there(both)):
        code, said = say("show", run, "--json", *source)
        assert code == 0, said
        answers.append(json.loads(said))
        for name in ("path", "ranks"):
            answers[-1].pop(name)
    assert answers[0] == answers[1]
    assert bool(fetched) == bool(answers[0]["gaps"])
    drawn = [say("show", run, *source)[1] for source in (here(both), there(both))]
    assert [text.splitlines()[-8:] for text in drawn[:1]] == [text.splitlines()[-8:] for text in drawn[1:]]


def test_curves_are_drawn_from_a_server(both: Both) -> None:
    """As from the folder: lowest and highest of each column of the screen."""
    drawn = [say("show", "twice", *source)[1].partition("\nloss\n") for source in (here(both), there(both))]
    assert drawn[0][1:] == drawn[1][1:]


@pytest.mark.first_is_quick
@pytest.mark.parametrize("run", RUNS)
def test_tail_gives_the_same_records(both: Both, run: str) -> None:
    """The last ones over all streams, as JSON and for people."""
    for how in (["-n", "17", "--json"], ["-n", "3"], ["-n", "1000", "--json"], ["-n", "0"]):
        assert say("tail", run, *how, *here(both)) == say("tail", run, *how, *there(both))


def test_ls_lists_the_same_runs(both: Both) -> None:
    """Names, states, counts, the newest last; a search finds them by id, name, project and tag."""

    def rows(*words: str) -> list[dict[str, Any]]:
        code, said = say("ls", "--json", *words)
        assert code == 0, said
        found: list[dict[str, Any]] = json.loads(said)["runs"]
        return sorted(
            ({key: row[key] for key in row if key not in ("path", "last")} for row in found),
            key=lambda row: row["id"],
        )

    assert rows(*here(both)) == rows(*there(both))
    for text in ("mlp", "base", "digits", "☃", "../b", "nothing like it"):
        assert rows(text, *here(both)) == rows(text, *there(both))


def test_runs_are_meant_as_in_a_folder(both: Both) -> None:
    """By id, by name, by a unique part of the id; else a sentence and exit code 3."""
    for wanted in ("plain", "mlp", "twi", "%2e?&="):
        code, said = say("show", wanted, "--json", *there(both))
        assert (code, json.loads(said)["id"]) == (
            0,
            json.loads(say("show", wanted, "--json", *here(both))[1])["id"],
        )
    for wanted in ("nothing", "i", ""):
        code, said = say("show", wanted, *there(both))
        assert code == 3, said
        assert "Traceback" not in said


def test_a_variable_alone_makes_no_folder_remote(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOGCLIENT_SERVER is for trainers: `ls` shows the folder until --server is given; both at once are refused."""
    monkeypatch.setenv("LOGCLIENT_SERVER", "grpc://127.0.0.1:1")
    code, said = say("ls", "--json", *here(both))
    assert code == 0
    assert "dir" in json.loads(said)
    code, said = say("ls", *here(both), *there(both))
    assert code == 2
    assert "--dir and --server" in said


def test_follow_gives_what_comes(both: Both, tmp_path: Path) -> None:
    """`tail -f` of a run that has ended prints it and ends, saying how."""
    done = CliRunner().invoke(cli, ["tail", "plain", "-f", "-n", "2", "--json", *there(both)])
    assert done.exit_code == 0
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == [1990, 2000]
    assert "-- finished" in done.stderr


def test_follow_outlives_a_server_that_goes_away(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked while it was away comes later, each record once; that it is away, and back, is said once."""
    asked: list[str] = []
    data = Server.data

    def failing(self: Server, path: str, **parameters: Any) -> bytes:
        asked.append(path)
        if 8 <= len(asked) <= 10:  # in the middle of the pages
            raise Unreachable("the server is not reached: cable out")
        return data(self, path, **parameters)

    monkeypatch.setattr(Server, "data", failing)
    monkeypatch.setattr(follow.ServerFollower, "poll_s", 0.01)
    monkeypatch.setattr(follow, "_PAGE_RECORDS", 50)
    done = CliRunner().invoke(cli, ["tail", "plain", "-f", "-n", "0", "--json", *there(both)])
    assert done.exit_code == 0, done.output
    assert done.stdout == ""  # -n 0: what was there before is not printed
    monkeypatch.setattr(follow.ServerFollower, "last", lambda *_: iter(()))
    asked.clear()
    done = CliRunner().invoke(cli, ["tail", "plain", "-f", "--json", *there(both)])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == list(range(10, 2010, 10))
    assert done.stderr.count("cable out; trying again") == done.stderr.count("answers again") == 1
    assert done.stderr.rstrip().endswith("-- finished")


def test_run_without_documents_has_no_known_start(tmp_path: Path) -> None:
    """Nobody has told when it began: neither list nor page takes that for 1970."""
    maker = NodeMaker(tmp_path / "runs", "bare")
    maker.segment({(1, 1, 0): [rec(seq) for seq in range(1, 6)]})
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        with serving(backing(store)) as url:
            for source in (("--dir", str(tmp_path / "runs")), ("--server", url)):
                code, listed = say("ls", *source)
                assert code == 0 and "unknown" in listed and " ago" not in listed, listed
                code, shown = say("show", "bare", *source)
                (began,) = [line for line in shown.splitlines() if line.startswith("started")]
                assert began.split() == ["started", "unknown"], shown
                assert json.loads(say("show", "bare", "--json", *source)[1])["first_start"] is None
            assert [run.created for run in logclient.read(url)] == [None]
