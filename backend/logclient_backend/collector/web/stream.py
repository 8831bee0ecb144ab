"""Live updates as server-sent events: new points of chosen series, changes of the list of runs, new keys.

A stream begins where `curves` or an earlier stream ended, and so misses nothing and repeats nothing. Nothing is kept
for it between two connections, so it may go on in another process, or after a restart. `live.py` finds what is new.

Runs in the event loop. A stream ends within a second of its token being revoked, and when its reader is too slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from ..store.news import Position, position_of
from . import events
from .access import Stands, Still, reader
from .curves import MAX_CHOSEN, check_count, chosen
from .live import Follower, Live, TooMany
from .parameters import Cursor, Name
from .responses import Refused, no_run
from .strict_query import only_known

router = APIRouter(dependencies=[Depends(reader), Depends(only_known)])

HEARTBEAT_S = 15.0
CHECK_S = 0.5  # between two looks whether the token is still valid
SEND_S = 20.0  # for a reader to take what is sent
UNAUTHORIZED = "unauthorized"
_ENDS = {
    UNAUTHORIZED: "the token or session is not valid any more: log in again",
    "slow": "the reader is too slow: connect again with the id of the last event",
    "stopping": "the collector is being stopped or restarted: connect again with the id of the last event",
}
_KIND = "text/event-stream"
_ANSWER: dict[int | str, Any] = {
    200: {"description": "Events, without an end.", "content": {_KIND: {"schema": {"type": "string"}}}},
    429: {"description": "As many streams are open as there may be."},
}


class _Events(Response):
    """The answer: events of a follower until it ends, or its reader goes."""

    media_type = _KIND

    def __init__(
        self, live: Live, follower: Follower, is_valid: Callable[[], bool], drop: Callable[[], None]
    ) -> None:
        super().__init__(status_code=200, headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._live = live
        self._follower = follower
        self._is_valid = is_valid
        self._drop = drop

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with asyncio.timeout(None) as limit:
                await self._send(send, limit, gone)
        except TimeoutError:
            self._drop()
            await asyncio.wait([gone], timeout=SEND_S)
        finally:
            gone.cancel()
            self._live.remove(self._follower)

    async def _send(self, send: Any, limit: asyncio.Timeout, gone: asyncio.Future[None]) -> None:
        follower = self._follower
        loop = asyncio.get_running_loop()
        sent_at = checked_at = time.monotonic()
        while not gone.done():
            made, position = await follower.take(CHECK_S)
            now = time.monotonic()
            if now - checked_at >= CHECK_S:
                checked_at = now
                if not await run_in_threadpool(self._is_valid):
                    follower.end, made = UNAUTHORIZED, []
            if follower.end:
                made.append(events.end(follower.end, _ENDS[follower.end]))
            elif not made and now - sent_at > HEARTBEAT_S:
                known = self._live.cursor(follower, position) if position is not None else ""
                made.append(events.heartbeat(known))
            if made:
                sent_at = now
                limit.reschedule(loop.time() + SEND_S)
                await send(
                    {"type": "http.response.body", "body": b"".join(made), "more_body": not follower.end}
                )
                limit.reschedule(None)
            if follower.end:
                return


async def _gone(receive: Any) -> None:
    """Return when the reader is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


@router.get("/stream", response_class=Response, responses=_ANSWER)
async def stream(
    request: Request,
    stands_on: Stands,
    is_valid: Still,
    run: Annotated[list[Name], Query(max_length=MAX_CHOSEN)] = [],  # noqa: B006  # fastapi copies it
    key: Annotated[list[Name], Query(max_length=MAX_CHOSEN)] = [],  # noqa: B006
    system_key: Annotated[list[Name], Query(max_length=MAX_CHOSEN)] = [],  # noqa: B006
    runs: Annotated[bool, Query(description="Also changes of the list of runs.")] = False,
    after: Cursor = "",
    last_event_id: Annotated[str, Header(max_length=200)] = "",
) -> Response:
    """Follow series and the list of runs: server-sent events `hello`, `points`, `runs`, `keys`, `reload`, `end`.

    Series are numbered as in `/curves`, the `system_key`s of a run behind its `key`s. Without `after` (a `cursor` of
    `/curves`, or an event's id) and `Last-Event-ID` (which wins) it begins now.

    - `hello` `{at, series, now_ns}`: nothing is missed from here on. Without `after`, a list of runs whose `at` is
      lower may lack a change that no event has: ask for it again.
    - `points` `{at, time_ns, groups}`: a group is `[at, series, attempt, rank, steps, offsets, values]`: numbers of the
      series that were logged in these records, `offsets` in ns from `time_ns`, and per series a list of values. A
      group holds for a series only where its `at` is higher than that of the series: of its curve, or the last group.
    - `runs` `{at, now_ns, rows, gone}`: rows with `id` and those fields that changed; ids that were deleted. Changes
      behind `at` (the answer of an edit has one) may not be in it.
    - `keys` `{at, keys}`: new keys, each `[number of the run, key, is it of host or device metrics]`.
    - `reload` `{at, series, runs, keys}`: too much was missed, or comes too fast, or a series got texts: load these
      series, the list of runs, the keys of these runs anew.
    - `end` `{reason, message}`: `unauthorized`, `slow` or `stopping`.

    Values are numbers, or `nan`, `inf`, `-inf`. A comment comes at least every 15 s.
    """
    live: Live = request.app.state.live
    names = chosen("run", run), chosen("key", key), chosen("system_key", system_key)
    check_count(len(run) * (len(key) + len(system_key)))
    if not run and not runs:
        raise Refused(400, "bad_request", "nothing to follow: name runs, or set runs=1")
    cursor = last_event_id or after
    position = position_of(cursor, stands_on.store.id) if cursor else None
    newest = await run_in_threadpool(_look, stands_on, run)
    has_missed = bool(cursor) and (position is None or position.row > newest.row)
    follower = Follower(
        None if has_missed else position, events.Series(*names), wants_runs=runs, has_missed=has_missed
    )
    try:
        live.add(follower)
    except TooMany:
        raise Refused(429, "too_many", "too many streams are open: close some", retry_after_s=5) from None
    client = request.scope.get("client")
    return _Events(live, follower, is_valid, lambda: stands_on.callers.drop(client))


def _look(stands_on: Stands, runs: list[str]) -> Position:
    """Check that the runs are there."""
    for run in runs:
        if stands_on.store.reader.run(run) is None:
            raise no_run(run)
    return stands_on.store.live.position()
