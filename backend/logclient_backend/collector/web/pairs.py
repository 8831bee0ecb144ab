"""A series of a run over the values of another key, instead of over steps. The rule is in `combine/pairing.py`.

Both keys are reduced by the store to ranges of steps, many times finer than the answer, and then paired: a series of
10,000,000 points is not read as a whole. A range of x is found by looking twice, with finer ranges of steps each time.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from ...combine.pairing import Pairs, never_falls, pair
from ...combine.part import Part, coarser
from ..store.interface import Buckets, Reader
from .access import Stands, reader
from .chart_models import Pairs as PairsModel
from .listing import known_run
from .parameters import RunId, Side, in_store, of_512_bytes
from .responses import Refused, as_json, numbers
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

MAX_RANGES = 10_000
FINE = 1 << 15  # ranges of steps in which both keys are read
_LOOKS = 2  # for a range of x
_TEXT = "s"
_REAL = ("x", "last_x", "min", "min_x", "max", "max_x", "last")
_WHOLE = ("count", "nans", "infs", "neg_infs")
_KEY = Query(min_length=1, max_length=512, pattern=r"^[^\x00]+$")


@router.get("/run/xy", response_model=PairsModel)
def pairs(
    request: Request,
    stands_on: Stands,
    run: RunId,
    side: Side,
    x: Annotated[str, _KEY],
    y: Annotated[str, _KEY],
    most: Annotated[int, Query(ge=2, le=MAX_RANGES)] = 2000,
    first_x: float | None = None,
    last_x: float | None = None,
) -> Response:
    """One key of a run over the values of another one, reduced; the lowest and highest value of each range stay.

    The x of a point is the last known value of `x` at or before its step. Where it is not known (before the first
    value, or where that is NaN or infinite) the point is left out, and `left_out` counts such points.
    """
    for name, value in (("first_x", first_x), ("last_x", last_x)):
        if value is not None and not math.isfinite(value):
            raise Refused(400, "bad_request", f"{name}={value}: expected a finite number")
    if first_x is not None and last_x is not None and first_x > last_x:
        raise Refused(400, "bad_request", f"first_x {first_x} lies behind last_x {last_x}")
    known_run(stands_on, run)
    asked = _Asked(stands_on.store.reader, in_store(run, side), x, y)
    found, width = asked.pairs(most, first_x, last_x)
    return as_json(
        request,
        {
            "run": run,
            "x_key": x,
            "y_key": y,
            "is_reduced": True,
            "method": "last_known",
            "is_rising": found.is_rising,
            "step_width": width,
            "points": int(found.count.sum()),
            "left_out": found.left_out,
            "leaves_out_texts": _TEXT in asked.whole_y.codes,
            **{name: numbers(getattr(found, name)) for name in _REAL},
            **{name: getattr(found, name).tolist() for name in _WHOLE},
        },
    )


class _Asked:
    """One question, which becomes several ones to the store."""

    def __init__(self, asked: Reader, run: str, x: str, y: str) -> None:
        self._reader = asked
        self._run = run
        self._x, self._y = of_512_bytes(x, "x"), of_512_bytes(y, "y")
        self._whole_x = self._known(self._x)
        self.whole_y = self._known(self._y)

    def _known(self, key: str) -> Buckets:
        """The whole series as one bucket; refused where it has no numbers."""
        found = self._buckets(key, 1)
        if not found.codes and key not in self._reader.key_names(self._run):
            raise Refused(404, "no_key", f"run {self._run[:100]!r} has no key {key[:100]!r}")
        if found.codes == _TEXT:
            raise Refused(
                400, "no_numbers", f"key {key[:100]!r} of run {self._run[:100]!r} holds texts, and no numbers"
            )
        return found

    def pairs(self, most: int, first_x: float | None, last_x: float | None) -> tuple[Pairs, int]:
        """Return the answer, and to how many steps an x in it is right."""
        first, last = self.whole_y.first_step, self.whole_y.last_step
        left_out = 0
        if not self._whole_x.points:
            first = last + 1
        elif self._whole_x.first_step > first:  # points before it are counted here, exactly
            first = self._whole_x.first_step
            left_out = self._buckets(self._y, 1, None, first - 1).points
        x, y, width = self._read(first, last)
        is_rising = never_falls(x)
        if is_rising and (first_x is not None or last_x is not None):
            left_out = self._count_unknown(x, y) + left_out
            for _ in range(_LOOKS):
                first, last = _steps(x, width, first, last, first_x, last_x)
                x, y, width = self._read(first, last)
            found = pair(x, y, most, first_x=first_x, last_x=last_x)
            return replace(found, left_out=left_out), width
        found = pair(x, y, most, first_x=first_x, last_x=last_x)
        return replace(found, left_out=found.left_out + left_out), width

    def _count_unknown(self, x: Part, y: Part) -> int:
        return pair(x, y, 1).left_out

    def _read(self, first: int, last: int) -> tuple[Part, Part, int]:
        """Both keys in ranges of steps of one width, and that width."""
        if first > last:
            nothing = _part(self._buckets(self._y, 2, 1, 0))
            return nothing, nothing, 1
        y = self._buckets(self._y, FINE, first, last)
        x = self._buckets(self._x, FINE, first, last)
        width = max(x.width, y.width)
        earlier = self._buckets(self._x, 1, None, first - 1)
        before = float(earlier.last[-1]) if earlier.points else None
        part = replace(_part(x), before=before)
        return coarser(part, width), coarser(_part(y), width), width

    def _buckets(
        self, key: str, most: int, first_step: int | None = None, last_step: int | None = None
    ) -> Buckets:
        return self._reader.buckets(self._run, key, most=most, first_step=first_step, last_step=last_step)


def _part(found: Buckets) -> Part:
    counts = found.count, found.nans, found.infs, found.neg_infs
    return Part(found.start, *counts, found.min, found.max, found.last)


def _steps(
    x: Part, width: int, first: int, last: int, first_x: float | None, last_x: float | None
) -> tuple[int, int]:
    """Return the steps between which x, which never falls, is in the range; some more at either end."""
    is_there = ~(x.low != x.low)
    start, low, high = x.start[is_there], x.low[is_there], x.high[is_there]
    if first_x is not None and (high < first_x).any():
        first = max(first, int(start[high < first_x][-1]))
    if last_x is not None and (low > last_x).any():
        last = min(last, int(start[low > last_x][0]) + width - 1)
    return first, last
