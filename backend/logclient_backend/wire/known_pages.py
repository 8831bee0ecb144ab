"""Addresses of collectors' pages, kept beside the login: what a collector told an agent is known to the next `init`.

::

    ~/.config/logclient/pages.json, mode 0600    {"version": 1, "pages": {"grpcs://host:7788": "https://host/logs"}}

Runs in processes that may hang with the disk of the home folder: children of an agent's launcher, a thread of the
process that ships. A file that cannot be read or written is as good as none: then `run.url` is known a moment later.
"""

from __future__ import annotations

import json
import os

from logclient import config as settings
from logclient.shm.regular import read_object

from ..wal.whole import write_whole
from .address import Address
from .web_address import checked

FILE = "pages.json"
MAX_PAGES = 100  # the oldest go
_MAX_BYTES = 1 << 17


def find(server: Address) -> str:
    """Return the address of the page of that collector; empty where none is known."""
    return _load().get(str(server), "")


def note(server: Address, page: str) -> None:
    """Keep it, if it is not kept yet. Of two writers at once one counts; the other comes again."""
    path, known = _path(), _load()
    if path is None or not checked(page) or known.get(str(server)) == page:
        return
    known.pop(str(server), None)
    known[str(server)] = page
    kept = dict(list(known.items())[-MAX_PAGES:])
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        write_whole(path, json.dumps({"version": 1, "pages": kept}, indent=1).encode(), 0o600)
    except OSError:
        return


def _path() -> str | None:
    config = settings.config_file()
    return config and os.path.join(os.path.dirname(config), FILE)


def _load() -> dict[str, str]:
    path = _path()
    content = (read_object(path, max_bytes=_MAX_BYTES) if path else None) or {}
    pages = content.get("pages")
    if not isinstance(pages, dict):
        return {}
    return {
        server: page
        for server, page in pages.items()
        if isinstance(page, str) and page and checked(page) == page
    }
