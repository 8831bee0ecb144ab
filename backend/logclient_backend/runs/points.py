"""A run's records out of the segments of its node folders, in the canonical order (`order.py`).

Runs in any reader, beside a live writer: what was there when the reader was made is read, what comes later is not.

Invariant: a segment that is damaged, trimmed meanwhile, not readable or of a newer version costs its records alone and
is told in `damage` or `unsupported`; what is gone altogether, its seqs tell.

Follows no link out of a run's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from logclient.errors import Unsupported
from logclient.shm.columns import Columns
from logclient.shm.side_stream import side_of

from ..wal.codec import Codec
from ..wal.coverage import Spans
from ..wal.encoded import StreamColumns
from ..wal.files import REAL, Files, read_file
from ..wal.reader import OPEN, SEALED, segment_spans, settled_stems
from ..wal.scan import Damage, Scan
from .order import Records, Segment


class RunReader(Records):
    """The records of some node folders as they are now."""

    def __init__(self, folders: Iterable[str], *, side: str = "", files: Files = REAL) -> None:
        """`side`: records of that side, instead of what was logged."""
        self._files = files
        self._side = side
        self._codec = Codec()
        bad: dict[str, str] = {}
        super().__init__(segment for folder in folders for segment in self._segments(folder, bad))
        self.unsupported.update(bad)

    def _segments(self, folder: str, bad: dict[str, str]) -> Iterator[Segment]:
        for stem in settled_stems(self._files, folder):
            try:
                spans, _ = segment_spans(self._files, folder, stem.name, self._codec)
            except (Unsupported, OSError) as error:
                bad[stem.name] = why(error)
                continue
            wanted = Spans((id, span) for id, span in spans.items() if side_of(id) == self._side)
            if wanted or not spans:  # what nothing is known of may be damaged
                yield Segment(folder, stem.name, wanted)

    def _decode(self, segment: Segment) -> dict[bytes, list[Columns]]:
        found: dict[bytes, list[Columns]] = {stream: [] for stream in segment.spans if stream in self.streams}
        for suffix in (SEALED, OPEN, SEALED):
            name = segment.stem + suffix
            try:
                data = read_file(self._files, os.path.join(segment.folder, name))
            except FileNotFoundError:
                continue  # sealed or trimmed meanwhile
            except OSError as error:
                self.unsupported[name] = why(error)
                continue
            scan = Scan(data, name=name, codec=self._codec)
            for item in scan.items():
                if isinstance(item, StreamColumns):
                    self._keep(found, item)
                elif isinstance(item, Damage) and item not in self.damage:
                    self.damage.append(item)
            if suffix == OPEN or scan.footer is not None:
                break
        return found


def why(error: Exception) -> str:
    """Why a segment could not be read, for people."""
    return f"not readable: {error.strerror}" if isinstance(error, OSError) else str(error)
