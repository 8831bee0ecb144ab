"""Writes a small JSON file whole: readers find the old content or the new one, never a part."""

from __future__ import annotations

import json
import os
from typing import Any

from logclient.shm.modes import FILE


def write_json(path: str, content: dict[str, Any], mode: int = FILE) -> bool:
    """Replace the file by `content`, durably; False, and the file as it was, where that fails.

    `mode` is that of the new file, less the umask.
    """
    making = f"{path}.{os.urandom(4).hex()}.new"
    try:
        fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            os.write(fd, json.dumps(content).encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(making, path)
    except OSError:
        return False
    return True
