"""Forms of the answers of `curves.py`; see `response_models.py`."""

from __future__ import annotations

from pydantic import Field

from .response_models import Number, Shape


class Curve(Shape):
    """One series reduced to buckets, as columns."""

    series: int = Field(description="Number of run i and key j, from 0 as given: i * keys + j.")
    run: str
    key: str
    width: int = Field(description="Steps of a bucket; a power of two.")
    points: int = Field(description="How many went in.")
    first_step: int
    last_step: int
    leaves_out_texts: bool = Field(description="The key was logged with texts, too; they are not in it.")
    start: list[int] = Field(description="First step of each bucket that holds something, rising.")
    count: list[int] = Field(description="Points of each, NaN and infinities included; empty: 1 in each.")
    nans: list[int] = Field(description="Empty: none, as in the next two.")
    infs: list[int]
    neg_infs: list[int]
    min: list[Number] = Field(
        description="Of the finite points; NaN where there are none. Empty where `count` is: as `last`, where finite."
    )
    max: list[Number]
    last: list[Number] = Field(description="Of the highest step of the bucket.")
    time_ns: list[int] = Field(description="Of that point.")


class Curves(Shape):
    """Many series from one state of the store."""

    at: int = Field(description="Position in the order of commits: updates of a higher one are not in here.")
    cursor: str = Field(description="That position, for `after` of `/stream`.")
    next: str = Field(
        description="Ask again with `after` set to this for the other series; empty: all are here."
    )
    now_ns: int
    unknown_runs: list[str] = Field(description="Runs that were asked for and that are not here.")
    curves: list[Curve]
