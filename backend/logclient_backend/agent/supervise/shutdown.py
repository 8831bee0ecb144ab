"""The end of an agent: everything is stored, so its shm directory goes, unless somebody came at the last moment.

Or what is there can go nowhere, and the directory stays.

Runs in the supervisor.

Invariants:

- the folder is renamed before it is looked into once more: from then on nobody can come in by its path;
- who was in by then is served, under the old name if that is still free, else under the new one.
"""

from __future__ import annotations

import os
import time

from logclient.shm import layout, modes
from logclient.shm.shm_dir import GONE

from ..host.shm_dir_handle import ShmDirHandle, is_lane_file, open_regular, watch_of
from ..host.status import StatusPage

_STALE_S = 10.0


def keep(handle: ShmDirHandle, status: StatusPage) -> bool:
    """Leave the directory as it is; False if somebody logs again.

    Who has shown lanes before the word is stored is seen here; who looks for an agent afterwards sees the word, and
    calls for another, which waits for our lock.
    """
    status.words[layout.AGENT_CLOSING] = layout.CLOSING_KEPT
    handle.look()
    if not any(is_lane_file(kept.name) and kept.is_open for kept in handle.kept()):
        return True
    status.words[layout.AGENT_CLOSING] = 0
    return False


def leave(handle: ShmDirHandle, status: StatusPage) -> bool:
    """Remove the directory; False if somebody is in it again."""
    status.words[layout.AGENT_CLOSING] = layout.CLOSING_STORED
    if handle.is_removed:
        return True
    before = handle.public
    if handle.is_public:
        handle.public = os.path.join(os.path.dirname(before), f"{GONE}{os.urandom(6).hex()}")
        try:
            os.rename(before, handle.public)
        except OSError:
            return True  # somebody removes it just now
    if any(_is_newcomer(handle, name) for name in os.listdir(handle.path)):
        try:
            os.rename(handle.public, before)  # takes the place of an empty folder at most
            handle.public = before
        except OSError:
            pass  # another one was made at that path; this one goes on without a path
        status.words[layout.AGENT_CLOSING] = 0
        return False
    remove(handle.path)
    for folder in (handle.public, os.path.dirname(handle.public)):
        if not modes.remove_if_empty(folder):
            break  # other runs are there
    return True


def _is_newcomer(handle: ShmDirHandle, name: str) -> bool:
    """A lane file, or one in the making whose process lives."""
    if not is_lane_file(name.removesuffix(modes.MAKING)):
        return False
    fd = open_regular(handle.file(name))
    if fd < 0:
        return False
    try:
        if is_lane_file(name):
            return True
        watch = watch_of(fd)
        if watch is not None:
            return not watch.has_ended()
        return time.time() - os.fstat(fd).st_mtime < _STALE_S
    finally:
        os.close(fd)


def remove(folder: str) -> None:
    """All that is in the folder; first what makes it a shm directory."""
    for name in ("run.json", *os.listdir(folder)):
        path = os.path.join(folder, name)
        try:
            os.unlink(path)
        except IsADirectoryError:
            modes.remove_if_empty(path)  # a stranger's, or others are in it: then it stays
        except OSError:
            continue
