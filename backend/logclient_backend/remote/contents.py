"""Contents of a run of a server, for `logclient show`: asked for, rather than read and counted.

A small run is read as a whole, by the code that reads folders. Of a large one the server returns keys, newest values
and curves (as buckets); counts and gaps follow from its ranges of seqs as everywhere. Ranks of single threads, which
only records contain, are left out then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..runs import contents
from ..runs.contents import Contents, Key, Last, Only, Progress
from ..runs.curve import Cell, Curve
from ..runs.extremes import Extremes
from ..runs.strict import ODD_FLOATS
from ..runs.view import RunView

if TYPE_CHECKING:
    from .runs import ServerRun

SMALL_RECORDS = 100_000  # some seconds of reading
_MAX_BUCKETS = 2_000
_CODES = {"float": "d", "rounded": "r", "int": "q", "bool": "b", "text": "s"}


def read(
    stored: ServerRun,
    key_rows: Callable[[], Iterable[dict[str, Any]]],
    run: RunView,
    curves: int = 0,
    only: Only = None,
    progress: Progress = None,
) -> Contents:
    """Return the contents of a run, as `runs.contents.read` does for a folder. `key_rows`: asks for its keys."""
    reader = run.found.records()
    if reader.records <= SMALL_RECORDS:
        return contents.read(run, curves, only, progress)
    made = contents.begun(reader)
    for span in reader.spans.values():
        made.spans.of(span.stream, span.process, span.lane).merge(span)
        if span.stored:
            made.first_time = min(made.first_time or span.first_time, span.first_time)
            made.last_time = max(made.last_time, span.last_time)
    for row in key_rows():
        made.keys[row["key"]] = _key(row)
    for name, each in stored.extremes().items():
        if name in made.keys:
            made.keys[name].extremes[1] = Extremes(each.min, each.max)
    numeric = [key.name for key in made.keys.values() if not key.is_text]
    for name in filter(only, numeric) if only is not None else numeric[:curves]:
        if answer := stored.buckets(name, _MAX_BUCKETS):
            made.keys[name].curves[1] = _curve(answer)
    if progress is not None:
        progress(reader.records)
    contents.settle(made, run, reader)
    return made


def _key(row: dict[str, Any]) -> Key:
    last = row["last"]
    code = _CODES.get(last["type"], "d")
    return Key(
        row["key"],
        points=row["points"],
        last=Last(last_value(last), code, last["step"], last["time_ns"], 0, last["rank"]),
        is_text="text" in row["types"],
    )


def _curve(answer: dict[str, Any]) -> Curve:
    """Buckets as the cells of a curve."""
    made = Curve()
    made.shift = answer["width"].bit_length() - 1
    made.points = answer["points"]
    for start, low, high, count, odd in _columns(answer):
        cell = Cell(start, start + answer["width"] - 1, points=count, odd=odd)
        if odd < count:
            cell.low, cell.high = low, high
        made.cells[start >> made.shift] = cell
    return made


def _columns(answer: dict[str, Any]) -> Iterator[tuple[int, float, float, int, int]]:
    low, high = ([ODD_FLOATS.get(value, value) for value in answer[name]] for name in ("min", "max"))
    odd = map(sum, zip(answer["nans"], answer["infs"], answer["neg_infs"], strict=True))
    return zip(answer["start"], low, high, answer["count"], odd, strict=True)


def last_value(last: dict[str, Any]) -> Any:
    """Return the newest value of a key, as the API has it; NaN and infinities are texts there."""
    is_float = last["type"] in ("float", "rounded")
    return ODD_FLOATS.get(last["value"], last["value"]) if is_float else last["value"]
