"""The disk budget of a folder: the oldest sealed segments go, and a note names exactly the records that went with them.

Runs in the agent's writer thread or in a command; never two at a time on one folder.

Invariants:

- the note (a sealed segment of GAP blocks) is durable before the first file goes; in between both are there, and
  what is stored wins over a note;
- the gaps noted in a trimmed segment, an older note's too, are noted again in the new one, so accounting stays exact;
- the order is that of the writers' ids and of the numbers in the names, which only grow: no clock decides what is old;
- open segments are counted and never deleted;
- where only some segments may go, the others are neither counted nor deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from logclient.errors import Corrupt, Unsupported
from logclient.shm.regular import OddFile

from .codec import Codec
from .coverage import Spans
from .files import READ, REAL, Files, read_file
from .reader import OPEN, SEALED, list_stems, read_footer, spans_of
from .scan import Gap, Scan
from .seal import Sealer, write_sealed
from .segment import HEADER_BYTES, order_of, parse_header
from .seqs import SeqSet


@dataclass(slots=True)
class Trimmed:
    """Result of one call of `trim`."""

    removed: list[str] = field(default_factory=list)  # file names
    freed_bytes: int = 0
    records: int = 0
    note: str = ""  # file name of the note


@dataclass(slots=True)
class _Segment:
    name: str
    size: int
    created_ns: int


def trim(
    folder: str,
    keep_bytes: int,
    *,
    files: Files = REAL,
    writer: bytes | None = None,
    may_go: Callable[[Spans], bool] | None = None,
) -> Trimmed:
    """Delete the oldest sealed segments until the segments take at most `keep_bytes`, if those that are open allow it.

    With `may_go`, which is asked about what a segment holds, it is about the sealed segments that may: those of them
    that are kept take at most `keep_bytes`. `writer` names the note (default: random). `OSError` leaves every record
    where it was, or its note.
    """
    done = Trimmed()
    sealed, total = _measure(files, folder)
    if total <= keep_bytes:
        return done
    codec = Codec()
    known: dict[str, Spans] = {}
    if may_go is not None:
        known = _those(files, folder, sealed, codec, may_go)
        sealed = [segment for segment in sealed if segment.name in known]
        total = sum(segment.size for segment in sealed)
        if total <= keep_bytes:
            return done
    gone = Spans()
    victims: list[_Segment] = []
    pieces: list[bytes] = []
    for segment in sealed:
        try:
            found = known.get(segment.name) or _spans(files, os.path.join(folder, segment.name), codec)
        except Unsupported:
            continue  # not ours to account for
        gone.merge(found)
        victims.append(segment)
        total -= segment.size
        pieces = _note(gone, segment.created_ns, writer := writer or os.urandom(8))
        if total + sum(map(len, pieces)) <= keep_bytes:
            break
    done.records = sum(span.records for span in gone.values())
    if not done.records:
        return done  # only notes are left: writing them again would free nothing
    assert writer is not None
    note = write_sealed(files, folder, writer, 0, pieces)
    done.note = os.path.basename(note)
    for segment in victims:
        files.unlink(os.path.join(folder, segment.name))
        done.removed.append(segment.name)
        done.freed_bytes += segment.size
    files.fsync_folder(folder)
    return done


def _those(
    files: Files, folder: str, sealed: list[_Segment], codec: Codec, may_go: Callable[[Spans], bool]
) -> dict[str, Spans]:
    """Return the coverage of the segments that may go, by name."""
    found: dict[str, Spans] = {}
    for segment in sealed:
        try:
            spans = _spans(files, os.path.join(folder, segment.name), codec)
        except Unsupported:
            continue
        if may_go(spans):
            found[segment.name] = spans
    return found


def _measure(files: Files, folder: str) -> tuple[list[_Segment], int]:
    """(sealed segments, oldest first; bytes of all segments)."""
    sealed = []
    total = 0
    for stem in list_stems(files, folder):
        for suffix, is_there in ((OPEN, stem.is_open), (SEALED, stem.is_sealed)):
            if not is_there:
                continue
            name = stem.name + suffix
            try:
                fd = files.open(os.path.join(folder, name), READ)
            except (FileNotFoundError, OddFile):
                continue
            try:
                size = files.size(fd)
                total += size
                if suffix == SEALED:
                    sealed.append(_Segment(name, size, _created_ns(files.pread(fd, HEADER_BYTES, 0), name)))
            finally:
                files.close(fd)
    sealed.sort(key=lambda segment: order_of(segment.name))
    return sealed, total


def _created_ns(data: bytes, name: str) -> int:
    try:
        return parse_header(data, name).created_ns
    except (Corrupt, Unsupported):
        return 0


def _spans(files: Files, path: str, codec: Codec) -> Spans:
    footer = read_footer(files, path, codec)
    if footer is not None:
        return footer.spans
    return spans_of(Scan(read_file(files, path), name=os.path.basename(path), codec=codec))


def _note(gone: Spans, created_ns: int, writer: bytes) -> list[bytes]:
    sealer = Sealer(writer, 0, created_ns)
    pieces = [sealer.header()]
    for span in gone.values():
        gaps = dict(span.gaps)
        gaps["trimmed"] = span.stored.copy()
        gaps["trimmed"].update(span.gaps.get("trimmed", SeqSet()))
        for cause, seqs in gaps.items():
            for first, last in seqs.ranges():
                pieces += sealer.add(Gap(span.stream, span.process, span.lane, first, last, cause))
    return [*pieces, *sealer.finish()]
