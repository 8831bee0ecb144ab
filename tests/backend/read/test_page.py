"""docs/reading.md: every command and the Python of the page, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker, Rec
from tests.served import backing, made_store, serving, take_in

PAGE = (Path(__file__).parents[3] / "docs" / "reading.md").read_text()
ADDRESS = "http://127.0.0.1:7789"  # on the page
COMMANDS = [
    command
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for command in block.replace("\\\n", " ").strip().splitlines()
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    base = tmp_path_factory.mktemp("page")
    maker = NodeMaker(base / "logclient-runs", "mlp")
    maker.process(
        documents={"config": {"lr": 1e-3}}, end={"time": NOW_NS + 60 * SECOND, "alive": False, "exit_code": 0}
    )
    records = [
        Rec(
            n,
            n,
            n,
            NOW_NS + n * SECOND,
            (
                *(("loss", "d", 1 / n), ("train/loss", "d", 1 / n), ("lr", "d", 1e-3)),
                *([("val", "d", 2 / n)] if n % 5 == 0 else []),
            ),
        )
        for n in range(1, 51)
    ]
    maker.segment({(1, 1, 0): records})
    maker.save()
    with made_store(base / "data") as store:
        take_in(store, base / "logclient-runs")
        with serving(backing(store)) as url:
            yield base, url


def environment(base: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    return {
        **kept,
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "HOME": str(base),
        "LOGCLIENT_TOKEN": "rules",
    }


@pytest.mark.slow
def test_commands_of_the_page(world: tuple[Path, str]) -> None:
    """Each ends well; what curl prints is JSON, or the export."""
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    base, url = world
    assert len(COMMANDS) == 21
    for command in COMMANDS:
        assert ADDRESS in command
        done = subprocess.run(
            ["bash", "-c", command.replace(ADDRESS, url)],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=base,
            env=environment(base),
        )
        assert (done.returncode, done.stderr) == (0, ""), command
        if command.startswith("curl") and "export" not in command:
            assert "error" not in json.loads(done.stdout), (command, done.stdout)
    assert (base / "mlp" / "points.csv").exists()


@pytest.mark.slow
def test_python_of_the_page(world: tuple[Path, str]) -> None:
    """The page runs as a script, on a folder and on a server."""
    base, url = world
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    said = []
    for text in (script, script.replace('"logclient-runs"', f'"{url}"')):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", text],
            capture_output=True,
            text=True,
            timeout=100,
            cwd=base,
            env=environment(base),
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
