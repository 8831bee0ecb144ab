"""Changes of the list of runs, for all pages that follow it: one look finds them for everybody.

Used by one thread. Runs that are not over are read at each look, since their state depends on the clock. All others are
compared with what they were when something was committed, every `SCAN_S`: by a digest, so that a thousand of them take
little memory.

Invariants:

- what a page has of a run is what `look` returned last: each later difference is returned by a later look, also where a
  look failed in between, and where a run ends, is edited or deleted between two looks at all runs;
- an id that was in a row is in `gone` once its run is deleted;
- what was committed up to the position `seen` has been returned. What was read is kept under a position from after the
  look: it may be newer than one from before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..store.interface import Filter, Listed, RunQuery
from .context import Backing
from .listing import row_of

SCAN_S = 5.0
COUNTERS_S = 2.0  # what grows all the time is sent so often
MAX_CHANGED = 10_000  # runs of which it is kept when they changed
_PAGE = 2_000
_COUNTERS = frozenset(("records", "points", "bytes", "counts", "last_seen_ns"))
_FOLLOWED = 0  # instead of a digest: the run is not over, and `_live` has it
_UNKNOWN = -1  # its digest differs from any; no hash of Python's is -1


@dataclass(slots=True)
class _LiveRow:
    """A run that is not over."""

    brief: str
    described: dict[str, Any]  # `brief`, read
    row: dict[str, Any]  # as it was sent
    sent_at: float  # its counters


class RunChanges:
    """The list of runs as it was seen last, and changes since."""

    def __init__(self, stands_on: Backing) -> None:
        self.has_changed = True  # something was committed since the last look at all runs
        self._stands_on = stands_on
        self.reset()

    def reset(self) -> None:
        """Nothing is known of what changed before."""
        self._live: dict[str, _LiveRow] = {}
        self._digests: dict[str, int] | None = None
        self._rows: dict[str, dict[str, Any]] = {}  # found, and not returned yet: a look may fail half way
        self._gone: dict[str, None] = {}
        self._changed: dict[str, int] = {}  # by id: position at which it was seen to have changed
        self.seen = 0
        self._since = 0  # of what changed before that position nothing is known
        self._scanned_at = 0.0

    def look(self, position: Callable[[], int]) -> tuple[list[dict[str, Any]], list[str]]:
        """Return what changed since the last look: rows, of which only fields that changed, and ids that are gone.

        `position` returns the `Position.row` of the store as it is now.
        """
        is_first, before = self._digests is None, position()
        self._look_at_live()
        now = time.monotonic()
        if is_first or (self.has_changed and now - self._scanned_at > SCAN_S):
            self._scanned_at, self.has_changed = now, False
            self._look_at_all()
            self.seen = before
        at = position()
        rows, self._rows = self._rows, {}
        gone, self._gone = list(self._gone), {}
        if is_first:
            self._since = self.seen = at
            return [], []
        for id in (*rows, *gone):
            self._changed.pop(id, None)
            self._changed[id] = at
        while len(self._changed) > MAX_CHANGED:
            first = next(iter(self._changed))
            self._since = self._changed.pop(first) + 1
        return list(rows.values()), gone

    def since(self, at: int) -> tuple[list[dict[str, Any]], list[str]] | None:
        """Return rows of runs that changed from that position on, and ids that are gone; None where that is not known.

        Runs that are not over are among them: their state changes with the clock, which moves no position.
        """
        if self._digests is None or at < self._since:
            return None
        ids = [id for id, when in self._changed.items() if when >= at and id not in self._live]
        if len(ids) + len(self._live) > _PAGE:
            return None
        rows = [live.row for live in self._live.values()]
        gone = []
        for id in ids:
            if (row := self._whole(id)) is None:
                gone.append(id)
            else:
                rows.append(row)
        return rows, gone

    def _pages(self, *filters: Filter) -> Iterator[Listed]:
        after = ""
        while True:
            page = self._stands_on.store.reader.runs(RunQuery(filters, limit=_PAGE, after=after))
            yield from page.runs
            after = page.next
            if not after:
                return

    def _note(self, id: str, row: dict[str, Any]) -> None:
        self._rows[id] = {**self._rows.get(id, {}), **row}
        self._gone.pop(id, None)

    def _note_gone(self, id: str) -> None:
        self._rows.pop(id, None)
        self._gone[id] = None
        self._live.pop(id, None)

    def _look_at_live(self) -> None:
        now_ns, now = time.time_ns(), time.monotonic()
        there = set()
        for listed in self._pages(Filter("state", value="running")):
            there.add(listed.id)
            known = self._live.get(listed.id)
            is_same = known is not None and known.brief == listed.brief
            described = known.described if known is not None and is_same else json.loads(listed.brief)
            row = row_of(self._stands_on, listed, described, now_ns)
            if known is None:
                self._live[listed.id] = _LiveRow(listed.brief, described, row, now)
                self._note(listed.id, row)
                continue
            known.brief, known.described = listed.brief, described
            changed = {name for name, value in row.items() if known.row.get(name) != value}
            if changed and (changed - _COUNTERS or now - known.sent_at >= COUNTERS_S):
                known.row, known.sent_at = row, now
                self._note(
                    listed.id, {"id": listed.id, **{name: row[name] for name in row if name in changed}}
                )
        for id in self._live.keys() - there:
            self._look_at_ended(id)

    def _look_at_ended(self, id: str) -> None:
        """A run was not over and is not listed as such any more; from now on its digest is compared."""
        now = self._listed(id)
        if now is None:
            self._note_gone(id)
            if self._digests is not None:
                self._digests.pop(id, None)
            return
        before = self._live.pop(id).row
        if self._digests is not None:
            self._digests[id] = _digest(now)
        row = row_of(self._stands_on, now, json.loads(now.brief), time.time_ns())
        self._note(
            id, {"id": id, **{name: value for name, value in row.items() if before.get(name) != value}}
        )

    def _look_at_all(self) -> None:
        """Compare all runs that are over with what they were; note those that are gone, too."""
        before, digests = self._digests, {}
        now_ns = time.time_ns()
        for listed in self._pages():
            if listed.state == "running":
                digests[listed.id] = _FOLLOWED if listed.id in self._live else _UNKNOWN
                continue
            digests[listed.id] = _UNKNOWN if listed.id in self._live else _digest(listed)
            if before is not None and before.get(listed.id, _UNKNOWN) not in (digests[listed.id], _FOLLOWED):
                row = row_of(self._stands_on, listed, json.loads(listed.brief), now_ns)
                self._note(listed.id, row)
        self._digests = digests
        for id in before or ():
            if id not in digests:
                self._note_gone(id)

    def _whole(self, id: str) -> dict[str, Any] | None:
        """Return the row of a run as it is now; None where it is gone."""
        listed = self._listed(id)
        return (
            None
            if listed is None
            else row_of(self._stands_on, listed, json.loads(listed.brief), time.time_ns())
        )

    def _listed(self, id: str) -> Listed | None:
        page = self._stands_on.store.reader.runs(RunQuery([Filter("id", value=id)], limit=1))
        return page.runs[0] if page.runs else None


def _digest(listed: Listed) -> int:
    return hash((listed.brief, listed.records, listed.points))
