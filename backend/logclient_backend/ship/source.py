"""New items of one node: `FolderSource`, over the shm directory on tmpfs and any number of folders on disks.

Made and asked by the shipper's thread. tmpfs is read there and then; each disk folder has a thread that may hang
(`folder_reader.py`), while what lies on tmpfs goes on being given.

Invariants:

- each record is given once, by (stream, seq), however many of the folders hold it, and none that the collector has;
- memory is bounded by what the feeds may hold;
- what is missing is told only when it is sure: every folder was read through, and nothing was unreadable.

Does not: keep what it gave: whoever takes it sends it again until it is acknowledged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

from ..runs.document_head import age_of
from ..runs.edits import NONE, Edits
from ..wal.coverage import Spans
from ..wal.dedup import Seen
from ..wal.encoded import StreamColumns
from ..wal.files import REAL, Files
from ..wal.scan import Gap
from ..wal.seqs import SeqSet
from ..wire.messages import HeldStream
from .folder_reader import FolderReader
from .parcels import bytes_of
from .tmpfs_segments import TmpfsSegments

_FEED_BYTES = 4 << 20


class FolderSource:
    """`start`, then `take` again and again."""

    def __init__(
        self,
        folders: Sequence[str],
        *,
        shm_dir: str = "",
        status: memoryview | None = None,
        poll_s: float = 1.0,
        rest_s: float = 0.0,
        feed_bytes: int = _FEED_BYTES,
        files: Files = REAL,
    ) -> None:
        """`folders`: on disks; `shm_dir`: the shm directory, with the words of its agent's `status` page.

        Folders on disks are looked at every `poll_s`; while nothing comes, up to `rest_s` apart, until `expect` is
        called.
        """
        self.folders = list(folders)
        self.shm_dir = shm_dir
        self._status = status
        self._poll_s = poll_s
        self._rest_s = rest_s
        self.on_item: Callable[[], None] = lambda: None  # called in another thread when a disk has something
        self._feed_bytes = feed_bytes
        self._files = files
        self._seen = Seen()
        self._staged: TmpfsSegments | None = None
        self._disks: list[FolderReader] = []
        self._is_disk_first = False
        self._staged_passed_at = -1.0

    def start(self, held: Mapping[bytes, HeldStream]) -> None:
        """Begin, or begin again: from now on all is new but what is held."""
        self.stop()
        self._seen = Seen(
            {stream: each.stored for stream, each in held.items()},
            {stream: each.gaps for stream, each in held.items()},
        )
        self._staged = TmpfsSegments(self.shm_dir, self._seen, self._status) if self.shm_dir else None
        for folder in self.folders:
            self._add(folder)

    def add_folder(self, folder: str) -> None:
        """Another one belongs to this node too (the run folder answered late, or a spool was begun)."""
        if folder not in self.folders:
            self.folders.append(folder)
            if self._disks or self._staged is not None:
                self._add(folder)

    def _add(self, folder: str) -> None:
        self._disks.append(
            FolderReader(
                folder,
                self._seen,
                poll_s=self._poll_s,
                rest_s=self._rest_s,
                on_item=self.on_item,
                most_bytes=self._feed_bytes,
                is_elsewhere=self._staged.has if self._staged is not None else None,
                files=self._files,
            )
        )

    def stop(self) -> None:
        """Threads end, when they can."""
        for disk in self._disks:
            disk.stop()
        self._disks = []
        self._staged = None

    def take(self, most_bytes: int) -> list[StreamColumns | Gap]:
        """Return new items, about that much of them; never waits."""
        feeds: list[TmpfsSegments | FolderReader] = [*self._disks]
        if self._staged is not None:
            feeds.insert(0, self._staged)
        if self._is_disk_first:  # in turn, so that neither starves
            feeds.reverse()
        self._is_disk_first = not self._is_disk_first
        found: list[StreamColumns | Gap] = []
        size = 0
        for feed in feeds:
            begun = time.monotonic()
            while size < most_bytes:
                item = feed.next()
                if item is None:
                    if feed is self._staged:
                        self._staged_passed_at = begun
                    break
                found.append(item)
                size += bytes_of(item) if isinstance(item, StreamColumns) else 200
        return found

    @property
    def is_one_disk(self) -> bool:
        """Is one folder all there is? Then `wait` tells when it has something."""
        return len(self._disks) == 1 and self._staged is None

    def wait(self, timeout_s: float) -> None:
        """Wait until that folder has something, or was read through, at most so long."""
        self._disks[0].wait(timeout_s)

    def expect(self) -> None:
        """Something was staged, or stored: look at the disks within `poll_s`."""
        for disk in self._disks:
            disk.expect()

    def hurry(self) -> None:
        """Look at the disks now."""
        for disk in self._disks:
            disk.hurry()

    def has_passed(self, since: float) -> bool:
        """All that lay in all folders at that (monotonic) time was given."""
        if self._staged is not None and self._staged_passed_at < since:
            return False
        return all(disk.has_passed(since) for disk in self._disks)

    @property
    def silent_s(self) -> float:
        """Seconds for which a disk has not answered; 0: all do."""
        return max((disk.silent_s for disk in self._disks), default=0.0)

    def troubles(self) -> dict[str, str]:
        """Read errors of the last look, by file."""
        found: dict[str, str] = {}
        for disk in self._disks:
            found |= disk.troubles
        return found

    def documents(self) -> bytes | None:
        """The node's, as they are now; None where there are none."""
        staged = self._staged.documents() if self._staged is not None else None
        found = [staged, *(disk.documents for disk in self._disks)]
        return max((each for each in found if each is not None), key=age_of, default=None)

    @property
    def edits(self) -> Edits:
        """Return those of the run, as they are now."""
        found = [disk.edits for disk in self._disks if disk.edits]
        return found[0] if len(found) == 1 else NONE.merged(*found)

    def missing(self, documents: bytes, *, is_over: bool = False) -> list[Gap]:
        """Records that these documents say were durable, and that no folder has: damaged.

        Only of streams that have ended as they say, or of all where `is_over`: nobody adds to them. Asked when all
        folders were read through after the documents were made.
        """
        if self.troubles() or not self._disks:  # what lies on a disk that did not answer yet is not gone
            return []
        return [
            Gap(stream, process, lane, first, last, "damaged")
            for stream, process, lane, accepted in _ended_streams(documents, is_over=is_over)
            for first, last in self._seen.missing(stream, accepted).ranges()
        ]

    def lost(self, documents: bytes, spans: Spans, *, is_over: bool = False) -> int:
        """Return how many records these documents call durable that no folder gave and the collector lacks.

        `spans`: what the folders say of themselves. Counted anew each time, whatever was told as damaged before.
        """
        count = 0
        for stream, _, _, accepted in _ended_streams(documents, is_over=is_over):
            known = self._seen.stored(stream)
            for seqs in spans[stream].gaps.values() if stream in spans else ():
                known.update(seqs)
            count += len(SeqSet([(1, accepted)]).minus(known))
        return count


def _ended_streams(documents: bytes, *, is_over: bool) -> list[tuple[bytes, bytes, int, int]]:
    """(stream, process, lane, accepted); nothing in the documents is believed to be what it should."""
    found: list[tuple[bytes, bytes, int, int]] = []
    try:
        content = json.loads(documents)
        is_over = is_over or content.get("closed") is True
        processes = dict(content.get("processes", {}))
        for key, told in dict(content.get("streams", {})).items():
            process = str(told["process"])
            if is_over or dict(processes.get(process, {})).get("end"):
                stream, owner = bytes.fromhex(key), bytes.fromhex(process)
                lane, accepted = int(told["lane"]), int(told["accepted"])
                if len(stream) == len(owner) == 16 and 0 <= lane < 1 << 16 and 0 < accepted < 1 << 63:
                    found.append((stream, owner, lane, accepted))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
    return found
