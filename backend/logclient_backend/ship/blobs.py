"""Blobs of media values from a node's folders to a collector.

Runs in a thread of its own in the ship process, since it reads a disk that may hang, and in `logclient sync`.

Invariants:

- nothing is kept about what is there: the collector is asked, by hashes, some hundred at a time;
- a blob is read piece by piece, so its size needs no memory;
- references are records and come by themselves: a blob that does not come is shown as missing, and holds up nothing;
- a collector that takes no blobs (an older one) is asked once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from logclient.shm.regular import MAX_STORE_BYTES, open_regular

from ..runs.media_reference import FOLDER
from ..wire import messages
from ..wire.blobs import MAX_ASKED, PIECE_BYTES, Piece, Uploads, is_hash
from ..wire.messages import NotTaken


class BlobUpload:
    """One node, one collector."""

    def __init__(self, connect: Callable[[], Uploads]) -> None:
        """`connect` makes a connection, anew after each trouble."""
        self._connect = connect
        self._uploads: Uploads | None = None
        self._there: set[str] = set()  # hashes that the collector has, or will never take
        self.is_refused = False  # it takes none
        self.trouble = ""
        self.waiting = 0  # blobs that were found and are not there
        self.sent = 0

    def run(self, folders: Sequence[str], is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Send what these run folders have and the collector lacks; True: all of it is there, or never will be."""
        found = {sha256: path for folder in folders for sha256, path in _blobs(folder)}
        new = [sha256 for sha256 in found if sha256 not in self._there]
        self.waiting = len(new)
        if self.is_refused or not new:
            self.waiting = 0
            return True
        try:
            for start in range(0, len(new), MAX_ASKED):
                asked = new[start : start + MAX_ASKED]
                lacking = set(self._connection().lacking(asked))
                self._note(each for each in asked if each not in lacking)
                for sha256 in lacking:
                    if not is_wanted():
                        return False
                    self._send(sha256, found[sha256])
        except NotTaken as error:
            self.close()
            self.trouble = error.text
            if error.reason == messages.WRONG_PROTOCOL:
                self.is_refused, self.waiting = True, 0
            return self.is_refused
        self.trouble = ""
        return not self.waiting

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._uploads is not None:
            self._uploads.close()
            self._uploads = None

    def _connection(self) -> Uploads:
        if self._uploads is None:
            self._uploads = self._connect()
        return self._uploads

    def _note(self, hashes: Iterator[str]) -> None:
        for sha256 in hashes:
            self._there.add(sha256)
            self.waiting -= 1

    def _send(self, sha256: str, path: str) -> None:
        try:
            fd = open_regular(path, max_bytes=MAX_STORE_BYTES)
        except OSError:
            self._note(iter((sha256,)))  # trimmed meanwhile
            return
        try:
            size = os.fstat(fd).st_size
            have, is_complete = self._connection().put(Piece(sha256, size, 0, os.pread(fd, PIECE_BYTES, 0)))
            while not is_complete:
                data = os.pread(fd, PIECE_BYTES, have)
                before = have
                have, is_complete = self._connection().put(Piece(sha256, size, have, data))
                if not is_complete and have <= before:
                    break  # it begins again, or gets nowhere: with the next call
            if is_complete:
                self.sent += 1
                self._note(iter((sha256,)))
        except NotTaken as error:
            if not error.is_final:
                raise
            self._note(iter((sha256,)))  # damaged on this disk: it will never be taken
            self.trouble = error.text
        finally:
            os.close(fd)


def _blobs(folder: str) -> Iterator[tuple[str, str]]:
    """Yield hash and path of the blobs of a run folder."""
    top = os.path.join(folder, FOLDER)
    try:
        names = sorted(os.listdir(top))
    except OSError:
        return
    for name in names:
        if len(name) != 2:
            continue
        try:
            found = os.listdir(os.path.join(top, name))
        except OSError:
            continue
        yield from [(each, os.path.join(top, name, each)) for each in found if is_hash(each)]
