"""docs/media.md: the Python and the commands of the page, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "media.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.S)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


def test_the_page_says_what_happens(run_dir: Path, tmp_path: Path, patient: None) -> None:
    """Each line that is printed is the one in the comment beside it."""
    program = "\n".join(PYTHON)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "backend")])
    env = {**os.environ, "PYTHONPATH": paths, "LOGCLIENT_QUIET": "1"}
    env.pop("LOGCLIENT_DIR")
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    said = re.findall(r"print\(.*\) *# (.*)", program)
    printed = out.splitlines()
    assert printed[:-1] == said
    assert sorted(json.loads(printed[-1].replace("'", '"'))) == ["histogram", "image", "markdown", "table"]
    for command in COMMANDS:
        words = [sys.executable, "-m", "logclient_backend", *command.split()[1:]]
        done = subprocess.run(words, cwd=tmp_path, env=env, check=True, stdout=subprocess.PIPE, text=True)
        assert done.stdout
    lines = (tmp_path / "mlp" / "media.jsonl").read_text().splitlines()
    assert len(lines) == 8
    assert len(list((tmp_path / "mlp" / "media").iterdir())) == 5
