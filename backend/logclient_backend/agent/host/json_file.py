"""Writes a small JSON file whole: readers find the old content or the new one, never a part."""

from __future__ import annotations

import json
from typing import Any

from logclient.shm.modes import FILE

from ...wal.whole import write_whole


def write_json(path: str, content: dict[str, Any], mode: int = FILE) -> bool:
    """Replace the file by `content`, durably; False, and the file as it was, where that fails.

    `mode` is that of the new file, less the umask.
    """
    try:
        write_whole(path, json.dumps(content).encode(), mode)
    except OSError:
        return False
    return True
