"""The damage table: one function makes the damage, each row says what must still be readable."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from logclient_backend.wal import segment
from logclient_backend.wal.blocks import Block
from logclient_backend.wal.files import REAL
from logclient_backend.wal.reader import WalReader
from logclient_backend.wal.repair import repair, verify
from logclient_backend.wal.scan import Scan
from logclient_backend.wal.seal import sealed_pieces
from logclient_backend.wal.segment import COLUMNS, FOOTER, SHAPE, STREAM, SegmentEncoder, segment_name

from .samples import FLOATS, MIXED, NOW_NS, PROCESS, WRITER, Found, read_all, records, stream

OPEN = segment_name(WRITER, 1)
SEALED = segment_name(WRITER, 1, sealed=True)
ALL = {1: set(range(1, 41)), 2: set(range(1, 31))}  # stream number: seqs
SECTOR = 512


def open_segment() -> bytes:
    """Blocks of ten: 1..10 of stream 1, 1..10 of stream 2, 11..20 of stream 1, ...; ends with stream 1's 31..40."""
    encoder = SegmentEncoder(WRITER, 1, NOW_NS)
    data = encoder.header()
    for first in range(1, 41, 10):
        for number, shape in ((2, MIXED), (1, FLOATS)) if first > 1 else ((1, FLOATS), (2, MIXED)):
            if first + 9 <= max(ALL[number]):
                data += encoder.columns(
                    stream(number), PROCESS, 0, records(range(first, first + 10), shape=shape)
                )
    return data


def sealed_segment(monkeypatch) -> bytes:
    """The same, sealed in blocks of ten."""
    monkeypatch.setattr("logclient_backend.wal.seal.BLOCK_RECORDS", 10)
    return b"".join(sealed_pieces(Scan(open_segment(), name=OPEN).items(), WRITER, 1, NOW_NS))


def blocks(data: bytes, kind: int | None = None) -> list[Block]:
    name = SEALED if segment.TRAILER_MAGIC in data[-16:] else OPEN
    return [block for block in Scan(data, name=name).blocks() if kind is None or block.kind == kind]


def damage(data: bytes, how: str) -> bytes:
    """The same segment, damaged: `how` is a word and, where there is a choice, the number of the COLUMNS block."""
    word, _, number = how.partition(" ")
    target = blocks(data, COLUMNS)[int(number or 0)]
    inside = (target.offset + target.end) // 2
    flips = {
        "flip-header": 20,
        "flip-stream": blocks(data, STREAM)[0].offset + 20,
        "flip-shape": blocks(data, SHAPE)[0].offset + 20,
        "flip-mark": target.offset,
        "flip-head": target.offset + 11,
        "flip-body": inside,
        "flip-footer": max(0, len(data) - 40),
        "flip-trailer": len(data) - 3,
    }
    if word in flips:
        return data[: flips[word]] + bytes([data[flips[word]] ^ 0x10]) + data[flips[word] + 1 :]
    if word == "cut-at":
        return data[: target.offset]
    if word == "cut-in":
        return data[:inside]
    if word == "zero-sector":
        start = inside // SECTOR * SECTOR
        return data[:start] + bytes(min(SECTOR, len(data) - start)) + data[start + SECTOR :]
    if word == "empty":
        return b""
    if word == "foreign":
        return bytes(range(256)) * 20
    if word == "newer":
        other = bytearray(data)
        other[8:10] = (segment.VERSION + 1).to_bytes(2, "little")
        other[40:44] = zlib.crc32(other[:40]).to_bytes(4, "little")
        return bytes(other)
    assert how == "whole"
    return data


@dataclass
class Row:
    """What must be readable after the damage."""

    how: str
    lost: dict[int, set[int]]  # by stream number
    damage: int = 1  # pieces told by a reader
    torn: bool = False


def lost(*blocks_lost: tuple[int, int]) -> dict[int, set[int]]:
    """Blocks by (stream number, first seq)."""
    gone: dict[int, set[int]] = {}
    for number, first in blocks_lost:
        gone.setdefault(number, set()).update(range(first, first + 10))
    return gone


