"""Finds the blocks in the bytes of a segment: those that check, and the pieces between that do not.

Pure bytes; the format is drawn in `segment.py`.

Invariant: after a piece that does not check, only a block whose head *and* body check is believed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from .segment import FRAME, FRAME_BYTES, MARK

_MARK = bytes((MARK,))
_NOTHING = memoryview(b"")


class Block(NamedTuple):
    """A piece of a segment. It checks if `reason` is empty; `numbers` is what its head contains (None: no head)."""

    offset: int
    end: int
    kind: int
    numbers: list[int] | None
    body: memoryview
    reason: str


class Head(NamedTuple):
    """The head of a block, which checks."""

    kind: int
    start: int  # of the body
    end: int
    check: int  # of the body
    numbers: list[int]  # the first is the length of the body


def parse_head(data: memoryview, at: int, salt: int) -> Head | None:
    """None where no block's head checks."""
    if at + FRAME_BYTES >= len(data) or data[at] != MARK:
        return None
    _, kind, size, check, body_check = FRAME.unpack_from(data, at)
    start = at + size
    if size <= FRAME_BYTES or start > len(data):
        return None
    varints = data[at + FRAME_BYTES : start]
    if zlib.crc32(varints, zlib.crc32(data[at : at + 3], salt)) & 0xFFFF != check:
        return None
    numbers = []
    value = shift = 0
    for byte in varints:
        value |= (byte & 127) << shift
        if byte < 128:
            numbers.append(value)
            value = shift = 0
        else:
            shift += 7
    return Head(kind, start, start + numbers[0], body_check, numbers) if numbers else None


def walk(data: memoryview, salt: int, at: int, solid: int) -> Iterator[Block]:
    """Blocks and bad pieces from `at` on; behind `solid` there are only zeros.

    The last pieces may be bad: whether that is a torn tail is decided by the caller.
    """
    while at < solid:
        head = parse_head(data, at, salt)
        if head is None:
            end = _resync(data, salt, at + 1, solid)
            yield Block(at, end, 0, None, _NOTHING, "no block starts here")
        elif head.end > len(data):
            # its length may be what is damaged: look for more before giving up
            reason = f"the block needs {head.end - at} bytes, {len(data) - at} are left"
            end = _resync(data, salt, head.start, solid)
            yield Block(at, end, head.kind, head.numbers, _NOTHING, reason)
        else:
            end = head.end
            body = data[head.start : end]
            found = zlib.crc32(body, salt)
            reason = "" if found == head.check else f"check {head.check:#010x} expected, found {found:#010x}"
            yield Block(at, end, head.kind, head.numbers, body, reason)
        at = end


def _resync(data: memoryview, salt: int, at: int, solid: int) -> int:
    """Return where the next block begins that checks as a whole; `solid` where there is none."""
    whole = data.obj
    assert isinstance(whole, bytes)
    while True:
        at = whole.find(_MARK, at, solid)
        if at < 0:
            return solid
        head = parse_head(data, at, salt)
        if (
            head is not None
            and head.end <= len(data)
            and zlib.crc32(data[head.start : head.end], salt) == head.check
        ):
            return at
        at += 1
