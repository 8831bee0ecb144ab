"""What the process tests share: a home folder, and an installation like a user's."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of this test's own, in the environment; not the tester's."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return path


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the packages lie as after `pip install`, not as in development."""
    where = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(where)], check=True, timeout=60)
    (site,) = where.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("_editable_", "logclient", "__pycache__", "__editable__")):
            (site / entry.name).symlink_to(entry)
    for package in (ROOT / "logclient", ROOT / "backend" / "logclient_backend"):
        (site / package.name).symlink_to(package)
    return where / "bin" / "python"
