"""Blobs of media values in a backup: those that the backed-up store refers to, each checked against its hash.

::

    FOLDER/media/<2 hex>/<sha256>   0600
                 runs               a line of JSON for each run that has blobs: its id, and their hashes

Runs where the backup or the restore runs (`backup.py`).

Invariants:

- the store is copied first, so all blobs that were there then are looked for; one that is not there is counted: it
  did not come yet, or was removed since (trimmed, or with its run);
- no file here has other bytes than its name says: a damaged blob is named and not copied;
- `runs` is written last, and all files are past an fsync before it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from logclient.shm.regular import MAX_STORE_BYTES, open_regular

from ..runs.media import media_items
from ..runs.media_reference import blob_path, images_in
from ..wal.files import REAL, discard
from ..wal.whole import made_whole
from ..wire.blobs import is_hash
from .blobs import Blobs, make_private
from .media_records import all_runs, media_columns
from .store.interface import Reader, StoreError

FOLDER, RUNS = "media", "runs"
_PIECE = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAMED = 20  # damaged blobs that a result names


@dataclass(slots=True)
class MediaCopied:
    """Counts of a backup or a restore."""

    blobs: int = 0
    bytes: int = 0
    missing: int = 0
    damaged: list[str] = field(default_factory=list)  # hashes

    def table(self) -> dict[str, object]:
        """Return the counts as JSON has them; of damaged blobs the first are named."""
        return {
            "blobs": self.blobs,
            "bytes": self.bytes,
            "missing": self.missing,
            "damaged": len(self.damaged),
            "damaged_names": self.damaged[:_MAX_NAMED],
        }


def backup_media(reader: Reader, blobs: Blobs, folder: str) -> MediaCopied:
    """Copy the blobs that a store refers to into `folder`, a new one; `reader` is that of the copied store."""
    found = MediaCopied()
    os.makedirs(folder, mode=0o700)

    def take_all(names: Set[str], run: str) -> list[str]:
        """Copy these blobs of a run; returns those that are there now."""
        return [each for each in sorted(names) if each and _take(blobs.open(run, each), folder, each, found)]

    with made_whole(os.path.join(folder, RUNS), 0o600, sync_folder=True) as lines:
        for run in all_runs(reader):
            references = [item.reference for item in media_items(media_columns(reader, run))]
            have = take_all({each.sha256 for each in references}, run)
            tables = {each.sha256 for each in references if each.kind == "table"}.intersection(have)
            cells = {image.sha256 for each in tables for image in images_in(_whole(blob_path(folder, each)))}
            have += take_all(cells.difference(have), run)
            if have:
                lines.write(json.dumps({"run": run, "blobs": have}).encode() + b"\n")
        _synchronize(folder)
    return found


def restore_media(folder: str, blobs: Blobs) -> MediaCopied:
    """Give a data folder without blobs those of a backup."""
    found = MediaCopied()
    for run, names in _runs(os.path.join(folder, RUNS)):
        have = [each for each in names if _take(_opened(blob_path(folder, each)), blobs.home, each, found)]
        blobs.link(run, have)
    _synchronize(blobs.home)
    return found


def _runs(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the runs of a backup and the blobs that each has."""
    with open(open_regular(path, max_bytes=MAX_STORE_BYTES), "rb") as lines:
        for line in lines:
            try:
                table = json.loads(line)
                run, names = table["run"], table["blobs"]
                if not isinstance(run, str) or not all(is_hash(each) for each in names):
                    raise ValueError
            except (ValueError, KeyError, TypeError):
                raise StoreError(f"{path} is damaged: it has a line that is no list of blobs") from None
            yield run, names


def _whole(path: str) -> bytes:
    """Return the bytes of a blob that has been copied."""
    with open(path, "rb") as file:
        return file.read()


def _opened(path: str) -> int | None:
    try:
        return open_regular(path, max_bytes=MAX_STORE_BYTES)
    except OSError:
        return None


def _take(fd: int | None, folder: str, sha256: str, found: MediaCopied) -> bool:
    """Is the blob in `folder` now? `fd`, which is closed here, has it; None: it is not there."""
    if fd is None:
        found.missing += 1
        return False
    with open(fd, "rb", buffering=0) as source:
        target = blob_path(folder, sha256)
        if os.path.lexists(target):
            return True
        if sha256 in found.damaged:
            return False
        size = os.fstat(fd).st_size
        make_private(os.path.dirname(target))
        if not _copy(source.fileno(), target, sha256):
            found.damaged.append(sha256)
            return False
    found.blobs, found.bytes = found.blobs + 1, found.bytes + size
    return True


def _copy(fd: int, target: str, sha256: str) -> bool:
    """Copy a blob to its name; False, and there is none, where its bytes are not those of the name or not readable."""
    digest, at = hashlib.sha256(), 0
    copy = os.open(target, _NEW, 0o600)
    try:
        while piece := _read(fd, at):
            digest.update(piece)
            REAL.pwrite(copy, piece, at)
            at += len(piece)
        is_good = digest.hexdigest() == sha256
    except BaseException:
        discard(REAL, target)
        raise
    finally:
        os.close(copy)
    if not is_good:
        discard(REAL, target)
    return is_good


def _read(fd: int, at: int) -> bytes:
    try:
        return os.pread(fd, _PIECE, at)
    except OSError:  # the disk cannot read it: the copy ends here, and its hash is another
        return b""


def _synchronize(folder: str) -> None:
    """Bring all files below past an fsync, at the end: one after the other as they are copied would take longer."""
    for where, _, names in os.walk(folder, topdown=False):
        for name in names:
            if is_hash(name):
                fd = open_regular(os.path.join(where, name), max_bytes=MAX_STORE_BYTES)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        REAL.fsync_folder(where)
