"""Interpreters beside the one that runs the tests, for code that differs between versions of Python."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

_VERSIONS = ((3, 12), (3, 13), (3, 14))


@functools.cache
def newer() -> tuple[str, ...]:
    """Return one interpreter of each version from 3.12 on that is found here, but for this one's."""
    found = []
    for version in _VERSIONS:
        if version == sys.version_info[:2]:
            continue
        for path in _candidates("{}.{}".format(*version)):
            if _version_of(path) == version:
                found.append(path)
                break
    return tuple(found)


def _candidates(version: str) -> list[str]:
    on_path = shutil.which(f"python{version}")
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    built = sorted(map(str, root.glob(f"versions/{version}*/bin/python{version}")))
    return [*([on_path] if on_path else []), *built]


def _version_of(path: str) -> tuple[int, ...]:
    source = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([path, "-c", source], capture_output=True, text=True, timeout=60)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()
