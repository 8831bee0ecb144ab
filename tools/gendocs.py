"""Writes `docs/settings.md` from `logclient.config.SETTINGS`; ``--check`` says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from logclient.config import SETTINGS
from logclient.encode import nested_config as nested
from logclient.encode import values

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Every setting is a variable, and an argument of `logclient.init` under the name in the second column (`id` for
`run_id`); arguments win. This page is written by `python tools/gendocs.py`.

| variable | argument | default | meaning |
| --- | --- | --- | --- |
"""
TAIL = f"""
## Settings of the experiment: `config` and `summary`

`init(config=...)`, `run.config` and `run.summary` take a dict, or an object that has settings: a dataclass, an object
of attrs or pydantic, an OmegaConf container, an `argparse.Namespace`, a `types.SimpleNamespace`, any mapping. Such
objects, and lists, tuples and sets, may be nested; of any other object its text is stored. An entry that raises when
it is read, such as a missing value of OmegaConf, is stored as a text that says so; the others are stored.

| limit of one change | |
| --- | --- |
| entries, those of nested maps and lists included | {nested.MAX_ITEMS:,} |
| characters of all texts and names | {nested.MAX_BYTES:,} ({nested.MAX_BYTES >> 20} MiB) |
| characters of one text | {nested.MAX_TEXT:,} ({nested.MAX_TEXT >> 10} KiB) |
| depth | {values.MAX_DEPTH} levels |

Beyond a limit the largest maps, lists and texts are cut, and small ones stay whole. `run.status()["notices"]` names
what was cut.
"""


def page() -> str:
    """The page as it should be."""
    rows = [
        f"| `{setting.variable}` | `{setting.name}` | {_default(setting.default)} | {setting.help} |\n"
        for setting in SETTINGS
    ]
    return HEAD + "".join(rows) + TAIL


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
