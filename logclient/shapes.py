"""From a user's call to a frame body: known shapes by their keys, new ones interned in the key area.

Runs in the training process, inside `log()`, with a lane in hand.

Invariants:

- `known` holds only shapes whose values are all floats: the hot path needs one lookup and no type check;
- both tables are bounded; beyond the bound, or with the key area full, records describe themselves;
- a shape's definition is whole in the key area before a frame refers to it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from time import time_ns
from zlib import crc32

from . import layout, values
from .record import Shape, pack_payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .ring import RingWriter
    from .values import Points

MOST_SHAPES = 4096
LARGE_PAYLOAD = 64 << 10  # bytes from which a payload goes to a block, so that it does not push out history
BODY = Struct("<QQqqQ")  # seq, order, step, time, head
_BUILTIN = {float: "d", int: "q", bool: "b"}


class TooLargeRecord(Exception):
    """The record fits neither a block nor half a ring."""


class Encoder:
    """The shapes of one process incarnation."""

    __slots__ = ("_interned", "_keys", "_mem", "_mixed", "_next_id", "_rank", "_room", "_token", "_used", "_words", "known")

    def __init__(self, mem: memoryview, rank: int | None) -> None:
        self._mem = mem
        self._words = mem.cast("Q")
        self._keys, self._room = self._words[layout.FILE_KEYS], self._words[layout.FILE_KEYS + 1]
        self._used = 0
        self._next_id = 1
        self._rank = (0 if rank is None else rank + 1) << layout.RANK_SHIFT
        self._token = [None]  # who pops it may intern; nobody ever waits for it
        self._interned: dict[tuple[tuple[str, ...], str], Shape] = {}
        self._mixed: dict[Any, Shape] = {}
        self.known: dict[tuple[object, ...], Shape] = {}

    def offer(
        self, lane: RingWriter, next_order: Callable[[], int], step: int, metrics: Mapping[Any, Any]
    ) -> Points | None:
        """Commit a record that the hot path could not; answers what was left out, if anything.

        Raises TooLargeRecord, with nothing written.
        """
        given = tuple(metrics)
        found = tuple(metrics.values())
        kinds = (given, tuple(map(type, found)))
        shape = self._mixed.get(kinds)
        if shape is not None:
            try:
                self._commit(lane, next_order, step, shape, found)
                return None
            except StructError:  # an int beyond 64 bits
                pass
        points = values.collect(metrics)
        names, codes = tuple(points.names), "".join(points.codes)
        shape = self._interned.get((names, codes)) or self._intern(names, codes)
        if shape is not None and names == given and all(type(name) is str for name in given):
            if shape.exact:
                self.known[given] = shape
            elif len(self._mixed) < MOST_SHAPES and all(_BUILTIN.get(kind) == c for kind, c in zip(kinds[1], codes)):
                self._mixed[kinds] = shape
                self.known.pop(given, None)
        if shape is None:
            shape = Shape(names, codes, layout.INLINE_SHAPE | self._rank)
        self._commit(lane, next_order, step, shape, points.values)
        return points if points.left_out else None

    def _commit(
        self, lane: RingWriter, next_order: Callable[[], int], step: int, shape: Shape, found: Sequence[Any]
    ) -> None:
        seq = lane.seq + 1
        head = shape.head
        if shape.fixed and head & layout.SHAPE_MASK and shape.frame_bytes < LARGE_PAYLOAD:
            lane.offer_body(shape.pack(seq, next_order(), step, time_ns(), head, *found), b"", seq)
            return
        payload = pack_payload(shape.codes, found)
        if not head & layout.SHAPE_MASK:
            definition = shape.definition()
            payload = b"".join((len(definition).to_bytes(8, "little"), definition, payload))
        if len(payload) > LARGE_PAYLOAD:
            reference = lane.blocks.put(head.to_bytes(8, "little") + payload)
            if reference is not None:
                head, payload = layout.BLOCK_SHAPE | self._rank, reference
        if len(payload) > lane.largest:
            raise TooLargeRecord(f"a record of {len(payload):,} bytes; this lane takes {lane.largest:,}")
        lane.offer_body(BODY.pack(seq, next_order(), step, time_ns(), head), payload, seq)

    def _intern(self, names: tuple[str, ...], codes: str) -> Shape | None:
        """Give the shape an id and write its definition; None when there is no room or someone else is at it."""
        if self._next_id > MOST_SHAPES:
            return None
        try:
            self._token.pop()
        except IndexError:
            return None
        try:
            number = self._next_id
            self._next_id = number + 1  # first: an interrupted call may waste an id, never share one
            shape = Shape(names, codes, number | self._rank)
            body = number.to_bytes(8, "little") + shape.definition()
            if self._used + 8 + len(body) > self._room:
                return None
            at = self._keys + self._used
            self._mem[at + 8 : at + 8 + len(body)] = body
            self._words[at >> 3] = crc32(body) << 32 | len(body)
            self._used += 8 + len(body)
            self._words[layout.KEYS_USED] = self._used
            self._interned[names, codes] = shape
            return shape
        finally:
            self._token.append(None)
