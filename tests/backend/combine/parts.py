"""Series as parts with buckets of one step."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from logclient_backend.combine.part import Part

Points = list[tuple[int, float]]  # by step

values = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0]), st.floats(-1e6, 1e6, allow_nan=False)
)
series = st.dictionaries(st.integers(-40, 200), values, max_size=40).map(lambda found: sorted(found.items()))


def part(points: Points) -> Part:
    """One bucket a point."""
    step = np.array([step for step, _ in points], np.int64)
    value = np.array([value for _, value in points], np.float64)
    finite = np.where(np.isfinite(value), value, np.nan)
    nans, infs, neg_infs = (
        which.astype(np.int64) for which in (np.isnan(value), value == math.inf, value == -math.inf)
    )
    return Part(step, np.ones(len(step), np.int64), nans, infs, neg_infs, finite, finite, value)
