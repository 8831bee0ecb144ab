"""Settings of a shipper: `ShipSettings`."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShipSettings:
    """Sizes of parcels, pauses, and whether it ends by itself."""

    parcel_points: int = 50_000
    parcel_bytes: int = 1 << 20  # in memory
    most_bytes: int = 16 << 20  # in memory, of parcels that are in flight
    flush_s: float = 0.2  # so long a parcel waits to become full, at most
    idle_s: float = 0.5  # between looks where nothing came for a while
    slice_s: float = 0.2  # so often it is asked whether we are still wanted, while nothing can be sent
    documents_s: float = 1.0  # between two versions of the documents, at least
    rest_s: float = math.inf  # without a record: the conversation is closed
    rest_slice_s: float = 0.2  # and between two looks
    first_pause_s: float = 0.2
    most_pause_s: float = 30.0
    close_s: float = 2.0  # for a good end of the conversation
    until_done: bool = False  # end when all that lies there is acknowledged, or a token is missing
    is_over: bool = False  # nobody adds to this node any more: what is missing then is damaged
