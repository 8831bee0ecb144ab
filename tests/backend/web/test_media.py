"""`/api/v1/run/media` of a run that goes on: what is new since an earlier answer, and whose bytes have come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from logclient_backend.collector.blobs import Blobs
from logclient_backend.collector.store.interface import Store
from logclient_backend.collector.tokens import EVERYBODY
from tests.served import backing, made_store, serving

from .media_values import LiveRun


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with made_store(tmp_path / "store") as found:
        yield found


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(str(tmp_path))


@pytest.fixture
def url(store: Store, blobs: Blobs) -> Iterator[str]:
    with serving(backing(store, blobs=blobs, check=lambda token: EVERYBODY)) as found:
        yield f"{found}/api/v1/run/media"


def ask(url: str, **parameters: Any) -> Any:
    answer = requests.get(url, {"run": "live", **parameters}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_answer_since_an_earlier_one_has_what_came_alone(url: str, store: Store) -> None:
    """Also of a rank that is behind, or new, and of one key; a cursor that is none is refused."""
    run = LiveRun(store)
    run.log(5, "a", lane=1)
    run.log(4, "b", lane=2)
    first = ask(url)
    assert [(row["step"], row["key"]) for row in first["media"]] == [(4, "b"), (5, "a")]
    assert ask(url, since=first["cursor"])["media"] == []
    run.log(1, "a", lane=3)
    run.log(5, "b", lane=2)
    run.log(6, "b", lane=2)
    new = ask(url, since=first["cursor"])
    assert [(row["step"], row["key"]) for row in new["media"]] == [(1, "a"), (5, "b"), (6, "b")]
    assert [row["step"] for row in ask(url, since=first["cursor"], key="a")["media"]] == [1]
    assert ask(url, since=new["cursor"])["media"] == []
    assert ask(url, since=new["cursor"])["keys"] == ["a", "b"]
    assert len(ask(url, since="")["media"]) == 5
    refused = requests.get(url, {"run": "live", "since": "5"}, timeout=60)
    assert refused.status_code in (400, 422), refused.text


def test_values_say_whether_their_bytes_are_here(url: str, store: Store, blobs: Blobs) -> None:
    """In the list, and for some hashes at once: nobody has to load them to find out."""
    run = LiveRun(store, blobs)
    run.log(1, "a", b"came")
    run.log(2, "a", b"comes")
    run.arrive(b"came")
    rows = ask(url)["media"]
    assert [row["here"] for row in rows] == [True, False]
    hashes = [row["sha256"] for row in rows]
    assert ask(f"{url[:-5]}blobs", sha256=hashes)["here"] == hashes[:1]
    refused = requests.get(f"{url[:-5]}blob", {"run": "live", "sha256": hashes[1]}, timeout=60)
    assert refused.status_code == 404 and "did not come yet" in refused.json()["message"]
    assert ask(f"{url[:-5]}blobs", run="live", sha256=["0" * 64])["here"] == []
