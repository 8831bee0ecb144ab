"""R2-26: ids and keys of any kind are data: each names what it names, and nothing outside the store is touched."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

import logclient
from tests.backend.runs.build import NOW_NS, NodeMaker, Rec
from tests.served import backing, made_store, serving, take_in

NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "%2e%2e%2fetc",
    "%252e%252e%252fetc",
    "..\\..\\windows",
    "C:\\CON",
    "CON",
    "a//b",
    "a/./b",
    "a/b",
    ".",
    "..",
    "dot.",
    "dot",
    "Case",
    "case",
    "a b",
    "a+b",
    "a%20b",
    "a&run=case",
    "a;b",
    "a#b",
    "a?b=c",
    "'; DROP TABLE runs; --",
    '"quoted"',
    "<script>alert(1)</script>",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "\u202egnp.exe",
    "%",
    "_",
    "*",
    "x" * 512,
    "☃" * 170,
    "null",
    "-1",
]
KEYS = [*NAMES, "line\nbreak", "tab\t", "\x1b[31m", "::"[:1]]


def listed(folder: Path) -> set[str]:
    return {os.path.join(base, name) for base, _, names in os.walk(folder) for name in names}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A run per name, whose one value of `loss` tells which it is; and one with every key."""
    base = tmp_path_factory.mktemp("names")
    for number, name in enumerate(NAMES):
        maker = NodeMaker(base / "runs", name)
        maker.process()
        maker.segment({(1, 1, 0): [Rec(1, 1, number, NOW_NS, (("loss", "d", float(number)),))]})
        maker.save()
    maker = NodeMaker(base / "runs", "keys")
    maker.process()
    values = tuple((key, "d", float(number)) for number, key in enumerate(KEYS))
    maker.segment({(1, 1, 0): [Rec(1, 1, 7, NOW_NS, values)]})
    maker.save()
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        before = listed(base)
        with serving(backing(store)) as url:
            yield url, base
        assert listed(base) == before


def get(url: str, path: str, verb: str = "GET", **parameters: object) -> requests.Response:
    return requests.request(
        verb,
        f"{url}/api/v1{path}",
        params=parameters,  # type: ignore[arg-type]
        headers={"Authorization": "Bearer rules"},
        timeout=60,
    )


@pytest.mark.parametrize("number", range(len(NAMES)), ids=lambda number: ascii(NAMES[number])[:20])
def test_a_run_s_id_names_that_run_alone(world: tuple[str, Path], number: int) -> None:
    """Its description, series, last values and export; a filter by id finds it, and links lead back to it."""
    url, _ = world
    name = NAMES[number]
    found = get(url, "/run", run=name).json()
    assert found["id"] == name
    assert (
        requests.get(
            url + found["links"]["self"], headers={"Authorization": "Bearer reads"}, timeout=60
        ).json()["id"]
        == name
    )
    assert get(url, "/run/series", run=name, key="loss").json()["value"] == [float(number)]
    assert get(url, "/last", run=name, key="loss").json()["values"][0]["last"]["step"] == number
    assert f'"value":{float(number)},' in get(url, "/run/export", run=name).text
    quoted = json.dumps(["id", "=", name])
    assert [row["id"] for row in get(url, "/runs", where=quoted).json()["runs"]] == [name]


@pytest.mark.parametrize("number", range(len(KEYS)), ids=lambda number: ascii(KEYS[number])[:20])
def test_a_key_names_that_series_alone(world: tuple[str, Path], number: int) -> None:
    """Raw, reduced and last."""
    url, _ = world
    key = KEYS[number]
    assert get(url, "/run/series", run="keys", key=key).json()["value"] == [float(number)]
    assert get(url, "/run/buckets", run="keys", key=key).json()["max"] == [float(number)]
    (last,) = get(url, "/run/last", run="keys", key=key).json()["values"]
    assert (last["key"], last["last"]["value"]) == (key, float(number))


def test_readers_take_every_name(world: tuple[str, Path]) -> None:
    """`logclient.read` of the server finds each run by its id and each key by its name."""
    url, _ = world
    runs = logclient.read(url, token="reads")
    assert {run.id for run in runs} == {*NAMES, "keys"}
    for number, name in enumerate(NAMES):
        assert runs[name].series("loss").value.tolist() == [float(number)]
    found = runs["keys"]
    assert found.keys() == KEYS
    assert [found.series(key).value.tolist() for key in KEYS[:5]] == [[float(number)] for number in range(5)]


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/api/v1/run/..%2f..%2f", "//etc", "/\\"]
)
def test_paths_lead_nowhere(world: tuple[str, Path], path: str) -> None:
    """Nothing is served by path."""
    url, _ = world
    session = requests.Session()
    request = requests.Request("GET", url, headers={"Authorization": "Bearer rules"})
    prepared = session.prepare_request(request)
    prepared.url = url + path
    answer = session.send(prepared, timeout=60)
    assert answer.status_code == 404
    assert answer.json()["error"] == "no_path"
