"""Check the dashboard's modules without Node: names that are imported are exported, used, and in a file that is there.

    python tools/modules.py

Imports and exports are read by their form, one statement at a time, which is how the files are written; the browser
tests run them. Fails as well where a module or style sheet is used by nothing, where a style sheet uses a colour of its
own, and where a line is longer than 120 characters.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "backend/logclient_backend/collector/web/static"
ENTRY, INDEX = "app.js", "index.html"
THEME = "style/tokens.css"
FREE = "vendor/"
WIDTH = 120

_COMMENT = re.compile(r"/\*.*?\*/|^\s*//[^\n]*", re.DOTALL | re.MULTILINE)
_IMPORT = re.compile(r"""^import\s+(?:([^"';]+?)\s+from\s+)?"([^"]+)";""", re.MULTILINE)
_DYNAMIC = re.compile(r"""\bimport\(\s*"([^"]+)"\s*\)(?:\s*\.then)?""")
_EXPORT = re.compile(r"^export\s+(?:async\s+)?(?:function\*?|class|const|let)\s+([\w$]+)", re.MULTILINE)
_EXPORTS = re.compile(r"^export\s*\{([^}]*)\}", re.MULTILINE)
_FREE_NAME = r"(?:(?<![\w$.])|(?<=\.\.\.))"  # no part of a name, and no property
_COLOUR = re.compile(r"#[0-9a-fA-F]{3,8}\b(?=[^{}]*[;}])|\brgba?\(")


def names(clause: str) -> Iterator[tuple[str, str]]:
    """Each (exported name, local name) of an import clause; the name is * for a whole module."""
    clause = clause.strip()
    if star := re.fullmatch(r"\*\s+as\s+([\w$]+)", clause):
        yield "*", star[1]
        return
    default, _, rest = clause.partition("{")
    if default.strip(" ,\n"):
        yield "default", default.strip(" ,\n")
    for part in rest.rstrip("} \n").split(","):
        if part.strip():
            exported, _, local = part.strip().partition(" as ")
            yield exported.strip(), (local or exported).strip()


def exports(text: str) -> set[str]:
    """Names that a module exports."""
    found = set(_EXPORT.findall(text))
    if re.search(r"^export\s+default\b", text, re.MULTILINE):
        found.add("default")
    for clause in _EXPORTS.findall(text):
        found |= {part.strip().rpartition(" as ")[2].strip() for part in clause.split(",") if part.strip()}
    return found


def faults(files: Mapping[str, str]) -> Iterator[str]:
    """Sentences about what is wrong; `files`: text by name below the folder."""
    texts = {name: _COMMENT.sub("", text) for name, text in files.items() if name.endswith(".js")}
    exported = {name: exports(text) for name, text in texts.items()}
    used = {ENTRY}
    for name, text in texts.items():
        for clause, path in _IMPORT.findall(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            used.add(target)
            if not path.startswith("."):
                yield f"{name}: imports {path!r}; addresses of modules are relative, which keeps the version in them."
            elif target not in texts:
                yield f"{name}: imports {path!r}, and there is no {target}."
            elif not name.startswith(FREE):
                yield from import_faults(name, text, clause, target, exported[target])
        for path in _DYNAMIC.findall(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            used.add(target)
            if target not in texts:
                yield f"{name}: imports {path!r}, and there is no {target}."
    used |= set(re.findall(r'"static/DIGEST/([^"]+)"', files[INDEX]))
    for name in sorted(files):
        if name.endswith((".js", ".css")) and name not in used and not name.startswith(FREE):
            yield f"{name}: used by nothing: import it, or name it in {INDEX}."
        if (
            name.endswith(".css")
            and name != THEME
            and not name.startswith(FREE)
            and _COLOUR.search(files[name])
        ):
            yield f"{name}: has a colour of its own; give it a name in {THEME}, for both themes."


def import_faults(name: str, text: str, clause: str, target: str, there: set[str]) -> Iterator[str]:
    """Sentences about one import."""
    text = _IMPORT.sub("", text)
    for export, local in names(clause):
        if export != "*" and export not in there:
            yield f"{name}: imports {export!r} of {target}, which does not export it."
        if len(re.findall(rf"{_FREE_NAME}{re.escape(local)}(?![\w$])", text)) < 1:
            yield f"{name}: imports {local!r} and does not use it."
        if export == "*":
            for part in sorted(set(re.findall(rf"{_FREE_NAME}{re.escape(local)}\.([\w$]+)", text)) - there):
                yield f"{name}: uses {local}.{part}, and {target} does not export it."


def main() -> int:
    found = sorted(path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".html"))
    files = {path.relative_to(STATIC).as_posix(): path.read_text() for path in found}
    wrong = list(faults(files))
    for fault in wrong:
        print(fault)
    print(f"{len(files)} files of the page.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
