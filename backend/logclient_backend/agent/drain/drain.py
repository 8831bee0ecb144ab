"""From the frames of one lane to columns: what was taken, what was forgotten, what did not check.

Runs in the worker; touches shared memory only. Pure but for the lane it reads.

Invariants:

- records come out once: what a dead worker staged already is recognised by its seq;
- every seq between two looks is in `Batch.parts`, in a gap, or still in the lane;
- frames of one shape and rank become one `Columns`, whatever lies between them.
"""

from __future__ import annotations

from itertools import islice
from struct import error as StructError
from typing import Protocol

from logclient.errors import Corrupt
from logclient.shm import cells, layout
from logclient.shm.columns import Columns
from logclient.shm.record import PREFIX, Shape
from logclient.shm.ring import Taken, read_block

from . import device_records as device
from .producer import Lane


class Source(Protocol):
    """The process that a lane belongs to, as far as its records are decoded by it."""

    name: str
    mem: memoryview
    cells: device.Cells

    def shape(self, number: int) -> Shape | None: ...


class Harvest:
    """Records, gaps and damage of one copy of a lane."""

    __slots__ = (
        "blocks",
        "cells",
        "damaged",
        "forgotten",
        "last_seq",
        "left_out",
        "parts",
        "position",
        "stored",
    )

    def __init__(self, position: int, last_seq: int) -> None:
        self.parts: list[Columns] = []
        self.damaged: list[tuple[int, int]] = []  # seq ranges, inclusive
        self.forgotten: list[tuple[int, int]] = []
        self.blocks: list[bytes] = []  # references to release once this is staged
        self.cells: list[tuple[int, int]] = []  # cells to free then: offset, use
        self.left_out = 0  # values that a device was to bring and never will
        self.position = position  # the lane may be released up to here
        self.last_seq = last_seq
        self.stored = 0


def harvest(producer: Source, lane: Lane, most_bytes: int, *, is_dead: bool = False) -> Harvest | None:
    """Take the next frames of a lane, that many bytes or one frame; None where there is nothing that checks.

    None too, and `lane.waits`, where the first record waits for a device, whose process is not dead.
    """
    before = lane.reader.position
    taken = lane.reader.take(most_bytes)
    lane.waits = False
    if taken is None:
        return None
    if lane.is_of_device and not is_dead and taken.frames:
        some = device.ready(producer.cells, taken)
        if not some:
            lane.reader.position, lane.waits = before, True
            return None
        if some < len(taken.frames):
            taken.cut(some)
            lane.reader.position = taken.end
    found = Harvest(taken.end, max(lane.staged_seq, taken.last_seq))
    if not taken.frames:
        _note_damage(found, lane, taken)
        return found
    _note_gaps(found, lane, taken)
    for head, ranges in _by_head(taken, lane.staged_seq).items():
        _convert(found, producer, taken, head, ranges)
    found.parts.sort(key=_first_seq)
    return found


def nothing(lane: Lane) -> Harvest:
    """No record; for what else is to be told of the lane."""
    return Harvest(lane.reader.position, lane.staged_seq)


def written_off(lane: Lane) -> Harvest:
    """Count as damaged what a dead producer's lane holds and nobody can read."""
    words = lane.reader.words
    last_seq = max(lane.staged_seq, words[layout.SEQ])
    found = Harvest(words[layout.TAIL], last_seq)
    if last_seq > lane.staged_seq:
        found.damaged.append((lane.staged_seq + 1, last_seq))
    return found


def _first_seq(columns: Columns) -> int:
    return columns.seq[0]


def _note_damage(found: Harvest, lane: Lane, taken: Taken) -> None:
    for first, last in taken.damaged:
        if last > lane.staged_seq:
            found.damaged.append((max(first, lane.staged_seq + 1), last))


def _note_gaps(found: Harvest, lane: Lane, taken: Taken) -> None:
    """Jumps of seq: damaged where the ring said so, else forgotten."""
    _note_damage(found, lane, taken)
    damaged = found.damaged
    expected = lane.staged_seq + 1
    seq = taken.first_seq
    for index in (0, *taken.jumps):
        if index:
            before = taken.jumps_before(index)
            expected, seq = max(expected, before + 1), taken.jumps[index]
        if seq > expected and not any(first <= expected and seq - 1 <= last for first, last in damaged):
            found.forgotten.append((expected, seq - 1))
        expected = max(expected, seq)


def _by_head(taken: Taken, staged_seq: int) -> dict[int, list[tuple[int, int]]]:
    """Ranges of the new frames, by shape and rank; adjacent ones joined."""
    frames = taken.frames
    if taken.first_seq + len(frames) - 1 == taken.last_seq and taken.first_seq > staged_seq:
        skip = 0
    elif not taken.jumps:
        skip = min(len(frames), max(0, staged_seq + 1 - taken.first_seq))
    else:
        skip = sum(
            1 for at, _, _ in frames if int.from_bytes(taken.data[at + 8 : at + 16], "little") <= staged_seq
        )
    if taken.is_alike:
        _, size, head = frames[0]
        return {head: [(skip * size, len(frames) * size)]} if skip < len(frames) else {}
    groups: dict[int, list[tuple[int, int]]] = {}
    last_head, start, stop = -1, 0, 0
    for at, size, head in islice(frames, skip, None):
        if head == last_head and at == stop:
            stop += size
            continue
        if last_head >= 0:
            groups.setdefault(last_head, []).append((start, stop))
        last_head, start, stop = head, at, at + size
    if last_head >= 0:
        groups.setdefault(last_head, []).append((start, stop))
    return groups