NOTHING: dict[int, set[int]] = {}
# the order of blocks in the open segment
ORDER = [(1, 1), (2, 1), (2, 11), (1, 11), (2, 21), (1, 21), (1, 31)]

OPEN_ROWS = [
    Row("whole", NOTHING, damage=0),
    *(Row(f"cut-at {at}", lost(*ORDER[at:]), damage=0) for at in range(1, 7)),
    *(Row(f"cut-in {at}", lost(*ORDER[at:]), damage=0, torn=True) for at in range(7)),
    *(Row(f"flip-body {at}", lost(ORDER[at])) for at in range(6)),
    *(Row(f"flip-head {at}", lost(ORDER[at])) for at in range(6)),
    *(Row(f"flip-mark {at}", lost(ORDER[at])) for at in range(6)),
    Row("flip-body 6", lost(ORDER[6]), damage=0, torn=True),
    Row("flip-head 6", lost(ORDER[6]), damage=0, torn=True),
    Row("flip-header", NOTHING),
    Row("flip-stream", {1: ALL[1]}, damage=5),
    Row("flip-shape", {1: ALL[1]}, damage=5),
    Row("empty", ALL, damage=0),
    Row("foreign", ALL, damage=1, torn=True),
]


@pytest.mark.parametrize("row", OPEN_ROWS, ids=lambda row: row.how)
@pytest.mark.parametrize("zeros", [0, 3000], ids=["exact", "preallocated"])
def test_open_segment_loses_only_what_was_damaged(tmp_path, row, zeros):
    """Damage in an open segment costs the blocks it touched; a bad end is a torn tail."""
    whole = open_segment()
    data = damage(whole, row.how)
    (tmp_path / OPEN).write_bytes(data + bytes(zeros if data else 0))
    check_readable(tmp_path, row)
    (report,) = verify(str(tmp_path)).segments
    assert bool(report.torn) == row.torn
    assert report.is_sound == (not row.torn and not row.damage)


def check_readable(folder: Path, row: Row) -> Found:
    found = read_all(folder)
    for number, seqs in ALL.items():
        assert set(found.seqs(stream(number))) == seqs - row.lost.get(number, set()), f"stream {number}"
    for key, kept in Found(Scan(open_segment(), name=OPEN).items()).records.items():
        assert found.records.get(key, kept) == kept
    assert len(found.damage) == row.damage, [str(piece) for piece in found.damage]
    return found


SEALED_ROWS = [
    Row("whole", NOTHING, damage=0),
    *(Row(f"flip-body {at}", {}) for at in range(7)),
    *(Row(f"flip-head {at}", {}) for at in range(7)),
    *(Row(f"flip-mark {at}", {}) for at in range(7)),
    Row("flip-header", NOTHING),
    Row("flip-stream", NOTHING),
    Row("flip-shape", NOTHING),
    Row("flip-footer", NOTHING, damage=2),
    Row("flip-trailer", NOTHING, damage=2),
    Row("cut-in 0", ALL, damage=2),
    Row("empty", ALL, damage=2),
    Row("foreign", ALL, damage=3),
]


def sealed_order(data: bytes) -> list[tuple[int, int]]:
    """(stream number, first seq) of each COLUMNS block."""
    scan = Scan(data, name=SEALED)
    numbers = [block.numbers or [] for block in blocks(data, COLUMNS)]
    return [(scan.streams[entry[1]][0][0], entry[5]) for entry in numbers]


