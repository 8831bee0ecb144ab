"""Takes recipes from docs/where-it-runs.md, so that what the page tells is what the tests run.

A recipe is a section (`### torchrun`) with code blocks; a block in `python` whose first line is a comment with a file
name (`# train.py`, below a `#!` line where there is one) is written to that file, a block in `sh` holds the commands.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs" / "where-it-runs.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"(?:#!.*\n)?# ([\w./-]+\.\w+)\n")


class Recipe(NamedTuple):
    """Files by name, and the lines of its shell blocks."""

    files: dict[str, str]
    commands: list[str]

    def write(self, where: Path) -> None:
        where.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (where / name).write_text(text)


def recipe(heading: str) -> Recipe:
    """The recipe under this heading of the page (any level)."""
    text = PAGE.read_text()
    begin = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert begin is not None, f"{PAGE.name} has no section {heading!r}"
    rest = text[begin.end() :]
    # a comment in code looks like a heading
    prose = _BLOCK.sub(lambda block: " " * len(block[0]), rest)
    end = re.search(rf"^ *#{{1,{len(begin[1])}}} ", prose, re.MULTILINE)
    section = rest[: end.start()] if end else rest
    files: dict[str, str] = {}
    commands: list[str] = []
    for kind, body in _BLOCK.findall(section):
        if kind == "sh":
            commands += [line for line in body.splitlines() if line and not line.startswith("#")]
        elif name := _NAME.match(body):
            files[name[1]] = body
    assert files or commands, f"section {heading!r} holds no recipe"
    return Recipe(files, commands)
