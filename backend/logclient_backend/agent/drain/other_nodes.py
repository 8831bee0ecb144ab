"""The other nodes of a run, as they lie in its run folder when an owner comes: what orders attempts without clocks.

Runs in the copier, which may hang there. An owner process that no launcher numbers gets a note of what was found, in
the documents of its node (`node_document.py`); readers (`runs/attempts.py`) see by it which node was over by then.

Invariants: nothing but the beginning of each node's documents is believed; a node whose documents cannot be read, or
have no revision, is left out, as if the two had never met.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logclient.errors import LogclientError

from ...runs.document_head import is_closed, revision_of
from ...wal.documents import DocumentFile

if TYPE_CHECKING:
    from .producer import Producer

MAX_AGE_S = (
    15.0  # of an owner when the look is made: later, what it says of the owner's start is no longer sure
)
_MAX_NODES = 256

Beside = dict[
    str, tuple[int, bool]
]  # by node: the revision of its documents, and whether they say that it is over


def look(folder: str) -> Beside:
    """Return what lies beside this node's folder. Raises OSError where the run folder cannot be listed."""
    found: Beside = {}
    run, own = os.path.split(folder)
    for name in sorted(os.listdir(run))[:_MAX_NODES]:
        path = os.path.join(run, name)
        if name == own or name.startswith(".") or not os.path.isdir(path):
            continue
        try:
            documents = DocumentFile(path).load() or b""
        except (OSError, LogclientError):
            continue
        if revision := revision_of(documents):
            found[name] = revision, is_closed(documents)
    return found


def is_wanted(producer: Producer) -> bool:
    """Is it an owner that no launcher numbers, and of which nothing is known yet?"""
    start = (producer.documents.get("start") or {}).get("data")
    is_owner = isinstance(start, dict) and start.get("role") == "owner" and not start.get("launch")
    return is_owner and producer.found is None
