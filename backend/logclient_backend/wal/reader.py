"""Reads a folder of segments, once (`WalReader`) or as it grows (`Follower`), beside a live writer.

Runs in any process and thread, one at a time per object; opens for reading only, creates nothing, locks nothing.

Invariants:

- each record comes once, by (stream, seq), however often it is stored: of a segment there may be an open and a
  sealed form, and another writer may have written the same records;
- a segment that is sealed while we look is read in its sealed form; one that was trimmed left a note;
- in an open segment a torn tail is not reported: it is being written, or was never durable; a bad piece in the
  middle is, once it has been seen twice by a follower (over a network file system it may fill in).

Does not: order records across streams (their `order` does), nor interpret a record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass

from logclient.errors import Corrupt, Unsupported
from logclient.shm.regular import OddFile

from .codec import Codec
from .coverage import Footer, Spans
from .dedup import Seen
from .encoded import StreamColumns
from .files import READ, REAL, Files, read_file
from .scan import Damage, Gap, Item, Scan, footer_at
from .segment import HEADER_BYTES, TRAILER, parse_header, parse_name, parse_trailer, salt_of
from .seqs import SeqSet

OPEN, SEALED = ".wal", ".seg"


@dataclass(frozen=True, slots=True)
class Stem:
    """A segment by what its names have in common, and which forms of it the folder shows."""

    name: str
    is_open: bool
    is_sealed: bool


def list_stems(files: Files, folder: str) -> list[Stem]:
    """Segments in the folder by writer and number; empty where there is no folder."""
    try:
        names = files.list(folder)
    except FileNotFoundError:
        return []
    forms: dict[str, set[str]] = {}
    for name in names:
        if parse_name(name) is not None:
            forms.setdefault(name[: -len(OPEN)], set()).add(name[-len(OPEN) :])
    return [Stem(stem, OPEN in found, SEALED in found) for stem, found in sorted(forms.items())]


def settled_stems(files: Files, folder: str) -> Iterator[Stem]:
    """Yield the segments of a folder, each once.

    A listing may miss a segment that gets its sealed name meanwhile: only two that agree are believed.
    """
    visited: set[str] = set()
    again = 2
    while again:
        again -= 1
        for stem in list_stems(files, folder):
            if stem.name not in visited:
                visited.add(stem.name)
                again = 1
                yield stem


def read_footer(files: Files, path: str, codec: Codec) -> Footer | None:
    """The footer of a sealed segment, by three short reads; None where it is damaged."""
    name = os.path.basename(path)
    parsed = parse_name(name)
    if parsed is None:
        raise Corrupt(path, 0, "a name <writer>-<number>.seg", name)
    salt = salt_of(parsed.writer, parsed.number)
    fd = files.open(path, READ)
    try:
        try:
            parse_header(files.pread(fd, HEADER_BYTES, 0), name)
        except Corrupt:
            return None
        size = files.size(fd)
        length = parse_trailer(salt, files.pread(fd, TRAILER.size, max(0, size - TRAILER.size)))
        if length is None or length > size - TRAILER.size:
            return None
        data = files.pread(fd, length, size - TRAILER.size - length)
    finally:
        files.close(fd)
    return footer_at(memoryview(data), salt, codec)


class Follower:
    """Gives what is new in a folder at each `poll()`."""

    def __init__(
        self,
        folder: str,
        *,
        since: Mapping[bytes, int] | None = None,
        seen: Seen | None = None,
        limit: Callable[[str], int | None] | None = None,
        is_elsewhere: Callable[[str], bool] | None = None,
        skips_unreadable: bool = False,
        decodes: bool = True,
        files: Files = REAL,
    ) -> None:
        """`since`: records of a stream up to that seq are not wanted; or `seen`, which several followers may share.

        `limit`: how far the open segment of that name may be read; None: to its end. `is_elsewhere`: the open segment
        of that name is read from another folder, as long as that is so. `skips_unreadable`: a file that the system
        does not let us read is named in `unreadable` at each look, and the others are read. `decodes`: see `Scan`.
        """
        self.folder = folder
        self.unsupported: dict[str, str] = {}  # file name: why it could not be read
        self.unreadable: dict[str, str] = {}  # the same, of the last look
        self._skips_unreadable = skips_unreadable
        self._decodes = decodes
        self._files = files
        self._codec = Codec()
        self._seen = seen or Seen({key: SeqSet([(1, seq)]) for key, seq in (since or {}).items() if seq > 0})
        self._limit = limit
        self._is_elsewhere = is_elsewhere
        self._done: set[str] = set()  # sealed segments that were read
        self._open: dict[str, Scan] = {}  # how far open ones were read
        self._doubts: dict[str, list[Damage]] = {}  # seen once in an open segment
        self._damage: set[Damage] = set()  # reported

    def poll(self) -> list[Item]:
        """All that is new; damage as soon as it is sure."""
        return list(self.items(patient=True))

    def items(self, *, patient: bool = False) -> Iterator[Item]:
        """Yield new items piece by piece. Not `patient`: damage in an open segment is reported when first seen."""
        listed: set[str] = set()
        self.unreadable = {}
        for stem in settled_stems(self._files, self.folder):
            listed.add(stem.name)
            if stem.name in self._done:
                continue
            try:
                yield from self._read(stem, patient)
            except OSError as error:
                if not (self._skips_unreadable or isinstance(error, OddFile)):
                    raise
                self.unreadable[stem.name] = f"{stem.name} cannot be read: {error.strerror}"
        self._forget_all_but(listed)

    def _forget_all_but(self, stems: set[str]) -> None:
        """Segments that are gone (trimmed, or given back) need no place in memory."""
        self._done &= stems
        for name in [name for name in self._open if name not in stems]:
            del self._open[name]
            self._doubts.pop(name, None)

    def _read(self, stem: Stem, patient: bool) -> Iterator[Item]:
        if stem.is_sealed:
            is_whole = yield from self._read_sealed(stem.name)
            if is_whole or not stem.is_open:
                return
        try:
            yield from self._read_open(stem.name, patient)
        except FileNotFoundError:
            # sealed since the listing; gone altogether means trimmed, and the note comes with the next listing
            yield from self._read_sealed(stem.name)

    def _read_sealed(self, stem: str) -> Generator[Item, None, bool]:
        """Returns (by `yield from`) whether the sealed form is whole, so that an open one does not matter."""
        name = stem + SEALED
        path = os.path.join(self.folder, name)
        try:
            footer = read_footer(self._files, path, self._codec)
            if footer is not None and self._seen.has(footer):
                self._close(stem)
                return True
            data = read_file(self._files, path)
            scan = Scan(data, name=name, codec=self._codec, decodes=self._decodes)
        except FileNotFoundError:
            return False
        except Unsupported as error:
            self.unsupported[name] = str(error)
            self._close(stem)
            return True
        for item in scan.items():
            yield from self._new(item)
        self._close(stem)
        return scan.footer is not None

    def _read_open(self, stem: str, patient: bool) -> Iterator[Item]:
        name = stem + OPEN
        if self._is_elsewhere is not None and self._is_elsewhere(name):
            return
        before = self._open.get(stem)
        start = before.end if before is not None else 0
        limit = self._limit(name) if self._limit is not None else None
        if limit is not None and limit <= start:
            return
        fd = self._files.open(os.path.join(self.folder, name), READ)
        try:
            size = self._files.size(fd)
            if limit is not None:
                size = min(size, limit)
            data = self._files.pread(fd, size - start, start) if size > start else b""
        finally:
            self._files.close(fd)
        try:
            scan = Scan(data, name=name, codec=self._codec, after=before, decodes=self._decodes)
        except Unsupported as error:
            self.unsupported[name] = str(error)
            return
        doubts: list[Damage] = []
        for item in scan.items():
            if isinstance(item, Damage) and patient:
                doubts.append(item)
            else:
                yield from self._new(item)
        scan.forget_bytes()
        if not doubts:
            self._open[stem] = scan
            self._doubts.pop(stem, None)
        elif self._doubts.get(stem) == doubts:
            for damage in doubts:
                yield from self._new(damage)
            self._open[stem] = scan
            del self._doubts[stem]
        else:
            self._doubts[stem] = doubts  # and read from the same place again

    def _close(self, stem: str) -> None:
        self._done.add(stem)
        self._open.pop(stem, None)
        self._doubts.pop(stem, None)

    def _new(self, item: Item) -> Iterator[Item]:
        """The part of an item that was not given before."""
        if isinstance(item, StreamColumns):
            new = self._seen.new_records(item)
            if new is not None:
                yield new
        elif isinstance(item, Gap):
            yield from self._seen.new_gaps(item)
        elif item not in self._damage:
            self._damage.add(item)
            yield item


class WalReader:
    """The segments of one folder as they are now."""

    def __init__(self, folder: str, *, files: Files = REAL) -> None:
        self.folder = folder
        self.unsupported: dict[str, str] = {}  # file name: why it could not be read
        self._files = files
        self._codec = Codec()
        self._footers: dict[str, Spans] = {}

    def items(self, since: Mapping[bytes, int] | None = None) -> Iterator[Item]:
        """All records once, with gaps and damage; `since`: a stream's records up to that seq are left out."""
        follower = Follower(self.folder, since=since, files=self._files)
        follower.unsupported = self.unsupported
        yield from follower.items()
        self.unsupported |= follower.unreadable

    def spans(self) -> Spans:
        """Return the coverage of each stream and its gaps: footers of sealed segments, scans of open ones.

        Cheap: sealed segments are believed, their blocks are not checked.
        """
        spans = Spans()
        for stem in settled_stems(self._files, self.folder):
            try:
                found = self._footers.get(stem.name)
                if found is None:
                    found, is_sure = segment_spans(self._files, self.folder, stem.name, self._codec)
                    if is_sure:
                        self._footers[stem.name] = found
            except Unsupported as error:
                self.unsupported[stem.name] = str(error)
            except OddFile as error:
                self.unsupported[stem.name] = f"cannot be read: {error.reason}"
            else:
                spans.merge(found)
        return spans


def segment_spans(files: Files, folder: str, stem: str, codec: Codec) -> tuple[Spans, bool]:
    """Return the coverage of the streams in a segment, and whether its footer says so, which never changes."""
    parts = Spans()
    for suffix in (SEALED, OPEN, SEALED):  # the last: sealed between the first look and the second
        path = os.path.join(folder, stem + suffix)
        try:
            if suffix == SEALED:
                footer = read_footer(files, path, codec)
                if footer is not None:
                    return footer.spans, True
            parts.merge(spans_of(Scan(read_file(files, path), name=stem + suffix, codec=codec)))
        except FileNotFoundError:
            continue
        if suffix == OPEN:
            break
    return parts, False


def spans_of(scan: Scan) -> Spans:
    """Return the coverage of each stream in a scan."""
    spans = Spans()
    for item in scan.items():
        if isinstance(item, StreamColumns):
            spans.of(item.stream, item.process, item.lane).add(item.columns)
        elif isinstance(item, Gap):
            spans.of(item.stream, item.process, item.lane).add_gap(item.first, item.last, item.cause)
    return spans
