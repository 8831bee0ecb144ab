"""The page's files: served as they are, under a policy that lets nothing in and nothing out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from logclient_backend.collector.web import static_files
from logclient_backend.collector.web.static_files import StaticFiles
from tests.served import backing, made_store, serving


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        made_store(tmp_path_factory.mktemp("page") / "data") as store,
        serving(backing(store)) as found,
    ):
        yield found


def test_page_needs_no_token_and_names_files_that_are_there(url: str) -> None:
    """Each file that the page loads comes with its type and stays in the browser's cache."""
    page = requests.get(f"{url}/", timeout=60)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="(static/[^"]+)"', page.text)
    assert len(named) >= 4
    for name in named:
        answer = requests.get(f"{url}/{name}", timeout=60)
        assert answer.status_code == 200
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "immutable" in answer.headers["cache-control"]


def test_policy_lets_no_foreign_or_inline_script_run(url: str) -> None:
    """Nor does the page hold one."""
    page = requests.get(f"{url}/", timeout=60)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert re.findall(r"<script(?![^>]*src=)|\son[a-z]+=|style=", page.text) == []


@pytest.mark.parametrize(
    "name", ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "app.js%00", "core", ""]
)
def test_nothing_beside_the_page_can_be_read(url: str, name: str) -> None:
    """A name chooses among the files that were read at the start, and is no path."""
    made = requests.Request("GET", url).prepare()
    made.url = f"{url}/static/{StaticFiles().digest}/{name}"
    with requests.Session() as session:
        assert session.send(made, timeout=60).status_code == 404


def test_other_content_has_other_addresses(tmp_path: Path) -> None:
    """So a browser never mixes the modules of two versions."""
    for content in ("1", "2"):
        (tmp_path / content).mkdir()
        (tmp_path / content / "index.html").write_text('<script src="static/DIGEST/app.js">')
        (tmp_path / content / "app.js").write_text(content)
    one, two = StaticFiles(tmp_path / "1"), StaticFiles(tmp_path / "2")
    assert one.digest != two.digest
    assert f"static/{one.digest}/app.js".encode() in one.index.body


def test_files_of_others_are_as_they_were_published() -> None:
    """Each has its package, version, licence and hash in VENDOR.json, and nothing else is there."""
    folder = Path(static_files.__file__).parent / "static" / "vendor"
    listed = json.loads((folder / "VENDOR.json").read_text())["files"]
    assert {each["file"] for each in listed} | {"VENDOR.json"} == {path.name for path in folder.iterdir()}
    for each in listed:
        assert hashlib.sha256((folder / each["file"]).read_bytes()).hexdigest() == each["sha256"]
