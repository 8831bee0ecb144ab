"""The search for records that were durable once and lie nowhere: told to the collector as damaged.

In the shipper's thread. Made once for each version of the documents of a node that is over, since these say what was
durable. What they count is found when all folders are read through once more after they were written::

    state      what holds                                                     next
    WAITING    the node goes on being written, or has no documents            it is over: SEARCHING
    SEARCHING  the folders are read through once more                         all read: FOUND, with gaps to be sent
    FOUND      nothing is left to tell by this version of the documents       another version: WAITING or SEARCHING

Another collector is told again.
"""

from __future__ import annotations

import time

from ..wal.scan import Gap
from .documents import DocumentUpload, Version
from .source import FolderSource


class LossCheck:
    """`gaps` moves it on; `is_complete` once the newest documents ask for nothing more."""

    def __init__(self, source: FolderSource, documents: DocumentUpload, *, is_over: bool) -> None:
        """`is_over`: nobody adds to any stream, whatever the documents say."""
        self._source = source
        self._documents = documents
        self._is_over = is_over
        self._searching: tuple[Version, float] | None = None  # by which documents, and since when
        self._found_for: bytes | None = None  # digest of the documents that were searched by last

    def restart(self) -> None:
        """Begin anew, for another collector."""
        self._searching = self._found_for = None

    @property
    def is_complete(self) -> bool:
        """Is nothing to be searched for by the newest documents?"""
        newest = self._documents.newest()
        return newest is None or newest.digest == self._found_for or not self._documents.is_node_over

    def gaps(self) -> list[Gap]:
        """Return what is missing for good, once for each version of the documents; begin the search where it is due."""
        newest = self._documents.newest()
        if newest is None or not self._documents.is_node_over or newest.digest == self._found_for:
            return []
        if self._searching is None or self._searching[0] is not newest:
            self._searching = newest, time.monotonic()
            self._source.hurry()
        if not self._source.has_passed(self._searching[1]):
            return []
        self._found_for = newest.digest
        return self._source.missing(newest.content, is_over=self._is_over)
