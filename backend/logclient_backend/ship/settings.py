"""Settings of a shipper: `ShipSettings`. Sizes and pauses that another file has a word for stand there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import backoff, in_flight, parcels


@dataclass(frozen=True, slots=True)
class ShipSettings:
    """Sizes of parcels, pauses, and whether it ends by itself."""

    parcel_points: int = parcels.PARCEL_POINTS
    parcel_bytes: int = parcels.PARCEL_BYTES
    in_flight_bytes: int = in_flight.MAX_BYTES
    flush_s: float = 0.2  # so long a parcel waits to become full, at most
    idle_s: float = 0.5  # between looks where nothing came for a while
    slice_s: float = 0.2  # so often it is asked whether we are still wanted, while nothing can be sent
    documents_s: float = 1.0  # between two versions of the documents, at least
    rest_s: float = math.inf  # without a record: the conversation is closed
    rest_slice_s: float = 0.2  # and between two looks
    first_pause_s: float = backoff.FIRST_S
    most_pause_s: float = backoff.MAX_S
    close_s: float = 2.0  # for a good end of the conversation
    until_done: bool = False  # end when all that lies there is acknowledged, or a token is missing
    is_over: bool = False  # nobody adds to this node any more: what is missing then is damaged
