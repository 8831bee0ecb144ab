"""The head of a node's documents: revision, time of the heartbeat, and whether the node is closed, without a parser.

Pure; for agents, shippers and collectors, which compare documents as bytes: they may have megabytes, and each poll
asks for the newest. The format is defined, and written, in `agent/drain/node_document.py`: `version` and `revision`
come first, `heard_ns` and `closed` stand once each among the first keys, behind names and numbers alone. The first
match is therefore the agent's own key, and never one of a config that a user chose, which comes later.

Each node counts its own revisions: the agent writes a higher one with every version, and its successors go on from the
highest that they find. Of two versions the higher one is newer, without a look at a clock.

Invariant: documents of an earlier build, which have no revision, are older than any that have one; among themselves
they are ordered by the time at which their agent wrote them, since they say nothing else.
"""

from __future__ import annotations

import re

_REVISION = re.compile(rb'\{\s*"version":\s*\d+,\s*"revision":\s*(\d{1,18})\s*[,}]')
_HEARD = re.compile(rb'"heard_ns":\s*(\d{1,20})')
_CLOSED = re.compile(rb'"closed":\s*(true|false)')
_HEAD_BYTES = 1 << 13


def revision_of(documents: bytes) -> int:
    """Return the revision that stands at the beginning of these documents; 0 where there is none."""
    found = _REVISION.match(documents)
    return int(found[1]) if found else 0


def age_of(documents: bytes) -> tuple[int, int]:
    """Return what orders documents of one node, the newest last."""
    found = _HEARD.search(documents, 0, _HEAD_BYTES)
    return revision_of(documents), int(found[1]) if found else 0


def is_closed(documents: bytes) -> bool:
    """Do these documents say that nothing more comes from their node, unless a new process joins?"""
    found = _CLOSED.search(documents, 0, _HEAD_BYTES)
    return found is not None and found[1] == b"true"
