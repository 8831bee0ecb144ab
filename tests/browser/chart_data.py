"""Runs for charts, written into a store: floats as arrays, many at once; and a page that shows them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from playwright.sync_api import Page

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector.store.interface import Description, Parcel, Store
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap

SECOND = 10**9
START_NS = 1_760_000_000 * SECOND
PATIENCE_S = 30.0


def process(number: int = 1) -> bytes:
    return number.to_bytes(16, "big")


def columns(
    values: Mapping[str, Any],
    step: Any,
    *,
    lane: int = 1,
    of: int = 1,
    rank: int | None = None,
    seq: int = 1,
    time_ns: Any = None,
) -> StreamColumns:
    """Records of one stream, a float for each key in each of them. `time_ns`: default 1 s a step from `START_NS` on."""
    steps = np.asarray(step, np.int64)
    when = START_NS + steps * SECOND if time_ns is None else np.asarray(time_ns, np.int64)
    numbers = array("Q", range(seq, seq + len(steps)))
    cells: list[Any] = [
        array("Q", np.ascontiguousarray(column, np.float64).view(np.uint64).tobytes())
        for column in values.values()
    ]
    made = Columns(
        Shape(tuple(values), "d" * len(values)),
        rank,
        numbers,
        numbers,
        array("q", steps.tobytes()),
        array("q", when.tobytes()),
        cells,
    )
    return StreamColumns(bytes([lane]) + process(of)[1:], process(of), lane, made)


def put(
    store: Store, run: str, batches: Sequence[StreamColumns], *, gaps: Sequence[Gap] = (), **about: Any
) -> None:
    """Write one run. `about`: of its description."""
    usual: dict[str, Any] = {"name": run, "state": "finished", "created_ns": START_NS}
    told = Description(**{**usual, **about})
    store.writer.write([Parcel(run, "node", time.time_ns(), list(batches), list(gaps), b"{}", told)])


def compact(store: Store) -> None:
    while store.compact(deadline_s=60.0):
        pass


def until(what: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """Wait for something true. The policy of the page forbids what `wait_for_function` does."""
    deadline = time.monotonic() + patience_s
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def loaded(page: Page, count: int = 1) -> None:
    """Wait until at least so many charts are there, and all of them are painted."""
    until(
        lambda: page.evaluate(
            """(count) => {
              const plots = [...document.querySelectorAll('.plot')];
              return plots.length >= count && plots.every(
                (plot) => plot.getAttribute('aria-busy') === 'false' && !plot.classList.contains('is-empty'));
            }""",
            count,
        )
    )


def module(page: Page, name: str, body: str, argument: Any = None) -> Any:
    """Return what `body`, the text of a function's body, gives for `it`, a module of the page, and `given`."""
    return page.evaluate(
        f"""async (given) => {{
          const base = document.querySelector('script[type=module]').src.replace(/app\\.js$/, '');
          const it = await import(base + '{name}');
          {body}
        }}""",
        argument,
    )


def pixels(page: Page, key: str) -> dict[str, Any]:
    """Return the rows and columns of the plot of a chart that have ink of a line: colour, no grid."""
    found: dict[str, Any] = page.evaluate(
        """(key) => {
          const root = document.querySelector(`figure[aria-label="${CSS.escape(key)}"]`);
          const canvas = root.querySelector('canvas');
          const over = root.querySelector('.u-over');
          const ratio = devicePixelRatio;
          const left = Math.round(parseFloat(over.style.left) * ratio);
          const top = Math.round(parseFloat(over.style.top) * ratio);
          const width = Math.round(over.clientWidth * ratio);
          const height = Math.round(over.clientHeight * ratio);
          const {data} = canvas.getContext('2d').getImageData(left, top, width, height);
          const ink = [];
          for (let x = 0; x < width; x++) {
            let high = -1, low = -1, count = 0;
            for (let y = 0; y < height; y++) {
              const i = 4 * (y * width + x);
              const [r, g, b, a] = data.subarray(i, i + 4);
              if (a > 60 && Math.max(r, g, b) - Math.min(r, g, b) > 25) {
                if (high < 0) high = y;
                low = y;
                count += 1;
              }
            }
            ink.push([high, low, count]);
          }
          return {width, height, ink};
        }""",
        key,
    )
    return found
