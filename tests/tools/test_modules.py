"""tools/modules.py finds what it is there to find."""

from __future__ import annotations

import pytest

from tools import modules

INDEX = '<script src="static/DIGEST/app.js"></script><link href="static/DIGEST/style/tokens.css">'
GOOD = {
    "index.html": INDEX,
    "app.js": 'import * as core from "./core.js";\nimport { b as c } from "./core.js";\n'
    'core.a(...c);\nconst views = { other: () => import("./views/other.js") };\n',
    "core.js": "// import { x } from nowhere\nexport function a(x) {}\nexport const b = 1;\n",
    "views/other.js": 'import { a } from "../core.js";\n\nexport async function open() {\n  a(1);\n}\n',
    "style/tokens.css": ":root {\n  --ink: #123456;\n}\n",
}


def test_page_as_it_should_be_has_no_fault() -> None:
    """Comments are no code, and each file is used."""
    assert list(modules.faults(GOOD)) == []


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        (
            "app.js",
            'import { gone } from "./core.js";\ngone();\n',
            "imports 'gone' of core.js, which does not",
        ),
        ("app.js", 'import { a } from "./core.js";\n', "imports 'a' and does not use it"),
        ("app.js", 'import * as core from "./core.js";\ncore.gone();\n', "uses core.gone"),
        ("app.js", 'import { a } from "./gone.js";\na();\n', "there is no gone.js"),
        ("app.js", 'const view = () => import("./views/gone.js");\n', "there is no views/gone.js"),
        ("app.js", 'import { a } from "/core.js";\na();\n', "addresses of modules are relative"),
        ("unused.js", "export const a = 1;\n", "unused.js: used by nothing"),
        ("style/more.css", "a {\n  color: #fff;\n}\n", "has a colour of its own"),
    ],
)
def test_each_fault_is_named(name: str, text: str, fault: str) -> None:
    """With the file in which it is."""
    found = list(modules.faults({**GOOD, name: text}))
    assert [each for each in found if fault in each and each.startswith(name)] != []
