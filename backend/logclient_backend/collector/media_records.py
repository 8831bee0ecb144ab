"""References to media values in a store: the records of the side "media" of a run.

Runs in threads of the HTTP API and of a backup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from logclient.shm.side_stream import MEDIA

from ..wal.coverage import StreamSpan
from ..wal.encoded import StreamColumns
from .store.interface import Reader, RunQuery, side_id

_RECORDS = 1 << 12  # that are asked of the store at a time
_RUNS = 1000


def media_columns(
    reader: Reader,
    run: str,
    keys: Sequence[str] | None = None,
    spans: Mapping[bytes, StreamSpan] | None = None,
    seen: Mapping[bytes, int] | None = None,
) -> Iterator[StreamColumns]:
    """Yield the records that refer to media values of a run, of all keys or of these.

    `spans`: the coverage of the run's streams, where it was asked for already. `seen`: of these streams only records
    behind that seq.
    """
    id = side_id(run, MEDIA)
    for stream, span in (reader.contents(id) if spans is None else spans).items():
        last_seen = (seen or {}).get(stream, 0)
        first = 0 if span.last is None or span.last <= last_seen else max(span.first or 0, last_seen + 1)
        while first:
            some, after = reader.records(id, stream, first, most=_RECORDS, keys=keys)
            yield from some
            first = after if after > first else 0


def all_runs(reader: Reader) -> Iterator[str]:
    """Yield the ids of all runs of a store, those in the bin too."""
    for is_deleted in (False, True):
        after = ""
        while True:
            page = reader.runs(RunQuery(limit=_RUNS, after=after, deleted=is_deleted))
            yield from (run.id for run in page.runs)
            after = page.next
            if not after:
                break
