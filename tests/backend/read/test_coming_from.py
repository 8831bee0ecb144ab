"""docs/coming-from.md: its blocks and each cell of its right columns, run on a folder and on a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker, Rec
from tests.served import backing, made_store, serving, take_in

PAGE = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
CELLS = [
    match.group(1)
    for line in PAGE.splitlines()
    if line.startswith("| ") and (match := re.search(r" \| `(.*)` \|$", line)) and "(...)" not in line[-8:]
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    base = tmp_path_factory.mktemp("coming")
    for number, name in enumerate(("other", "mlp")):
        maker = NodeMaker(base / "logclient-runs", name)
        maker.created_ns = NOW_NS + number * SECOND
        documents = {
            "config": {"lr": 0.1 * (number + 1), "opt": "adamw"},
            "summary": {"acc": 0.5 + number / 4},
            "about": {"tags": ["base"], "group": "seeds"},
            "state": (NOW_NS + 60 * SECOND, {"state": "finished", "by": "finish"}),
        }
        maker.process(documents=documents, end={"time": NOW_NS + 60 * SECOND, "alive": False, "exit_code": 0})
        records = [
            Rec(
                n,
                n,
                n,
                NOW_NS + n * SECOND,
                (("loss", "d", 1 / n), *([("val", "d", 2 / n)] if n % 5 == 0 else [])),
            )
            for n in range(1, 51)
        ]
        maker.segment({(1, 1, 0): records})
        maker.told(1, 1, 50, 50)
        maker.save()
    with made_store(base / "data") as store:
        take_in(store, base / "logclient-runs")
        with serving(backing(store)) as url:
            yield base, url


@pytest.mark.slow
def test_every_idiom_of_the_page_works(world: tuple[Path, str]) -> None:
    """The same from both, and no cell is left out."""
    base, url = world
    assert len(BLOCKS) == 5 and len(CELLS) == sum(line.startswith("| ") for line in PAGE.splitlines()) - 3
    script = BLOCKS[0] + "".join(f"print(repr(({cell})))\n" for cell in CELLS) + "\n".join(BLOCKS[1:])
    said = []
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "PATH") if name in os.environ}
    for text in (script, script.replace('"logclient-runs"', json.dumps(url))):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", text],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=base,
            env={**kept, "HOME": str(base), "LOGCLIENT_TOKEN": "reads"},
        )
        assert done.returncode == 0, done.stderr
        said.append(re.sub(r"<Runs of \S+:", "<Runs:", done.stdout))
    assert said[0] == said[1]