@pytest.mark.parametrize("row", SEALED_ROWS, ids=lambda row: row.how)
def test_sealed_segment_names_exactly_what_was_lost(tmp_path, monkeypatch, row):
    """Damage in a sealed segment costs one block, whose records are named, whatever part of it was hit."""
    whole = sealed_segment(monkeypatch)
    word, _, number = row.how.partition(" ")
    if number and word.startswith("flip"):
        row = Row(row.how, lost(sealed_order(whole)[int(number)]))
    (tmp_path / SEALED).write_bytes(damage(whole, row.how))
    found = check_readable(tmp_path, row)
    if number and word.startswith("flip"):
        (piece,) = found.damage
        of, first = sealed_order(whole)[int(number)]
        assert (piece.stream, piece.first_seq, piece.last_seq) == (stream(of), first, first + 9)
        if word == "flip-body":
            assert (piece.first_step, piece.last_step) == (10 * first - 5, 10 * first + 85)
        assert f"records {first}..{first + 9}" in str(piece)
    assert not verify(str(tmp_path)).is_sound or row.how == "whole"


@pytest.mark.parametrize("form", ["open", "sealed"])
def test_every_zero_sector_costs_at_most_the_blocks_in_it(tmp_path, monkeypatch, form):
    """A sector of zeros anywhere costs the blocks that lie in it, and in a sealed segment each lost record is named."""
    whole = open_segment() if form == "open" else sealed_segment(monkeypatch)
    name = OPEN if form == "open" else SEALED
    for start in range(0, len(whole), SECTOR):
        data = whole[:start] + bytes(min(SECTOR, len(whole) - start)) + whole[start + SECTOR :]
        (tmp_path / name).write_bytes(data)
        found = read_all(tmp_path)
        touched = [block for block in blocks(whole) if block.offset < start + SECTOR and block.end > start]
        gone = {
            (block.numbers[1], block.numbers[5])
            for block in touched
            if block.kind == COLUMNS and block.numbers
        }
        entries = form == "open" and any(block.kind in (STREAM, SHAPE) for block in touched)
        if entries:
            continue  # then its blocks are lost too, see flip-stream
        kept = sum(map(len, ALL.values())) - 10 * len(gone)
        assert len(found.records) == kept, f"sector at {start}"
        if (
            form == "sealed"
            and not any(block.kind == FOOTER for block in touched)
            and start + SECTOR < len(whole)
        ):
            named = sum(
                piece.last_seq - piece.first_seq + 1 for piece in found.damage if piece.first_seq is not None
            )
            assert named == 10 * len(gone), f"sector at {start}"


def test_every_cut_of_an_open_segment_keeps_the_whole_blocks_before_it(tmp_path):
    """Cut at any byte, an open segment is read up to the last whole block, and is never called damaged."""
    whole = open_segment()
    ends = [(block.end, block.kind) for block in blocks(whole)]
    for cut in range(len(whole)):
        found = Found(Scan(whole[:cut], name=OPEN).items())
        complete = sum(kind == COLUMNS for end, kind in ends if end <= cut)
        assert len(found.records) == 10 * complete
        assert not found.damage or cut < segment.HEADER_BYTES


def test_every_flipped_byte_costs_at_most_one_block(tmp_path, monkeypatch):
    """Whatever byte of a sealed segment changes, at most one block is lost, and no record comes wrong."""
    whole = sealed_segment(monkeypatch)
    expected = Found(Scan(whole, name=SEALED).items()).records
    for at in range(len(whole)):
        data = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        found = Found(Scan(data, name=SEALED).items())
        assert found.damage, at
        assert len(found.records) >= len(expected) - 10, at
        assert found.records.items() <= expected.items(), at


@pytest.mark.parametrize("form", ["open", "sealed"])
def test_newer_version_is_told_and_left_alone(tmp_path, monkeypatch, form):
    """A segment of a newer version is named as such, and neither read nor repaired."""
    whole, name = (open_segment(), OPEN) if form == "open" else (sealed_segment(monkeypatch), SEALED)
    data = damage(whole, "newer")
    (tmp_path / name).write_bytes(data)
    reader = WalReader(str(tmp_path))
    assert list(reader.items()) == []
    assert "written in version 2" in reader.unsupported[name]
    assert [action.action for action in repair(str(tmp_path))] == ["left"]
    assert (tmp_path / name).read_bytes() == data


