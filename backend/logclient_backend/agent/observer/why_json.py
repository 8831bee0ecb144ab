"""Names of the observer's files, and a reader of `why.json` that loads nothing of what writes it (`why_files.py`)."""

from __future__ import annotations

from typing import Any

from logclient.shm.regular import read_object

from ..host.shm_dir_handle import ShmDirHandle

TEXT_FILE, JSON_FILE = "why.txt", "why.json"


def read(handle: ShmDirHandle) -> dict[str, Any]:
    """Return what `why.json` holds; empty where there is none."""
    return read_object(handle.file(JSON_FILE)) or {}
