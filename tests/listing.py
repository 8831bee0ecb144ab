"""What lies in a folder that a process adds to and removes from while it is listed."""

from __future__ import annotations

from collections.abc import Iterator
from glob import glob
from pathlib import Path


def listed(folder: Path, pattern: str = "**/*") -> list[Path]:
    """What is there, sorted, also names that begin with a dot. `Path.glob` raises where a folder goes meanwhile."""
    return sorted(
        folder / name for name in glob(pattern, root_dir=folder, recursive=True, include_hidden=True)
    )


def contents(folder: Path, pattern: str = "**/*") -> Iterator[tuple[Path, bytes]]:
    """The regular files and what is in them, without those that have gone since they were listed."""
    for path in listed(folder, pattern):
        try:
            if path.is_file():
                yield path, path.read_bytes()
        except FileNotFoundError:
            continue
