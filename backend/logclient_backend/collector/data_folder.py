"""The data folder of a collector: who may use it, and what lies where.

::

    DIR/            mode 0700, of the user who runs the collector
      store/        the store's own files
      tokens.json   digests of tokens (tokens.py); tokens.lock
      session-key   key of the cookies of browsers (sessions.py); sessions.json, sessions.lock
      requests.json requests to stop or to save (stop_requests.py)
      control.sock  of the collector that runs now (control_socket.py); web.sock, for its web processes
      media/        blobs of media values (blobs.py)
      backup.json   when the last backup was complete, and where it lies

Invariant: whoever is not the owner of the folder is refused, root too: what root makes there the collector could not
use any more.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
from dataclasses import dataclass

from logclient.shm.regular import read_regular

from ..wal.whole import write_whole
from .store.interface import StoreError
from .tokens import FILE as TOKENS

STORE, SOCKET, WEB_SOCKET, BACKUP = "store", "control.sock", "web.sock", "backup.json"
_MIN_FREE = 64 << 20


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Paths in it."""

    path: str

    @property
    def store(self) -> str:
        return os.path.join(self.path, STORE)

    @property
    def has_tokens(self) -> bool:
        """False: a collector was never started here."""
        return os.path.lexists(os.path.join(self.path, TOKENS))

    @property
    def has_store(self) -> bool:
        return os.path.isdir(self.store)

    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def troubles(self) -> list[str]:
        """Sentences about things that somebody should look at; none stops a collector."""
        free = self.free_bytes()
        if free < _MIN_FREE:
            return [f"only {free >> 20} MiB are free where {self.path} lies: soon nothing can be stored"]
        return []

    def last_backup(self) -> tuple[int, str]:
        """(when, ns since 1970; where to); 0 for never."""
        try:
            content = json.loads(read_regular(os.path.join(self.path, BACKUP), max_bytes=1 << 16))
            return int(content["at_ns"]), str(content["folder"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0, ""

    def note_backup(self, at_ns: int, folder: str) -> None:
        about = json.dumps({"at_ns": at_ns, "folder": folder})
        write_whole(os.path.join(self.path, BACKUP), about.encode(), 0o600)


def make(path: str) -> DataFolder:
    """The folder, made if it is not there, and fit to be used. `StoreError` states why it is not."""
    path = os.path.abspath(path)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except FileExistsError:
        pass  # no folder: `use` raises that
    except OSError as error:
        raise StoreError(f"the data folder {path} cannot be made: {error.strerror}") from error
    found = use(path)
    if not os.access(path, os.W_OK | os.X_OK) or os.statvfs(path).f_flag & os.ST_RDONLY:
        raise StoreError(
            f"the data folder {path} cannot be written by this user: is it mounted read-only, or somebody else's?"
        )
    return found


def use(path: str) -> DataFolder:
    """A data folder that is there, and ours alone."""
    path = os.path.abspath(path)
    try:
        found = os.stat(path)
    except OSError as error:
        raise StoreError(f"the data folder {path} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{path} is no folder")
    if found.st_uid != os.geteuid():
        owner = _name_of(found.st_uid)
        raise StoreError(
            f"the data folder {path} belongs to {owner}: run this as that user (`sudo -u {owner} logclient ...`), "
            f"or the collector could not use what is written now"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        names = os.listdir(path)
        if names and not {STORE, TOKENS} & set(names):
            raise StoreError(
                f"{path} can be read by other users and holds other files: name a folder for the collector alone"
            )
        os.chmod(path, 0o700)
    return DataFolder(path)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
