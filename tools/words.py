"""Keep one word per thing: rename identifiers by a table, and fail where a banned one comes back.

Fails as well where a docstring of the product begins with a word of a question or of another sentence (*What*, *Of*,
*The same*): such a docstring is an answer without its question.

    python tools/words.py            # check
    python tools/words.py --apply    # rename in all tracked files, then read the difference

The table is `tools/words.txt`. Identifiers are matched whole; `*` stands for the rest of one. Names in text (comments,
documents, settings) are renamed as well, since they refer to the code.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_name("words.txt")
SUFFIXES = {".py", ".md", ".toml", ".proto"}
OPENINGS = re.compile(r"(As|How|Not|Of|That|The same|Those|Until|What|When|Where|Whether|Which|Who)\b")
PRODUCT = ("logclient/", "backend/logclient_backend/")
FREE = {"tools/words.txt", "CHANGELOG.md", "DECISIONS.md"}  # the table; what was true when it was written


def table() -> dict[str, str]:
    """Return old -> new."""
    lines = (line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#"))
    return dict(line for line in lines if line)


def pattern(words: dict[str, str]) -> re.Pattern[str]:
    """Return a pattern that matches any old word; a star is its last group."""
    rules = (re.escape(old).replace(r"\*", r"(\w+)") for old in words)
    return re.compile("|".join(rf"(?<!\w){rule}(?!\w)" for rule in rules))


def renamed(text: str, words: dict[str, str]) -> str:
    """Return the text with each old word as the new one."""

    def new(match: re.Match[str]) -> str:
        for old, word in words.items():
            found = pattern({old: word}).fullmatch(match.group())
            if found:
                return word.replace("*", found.group(1) if found.groups() else "")
        raise AssertionError(match.group())

    return pattern(words).sub(new, text)


def tracked() -> Iterator[Path]:
    """Yield the text files that the table rules."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in SUFFIXES and name not in FREE and path.is_file():
            yield path


def openings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and first word of each docstring that begins with one of `OPENINGS`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found = OPENINGS.match(ast.get_docstring(node) or "")
            if found:
                yield node.body[0].lineno, found.group()


def is_product(name: str) -> bool:
    """Is this a file of the product?"""
    return name.endswith(".py") and name.startswith(PRODUCT)


def main(apply: bool) -> int:
    words = table()
    found = False
    for path in tracked():
        text = path.read_text()
        if apply:
            path.write_text(renamed(text, words))
            continue
        name = str(path.relative_to(ROOT))
        for match in pattern(words).finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            print(f"{name}:{line}: {match.group()} is {renamed(match.group(), words)} here.")
            found = True
        for line, word in openings(text) if is_product(name) else ():
            print(f"{name}:{line}: a docstring begins with {word!r}; name its subject.")
            found = True
    return found


if __name__ == "__main__":
    sys.exit(main("--apply" in sys.argv[1:]))
