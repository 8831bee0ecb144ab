"""Forms of answers for charts, as `response_models.py` has those of the others."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .response_models import Number, Shape


class Member(Shape):
    """A run of a band."""

    run: str
    name: str
    state: str = Field(description="As its documents state.")
    points: int = Field(description="Of it, that went in.")
    first_step: int
    last_step: int


class Quantile(Shape):
    """One quantile over the runs, bucket by bucket."""

    quantile: float
    value: list[Number] = Field(description="NaN where no run has a finite value.")


class RunsBand(Shape):
    """One key of several runs: mean, range and quantiles over the runs."""

    key: str
    is_reduced: Literal[True]
    method: Literal["band"]
    width: int = Field(description="Steps of a bucket; a power of two.")
    first_step: int
    last_step: int
    start: list[int] = Field(description="First step of each bucket in which any run has a point.")
    runs: list[int] = Field(description="How many count there: where it falls, runs have ended.")
    finite: list[int] = Field(description="Of them with a finite value: those are in mean and quantiles.")
    mean: list[Number] = Field(description="Of each run's last known value; NaN where there is none.")
    min: list[Number] = Field(description="Of all finite points, and of values that are carried through.")
    max: list[Number]
    nans: list[int] = Field(description="Points that are NaN.")
    infs: list[int]
    neg_infs: list[int]
    quantiles: list[Quantile]
    points: int = Field(description="How many went in.")
    leaves_out_texts: bool
    members: list[Member]
    without_key: list[str] = Field(description="Runs that were asked for and have no numbers under this key.")
    unknown_runs: list[str] = Field(description="Ids that were asked for and are not here.")
    left_out_runs: int = Field(description="Runs that match the filters beyond the limit, the oldest.")


class Pairs(Shape):
    """A series over the values of another key."""

    run: str
    x_key: str
    y_key: str
    is_reduced: Literal[True]
    method: Literal["last_known"]
    is_rising: bool = Field(
        description="x never falls: equal ranges of x. Else stretches of neighbouring steps, in the order of steps."
    )
    step_width: int = Field(description="An x is right to that many steps; 1: exactly.")
    points: int = Field(description="How many points of y went in.")
    left_out: int = Field(description="Points of y whose x is not known.")
    leaves_out_texts: bool = Field(description="y was logged with texts, too; they are not in it.")
    x: list[Number] = Field(description="Of the first point of each range.")
    last_x: list[Number] = Field(description="Of its last point.")
    min: list[Number] = Field(description="Of the finite y; NaN where there is none.")
    min_x: list[Number] = Field(description="Where the lowest y is.")
    max: list[Number]
    max_x: list[Number]
    last: list[Number]
    count: list[int]
    nans: list[int]
    infs: list[int]
    neg_infs: list[int]


class Curve(Shape):
    """One series reduced to buckets, as columns."""

    series: int = Field(description="Number of run i and key j, from 0 as given: i * keys + j.")
    run: str
    key: str
    width: int = Field(description="Steps of a bucket; a power of two.")
    points: int = Field(description="How many went in.")
    first_step: int
    last_step: int
    rank: int | None = Field(None, description="The only rank that is in it; null: all are.")
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