def _convert(
    found: Harvest, producer: Source, taken: Taken, head: int, ranges: list[tuple[int, int]]
) -> None:
    data = taken.data
    number = head & layout.SHAPE_MASK
    if number == layout.DEVICE_SHAPE:
        for start, stop in ranges:
            _convert_device(found, producer, data[start:stop])
        return
    if number in (layout.INLINE_SHAPE, layout.BLOCK_SHAPE):
        for start, stop in ranges:
            _convert_each(found, producer, data[start:stop])
        return
    shape = producer.shape(number)
    frames = (
        data[ranges[0][0] : ranges[0][1]] if len(ranges) == 1 else b"".join([data[a:b] for a, b in ranges])
    )
    if shape is None:
        for at in _frame_starts(frames):
            seq = int.from_bytes(frames[at + 8 : at + 16], "little")
            found.damaged.append((seq, seq))
        return
    try:
        _keep(found, Columns.from_frames(shape, _rank_of(head), frames))
    except (Corrupt, ValueError):
        _convert_each(found, producer, frames, shape)


def _convert_each(found: Harvest, producer: Source, frames: bytes, shape: Shape | None = None) -> None:
    """Frames that describe themselves, lie in blocks, or whose group did not decode: one by one."""
    for at in _frame_starts(frames):
        word, seq, order, step, time, head = PREFIX.unpack_from(frames, at)
        payload: bytes | None = frames[at + layout.FRAME_PREFIX : at + (word & layout.LENGTH_MASK)]
        try:
            if head & layout.SHAPE_MASK == layout.BLOCK_SHAPE and payload is not None:
                found.blocks.append(payload)
                payload = read_block(producer.mem, payload)
                if payload is not None:
                    head, payload = int.from_bytes(payload[:8], "little"), payload[8:]
            if payload is None:
                raise Corrupt(producer.name, at, "a payload in its block", "another one")
            its, start = (shape, 0) if shape else _shape_of(producer, head, payload, 0)
            payload = payload[start:]
            length = layout.FRAME_PREFIX + len(payload)
            frame = PREFIX.pack(length, seq, order, step, time, head) + payload
            if its.fixed and length != its.frame_bytes:
                frame = frame[: its.frame_bytes]
            _keep(found, Columns.from_frames(its, _rank_of(head), frame))
        except (Corrupt, ValueError):
            found.damaged.append((seq, seq))


def _convert_device(found: Harvest, producer: Source, frames: bytes) -> None:
    """Records whose values a device brought; those of one shape and rank become one `Columns`."""
    groups: dict[int, tuple[Shape, list[bytes]]] = {}
    for at in _frame_starts(frames):
        word, seq, order, step, time, _ = PREFIX.unpack_from(frames, at)
        payload = frames[at + layout.FRAME_PREFIX : at + (word & layout.LENGTH_MASK)]
        try:
            head, cell, number = cells.REFERENCE.unpack_from(payload)
            found.cells.append((cell, number))
            shape, start = _shape_of(producer, head, payload, cells.REFERENCE.size)
            values, empty = device.complete(producer.cells, payload, shape, start)
            whole = PREFIX.pack(layout.FRAME_PREFIX + len(values), seq, order, step, time, head) + values
            if empty:
                found.left_out += len(empty)
                _keep(found, device.without(shape, _rank_of(head), whole, empty))
            elif head & layout.SHAPE_MASK == layout.INLINE_SHAPE or len(whole) != shape.frame_bytes:
                _keep(found, Columns.from_frames(shape, _rank_of(head), whole))
            else:
                groups.setdefault(head, (shape, []))[1].append(whole)
        except (Corrupt, ValueError, StructError):
            found.damaged.append((seq, seq))
    for head, (shape, some) in groups.items():
        _keep(found, Columns.from_frames(shape, _rank_of(head), b"".join(some)))


def _shape_of(producer: Source, head: int, payload: bytes, at: int) -> tuple[Shape, int]:
    """The record's shape, and where its values start; a record that describes itself does so from byte `at` on."""
    number = head & layout.SHAPE_MASK
    if number == layout.INLINE_SHAPE:
        size = int.from_bytes(payload[at : at + 8], "little")
        return Shape.from_definition(payload[at + 8 : at + 8 + size]), at + 8 + size
    shape = producer.shape(number)
    if shape is None:
        raise Corrupt(producer.name, at, "a known shape", number)
    return shape, at


def _rank_of(head: int) -> int | None:
    rank = (head >> layout.RANK_SHIFT) - 1
    return rank if rank >= 0 else None


def _keep(found: Harvest, columns: Columns) -> None:
    found.parts.append(columns)
    found.stored += len(columns)


def _frame_starts(frames: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(frames):
        starts.append(at)
        at += int.from_bytes(frames[at : at + 4], "little") & layout.LENGTH_MASK
    return starts
