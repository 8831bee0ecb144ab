"""Fail where a file or class has outgrown what one reads in a sitting, or has a name that says nothing.

    python tools/sizes.py

Tests are free to have long classes (a Hypothesis machine has many rules), not long files. Generated code is free.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("logclient", "backend", "tests", "tools")
GENERATED = "logclient_proto"
PAGE = "backend/logclient_backend/collector/web/static"
VENDORED = "vendor"

MAX_LINES = 600
MAX_METHODS = 12
MAX_PARAMETERS = 8
EMPTY_NAMES = {"utils", "common", "manager"}


def source_files() -> list[Path]:
    found = (path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if GENERATED not in path.parts)


def page_files() -> list[Path]:
    """Modules and style sheets of the dashboard, without those of others."""
    found = (path.relative_to(ROOT) for path in (ROOT / PAGE).rglob("*") if path.suffix in (".js", ".css"))
    return sorted(path for path in found if VENDORED not in path.parts)


def faults(path: Path, text: str) -> Iterator[str]:
    """What is wrong with one file, a sentence each."""
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{path}: {lines} lines, at most {MAX_LINES}."
    for part in path.with_suffix("").parts:
        if part in EMPTY_NAMES:
            yield f"{path}: the name {part!r} does not say what is in it."
    if path.parts[0] == "tests" or path.suffix != ".py":
        return
    free = of_init() if path.parts[:2] == ("logclient", "integrations") else frozenset()
    for node in ast.walk(ast.parse(text, str(path))):
        if isinstance(node, ast.ClassDef):
            yield from class_faults(path, node, free)


@cache
def of_init() -> frozenset[str]:
    """The arguments of `logclient.init`: an integration's constructor names them, too, and they do not count there."""
    tree = ast.parse((ROOT / "logclient/__init__.py").read_text())
    init = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "init")
    return frozenset(arg.arg for arg in (*init.args.args, *init.args.kwonlyargs))


def class_faults(path: Path, node: ast.ClassDef, free: frozenset[str]) -> Iterator[str]:
    functions = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    # By name, so that overloads count once; a property is an attribute to its user.
    methods = {f.name for f in functions if not f.name.startswith("_") and not is_property(f)}
    if len(methods) > MAX_METHODS:
        yield f"{path}:{node.lineno}: {node.name} has {len(methods)} public methods, at most {MAX_METHODS}."
    for function in functions:
        if function.name == "__init__" and (count := parameters(function.args, free)) > MAX_PARAMETERS:
            yield f"{path}:{function.lineno}: {node.name}() takes {count} parameters, at most {MAX_PARAMETERS}."


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = (ast.unparse(decorator) for decorator in function.decorator_list)
    return any(name.endswith(("property", ".setter", ".deleter")) for name in names)


def parameters(args: ast.arguments, free: frozenset[str]) -> int:
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return sum(arg is not None and arg.arg not in free for arg in every) - 1  # self


def main() -> int:
    texts = {path: (ROOT / path).read_text() for path in (*source_files(), *page_files())}
    found = [fault for path, text in texts.items() for fault in faults(path, text)]
    for fault in found:
        print(fault)
    lines = sorted((text.count("\n"), path) for path, text in texts.items())
    median = statistics.median(count for count, _ in lines)
    print(f"{len(lines)} files, median {median:.0f} lines, longest {lines[-1][1]} with {lines[-1][0]}.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
