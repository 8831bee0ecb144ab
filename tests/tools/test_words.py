"""tools/words.py renames whole identifiers, and names those that came back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import words

TABLE = {"OLD_*": "NEW_*", "hole": "gap"}


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("OLD_ROWS = 2", "NEW_ROWS = 2"),
        ("a.OLD_ROWS, `OLD_AGE_S`", "a.NEW_ROWS, `NEW_AGE_S`"),
        ("UTOLD_ROWS, OLD_, whole, holes, hole_bytes", "UTOLD_ROWS, OLD_, whole, holes, hole_bytes"),
        ("hole(hole)", "gap(gap)"),
    ],
)
def test_whole_identifiers_are_renamed(text: str, new: str) -> None:
    """A star is the rest of one; a word inside another one stays."""
    assert words.renamed(text, TABLE) == new


@pytest.mark.slow
def test_what_came_back_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """File, line, and what the word is here."""
    file = words.ROOT / "tests/tools/test_words.py"
    monkeypatch.setattr(words, "tracked", lambda: iter([file]))
    monkeypatch.setattr(words, "table", lambda: {"came_" + "back": "return"})
    assert not words.main(apply=False)
    monkeypatch.setattr(words, "table", lambda: {"words": "terms"})
    assert words.main(apply=False)
    assert "tests/tools/test_words.py:9: words is terms here." in capsys.readouterr().out


def test_renaming_writes_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, and nothing else in them."""
    file = tmp_path / "a.py"
    file.write_text("OLD_ROWS = hole\nother = 1\n")
    monkeypatch.setattr(words, "tracked", lambda: iter([file]))
    monkeypatch.setattr(words, "table", lambda: TABLE)
    assert not words.main(apply=True)
    assert file.read_text() == "NEW_ROWS = gap\nother = 1\n"


def test_a_docstring_that_names_no_subject_is_found() -> None:
    """Its first word tells; a word that only begins like one is none."""
    text = '"""Whole files."""\ndef a():\n    """Of one worker."""\nclass B:\n    """The same, later."""\n'
    assert list(words.openings(text)) == [(3, "Of"), (5, "The same")]
    assert words.is_product("logclient/run.py") and not words.is_product("tests/fakes.py")


def test_the_check_covers_docstrings_of_the_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails for a file of the product, and leaves a test's alone."""
    text = '"""Of one worker."""\n'
    product, test = tmp_path / "logclient/run.py", tmp_path / "tests/test_run.py"
    for file in (product, test):
        file.parent.mkdir()
        file.write_text(text)
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "tracked", lambda: iter([test]))
    assert not words.main(apply=False)
    monkeypatch.setattr(words, "tracked", lambda: iter([product]))
    assert words.main(apply=False)
    assert "logclient/run.py:1: a docstring begins with 'Of'" in capsys.readouterr().out
