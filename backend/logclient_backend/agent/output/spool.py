"""The spool: complete segments on a disk of this machine, while the network folder they belong to takes none.

Used by threads and throw-away processes that may hang in that disk: the worker's spooler (`spooler.py`), the look at
the run folder that every `init` starts, and `logclient recover`.

::

    <spool_dir, $TMPDIR, /var/tmp or /tmp>/logclient-spool-<uid>/    0700, accepted only if lstat says: ours, no link
        <run folder>.<node>/
            spool.json                  where they belong; locked by whoever works here
            <writer>-<number>.wal       as they were on tmpfs

Invariants:

- only a disk of this machine is used: no tmpfs, no network file system;
- a segment has its name only when it is whole and past an fsync, and is removed only when it is in the run folder;
- what belongs to a shm directory that is there is left to its agent;
- nothing is written below a mount point on which nothing is mounted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from logclient.config import temporary_folders
from logclient.shm import shm_dir as shm_dirs
from logclient.shm.modes import remove_if_empty, umask_of
from logclient.shm.regular import OddFile
from logclient.shm.shm_dir import ShmDir, folder_name

from ...wal.files import REAL, WRITE, read_file
from ...wal.seal import seal
from ...wal.segment import parse_name
from ...wal.whole import write_whole
from ...wal.writer import replicate
from ..host.json_file import write_json
from . import mounts
from .probe import SPOOL

FACTS = "spool.json"


def folders(spool_dir: str) -> Iterator[str]:
    """Return the folders in which a spool may lie, best first."""
    given = (spool_dir, *temporary_folders())
    for path in dict.fromkeys(os.path.realpath(path) for path in given if os.path.isabs(path)):
        if os.path.isdir(path) and mounts.is_disk(path):
            yield path


class Spool:
    """The spool of one node of one run, held by a lock until `close`."""

    def __init__(self, path: str) -> None:
        """Raises OSError where it is not there, or another process works in it."""
        self.path = path
        self._lock = REAL.open(os.path.join(path, FACTS), WRITE)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.facts: dict[str, Any] = json.loads(os.pread(self._lock, 1 << 20, 0))
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        os.close(self._lock)

    def segments(self) -> list[str]:
        """Names, in the order in which they were written."""
        return sorted(name for name in os.listdir(self.path) if parse_name(name) is not None)

    def taken_bytes(self) -> int:
        return sum(os.stat(os.path.join(self.path, name)).st_size for name in self.segments())

    def add(self, name: str, data: bytes) -> str:
        """Past an fsync; its path. Raises OSError, and leaves nothing."""
        path = os.path.join(self.path, name)
        write_whole(path, data, sync_folder=True)
        return path

    def leave(self) -> None:
        """Remove it, if it is empty."""
        if not self.segments():
            for name in os.listdir(self.path):
                REAL.unlink(os.path.join(self.path, name))
            os.rmdir(self.path)
            remove_if_empty(os.path.dirname(self.path))  # unless other runs are in it

    def bring_home(self) -> int:
        """Store what is in it where it belongs; how many segments. May hang; raises OSError, and what is left stays."""
        folder = str(self.facts["folder"])
        if self.facts.get("network") and not mounts.network_of(os.path.realpath(folder)):
            raise OSError(errno.ENODEV, "its network file system is not mounted", folder)
        before = os.umask(umask_of(self.facts))  # this may be another run's process
        try:
            return self._seal_in(folder)
        finally:
            os.umask(before)

    def _seal_in(self, folder: str) -> int:
        os.makedirs(folder, exist_ok=True)
        count = 0
        for name in self.segments():
            path = os.path.join(self.path, name)
            try:
                data = read_file(REAL, path)
            except OddFile:
                continue  # nobody of ours put it there; it stays, and hides no other
            try:
                seal(REAL, data, name, folder)
            except OSError:
                raise
            except Exception:  # noqa: BLE001 - it cannot be sealed: rather as it is than not at all
                fd = REAL.open(path, WRITE)
                try:
                    replicate(REAL, fd, name, folder, 0, len(data))
                finally:
                    os.close(fd)
            REAL.unlink(path)
            count += 1
        self.leave()
        return count


def make(shm_dir: ShmDir, public: str, folder: str, network: str, spool_dir: str) -> Spool:
    """The spool of this node, for segments that belong into `folder`. Raises OSError where no disk takes one.

    `public` is the path of the shm directory, `network` the type of the file system of `folder`, which is not touched.
    """
    trouble: OSError | None = None
    facts = {
        "run_id": shm_dir.run_id,
        "node": shm_dir.node,
        "place": public,
        "folder": folder,
        "network": network,
        "umask": shm_dir.facts.get("umask"),
    }
    for base in folders(spool_dir):
        try:
            path = os.path.join(
                shm_dirs.make_base(base, SPOOL), f"{folder_name(shm_dir.run_id)}.{shm_dir.node}"
            )
            os.makedirs(path, mode=0o700, exist_ok=True)
            if not write_json(os.path.join(path, FACTS), facts):
                raise OSError(0, "cannot be written", path)
            REAL.fsync_folder(path)
            REAL.fsync_folder(os.path.dirname(path))
            return Spool(path)
        except OSError as error:
            trouble = error
    raise trouble or FileNotFoundError(2, "no disk of this machine has room for a spool", "")


class Left(NamedTuple):
    """A spool that nobody works in, and whose shm directory is gone."""

    path: str
    facts: dict[str, Any]


def left(spool_dir: str) -> list[Left]:
    """Return the spools of this user on this machine."""
    found = []
    for base in folders(spool_dir):
        for ours in shm_dirs.bases_in(base, SPOOL):
            for name in _names(ours):
                path = os.path.join(ours, name)
                try:
                    spool = Spool(path)
                except (OSError, ValueError):
                    continue  # somebody works in it
                spool.close()
                shm_dir = shm_dirs.read(str(spool.facts.get("place")))
                if shm_dir is None or shm_dir.node != spool.facts.get("node"):
                    found.append(Left(path, spool.facts))
    return found


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []  # whoever brought the last spool home has just removed it


def bring_all_home(spool_dir: str) -> None:
    """Each in a process of its own, since each may hang in another network folder. Returns at once."""
    for one in left(spool_dir):
        if os.fork() == 0:
            try:
                Spool(one.path).bring_home()
            finally:
                os._exit(0)
