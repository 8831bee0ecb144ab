"""The HTTP API over real TCP: what is stored comes back whole, exact and the same each time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from logclient_backend.collector.store.interface import Description, Parcel, Store
from tests.backend.runs.build import NOW_NS, NodeMaker, Rec, simple_run
from tests.backend.store.samples import parcel, ramp
from tests.served import backing, made_store, sample_runs, serving, take_in

TIMEOUT_S = 60


class Api:
    """Questions with a token."""

    def __init__(self, url: str, store: Store) -> None:
        self.url = url
        self.store = store

    def ask(
        self, path: str, *, token: str = "rules", verb: str = "GET", **parameters: Any
    ) -> requests.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = self.url + ("" if path.startswith("/api") or path.count("/") == 1 else "/api/v1") + path
        return requests.request(verb, url, params=parameters, headers=headers, timeout=TIMEOUT_S)

    def get(self, path: str, **parameters: Any) -> Any:
        answer = self.ask("/api/v1" + path, **parameters)
        assert answer.status_code == 200, answer.text
        return json.loads(answer.content, parse_constant=_no_constant)

    def refused(self, path: str, **parameters: Any) -> tuple[int, str]:
        answer = self.ask("/api/v1" + path, **parameters)
        said = answer.json()
        assert set(said) == {"error", "message"}
        assert said["message"]
        return answer.status_code, said["error"]

    def whole(self, run: str, key: str, limit: int, **more: Any) -> list[tuple[int, Any]]:
        """All points, page by page."""
        found: list[tuple[int, Any]] = []
        after = ""
        while True:
            page = self.get("/run/series", run=run, key=key, limit=limit, after=after, **more)
            assert len(page["step"]) <= limit
            found += zip(page["step"], page["value"], strict=True)
            after = page["next"]
            if page["is_all"]:
                return found


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    base = tmp_path_factory.mktemp("api")
    sample_runs(base / "runs")
    with made_store(base / "data") as store:
        take_in(store, base / "runs")
        with serving(backing(store)) as url:
            yield Api(url, store)


def test_json_is_strict_and_tells_nan_from_infinity_and_text(api: Api) -> None:
    """NaN and infinities are strings, also in configs; types tell a NaN from the text "nan"."""
    whole = api.get("/run", run="mixed")
    assert whole["config"] == {
        "lr": 0.1,
        "deep": {"a::b": [1, {"x": "inf"}]},
        "odd": "nan",
        "text": "nan",
    }
    assert whole["summary"] == {"best": "-inf", "big": 2**70}
    assert api.get("/run/config", run="mixed")["values"] == whole["config"]
    assert api.get("/run/summary", run="mixed")["values"] == whole["summary"]
    page = api.get("/run/series", run="mixed", key="x")
    assert page["type"] == "mixed"
    kinds = dict(zip(map(str, page["value"]), page["types"], strict=True))
    assert kinds == {"nan": "f", "inf": "f", str(2**60): "i"}
    texts = api.get("/run/series", run="mixed", key="t")
    assert texts["type"] == "text"
    assert set(texts["value"]) == {"nan", 'say "hi",\nyou ☃'}


def test_ints_have_all_their_digits(api: Api) -> None:
    """Beyond 2**53 and beyond 64 bits."""
    assert set(api.get("/run/series", run="mixed", key="big")["value"]) == {2**70}
    values = {row["key"]: row["last"]["value"] for row in api.get("/run/keys", run="mixed")["keys"]}
    assert values["big"] == 2**70


def test_pages_of_any_size_give_the_same(api: Api) -> None:
    """Each point once, in one order."""
    whole = api.whole("mixed", "t", 1_000_000)
    assert len(whole) == 94
    for limit in (1, 7, 10_000):
        assert api.whole("mixed", "t", limit) == whole


def test_cursor_gives_what_came_later_and_only_that(tmp_path: Path) -> None:
    """Live tailing: the last `next` is asked again after more was stored."""
    maker = NodeMaker(tmp_path / "runs", "live")
    maker.process()
    maker.segment(
        {(1, 1, 0): [Rec(seq, seq, seq, NOW_NS, (("x", "d", 1.0),)) for seq in (1, 2, 3)]}, is_open=True
    )
    maker.save()
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        with serving(backing(store)) as url:
            api = Api(url, store)
            page = api.get("/run/series", run="live", key="x")
            assert (page["step"], page["is_all"]) == ([1, 2, 3], True)
            again = api.get("/run/series", run="live", key="x", after=page["next"])
            assert (again["step"], again["is_all"]) == ([], True)
            maker.segment(
                {(1, 1, 0): [Rec(seq, seq, seq, NOW_NS, (("x", "d", 1.0),)) for seq in (4, 5)]}, is_open=True
            )
            take_in(store, tmp_path / "runs")
            later = api.get("/run/series", run="live", key="x", after=again["next"])
            assert (later["step"], later["is_all"]) == ([4, 5], True)


def test_buckets_say_that_they_are_reduced(api: Api) -> None:
    """Method, width and the true count; the newest attempt counts where two overlap, unless all are asked for."""
    found = api.get("/run/buckets", run="twice", key="loss", most=8)
    assert (found["is_reduced"], found["method"], found["points"]) == (True, "min_max", 120)
    assert len(found["start"]) <= 8
    assert sum(found["count"]) == 120
    assert max(found["max"]) == 1060.0
    everything = api.get("/run/buckets", run="twice", key="loss", most=8, all_attempts="true")
    assert everything["points"] == 150
    part = api.get("/run/buckets", run="plain", key="loss", most=2000, first_step=100, last_step=200)
    assert part["points"] == 11


def test_runs_are_filtered_and_sorted_there(api: Api) -> None:
    """By field, by config and summary, by tag; conditions hold together."""

    def ids(**asked: Any) -> list[str]:
        return [row["id"] for row in api.get("/runs", **asked)["runs"]]

    assert set(ids()) == {"plain", "mixed", "twice", "a/../b%2e?&=+#"}
    assert ids(name="mlp") == ["plain"]
    assert ids(tag="base") == ["mixed"]
    assert ids(where='["config","lr","<",0.5]') == ["mixed"]
    assert ids(where=['["config","lr","<",0.5]', '["id","=","plain"]']) == []
    assert ids(where='["id","contains","/../"]') == ["a/../b%2e?&=+#"]
    assert ids(state="finished", sort="name", order="asc") == sorted(
        ids(state="finished"), key=lambda run: {"plain": "mlp"}.get(run, "näme" if "/" in run else run)
    )
    pages = []
    after = ""
    while True:
        page = api.get("/runs", limit=1, after=after)
        pages += [row["id"] for row in page["runs"]]
        after = page["next"]
        if not after:
            break
    assert pages == ids()
    (row,) = api.get("/runs", name="mlp", column=["config::lr"])["runs"]
    assert row["columns"] == {}
    (row,) = api.get("/runs", tag="base", column=["config::deep::a::b::0", "config::odd", "summary::big"])[
        "runs"
    ]
    assert row["columns"] == {"config::deep::a::b::0": 1, "config::odd": "nan", "summary::big": 2**70}
    rows = api.get("/runs", column=["last::loss", "last::x", "config::lr", "last::loss"])["runs"]
    shown = {row["id"]: row["columns"] for row in rows}
    assert shown["plain"] == {"last::loss": 200 / 7} and shown["twice"] == {"last::loss": 1060.0}
    assert shown["mixed"] == {"last::x": "nan", "config::lr": 0.1}


def test_a_word_is_looked_for_in_names_and_tags(api: Api) -> None:
    """Wherever it stands, in capitals or not; as a text, never as a pattern."""

    def ids(word: str) -> set[str]:
        return {row["id"] for row in api.get("/runs", where=json.dumps(["any", "contains", word]))["runs"]}

    assert ids("MLP") == {"plain"}
    assert ids("lin") == {"mixed"}  # its tag
    assert ids("b%2E") == {"a/../b%2e?&=+#"}
    assert ids("%") == {"a/../b%2e?&=+#"}
    assert ids("nowhere") == set()
    assert api.refused("/runs", where='["any","=","mlp"]') == (400, "bad_request")
    assert api.refused("/runs", where='["any","contains",3]') == (400, "bad_request")


def test_keys_of_the_newest_runs_are_offered_as_columns(api: Api) -> None:
    """With how many runs have each, and whether they differ in it."""
    found = api.get("/columns")
    assert found["runs"] == 4
    assert {"key": "lr", "runs": 1, "is_same": True} in found["config"]
    assert "deep::a::b::1::x" in [each["key"] for each in found["config"]]
    assert [each["key"] for each in found["summary"]] == ["best", "big"]
    assert {"key": "loss", "runs": 3, "is_same": False} in found["last"]
    assert api.get("/columns", newest=1)["runs"] == 1


def test_a_list_tells_of_a_run_what_the_run_itself_tells(tmp_path: Path) -> None:
    """Field by field, though a list is made of texts that were kept for it; also of one that runs, and a bare one."""
    told = Description(
        name='"quoted" \\ \u2603',
        created_ns=NOW_NS,
        tags=("a", "b"),
        counts={"accepted": 3},
        more={"active_ns": 5},
    )
    with made_store(tmp_path / "data") as store, serving(backing(store)) as url:
        sample_runs(tmp_path / "runs")
        take_in(store, tmp_path / "runs")
        store.writer.write([Parcel("live", "node", time.time_ns(), (), (), b"{}", told)])
        store.writer.write([parcel(ramp(1, 3), run="bare")])
        api = Api(url, store)
        rows = {row["id"]: row for row in api.get("/runs", limit=100)["runs"]}
        assert {"live", "bare", "plain", "mixed", "twice"} <= rows.keys()
        for run, row in rows.items():
            whole = api.get("/run", run=run)
            assert row == {name: whole[name] for name in row}
        assert (rows["live"]["state"], rows["bare"]["state"]) == ("running", "lost")
        assert (rows["live"]["name"], rows["live"]["counts"]) == (told.name, {"accepted": 3})
        store.writer.delete("plain", 7)
        (row,) = api.get("/runs", deleted=True)["runs"]
        assert (row["id"], row["deleted_ns"]) == ("plain", 7)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/runs", {"limit": 0}),
        ("/runs", {"limit": 10_001}),
        ("/runs", {"sort": "nothing"}),
        ("/runs", {"where": "[]"}),
        ("/runs", {"where": '["config","=",1]'}),
        ("/runs", {"where": '["state","like","x"]'}),
        ("/runs", {"where": '["created_ns",">","x"]'}),
        ("/runs", {"where": "[" * 5_000}),
        ("/runs", {"where": '["config","a","<",NaN]'}),
        ("/runs", {"column": "lr"}),
        ("/runs", {"after": "nonsense"}),
        ("/run", {}),
        ("/run", {"run": ""}),
        ("/run", {"run": "x" * 513}),
        ("/run", {"run": "é" * 300}),
        ("/run", {"run": "a\0b"}),
        ("/run/series", {"run": "plain", "key": "loss", "limit": 1_000_001}),
        ("/run/series", {"run": "plain", "key": "loss", "after": "nonsense"}),
        ("/run/series", {"run": "plain", "key": "loss", "field": "all"}),
        ("/run/buckets", {"run": "plain", "key": "loss", "most": 0}),
        ("/run/buckets", {"run": "plain", "key": "loss", "first_step": 2**63}),
        ("/run/buckets", {"run": "plain", "key": "loss", "first_step": 2, "last_step": 1}),
        ("/run/records", {"run": "plain", "stream": "xyz"}),
        ("/last", {"run": "plain"}),
        ("/runs", {"limt": 5}),
        ("/info", {"run": "plain"}),
        ("/run/contents", {"run": "plain", "key": "loss"}),
        ("/run/contents", {"run": "plain", "side": "other"}),
        ("/run/console", {"run": "plain", "after": 1, "before": 2}),
        ("/run/console", {"run": "plain", "after": -1}),
        ("/run/console", {"run": "plain", "limit": 2001}),
        ("/run/console", {"run": "plain", "process": "mine"}),
        ("/run/console", {"run": "plain", "stream": "stdin"}),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    api: Api, path: str, parameters: dict[str, Any]
) -> None:
    """One form of error, status 400."""
    assert api.refused(path, **parameters) == (400, "bad_request")


def test_run_without_captured_output_has_an_empty_page(api: Api) -> None:
    """And no process of which there is anything."""
    page = api.get("/run/console", run="plain")
    assert (page["process"], page["processes"], page["lines"]) == ("", [], [])
    assert page["is_all"] and page["previous"] == page["next"] == 0
    assert api.refused("/run/console", run="plain", process="0" * 32) == (404, "no_process")
    assert api.refused("/run/console", run="none") == (404, "no_run")


def test_parameter_that_there_is_not_is_named_with_those_that_there_are(api: Api) -> None:
    """A misspelt one would else look as if it had been heard. Who has no token is told nothing; probes may add some."""
    answer = api.ask("/api/v1/run/buckets", run="plain", key="loss", max=5, first=1)
    assert answer.json() == {
        "error": "bad_request",
        "message": "'max', 'first': no such parameter of this path; there are run, key, side, system, most, "
        "first_step, last_step, all_attempts",
    }
    answer = api.ask("/api/v1/run/undelete", verb="POST", run="plain", really="yes")
    assert answer.status_code == 400
    assert "'really': no such parameter of this path; there are run" in answer.text
    assert api.refused("/info", token="", limt=5) == (401, "unauthorized")
    assert api.ask("/healthz", token="", at=1).status_code == 200


def test_texts_are_not_left_out_of_buckets_in_silence(api: Api, tmp_path: Path) -> None:
    """A key that has texts and nothing else is refused; one that has some says so."""
    answer = api.ask("/api/v1/run/buckets", run="mixed", key="t")
    assert (answer.status_code, answer.json()["error"]) == (400, "no_numbers")
    assert "/run/series" in answer.json()["message"]
    assert api.get("/run/buckets", run="plain", key="loss")["leaves_out_texts"] is False
    both = NodeMaker(tmp_path / "runs", "both")
    both.process(1)
    values = [(("note", "d", 1.5),), (("note", "s", "a text"),)]
    both.segment({(1, 1, 0): [Rec(seq, seq, seq, NOW_NS + seq, values[seq % 2], None) for seq in (1, 2, 3)]})
    both.told(1, 1, 3, 3)
    both.save()
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        with serving(backing(store)) as url:
            api = Api(url, store)
            found = api.get("/run/buckets", run="both", key="note")
            assert (found["points"], found["leaves_out_texts"]) == (1, True)
            beyond = api.get("/run/buckets", run="both", key="note", first_step=1000)
            assert (beyond["points"], beyond["leaves_out_texts"]) == (0, True)


def test_keys_come_page_by_page(api: Api) -> None:
    """In the order in which they came first; the cursor is that of the page before."""
    whole = api.get("/run/keys", run="mixed")
    assert whole["total"] == len(whole["keys"]) > 2 and whole["next"] == ""
    found, after = [], ""
    while True:
        page = api.get("/run/keys", run="mixed", limit=2, after=after)
        assert len(page["keys"]) <= 2 and page["total"] == whole["total"]
        found += page["keys"]
        after = page["next"]
        if not after:
            break
    assert found == whole["keys"]
    assert api.get("/run/keys", run="mixed", after="1000")["keys"] == []
    assert api.refused("/run/keys", run="mixed", after="9" * 20) == (400, "bad_request")


def test_root_is_the_page_and_the_manual_is_beside_it(api: Api) -> None:
    """Whoever opens the address in a browser sees the runs; `docs` lists what the API answers."""
    for path, text in (("/", "<main"), ("/docs", "GET /api/v1/runs")):
        answer = requests.get(api.url + path, timeout=TIMEOUT_S)
        assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert text in answer.text


def test_what_is_not_there_is_told(api: Api) -> None:
    """404, and which of it is missing."""
    assert api.refused("/run", run="nothing") == (404, "no_run")
    assert api.refused("/run/series", run="plain", key="nothing") == (404, "no_key")
    assert api.refused("/run/buckets", run="plain", key="nothing") == (404, "no_key")
    assert api.refused("/nothing") == (404, "no_path")
    assert api.refused("/runs", verb="POST") == (405, "no_method")


def test_last_values_of_several_runs(api: Api) -> None:
    """Keys that none of them has are named, and runs that are not here."""
    whole = api.get("/last", run=["plain", "twice", "nothing"], key=["loss", "none"])
    assert {(row["run"], row["key"]): row["last"]["value"] for row in whole["values"]} == {
        ("plain", "loss"): 200 / 7,
        ("twice", "loss"): 1060.0,
    }
    assert (whole["unknown_keys"], whole["unknown_runs"]) == (["none"], ["nothing"])
    one = api.get("/run/last", run="plain", key=["loss", "d"])
    assert ([row["key"] for row in one["values"]], one["unknown_keys"]) == (["loss"], ["d"])
    assert api.get("/run/last", run="plain")["unknown_keys"] == []


def test_long_answers_are_compressed_for_who_takes_it(api: Api) -> None:
    """gzip, never for who does not say so."""
    asked = {"params": {"run": "mixed", "key": "x"}, "timeout": TIMEOUT_S, "stream": True}
    sizes = {}
    for encoding in ("gzip", "identity", "gzip;q=0"):
        headers = {"Authorization": "Bearer reads", "Accept-Encoding": encoding}
        answer = requests.get(f"{api.url}/api/v1/run/series", headers=headers, **asked)  # type: ignore[arg-type]
        assert answer.headers.get("Content-Encoding") == ("gzip" if encoding == "gzip" else None)
        sizes[encoding] = len(answer.raw.read(decode_content=False))
    assert sizes["gzip"] < sizes["identity"] == sizes["gzip;q=0"]


def test_deleted_run_is_gone_and_comes_back(tmp_path: Path) -> None:
    """Only an administrator deletes and undeletes; the bin is listed apart."""
    simple_run(tmp_path / "runs", "one")
    with made_store(tmp_path / "data") as store:
        take_in(store, tmp_path / "runs")
        with serving(backing(store)) as url:
            api = Api(url, store)
            for verb, path in (("DELETE", "/run"), ("POST", "/run/undelete")):
                assert api.refused(path, verb=verb, run="one", token="reads") == (403, "forbidden")
                assert api.refused(path, verb=verb, run="one", token="") == (401, "unauthorized")
            assert api.refused("/run/undelete", verb="POST", run="one") == (404, "not_deleted")
            assert api.get("/run", verb="DELETE", run="one") == {"run": "one", "deleted": True}
            assert api.get("/runs")["runs"] == []
            assert [row["id"] for row in api.get("/runs", deleted="true")["runs"]] == ["one"]
            assert api.get("/run/undelete", verb="POST", run="one") == {"run": "one", "deleted": False}
            assert [row["id"] for row in api.get("/runs")["runs"]] == ["one"]
            assert api.refused("/run", verb="DELETE", run="other") == (404, "no_run")


def test_documentation_works_without_anything_from_elsewhere(api: Api) -> None:
    """/docs names every operation, and no other host."""
    answer = api.ask("/docs", token="")
    described = api.ask("/openapi.json", token="").json()
    assert answer.status_code == 200
    for path in described["paths"]:
        assert path in answer.text
    assert "http" not in answer.text.replace("http-equiv", "")
    assert "<script" not in answer.text
    assert "script-src" not in answer.headers["content-security-policy"]


def test_health_needs_no_token_and_says_why_not(tmp_path: Path) -> None:
    """503 with the reason while it is not ready; metrics need a token."""
    trouble = ["the disk is full"]
    with (
        made_store(tmp_path / "data") as store,
        serving(backing(store, not_ready=lambda: "".join(trouble))) as url,
    ):
        api = Api(url, store)
        assert api.ask("/healthz", token="").text == "ok\n"
        answer = api.ask("/readyz", token="")
        assert (answer.status_code, answer.json()["message"]) == (503, "the disk is full")
        assert answer.headers["retry-after"]
        trouble.clear()
        assert api.ask("/readyz", token="").status_code == 200
        assert api.ask("/metrics", token="").status_code == 401
        assert api.ask("/metrics", token="reads").text == "logclient_up 1\n"
