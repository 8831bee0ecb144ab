"""Verify, dump and repair a folder of segments: what `logclient wal` shows and does.

Runs in a command, or in the agent before it starts (`sweep`). `verify` and `dump` only read.

Invariants:

- `repair` leaves live segments alone (the caller names them) and files of a newer version too;
- nothing that held records is deleted: before a damaged segment is rewritten its bytes are kept as `<name>.broken`;
- what is written instead names each lost record it can as 'damaged'.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from logclient.errors import Unsupported
from logclient.shm.regular import OddFile

from .blocks import Block
from .codec import Codec
from .coverage import Spans, cause_of
from .encoded import StreamColumns
from .files import NEW, READ, REAL, WRITE, Files, read_file
from .reader import OPEN, SEALED, Stem, list_stems, read_footer
from .scan import Damage, Gap, Scan
from .seal import TEMPORARY, sealed_pieces, write_sealed
from .segment import COLUMNS, FOOTER, GAP, HEADER_BYTES, SHAPE, STREAM, parse_name
from .varint import zigzag

BROKEN = ".broken"
_KINDS = {STREAM: "stream", SHAPE: "shape", COLUMNS: "columns", GAP: "gap", FOOTER: "footer"}


@dataclass(slots=True)
class SegmentReport:
    """Contents of one file."""

    name: str
    is_sealed: bool
    size_bytes: int
    created_ns: int = 0
    end: int = 0  # where the valid part ends
    records: int = 0
    gaps: int = 0
    damage: list[Damage] = field(default_factory=list)
    torn: list[Damage] = field(default_factory=list)
    problem: str = ""  # why it could not be read

    @property
    def is_sound(self) -> bool:
        """Nothing to repair."""
        return not (self.damage or self.torn or self.problem)


@dataclass(slots=True)
class FolderReport:
    """Contents of a folder; every block was read and checked."""

    folder: str
    segments: list[SegmentReport] = field(default_factory=list)
    spans: Spans = field(default_factory=Spans)
    leftovers: list[str] = field(default_factory=list)  # files that a crash left and that do not matter

    @property
    def is_sound(self) -> bool:
        return all(segment.is_sound for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that `repair` did (or did not: action 'left')."""

    name: str
    action: str  # cut, rewritten, set aside, removed, left
    detail: str


@dataclass(frozen=True, slots=True)
class BlockLine:
    """One block, for people."""

    offset: int
    length: int
    kind: str
    text: str


def verify(folder: str, *, files: Files = REAL) -> FolderReport:
    """Read and check every block of every segment."""
    report = FolderReport(folder)
    codec = Codec()
    for stem in list_stems(files, folder):
        for suffix in _forms(stem):
            found = _check(files, folder, stem.name + suffix, codec, report.spans)
            if found is not None:
                report.segments.append(found)
        if stem.is_open and stem.is_sealed:
            report.leftovers.append(stem.name + OPEN)
    report.leftovers += [name for name in _names(files, folder) if name.endswith(TEMPORARY)]
    return report


def _check(files: Files, folder: str, name: str, codec: Codec, spans: Spans) -> SegmentReport | None:
    report = SegmentReport(name, name.endswith(SEALED), 0)
    try:
        data = read_file(files, os.path.join(folder, name))
    except FileNotFoundError:
        return None  # sealed or trimmed since the listing
    except OSError as error:
        report.problem = error.reason if isinstance(error, OddFile) else str(error)
        return report
    report.size_bytes = len(data)
    try:
        scan = Scan(data, name=name, codec=codec)
    except Unsupported as error:
        report.problem = str(error)
        return report
    report.created_ns = scan.created_ns
    for item in scan.items():
        if isinstance(item, Damage):
            report.damage.append(item)
            continue
        span = spans.of(item.stream, item.process, item.lane)
        if isinstance(item, StreamColumns):
            report.records += len(item.columns)
            span.add(item.columns)
        else:
            report.gaps += 1
            span.add_gap(item.first, item.last, item.cause)
    report.end = scan.end
    report.torn = scan.torn
    return report


def dump(path: str, *, files: Files = REAL) -> Iterator[BlockLine]:
    """The blocks of one segment as they lie, the bad pieces too."""
    data = read_file(files, path)
    scan = Scan(data, name=os.path.basename(path))
    header = scan.header
    text = "damaged"
    if header is not None:
        text = f"writer {header.writer.hex()} number {header.number} at {header.created_ns}"
    yield BlockLine(0, min(HEADER_BYTES, len(data)), "header", text)
    for block in scan.blocks():
        kind = _KINDS.get(block.kind, f"kind {block.kind}")
        yield BlockLine(block.offset, block.end - block.offset, kind, _text(block))


def _text(block: Block) -> str:
    numbers = block.numbers
    text = ""
    if numbers is None:
        return block.reason
    if block.kind == COLUMNS and len(numbers) >= 9:
        _, stream, shape, rank, count, first, span, step, steps = numbers[:9]
        start = zigzag(step)
        text = (
            f"stream {stream} shape {shape} rank {rank - 1 if rank else '-'}: {count} records, "
            f"seq {first}..{first + span}, step {start}..{start + zigzag(steps)}"
        )
    elif block.kind == GAP and len(numbers) >= 5:
        _, stream, first, span, cause = numbers[:5]
        text = f"stream {stream}: seq {first}..{first + span} {cause_of(cause)}"
    elif block.kind in (STREAM, SHAPE) and len(numbers) >= 2:
        text = f"index {numbers[1]}"
        if block.kind == STREAM and not block.reason:
            text += f" id {bytes(block.body[:16]).hex()}"
    return f"{text} ({block.reason})" if block.reason else text


