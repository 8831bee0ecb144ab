"""Move modules, and rewrite every import and mention of them.

    python tools/move.py TABLE      # lines of `old.dotted.name new.dotted.name`, then read the difference

Moves with `git mv`, so that `git log --follow` goes on. Imports are rewritten by their syntax, relative ones stay
relative, and a name that a module has in the code stays (`import new as old`). Dotted names and paths of the files are
rewritten in all other text, scripts inside strings included. Formatting and the order of imports is left to
`python tools/check.py --fix`. Not for packages, and not for a module whose name a new package takes: move it into that
package in the same table.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "logclient": "logclient",
    "logclient_backend": "backend/logclient_backend",
    "tests": "tests",
    "tools": "tools",
}
SUFFIXES = {".py", ".md", ".toml"}
_IN_TEXT = re.compile(r"from (?P<base>[\w.]+) import (?P<names>\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)")
Table = Mapping[str, str]


def path_of(module: str) -> str:
    """Return the file of a module, relative to the root."""
    top, *rest = module.split(".")
    return "/".join([SOURCES[top], *rest]) + ".py"


def module_of(path: str) -> str:
    """Return the module of a file; empty for a file of none. A package is its `__init__`."""
    for top, folder in SOURCES.items():
        if path.endswith(".py") and path.startswith(f"{folder}/"):
            rest = path[len(folder) + 1 : -len(".py")].split("/")
            return ".".join([top, *rest])
    return ""


def base_of(module: str, level: int, name: str | None) -> str:
    """Return the absolute name that `from ...name` in a module stands for."""
    if not level:
        return name or ""
    above = module.split(".")[:-level]
    return ".".join([*above, *([name] if name else [])])


def relative(module: str, target: str) -> str:
    """Return the target as a relative import in that module has it."""
    here, there = module.split(".")[:-1], target.split(".")
    same = 0
    while same < min(len(here), len(there)) and here[same] == there[same]:
        same += 1
    return "." * (len(here) - same + 1) + ".".join(there[same:])


def split(base: str, names: Iterator[tuple[str, str | None]], table: Table) -> dict[str, list[str]]:
    """Return the names of one import by the module or package that has them now, as import statements write them."""
    found: dict[str, list[str]] = {}
    for name, alias in names:
        full = f"{base}.{name}"
        if full in table:
            package, _, new = table[full].rpartition(".")
            alias = alias or (name if new != name else None)
            found.setdefault(package, []).append(f"{new} as {alias}" if alias and alias != new else new)
        else:
            found.setdefault(table.get(base, base), []).append(f"{name} as {alias}" if alias else name)
    return found


def with_imports(text: str, module: str, table: Table) -> str:
    """Return the text of a module with its import statements rewritten, for its own new place too."""
    now = table.get(module, module)
    lines = text.splitlines(keepends=True)
    edits = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = base_of(module, node.level, node.module)
        if base.partition(".")[0] not in SOURCES:
            continue
        found = split(base, ((alias.name, alias.asname) for alias in node.names), table)
        has_moved = base in table or any(f"{base}.{alias.name}" in table for alias in node.names)
        if not has_moved and (now == module or not node.level):
            continue
        statements = [
            " " * node.col_offset
            + f"from {relative(now, package) if node.level else package} import ({', '.join(names)})"
            for package, names in found.items()
        ]
        assert node.end_lineno is not None
        statements[0] += lines[node.end_lineno - 1][node.end_col_offset :].rstrip("\n")  # a comment
        edits.append((node.lineno - 1, node.end_lineno, "\n".join(statements) + "\n"))
    for start, end, new in sorted(edits, reverse=True):
        lines[start:end] = [new]
    return "".join(lines)


def with_mentions(text: str, table: Table) -> str:
    """Return the text with imports in strings, dotted names and paths rewritten."""
    packages = {new.rpartition(".")[0] for new in table.values()}

    def imported(match: re.Match[str]) -> str:
        base = match["base"]
        pairs = [name.partition(" as ")[::2] for name in match["names"].split(", ")]
        # what was a module and is a package now may have been rewritten: then `base` is right
        has_moved = (base in table and base not in packages) or any(
            f"{base}.{name}" in table for name, _ in pairs
        )
        if base.partition(".")[0] not in SOURCES or not has_moved:
            return match.group()
        found = split(base, ((name, alias or None) for name, alias in pairs), table)
        before = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
        between = "; " if before.strip() else f"\n{before}"
        return between.join(f"from {package} import {', '.join(names)}" for package, names in found.items())

    text = _IN_TEXT.sub(imported, text)
    mentions = {old: new for old, new in table.items() if old not in packages}
    for old, new in table.items():
        mentions[path_of(old)] = path_of(new)
        short = path_of(old).removeprefix("backend/logclient_backend/").removeprefix("logclient/")
        if "/" in short:
            mentions[short] = (
                path_of(new).removeprefix("backend/logclient_backend/").removeprefix("logclient/")
            )
    longest = sorted(mentions, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?!\w)")
    return "".join(
        line
        if line.lstrip().startswith(("from ", "import "))
        else pattern.sub(lambda m: mentions[m[1]], line)
        for line in text.splitlines(keepends=True)
    )


def main(table: Table) -> None:
    """Move the modules of the table."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix not in SUFFIXES or not path.is_file():
            continue
        text = path.read_text()
        module = module_of(name)
        path.write_text(with_mentions(with_imports(text, module, table) if module else text, table))
    for old, new in table.items():
        (ROOT / path_of(new)).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", path_of(old), path_of(new)], cwd=ROOT, check=True)


if __name__ == "__main__":
    rows = (line.split() for line in Path(sys.argv[1]).read_text().splitlines() if not line.startswith("#"))
    main(dict(row for row in rows if row))
