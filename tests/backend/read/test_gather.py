"""The order of points out of records: what was counted orders them, and clocks only what nothing else does."""

from __future__ import annotations

from array import array

import numpy as np

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.read.gather import gather
from logclient_backend.wal.encoded import StreamColumns

HOUR_NS = 3600 * 10**9
LOSS = Shape(("loss",), "d")
A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def records(process: bytes, rows: list[tuple[int, int, float, int]], stream: bytes = b"") -> StreamColumns:
    """`rows`: number in the process, step, value, time."""
    orders, steps, values, times = zip(*rows, strict=True)
    cells = [array("Q", np.array(values, np.float64).view(np.uint64).tobytes())]
    seq = array("Q", range(1, len(rows) + 1))
    columns = Columns(LOSS, 0, seq, array("Q", orders), array("q", steps), array("q", times), cells)  # type: ignore[arg-type]
    return StreamColumns(stream or process, process, 0, columns)


def values(
    *items: StreamColumns, attempts: dict[bytes, int] | None = None, every: bool = True
) -> list[float]:
    numbers = {process.hex(): number for process, number in (attempts or {}).items()}
    found = gather(items, ["loss"]).series("loss", numbers, every=every)
    assert found is not None
    return list(map(float, found.value))


def test_repeats_of_a_step_keep_their_order_though_the_clock_was_set_back() -> None:
    """In one lane, and in two that take turns."""
    assert values(records(A, [(1, 5, 1.0, HOUR_NS), (2, 5, 2.0, 0), (3, 4, 3.0, 0)])) == [3.0, 1.0, 2.0]
    lanes = records(A, [(2, 5, 2.0, 0)], stream=C), records(A, [(1, 5, 1.0, HOUR_NS), (3, 5, 3.0, 9)])
    assert values(*lanes) == [1.0, 2.0, 3.0]


def test_processes_of_one_step_come_in_the_order_of_time() -> None:
    """Each with its own points in its own order."""
    first = records(A, [(1, 1, 1.0, 10), (2, 1, 2.0, 30)])
    second = records(B, [(1, 1, 3.0, 20), (2, 2, 4.0, 21)])
    third = records(C, [(1, 1, 5.0, HOUR_NS), (2, 1, 6.0, 5)])
    for items in ((first, second, third), (third, second, first)):
        assert values(*items) == [5.0, 6.0, 3.0, 1.0, 2.0, 4.0]


def test_of_one_step_a_later_attempt_comes_later_whatever_its_clock_says() -> None:
    """Where all are asked for."""
    items = records(A, [(1, 1, 1.0, HOUR_NS), (2, 2, 2.0, HOUR_NS)]), records(B, [(1, 2, 3.0, 0)])
    assert values(*items, attempts={A: 1, B: 2}) == [1.0, 2.0, 3.0]
    assert values(*items, attempts={A: 1, B: 2}, every=False) == [1.0, 3.0]
    assert values(*items, attempts={A: 2, B: 1}) == [1.0, 3.0, 2.0]