def test_missing_segment_is_a_hole_that_is_seen(tmp_path):
    """Where a whole file is gone, the seqs between the others are missing, not silently fewer."""
    for number, first in ((1, 1), (2, 11), (3, 21)):
        encoder = SegmentEncoder(WRITER, number, NOW_NS + number)
        data = encoder.header() + encoder.columns(stream(1), PROCESS, 0, records(range(first, first + 10)))
        (tmp_path / segment_name(WRITER, number)).write_bytes(data)
    (tmp_path / segment_name(WRITER, 2)).unlink()
    span = WalReader(str(tmp_path)).spans()[stream(1)]
    assert span.missing().ranges() == [(11, 20)]
    assert read_all(tmp_path).seqs(stream(1)) == [*range(1, 11), *range(21, 31)]


def test_duplicated_segment_is_read_once(tmp_path):
    """A copy of a segment under another name (a copied folder) does not check there; the same records by another
    writer are dropped as repeats."""
    (tmp_path / OPEN).write_bytes(open_segment())
    (tmp_path / segment_name(WRITER, 7)).write_bytes(open_segment())
    encoder = SegmentEncoder(bytes(8), 1, NOW_NS)
    again = encoder.header() + encoder.columns(stream(1), PROCESS, 0, records(range(5, 45)))
    (tmp_path / segment_name(bytes(8), 1)).write_bytes(again)
    found = read_all(tmp_path)
    assert set(found.seqs(stream(1))) == set(range(1, 45))
    assert set(found.seqs(stream(2))) == ALL[2]


def each_damage(whole: bytes, rows: list[Row]) -> Iterator[tuple[str, bytes]]:
    for row in rows:
        yield row.how, damage(whole, row.how)


@pytest.mark.parametrize("form", ["open", "sealed"])
def test_repair_keeps_what_was_readable_and_ends_sound(tmp_path, monkeypatch, form):
    """After `repair` each damaged segment reads as before, is sound, names its losses, and its old bytes are kept."""
    whole, name, rows = (open_segment(), OPEN, OPEN_ROWS)
    if form == "sealed":
        whole, name, rows = sealed_segment(monkeypatch), SEALED, SEALED_ROWS
    for number, (how, data) in enumerate(each_damage(whole, rows)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_bytes(data)
        before = read_all(folder)
        report = verify(str(folder))
        actions = repair(str(folder))
        after = read_all(folder)
        assert after.records == before.records, how
        assert not after.damage, how
        assert verify(str(folder)).is_sound, how
        assert bool(actions) == (not report.is_sound), how
        if before.damage:
            assert (folder / f"{name}.broken").read_bytes() == data, how
        noted = {(gap.stream, seq) for gap in after.gaps for seq in range(gap.first, gap.last + 1)}
        for piece in before.damage:
            if (
                piece.stream is not None
                and piece.first_seq is not None
                and piece.last_seq is not None
                and after.records
            ):
                assert (piece.stream, piece.first_seq) in noted, how
                assert (piece.stream, piece.last_seq) in noted, how


def test_unreadable_file_is_reported(tmp_path):
    """A folder in the place of a segment (or a file that cannot be read) is a problem that is told."""
    (tmp_path / OPEN).mkdir()
    (report,) = verify(str(tmp_path)).segments
    assert report.problem == "it is a folder, no regular file"


def test_damaged_sealed_segment_is_completed_from_the_open_one(tmp_path, monkeypatch):
    """Where a crash left both forms and the sealed one lost its footer, both are read and none twice."""
    (tmp_path / OPEN).write_bytes(open_segment())
    (tmp_path / SEALED).write_bytes(damage(sealed_segment(monkeypatch), "cut-in 2"))
    found = read_all(tmp_path)
    assert {number: set(found.seqs(stream(number))) for number in ALL} == ALL
    assert {span.records for span in WalReader(str(tmp_path)).spans().values()} == {40, 30}
    repair(str(tmp_path), files=REAL)
    assert {path.name for path in tmp_path.iterdir()} == {SEALED, f"{SEALED}.broken", f"{OPEN}.broken"}
    assert {number: set(read_all(tmp_path).seqs(stream(number))) for number in ALL} == ALL
