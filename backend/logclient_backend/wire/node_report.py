"""The report of one node while its run does not get on, as it travels: state, age, and packed JSON. Pure; no grpc.

An agent makes it (`agent/shipping/node_reports.py`), a collector keeps it as it came (`collector/node_reports.py`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import zstandard

from logclient.errors import Corrupt

MAX_BYTES = 8 << 20  # of the JSON
MAX_PACKED_BYTES = 256 << 10
OFF, OK, QUIET, STALLED = "off", "ok", "quiet", "stalled"  # as in `layout.OBSERVED_STATES`
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class NodeReport:
    """The state of a run on one node, and what was seen there."""

    kind: str  # OFF: nobody looks
    made_at: float = 0.0  # time of the monotonic clock here
    size: int = 0  # bytes of the JSON
    packed: bytes = b""  # the JSON as one zstd frame; empty: there is none
    trouble: str = ""  # a sentence: why there is none

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return max(0.0, time.monotonic() - self.made_at)


def pack(content: bytes) -> bytes | None:
    """Return the content as one frame; None where it is too large to be sent."""
    if len(content) > MAX_BYTES:
        return None
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    return packed if len(packed) <= MAX_PACKED_BYTES else None


def unpack(report: NodeReport) -> bytes:
    """Return the JSON; `Corrupt` where it is not what the report declares."""
    try:
        if not zstandard.frame_content_size(report.packed) == report.size <= MAX_BYTES:
            raise Corrupt("report", 0, f"a zstd frame of {report.size} bytes", "another one")
        return zstandard.ZstdDecompressor().decompress(report.packed, max_output_size=report.size)
    except zstandard.ZstdError as error:
        raise Corrupt("report", 0, "a zstd frame", error) from error
