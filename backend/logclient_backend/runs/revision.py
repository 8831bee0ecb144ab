"""The revision of a node's documents: which of two versions is the newer one, without a look at a clock.

Pure; for agents, shippers and collectors, which compare documents as bytes. Each node counts its own revisions: the
agent writes a higher one with every version, and its successors go on from the highest that they find.

Invariant: documents of an earlier build, which have no revision, are older than any that have one; among themselves
they are ordered by the time at which their agent wrote them, since they say nothing else.
"""

from __future__ import annotations

import re

_REVISION = re.compile(rb'\{\s*"version":\s*\d+,\s*"revision":\s*(\d{1,18})\s*[,}]')
_HEARD, _HEAD_BYTES = re.compile(rb'"heard_ns":\s*(\d{1,20})'), 1 << 13


def revision_of(documents: bytes) -> int:
    """Return the revision that stands at the beginning of these documents; 0 where there is none."""
    found = _REVISION.match(documents)
    return int(found[1]) if found else 0


def age_of(documents: bytes) -> tuple[int, int]:
    """Return what orders documents of one node, the newest last."""
    found = _HEARD.search(documents, 0, _HEAD_BYTES)
    return revision_of(documents), int(found[1]) if found else 0
