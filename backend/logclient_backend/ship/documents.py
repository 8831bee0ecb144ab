"""The node's documents on their way to one collector: which version it lacks, and when that is due.

In the shipper's thread. A version is one JSON object of perhaps megabytes, written by the agent again and again
(`agent/drain/node_document.py`); versions in between may be skipped. The newest is *settled* when nothing is to be sent
of it: the collector has it, or will never take it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property

from ..runs.document_head import is_closed, revision_of
from ..wire.messages import Welcome, digest
from .settings import ShipSettings
from .source import FolderSource

_REFUSED_S = 60.0  # after a version that was refused: the next ones are hardly taken either


class Version:
    """One version; what is asked of it is found once."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    @cached_property
    def digest(self) -> bytes:
        """Digest by which the collector names the version that it has."""
        return digest(self.content)

    @cached_property
    def is_closed(self) -> bool:
        """Does it say that nothing more comes from this node?"""
        return is_closed(self.content)


class DocumentUpload:
    """`newest` is what lies there now, `due` what is to be sent now."""

    def __init__(
        self, source: FolderSource, settings: ShipSettings, on_outdated: Callable[[str], None]
    ) -> None:
        """`on_outdated` takes a sentence where the collector has newer documents than lie here."""
        self.is_apart = False  # they go in parcels of their own: one with records was refused
        self._source = source
        self._settings = settings
        self._on_outdated = on_outdated
        self._newest: Version | None = None
        self._settled = b""  # digest
        self._revision_there = 0  # of those that the collector has; 0: not known
        self._sent_at = 0.0

    def newest(self) -> Version | None:
        """Return the documents as they are now; None where there are none."""
        content = self._source.documents()
        if content is None:
            return None
        if self._newest is None or self._newest.content is not content:
            self._newest = Version(content)
        return self._newest

    @property
    def is_node_over(self) -> bool:
        """Does nobody add to this node any more, as far as one can know?"""
        if self._settings.is_over:
            return True
        newest = self.newest()
        return newest is not None and newest.is_closed

    def due(self) -> Version | None:
        """Return the version that the collector lacks; None: there is none, or it is not time yet."""
        is_early = time.monotonic() - self._sent_at < self._settings.documents_s
        if is_early and not self._settings.until_done:
            return None
        version = self.newest()
        if version is None or version.digest in (b"", self._settled):
            return None
        revision = revision_of(version.content)
        if revision < self._revision_there:
            self._settled = version.digest
            self._on_outdated(
                f"outdated: the documents here are of revision {revision}, and the collector has revision "
                f"{self._revision_there} of this node: config, summary and state stay as they are there"
            )
            return None
        return version

    def welcomed(self, welcome: Welcome) -> None:
        """Take over what the collector has."""
        self._settled = welcome.documents_digest
        self._revision_there = welcome.documents_revision

    def sent(self) -> None:
        """A version is on its way: the next one has time."""
        self._sent_at = time.monotonic()

    def settle(self, version_digest: bytes) -> None:
        """Nothing more is to be sent of that version; of none where the digest is empty."""
        self._settled = version_digest or self._settled

    def refused(self) -> None:
        """A version was refused for good: the next one is tried much later."""
        self._sent_at = time.monotonic() + _REFUSED_S
