"""What users and maintainers can name is in the documents."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import logclient
from logclient_backend.failpoint import POINTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
DOCS = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))


def test_settings_page_is_what_the_settings_say() -> None:
    """Each setting with its variable, default and meaning."""
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "gendocs.py"), "--check"], timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("name", logclient.__all__)
def test_public_name_is_documented(name: str) -> None:
    """README or docs say what it is for."""
    assert f"`{name}" in DOCS or f"logclient.{name}" in DOCS or f".{name}(" in DOCS


VERBS = [
    "ls",
    "show",
    "stop",
    "tail",
    "export",
    "import",
    "status",
    "recover",
    "doctor",
    "wal",
    "demo",
    "server",
]


@pytest.mark.parametrize("verb", VERBS)
def test_verb_is_documented(verb: str) -> None:
    """README or docs show each verb of the command line."""
    assert f"logclient {verb}" in DOCS


@pytest.mark.parametrize("point", POINTS)
def test_fail_point_is_documented(point: str) -> None:
    """ARCHITECTURE lists every crash point."""
    assert f"`{point}`" in ARCHITECTURE


def test_architecture_can_be_read_in_one_sitting() -> None:
    """At most 300 lines."""
    assert len(ARCHITECTURE.splitlines()) <= 300


PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md"
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    """Links between pages, and to headings in them."""
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE) if heading else []
        assert not heading or heading in [
            re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in headings
        ]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.startswith("docs/") and page != "docs/index.md"]
)
def test_every_page_is_in_the_index(page: str) -> None:
    """No page that nobody finds."""
    assert f"]({page.removeprefix('docs/')})" in (ROOT / "docs/index.md").read_text()


def test_every_page_is_in_the_site() -> None:
    """The navigation of the site, which `make docs` builds, has each page once."""
    named = re.findall(r"^ +- .*?([\w/-]+\.md)$", (ROOT / "tools/mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted([*PAGES, "CHANGELOG.md"])


def test_readme_is_a_screen_and_a_half() -> None:
    """At most 75 lines, none of them a wall but rows of tables."""
    lines = README.splitlines()
    assert len(lines) <= 75
    assert all(len(line) <= 120 for line in lines if not line.startswith("|"))


CASE = re.compile(r"\b(?:R2|C\d|S)-\d+\b")


def test_field_cases_name_their_tests() -> None:
    """Each code in a test has a row, which names that file; no row is left without one."""
    rows = {}
    for line in (ROOT / "docs/field-cases.md").read_text().splitlines():
        found = re.match(r"\| (\S+) \|.*\| (.*) \|$", line)
        if found and CASE.fullmatch(found.group(1)):
            rows[found.group(1)] = set(re.findall(r"`([^`]+)`", found.group(2)))
    used: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        for code in CASE.findall(path.read_text()):
            used.setdefault(code, set()).add(path.relative_to(ROOT).as_posix())
    assert rows == used
