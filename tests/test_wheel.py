"""What users install is the wheel, so the wheel is tested, not the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def call(*command: str | Path) -> str:
    """Run outside the checkout's environment; a failure shows the command's own output."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    call(*pip, "--wheel-dir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel and what it asks for, nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    call(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", wheel)
    return folder / "bin"


def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    """No tests, tools or source root on a user's path; typed, and with its licence."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {info} == {"logclient", "logclient_backend", "logclient_proto"}
    assert {"logclient/py.typed", "logclient/__init__.py", f"{info}/licenses/LICENSE"} <= set(names)


def test_installed_client_imports(clean: Path) -> None:
    """The wheel works where nothing of the checkout is in reach."""
    where = call(clean / "python", "-I", "-c", "import logclient; print(logclient.__file__)")
    assert Path(where.strip()).is_relative_to(clean.parent)


def test_installed_command_answers(clean: Path) -> None:
    """The command line starts with the wheel's own dependencies alone."""
    assert "Usage" in call(clean / "logclient", "--help")
