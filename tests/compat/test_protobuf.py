"""The wheel with each major version of protobuf that a training environment may pin: it loads, packs, and ships.

Each has an environment of its own, which holds the wheel, that protobuf, and what else the wire needs from here.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("one_parcel.py")
VERSIONS = ("4.25", "5.29", "6.33", "7")  # of protobuf; the last of each major that is older than the newest
FROM_HERE = ("grpc", "typing_extensions.py", "zstandard")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def call(*command: str | Path) -> str:
    """Far from the checkout; a failure shows the command's own output."""
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By version of protobuf: the interpreter of an environment that has it."""
    folder = tmp_path_factory.mktemp("protobuf")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    call(*wheel, "--wheel-dir", folder, ROOT)
    (built,) = folder.glob("*.whl")
    here = Path(sysconfig.get_path("purelib"))
    made = {}
    for version in VERSIONS:
        where = folder / version
        venv.create(where, symlinks=True, with_pip=False)
        (site,) = where.glob("lib/python*/site-packages")
        with zipfile.ZipFile(built) as archive:
            archive.extractall(site)
        for name in FROM_HERE:
            (site / name).symlink_to(here / name)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
        call(*pip, f"protobuf=={version}.*")
        made[version] = where / "bin" / "python"
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_wheel_ships_with_this_protobuf(version: str, environments: dict[str, Path]) -> None:
    """Loaded without a warning, a batch comes back bit by bit, and a parcel is acknowledged."""
    said = call(environments[version], "-I", "-W", "error", SCRIPT)
    used, how, where = said.split()
    assert f"{used}.".startswith(f"{version}.")
    assert how != "python", "the slow implementation"
    assert Path(where).is_relative_to(environments[version].parents[1]), "not what is in the wheel"
