"""Tests in environments of their own: XLA, which needs a torch of its own, and JAX.

    python tools/apart.py xla [PYTEST ARGUMENTS]     make .venv/xla where it is not up to date, and run its tests
    python tools/apart.py jax [PYTEST ARGUMENTS]

Each environment holds this distribution (editable) and what `tests/integrations/xla` or `tests/integrations/jax` need.
A stamp in it remembers what it was made from.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.stub_cuda import make_stand_ins

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv"
STAMP = "logclient-stamp.json"
TESTS = ["hypothesis>=6.100", "pytest>=9,<9.2", "pytest-timeout>=2.3", "pytest-xdist>=3.6"]

# Installed without what they ask for: of torch that is 5 GB of CUDA libraries, of fastai torchvision, which it uses
# for images only. torch_xla 2.9 runs with torch 2.9 alone.
ALONE = {"xla": ["torch==2.9.1", "fastai==2.8.12"]}
XLA = "torch_xla==2.9.0 filelock fsspec jinja2 networkx numpy sympy typing-extensions"
FASTAI = """cloudpickle fastcore fastdownload fastprogress fasttransform matplotlib packaging pandas pillow
    plum-dispatch<2.10 pyyaml requests scikit-learn scipy"""
NEEDS = {"xla": f"{XLA} {FASTAI}".split(), "jax": ["jax", "flax", "numpy", "optax", "scikit-learn"]}


# Of the tests for every integration, those that need one of these environments. JAX's page has tests of its own.
PAGES = {"xla": ["tests/integrations/test_pages.py::test_script_of_the_page[xla]"]}


def python_of(name: str) -> Path:
    """The interpreter of one of them, there or not."""
    return HOME / name / "bin" / "python"


def is_possible(name: str) -> bool:
    """Are there wheels for this machine and interpreter?"""
    if name != "xla":
        return True
    return platform.machine() == "x86_64" and (3, 10) <= sys.version_info < (3, 14)


def make(name: str) -> None:
    """Bring `.venv/NAME` up to date. Raises CalledProcessError."""
    from_what = {
        "needs": [ALONE.get(name, []), NEEDS[name], TESTS],
        "project": _project(),
        "python": sys.version,
        "root": str(ROOT),
    }
    stamp = HOME / name / STAMP
    if stamp.exists() and json.loads(stamp.read_text()) == from_what:
        return
    begin = time.monotonic()
    venv.create(HOME / name, clear=True, symlinks=True)  # without pip: Debian's Python has no ensurepip
    if alone := ALONE.get(name, []):
        _install(name, "--no-deps", *alone)
    _install(name, *NEEDS[name], *TESTS, "--editable", ".")
    if name == "xla":
        (site_packages,) = (HOME / name / "lib").glob("python3.*/site-packages")
        make_stand_ins(site_packages)
    stamp.write_text(json.dumps(from_what, indent=1) + "\n")
    print(f".venv/{name} is ready ({time.monotonic() - begin:.0f} s)", flush=True)


def _project() -> dict[str, object]:
    import tomllib

    whole: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {name: whole[name] for name in ("version", "dependencies", "scripts")}


def _install(name: str, *what: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(python_of(name))]
    command = [*pip, "install", "--quiet", *what]
    print("+", " ".join(command), flush=True)
    subprocess.run(command, check=True, cwd=ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=NEEDS)
    given, pytest = parser.parse_known_args()
    if not is_possible(given.name):
        print(f"No wheels for {given.name} on this machine and Python: its tests are left out.", flush=True)
        return 0
    try:
        make(given.name)
    except subprocess.CalledProcessError as error:
        failed = " ".join(map(str, error.cmd))
        print(f"`{failed}` failed ({error.returncode}); its own message stands above.", file=sys.stderr)
        return 1
    except FileNotFoundError as error:  # as root on Debian, `make test` installs it
        print(f"{error.filename} is missing: tools/stub_cuda.py needs gcc and binutils.", file=sys.stderr)
        return 1
    tests = [f"tests/integrations/{given.name}", *PAGES.get(given.name, [])]
    command = [str(python_of(given.name)), "-m", "pytest", "-n", "2", *tests, *pytest]
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
