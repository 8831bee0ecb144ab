"""The script on each page of docs/integrations runs as it stands there, and leaves a run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import logclient
from tests.lanes import wait_until

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "integrations").glob("*.md"))
# where the page is not called like what it needs
PACKAGES = {"searches": "optuna", "wandb": "sklearn", "xla": "torch_xla"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_script_of_the_page(page: Path, run_dir: Path, tmp_path: Path) -> None:
    """The first block of Python; all of its runs are finished and hold something."""
    package = PACKAGES.get(page.stem, page.stem)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    script = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)[0]
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'backend'}", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr

    def are_stored() -> bool:
        """The agent may be at it for a while."""
        runs = list(logclient.read(run_dir))
        return bool(runs) and all(run.state == "finished" and run.keys() for run in runs)

    wait_until(are_stored, "the runs of the script", 60)
