"""What users and maintainers can name is in the documents."""

from __future__ import annotations

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


VERBS = ["ls", "show", "tail", "export", "import", "status", "recover", "doctor", "wal", "demo", "server"]


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