def repair(
    folder: str, *, is_live: Callable[[str], bool] = lambda name: False, files: Files = REAL
) -> list[Repair]:
    """Cut torn tails, rewrite damaged segments without what is lost. `is_live(file name)`: a writer still has it."""
    done: list[Repair] = []
    codec = Codec()
    for stem in list_stems(files, folder):
        if is_live(stem.name + OPEN):
            done.append(Repair(stem.name + OPEN, "left", "its writer lives"))
            continue
        try:
            done += _repair(files, folder, stem, codec)
        except Unsupported as error:
            done.append(Repair(stem.name, "left", str(error)))
        except OddFile as error:
            done.append(Repair(stem.name, "left", error.reason))
    return done + sweep(folder, is_live=is_live, files=files)


def _repair(files: Files, folder: str, stem: Stem, codec: Codec) -> Iterator[Repair]:
    scans = []
    damage: list[Damage] = []
    for suffix in _forms(stem):
        name = stem.name + suffix
        scan = Scan(read_file(files, os.path.join(folder, name)), name=name, codec=codec)
        items = list(scan.items())
        found = [item for item in items if isinstance(item, Damage)]
        scans.append((name, scan, items))
        if suffix == SEALED and not found:
            return  # `sweep` takes the open one away, if it is there
        damage += found
    if not damage:
        for name, scan, _ in scans:
            if scan.torn:
                _cut(files, os.path.join(folder, name), scan.end)
                yield Repair(name, "cut", f"{scan.torn_bytes} bytes of a torn tail at byte {scan.end}")
        return
    parsed = parse_name(scans[0][0])
    assert parsed is not None
    for name, _, _ in scans:
        _keep(files, folder, name)
    whole = list(chain.from_iterable(items for _, _, items in scans))
    held = sum(len(item.columns) for item in whole if isinstance(item, StreamColumns))
    if held or any(isinstance(item, Gap) for item in whole):
        created_ns = max(scan.created_ns for _, scan, _ in scans)
        streams = chain.from_iterable(scan.streams.values() for _, scan, _ in scans)
        pieces = sealed_pieces(whole, parsed.writer, parsed.number, created_ns, streams)
        path = write_sealed(files, folder, parsed.writer, parsed.number, pieces)
        yield Repair(
            scans[0][0], "rewritten", f"{held} records kept in {os.path.basename(path)}; {damage[0]}"
        )
        scans = [scan for scan in scans if not scan[1].is_sealed]
    else:
        yield Repair(
            scans[0][0], "set aside", f"holds nothing that checks; kept as {scans[0][0]}{BROKEN}; {damage[0]}"
        )
    for name, _, _ in scans:
        files.unlink(os.path.join(folder, name))


def sweep(
    folder: str, *, is_live: Callable[[str], bool] = lambda name: False, files: Files = REAL
) -> list[Repair]:
    """Remove what a crash left: half-written sealed segments, and open ones whose sealed form is whole."""
    done = []
    codec = Codec()
    for stem in list_stems(files, folder):
        if stem.is_open and stem.is_sealed and not is_live(stem.name + OPEN):
            try:
                if read_footer(files, os.path.join(folder, stem.name + SEALED), codec) is None:
                    continue
            except (Unsupported, OddFile):
                continue
            files.unlink(os.path.join(folder, stem.name + OPEN))
            done.append(Repair(stem.name + OPEN, "removed", "its sealed form is whole"))
    for name in _names(files, folder):
        if name.endswith(TEMPORARY) and not is_live(name.split(".", 1)[0] + OPEN):
            files.unlink(os.path.join(folder, name))
            done.append(Repair(name, "removed", "a sealed segment that was not finished"))
    return done


def _forms(stem: Stem) -> list[str]:
    return [suffix for suffix, is_there in ((SEALED, stem.is_sealed), (OPEN, stem.is_open)) if is_there]


def _names(files: Files, folder: str) -> list[str]:
    try:
        return sorted(files.list(folder))
    except FileNotFoundError:
        return []


def _cut(files: Files, path: str, end: int) -> None:
    fd = files.open(path, WRITE)
    try:
        files.truncate(fd, end)
        files.fsync(fd)
    finally:
        files.close(fd)


def _keep(files: Files, folder: str, name: str) -> None:
    """Copy a file to the first free `<name>.broken[.N]`, past an fsync."""
    taken = set(files.list(folder))
    number = 0
    while (kept := f"{name}{BROKEN}{f'.{number}' if number else ''}") in taken:
        number += 1
    source = files.open(os.path.join(folder, name), READ)
    try:
        data = files.pread(source, files.size(source), 0)
    finally:
        files.close(source)
    target = files.open(os.path.join(folder, kept), NEW)
    try:
        files.pwrite(target, data, 0)
        files.fsync(target)
    finally:
        files.close(target)
    files.fsync_folder(folder)
