"""Make the virtual environment in .venv that `make demo` and `make test` run in.

    python tools/environment.py demo     torch, scikit-learn and the package
    python tools/environment.py dev      the above and all that the checks need
    python tools/environment.py system   Debian packages for the tests marked `root`, where they are missing

The second call with nothing changed takes no time: a stamp in .venv remembers what it was made from. Uses the
interpreter it is called with, and nothing beyond the standard library. It names no package index: that is
pip's and apt's own configuration.
"""

from __future__ import annotations

import argparse
import ctypes.util
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "logclient-stamp.json"
CONSTRAINTS = VENV / "logclient-constraints.txt"

# One exact release, installed first and repeated as a constraint: any later install that does not repeat it may
# replace torch by the newest build, gigabytes of CUDA libraries included.
TORCH = "torch==2.13.0"
# fastai, and what fastai brings, are installed without what they ask for. fastai asks for torchvision, whose builds
# follow other releases of torch: one that fails to import takes every `import lightning` down with it. python-fasthtml
# asks for uvloop, and the collector's tests would run on another event loop than what `logclient[server]` installs.
# What of their wishes they cannot do without stands in the extra `dev`.
FASTAI = ("fastai>=2.8,<2.9", "fastdownload>=0.0.8", "fastprogress>=1.1,<1.2", "python-fasthtml>=0.14,<0.15")
# What each level installs; a later level holds the earlier ones, so one environment serves both.
EXTRAS = {"demo": "demo", "dev": "demo,parquet,server,ui,dev"}

# Debian package: the program, or the library, that shows that it is there.
SYSTEM_PROGRAMS = {
    "binutils": "readelf",  # with gcc: for tools/stub_cuda.py
    "chromium": "chromium",  # the dashboard is tested in it, by playwright, which brings no browser of its own here
    "e2fsprogs": "mkfs.ext4",
    "fuse3": "fusermount3",
    "gcc": "gcc",
    "gdb": "gdb",
    "iproute2": "ip",
    "nftables": "nft",
    "strace": "strace",
    "util-linux": "fsfreeze",
}
# What some distributions do not have: without it the tests of SLURM skip and say why.
OPTIONAL_PROGRAMS = {"munge": "munged", "slurm-client": "srun", "slurmctld": "slurmctld", "slurmd": "slurmd"}
SYSTEM_LIBRARIES = {"libfuse2": "fuse"}  # fusepy speaks to version 2
SYSTEM_FILES = {
    "fonts-dejavu-core": "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
}  # chromium brings no font


def made_from() -> str:
    """A digest of all that decides what is installed, and of the place and interpreter it is tied to."""
    import tomllib  # not at the top: older Pythons must get as far as the message in main

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [project["project"], project["build-system"], project["tool"]["hatch"], str(ROOT)]
    text = json.dumps(parts, sort_keys=True) + Path(__file__).read_text() + sys.version
    return hashlib.sha256(text.encode()).hexdigest()


def read_stamp() -> dict[str, str]:
    try:
        stamp: dict[str, str] = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp


def call(*command: str | Path) -> None:
    print("+", " ".join(map(str, command)), flush=True)
    subprocess.run(command, check=True, cwd=ROOT)


def make_environment(level: str) -> None:
    """Bring .venv to `level`, from nothing or on top of what is there."""
    digest, stamp = made_from(), read_stamp()
    if stamp.get("made_from") == digest and stamp.get("level") in (level, "dev"):
        return
    if stamp.get("level") == "dev":
        level = "dev"  # never take away what somebody works with
    begin = time.monotonic()
    python = VENV / "bin" / "python"
    if stamp.get("python") != sys.version or stamp.get("root") != str(ROOT):
        make_venv(python)
    else:  # a failure from here on is tried again on top, not from nothing: others may be at work in it
        STAMP.write_text(json.dumps({**stamp, "made_from": "unfinished"}))
    CONSTRAINTS.write_text(TORCH + "\n")
    # Most of what is installed is never imported: Python compiles a module when it first is, pip would compile all.
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile", "--constraint", str(CONSTRAINTS)]
    call(*pip, TORCH)
    call(*pip, "--editable", f".[{EXTRAS[level]}]")
    if level == "dev":
        call(*pip, "--no-deps", *FASTAI)
    new = {"made_from": digest, "level": level, "python": sys.version, "root": str(ROOT)}
    STAMP.write_text(json.dumps(new, indent=1) + "\n")
    print(f".venv is ready ({level}, {time.monotonic() - begin:.0f} s)", flush=True)


def make_venv(python: Path) -> None:
    # Debian's Python comes without ensurepip; its pip can install into another environment, itself too.
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    venv.create(VENV, clear=True, with_pip=has_ensurepip, symlinks=True)
    if not has_ensurepip:
        call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip")


def install_system_packages() -> None:
    """As root on Debian, install what the tests marked `root` need; elsewhere those tests skip and say why."""
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        print("Not root on a Debian system: tests that need root or its tools will skip.", flush=True)
        return
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [p for p, program in SYSTEM_PROGRAMS.items() if shutil.which(program, path=path) is None]
    missing += [p for p, library in SYSTEM_LIBRARIES.items() if ctypes.util.find_library(library) is None]
    missing += [p for p, file in SYSTEM_FILES.items() if not os.path.exists(file)]
    wished = [p for p, program in OPTIONAL_PROGRAMS.items() if shutil.which(program, path=path) is None]
    if not missing and not wished:
        return
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
    call("apt-get", "update", "-qq")
    if missing:
        call(*install, *missing)
    try:
        if wished:
            call(*install, *wished)
    except subprocess.CalledProcessError:
        print(f"Without {', '.join(wished)}: the tests that need them will skip.", flush=True)


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036  # this file is what an old interpreter is tried on
        found = ".".join(map(str, sys.version_info[:3]))
        print(f"logclient needs Python 3.11 or newer, this is {found}: use `make PYTHON=python3.11 ...`.")
        return 1
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=[*EXTRAS, "system"])
    what = parser.parse_args().what
    try:
        install_system_packages() if what == "system" else make_environment(what)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        print(f"`{command}` failed ({error.returncode}); its own message stands above.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
