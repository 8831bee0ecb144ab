"""One folder on a disk, read by a thread of its own, which may hang there for ever: nobody waits for it.

The thread looks again and again at what is new and hands it over through a queue of bounded bytes. A feed that is
stopped while its thread hangs is left behind: what that reads later goes nowhere.

Invariants:

- a file that cannot be read hides no other: it is named in `troubles`, and tried again;
- documents are read before the segments: what they say was durable by then is found, or it is missing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable

from logclient.errors import LogclientError

from ..runs import edit_file
from ..runs.edits import NONE
from ..wal.dedup import Seen
from ..wal.documents import DocumentFile
from ..wal.encoded import StreamColumns
from ..wal.files import REAL, Files
from ..wal.reader import Follower
from ..wal.scan import Damage, Gap
from .parcels import bytes_of

_GAP_BYTES = 200


class FolderReader:
    """New items of one folder. Made and asked by one thread, filled by another."""

    def __init__(
        self,
        folder: str,
        seen: Seen,
        *,
        poll_s: float,
        most_bytes: int,
        rest_s: float = 0.0,
        on_item: Callable[[], None] = lambda: None,
        is_elsewhere: Callable[[str], bool] | None = None,
        files: Files = REAL,
    ) -> None:
        """Look every `poll_s`; while nothing comes, up to `rest_s` apart, until `expect` or `hurry` is called."""
        self.folder = folder
        self.documents: bytes | None = None
        self.edits = NONE  # of the run whose folder this one is in
        self.troubles: dict[str, str] = {}  # of that pass, by file
        self._files = files
        self._poll_s = self._pause_s = poll_s
        self._rest_s = max(poll_s, rest_s)
        self._on_item = on_item
        self._most_bytes = most_bytes
        self._follower = Follower(
            folder, seen=seen, is_elsewhere=is_elsewhere, skips_unreadable=True, decodes=False, files=files
        )
        self._documents_seen: tuple[object, ...] = ()
        self._edits_seen: tuple[int, ...] = ()
        self._odd: dict[str, str] = {}  # files under names of documents that are none
        self._changed = threading.Condition()
        self._items: deque[tuple[StreamColumns | Gap, int]] = deque()
        self._given = 0  # items, ever
        self._bytes = 0
        self._is_stopped = False
        self._is_hurried = False
        self._passed_at = -1.0  # when the last pass began that was made whole
        self._pass_returned = -1.0
        self._moved_at = time.monotonic()
        threading.Thread(target=self._run, name="disk feed", daemon=True).start()

    # ---- for the shipper ---------------------------------------------------------------------------------

    def next(self) -> StreamColumns | Gap | None:
        """The next item; None: there is none now."""
        with self._changed:
            if not self._items:
                return None
            item, size = self._items.popleft()
            self._bytes -= size
            self._changed.notify_all()
        return item

    def wait(self, timeout_s: float) -> None:
        """Wait until there is an item, or a pass was made since this was asked last."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._passed_at != self._pass_returned, timeout_s)
            self._pass_returned = self._passed_at

    def hurry(self) -> None:
        """Look again now."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()

    def expect(self) -> None:
        """Something may come: look within `poll_s`."""
        if self._pause_s > self._poll_s:
            with self._changed:
                self._pause_s = self._poll_s
                self._changed.notify_all()

    def has_passed(self, since: float) -> bool:
        """All that was there at that (monotonic) time was given."""
        with self._changed:
            return self._passed_at >= since and not self._items

    @property
    def silent_s(self) -> float:
        """Seconds for which the folder has not answered; 0: it does."""
        with self._changed:
            is_waiting = self._bytes >= self._most_bytes
        return 0.0 if is_waiting else max(0.0, time.monotonic() - self._moved_at - self._pause_s)

    def stop(self) -> None:
        """Its thread ends, when it can."""
        with self._changed:
            self._is_stopped = True
            self._items.clear()
            self._changed.notify_all()

    # ---- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_stopped:
            begun, given = time.monotonic(), self._given
            self._is_hurried = False
            troubles: dict[str, str] = {}
            try:
                self._read_documents(troubles)
                self._read_edits(troubles)
                for item in self._follower.items(patient=True):
                    if not isinstance(item, Damage):
                        self._hand_over(item)
                    if self._is_stopped:
                        return
                troubles |= self._follower.unreadable | self._follower.unsupported
            except OSError as error:
                troubles[self.folder] = f"{self.folder} cannot be read: {error.strerror}"
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told and tried again
                troubles[self.folder] = f"{self.folder} cannot be read: {type(error).__name__}: {error}"
            self.troubles = troubles
            with self._changed:
                self._moved_at = time.monotonic()
                self._passed_at = begun
                self._changed.notify_all()
                self._rest(had_items=self._given != given)

    def _hand_over(self, item: StreamColumns | Gap) -> None:
        size = bytes_of(item) if isinstance(item, StreamColumns) else _GAP_BYTES
        with self._changed:
            self._moved_at = time.monotonic()
            self._changed.wait_for(lambda: self._is_stopped or self._bytes < self._most_bytes)
            self._moved_at = time.monotonic()
            if self._is_stopped:
                return
            self._items.append((item, size))
            self._given += 1
            self._bytes += size
            is_first = len(self._items) == 1
            if is_first:
                self._changed.notify_all()
        if is_first:
            self._on_item()

    def _rest(self, *, had_items: bool) -> None:
        """Wait for the next look, twice as long as the last time where that brought nothing; `_changed` is held."""
        self._pause_s = self._poll_s if had_items else min(self._rest_s, 2 * self._pause_s)
        until = self._moved_at + self._pause_s
        while not (self._is_hurried or self._is_stopped):
            left_s = min(until, self._moved_at + self._pause_s) - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _read_documents(self, troubles: dict[str, str]) -> None:
        try:
            seen = tuple(
                (name, facts.st_ino, facts.st_mtime_ns, facts.st_size)
                for name in sorted(self._files.list(self.folder))
                if name.startswith("documents.")
                for facts in (os.stat(os.path.join(self.folder, name)),)
            )
            if seen != self._documents_seen:
                file = DocumentFile(self.folder, files=self._files)
                self.documents = file.load() or self.documents
                self._odd = {name: f"{name} is passed over: {why}" for name, why in file.odd.items()}
                self._documents_seen = seen
            troubles |= self._odd
        except FileNotFoundError:
            pass  # not made yet, or a slot was removed in this moment
        except (OSError, LogclientError) as error:
            troubles["documents"] = str(error)

    def _read_edits(self, troubles: dict[str, str]) -> None:
        folder = os.path.dirname(self.folder)
        try:
            facts = os.stat(os.path.join(folder, edit_file.FILE))
            seen = facts.st_ino, facts.st_mtime_ns, facts.st_size
            if seen != self._edits_seen:
                self.edits = edit_file.load(folder)
                self._edits_seen = seen
        except FileNotFoundError:
            pass
        except (OSError, LogclientError) as error:
            troubles["edits"] = str(error)
