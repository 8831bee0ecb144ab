"""Side streams: records of a run that are not among what the user logged, each kind told from the others by its ids.

Runs in whatever writes or reads records. A *side* is such a kind: host and device metrics ("system"), what the program
prints ("console"), media ("media"). The first 8 bytes of the ids of a side's streams, and of the processes in whose
names they are written, are its mark; the other 8 are random.

Invariants:

- a reader tells a side by an id alone: in a segment, on the wire and in a store, whether documents can be read or not;
- a lane file of a side is no lane file by its name: whoever counts or watches the processes that log does not see it.
"""

from __future__ import annotations

SYSTEM, CONSOLE, MEDIA = "system", "console", "media"
SIDES = (SYSTEM, CONSOLE, MEDIA)
MARKS = {SYSTEM: b"lcsystem", CONSOLE: b"lcconsol", MEDIA: b"lcmedia_"}
_BY_BYTES = {mark: side for side, mark in MARKS.items()}
_BY_HEX = {mark.hex(): side for side, mark in MARKS.items()}


def side_of(id: bytes | str) -> str:
    """Return the side of a stream or process with this id, as bytes or as hex; empty for the user's records."""
    return _BY_HEX.get(id[:16], "") if isinstance(id, str) else _BY_BYTES.get(id[:8], "")


def suffix_of(side: str) -> str:
    """Return how the names of this side's lane files end."""
    return f".{side}"
