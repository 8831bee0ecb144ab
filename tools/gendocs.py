"""Writes `docs/settings.md` from `logclient.config.SETTINGS`; ``--check`` says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from logclient.config import SETTINGS

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Every setting is a variable, and an argument of `logclient.init` under the name in the second column (`id` for
`run_id`); arguments win. This page is written by `python tools/gendocs.py`.

| variable | argument | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """The page as it should be."""
    rows = [
        f"| `{setting.variable}` | `{setting.name}` | {_default(setting.default)} | {setting.help} |\n"
        for setting in SETTINGS
    ]
    return HEAD + "".join(rows)


def _default(value: object) -> str:
    if value == "" or value is None:
        return ""
    if type(value) is int and value >= 1 << 16:
        unit, name = (1 << 30, "GiB") if value >= 1 << 30 else (1 << 20, "MiB")
        return f"{value:,} ({value / unit:g} {name})"
    return str(value)


def main() -> int:
    if "--check" in sys.argv:
        if PAGE.exists() and PAGE.read_text() == page():
            return 0
        print("docs/settings.md is out of date: run python tools/gendocs.py", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
