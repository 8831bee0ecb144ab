"""Addresses of a collector's page: what is believed, and what is kept beside the login."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logclient.shm.run_page import page_of_run
from logclient_backend.wire import known_pages
from logclient_backend.wire.address import parse
from logclient_backend.wire.web_address import checked, page_of

SERVER = parse("grpcs://h.example:7788")


@pytest.mark.parametrize(
    ("public_url", "http_address", "page"),
    [
        ("", "", ""),
        ("https://logs.example/", ":7789", "https://logs.example"),
        ("https://logs.example/a/b~c", "", "https://logs.example/a/b~c"),
        ("", ":7789", "https://h.example:7789"),
        ("", "0.0.0.0:7789", "https://h.example:7789"),
        ("", "[::]:7789", "https://h.example:7789"),
        ("", "[fe::1]:7789", "https://[fe::1]:7789"),
        *(("", wrong, "") for wrong in (":x", "[::1", "h:99999", "a b:1")),
        *(
            (wrong, "", "")
            for wrong in (
                *("javascript:x", "file:///etc", "https://", "https://u@h", "https://h/?q", "https://h/#x"),
                *("https://h/'><script>", "https://h/\u202e", "https://h/\x1b[2J", "https://h/" + "a" * 400),
            )
        ),
    ],
)
def test_page_is_the_public_one_else_where_it_listens(public_url: str, http_address: str, page: str) -> None:
    """Nothing that moves a cursor, is no address of a page, or holds more than that."""
    assert page_of(public_url, http_address, SERVER) == page


@given(st.text(max_size=60).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_id_of_a_run_is_percent_encoded_once(run_id: str) -> None:
    """As `urllib.parse.quote` does it, whose import a trainer does without."""
    assert page_of_run("https://h", run_id) == f"https://h/#/run/{quote(run_id, safe='')}"
    assert page_of_run("", run_id) == ""


def test_pages_are_kept_by_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest counts, there are not too many, and what is damaged or odd is as good as nothing."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "logclient" / known_pages.FILE
    assert known_pages.find(SERVER) == ""
    known_pages.note(SERVER, "https://a")
    known_pages.note(SERVER, "https://b")
    known_pages.note(SERVER, "javascript:x")
    before = path.stat()
    known_pages.note(SERVER, "https://b")
    assert path.stat().st_ino == before.st_ino, "what is known is not written again"
    assert known_pages.find(SERVER) == "https://b" and known_pages.find(parse("grpc://h.example:7788")) == ""
    for number in range(known_pages.MAX_PAGES):
        known_pages.note(parse(f"grpc://h{number}:1"), "https://a")
    assert known_pages.find(SERVER) == "" and known_pages.find(parse("grpc://h0:1")) == "https://a"
    for content in ("{", "[]", '{"pages": 1}', '{"pages": {"grpcs://h.example:7788": "javascript:x"}}'):
        path.write_text(content)
        assert known_pages.find(SERVER) == ""
    known_pages.note(SERVER, "https://a")
    assert known_pages.find(SERVER) == "https://a"


def test_home_that_cannot_be_written_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each run learns the address anew."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/none")
    known_pages.note(SERVER, "https://a")
    assert known_pages.find(SERVER) == ""
    assert checked("https://a/") == "https://a"
