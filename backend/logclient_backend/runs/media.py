"""Media values of a run as readers have them: their references in order, and the blobs of folders.

Runs in readers. A reference is believed as far as `media_reference.parse` goes; a blob is checked against its hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from logclient.errors import LogclientError
from logclient.shm.columns import read_column
from logclient.shm.regular import MAX_STORE_BYTES, open_regular

from ..wal.encoded import StreamColumns
from .media_reference import Reference, blob_path, parse


class NoBlob(LogclientError):
    """The bytes of a media value are not there: trimmed, lost with their disk, or damaged."""


class MediaItem(NamedTuple):
    """One media value of a run."""

    step: int
    key: str
    time: int  # ns since 1970
    rank: int | None
    stream: str
    seq: int
    reference: Reference


def media_items(columns: Iterable[StreamColumns]) -> list[MediaItem]:
    """Return the media values in records of the side "media", each once, by step, then time."""
    found: dict[tuple[bytes, int], MediaItem] = {}
    for item in columns:
        records = item.columns
        stream = item.stream.hex()
        for place, key in enumerate(records.shape.names):
            if records.shape.codes[place] != "s":
                continue
            texts = read_column("s", records.cells[place])
            for row, seq in enumerate(records.seq):
                reference = parse(texts[row])
                if reference is not None:
                    found[item.stream, seq] = MediaItem(
                        records.step[row], key, records.time[row], records.rank, stream, seq, reference
                    )
    return sorted(found.values(), key=lambda each: (each.step, each.time, each.stream, each.seq))


def read_blob(folders: Sequence[str], sha256: str) -> bytes:
    """Return a blob from the first of these folders that has it whole. Raises NoBlob."""
    why = "it is not there: removed to keep to the budget of the disk, or not stored yet"
    for folder in folders:
        try:
            fd = open_regular(blob_path(folder, sha256), max_bytes=MAX_STORE_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            why = str(error)
            continue
        with open(fd, "rb") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() == sha256:
            return data
        why = f"{blob_path(folder, sha256)} is damaged: its bytes are not those that were stored"
    raise NoBlob(f"the blob {sha256[:12]} cannot be read: {why}")
