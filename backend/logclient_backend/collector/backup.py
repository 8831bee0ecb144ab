"""Backup and restore: the store, the digests of the tokens and the blobs of media values, in one folder.

::

    FOLDER/
      store/         as the store's engine writes it
      tokens.json
      media/         blobs (media_backup.py); a backup may be made without
      backup.json    written last: without it the backup is not whole

Runs in a collector that goes on working (by an order, `control_socket.py`), or in the command where none runs.

Invariant: neither touches what is there already; a restore that fails leaves nothing that a collector would take for
a store. Blobs that are missing or damaged fail neither: they are reported.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from logclient.shm.regular import read_regular

from ..wal.whole import write_whole
from .blobs import FOLDER as BLOBS
from .blobs import Blobs
from .data_folder import BACKUP, STORE, DataFolder
from .media_backup import FOLDER as MEDIA
from .media_backup import MediaCopied, backup_media, restore_media
from .store.interface import Store, StoreError
from .store.open import read_store, restore_store
from .tokens import FILE as TOKENS

_VERSION, _WITHOUT_MEDIA = 2, 1  # a program that knows 1 only would leave blobs out and not say so


def backup(store: Store, data: DataFolder, folder: str, *, has_media: bool = True) -> dict[str, object]:
    """Copy what is there now into an empty or new folder; returns where it lies and how large it is.

    `has_media`: blobs of media values too.
    """
    if not os.path.isabs(folder):
        raise StoreError(f"the backup folder {folder!r} needs a whole path, from / on")
    if _inside(folder, data.path):
        raise StoreError(
            f"{folder} lies in the data folder: what is lost with it would be lost with its backup"
        )
    at_ns = time.time_ns()
    _make_empty(folder)
    store.backup(os.path.join(folder, STORE))
    try:
        write_whole(os.path.join(folder, TOKENS), read_regular(os.path.join(data.path, TOKENS)), 0o600)
    except FileNotFoundError:
        pass
    media = _backup_media(data, folder).table() if has_media else None
    about = {"version": _VERSION if has_media else _WITHOUT_MEDIA, "store": store.id, "at_ns": at_ns}
    write_whole(os.path.join(folder, BACKUP), json.dumps(about).encode(), 0o600)
    data.note_backup(at_ns, folder)
    seconds = (time.time_ns() - at_ns) / 1e9
    return {"folder": folder, "bytes": _size(folder), "seconds": seconds, "media": media}


def _backup_media(data: DataFolder, folder: str) -> MediaCopied:
    with closing(read_store(os.path.join(folder, STORE))) as copied, _of_disk(folder):
        return backup_media(copied.reader, Blobs(data.path), os.path.join(folder, MEDIA))


def restore(folder: str, data: DataFolder) -> dict[str, object]:
    """Make a backup's content that of a data folder that has none."""
    try:
        about = json.loads(read_regular(os.path.join(folder, BACKUP), max_bytes=1 << 16))
        is_known = about["version"] <= _VERSION
    except FileNotFoundError:
        raise StoreError(
            f"{folder} holds no backup, or one that was not finished: it has no {BACKUP}"
        ) from None
    except (KeyError, TypeError):
        raise StoreError(f"{folder} holds no backup: its {BACKUP} is that of something else") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} holds no backup that can be read: {error}") from error
    if not is_known:
        raise StoreError(f"{folder} was made by a newer logclient: update to restore it")
    if data.has_store or data.has_tokens or os.path.lexists(os.path.join(data.path, BLOBS)):
        raise StoreError(
            f"{data.path} holds a store already, or media: restore into a new folder, or move that one away"
        )
    media = None
    if about["version"] > _WITHOUT_MEDIA:
        media = _restore_media(os.path.join(folder, MEDIA), data).table()
    restore_store(os.path.join(folder, STORE), data.store)
    try:
        write_whole(os.path.join(data.path, TOKENS), read_regular(os.path.join(folder, TOKENS)), 0o600)
    except FileNotFoundError:
        pass
    return {
        "data": data.path,
        "store": about.get("store", ""),
        "made_ns": about.get("at_ns", 0),
        "media": media,
    }


def _restore_media(folder: str, data: DataFolder) -> MediaCopied:
    try:
        with _of_disk(data.path):
            return restore_media(folder, Blobs(data.path))
    except BaseException:
        shutil.rmtree(os.path.join(data.path, BLOBS), ignore_errors=True)
        raise


@contextmanager
def _of_disk(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"media cannot be copied to {folder}: {error.strerror or error}") from error


def _make_empty(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.listdir(folder):
            raise StoreError(f"the backup folder {folder} is not empty: name a new one")
    except OSError as error:
        raise StoreError(f"the backup folder {folder} cannot be used: {error.strerror}") from error


def _inside(path: str, folder: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), os.path.realpath(folder)]) == os.path.realpath(folder)


def _size(folder: str) -> int:
    return sum(
        os.lstat(os.path.join(where, name)).st_size for where, _, names in os.walk(folder) for name in names
    )
