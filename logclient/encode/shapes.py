"""From a user's call to a frame body: known shapes by their keys, new ones interned in the key area.

Runs in the training process, inside `log()`, with a lane in hand.

Invariants:

- `known` holds only shapes whose values are all floats: the hot path needs one lookup and no type check;
- both tables are bounded; beyond the bound, or with the key area full, records describe themselves;
- a shape's definition is whole in the key area before a frame refers to it;
- only a caller whose token (see `shm/ring.py`) is in `_claim` interns; the fork mark is looked at right before its
  stores.
"""

from __future__ import annotations

from _operator import is_
from struct import error as StructError
from time import time_ns
from zlib import crc32

from ..guest import foreign
from ..shm import layout
from ..shm.record import BODY, Shape, pack_payload
from ..shm.ring import Forked, TooLarge
from . import tensor, values
from .device import Plan
from .values import INT64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TypeAlias

    from ..shm.ring import Mark, RingWriter
    from .device import Device
    from .media import Media
    from .values import Points

    Kinds: TypeAlias = "tuple[tuple[object, ...], tuple[type, ...]]"  # keys of a record, types of its values

MAX_SHAPES = 4096
LARGE_PAYLOAD = 64 << 10  # bytes from which a payload goes to a block, so that it does not push out history


class TooLargeRecord(Exception):
    """The record fits neither a block nor half a ring."""


class Encoder:
    """The shapes of one process incarnation."""

    __slots__ = (
        "_claim",
        "_device",
        "_interned",
        "_keys",
        "_latest",
        "_mark",
        "_media",
        "_mem",
        "_mixed",
        "_next_id",
        "_plans",
        "_rank",
        "_ranks",
        "_room",
        "_unsteady",
        "_used",
        "_words",
        "known",
    )

    def __init__(
        self,
        mem: memoryview,
        rank: int | None,
        mark: Mark = b"\1",
        device: Device | None = None,
        media: Media | None = None,
    ) -> None:
        """`mark[0]` reads 0 in a process that was forked since (`owner.ForkMark`).

        `device` takes device values, `media` images and the like.
        """
        self._device = device
        self._media = media
        self._mark = mark
        self._mem = mem
        self._words = mem.cast("Q")
        self._keys, self._room = self._words[layout.FILE_KEYS], self._words[layout.FILE_KEYS + 1]
        self._used = 0
        self._next_id = 1
        self._rank = (0 if rank is None else rank + 1) << layout.RANK_SHIFT
        self._ranks: dict[int, Encoder] = {}
        self._claim: dict[str, object] = {}
        self._interned: dict[tuple[tuple[str, ...], str], Shape] = {}
        self._mixed: dict[Any, Shape] = {}
        self._plans: dict[object, Plan] = {}  # of records with device values, by keys and types
        self._latest: dict[tuple[object, ...], Plan] = {}  # the same by keys alone
        self._unsteady: set[tuple[object, ...]] = set()  # key sets whose types change: never in `known` again
        self.known: dict[tuple[object, ...], Shape] = {}

    def of_rank(self, rank: int) -> Encoder:
        """Return the encoder of the same shapes for records of another rank."""
        made = self._ranks.get(rank)
        return self._ranks.setdefault(rank, _RankEncoder(self, rank)) if made is None else made

    def offer_again(self, next_order: Callable[[], int], step: object, metrics: Mapping[Any, Any]) -> bool:
        """Commit a record with device values, if one of the same keys and types was before; False where it is none."""
        if type(metrics) is not dict or type(step) is not int or not -INT64 <= step < INT64:
            return False
        try:
            plan = self._latest.get(tuple(metrics))
        except Exception as error:  # foreign __eq__ of a key
            if foreign.is_users(error):
                raise
            return False
        if plan is None:
            return False
        found = (*metrics.values(),)
        is_like = (*map(type, found),) == plan.types
        return is_like and self._device.offer_again(plan, next_order, step, found)  # type: ignore[union-attr]

    def offer(
        self, lane: RingWriter, next_order: Callable[[], int], step: int, metrics: Mapping[Any, Any]
    ) -> Points | None:
        """Commit a record that the hot path could not; answers what was left out, if anything.

        Raises TooLargeRecord, with nothing written.
        """
        given = tuple(metrics)
        found = tuple(metrics.values())
        kinds = (given, tuple(map(type, found)))
        device = self._device
        try:
            shape = self._mixed.get(kinds)
        except Exception as error:  # foreign __hash__ or __eq__ of a key
            if foreign.is_users(error):
                raise
            shape = device = None
        if shape is not None:
            try:
                self._commit(lane, next_order, step, shape, found)
                return None
            except StructError as error:  # an int beyond 64 bits
                if foreign.is_users(error):
                    raise
        elif device is not None and (plan := self._plans.get(kinds)) is not None:
            was_tried = self._latest.get(given) is plan  # by `offer_again`
            self._latest[given] = plan
            if not was_tried and device.offer_again(plan, next_order, step, found):
                return None
        points = values.collect(metrics)
        self._offer_points(lane, next_order, step, points, kinds, found)
        for name, value in points.media:
            why, parts = "this process takes no media values", 0
            if self._media is not None:
                why, parts = self._media.offer(self._rank, step, name, value)
            if why:
                points.skip(f"a part of {name}" if parts else name, why, parts or 1)
        return points if points.left_out else None

    def _offer_points(
        self,
        lane: RingWriter,
        next_order: Callable[[], int],
        step: int,
        points: Points,
        kinds: Kinds,
        found: tuple[Any, ...],
    ) -> None:
        """Commit a record of these points, made from what was `found` in a call of these `kinds`."""
        given = kinds[0]
        if tensor.CODE in points.codes:
            same = tuple(points.names)
            self.known.pop(same, None)
            if len(self._unsteady) < MAX_SHAPES:
                self._unsteady.add(same)
            is_flat = same == given and not points.left_out
            is_flat = is_flat and all(map(is_, points.values, found))  # of a DTensor the local copy is taken
            if self._offer_device(next_order, step, points, kinds if is_flat else None):
                return
        names, codes = tuple(points.names), "".join(points.codes)
        shape = self._interned.get((names, codes)) or self._intern(names, codes)
        if shape is not None and all(type(name) is str for name in given) and names == given:
            if given not in self._unsteady and (usual := _usual(shape, kinds[1])) is not None:
                self.known[given] = usual
            elif len(self._mixed) < MAX_SHAPES and all(
                tensor.BUILTIN.get(kind) == c for kind, c in zip(kinds[1], codes, strict=True)
            ):
                self._mixed[kinds] = shape
                self._unsteady.add(given)
                self.known.pop(given, None)
        if shape is None:
            shape = Shape(names, codes, layout.INLINE_SHAPE | self._rank)
        self._commit(lane, next_order, step, shape, points.values)

    def _offer_device(
        self, next_order: Callable[[], int], step: int, points: Points, kinds: Kinds | None
    ) -> bool:
        """Commit a record with device values; False, with those left out of `points`, where they cannot be had.

        `kinds` stands for its keys and types, where all its values are as the user gave them; else None.
        """
        device = self._device
        if device is None:
            points.leave_device_values_out("this process takes no device values")
            return False
        codes = list(points.codes)
        places = [place for place, code in enumerate(codes) if code == tensor.CODE]
        for place in places:
            codes[place] = tensor.kind_of(points.values[place].dtype)[1]
        shape = self._shape_of(tuple(points.names), "".join(codes))
        plan = Plan(shape, points.values, places, self._rank, _definition_of(shape))
        why = device.offer(plan, next_order, step, list(points.values))
        if why:
            points.leave_device_values_out(why)
        elif kinds is not None and device.is_usual(plan):
            self._repeat(kinds, plan)
        return not why

    def _repeat(self, kinds: Kinds, plan: Plan) -> None:
        """Records of these keys and types go the short way from now on, unless one like it failed there.

        Only those whose other values are Python's own numbers: nothing foreign is called there.
        """
        of_device = {place for place, _ in plan.dtypes}
        for place, code in enumerate(plan.shape.codes):
            if place not in of_device and tensor.BUILTIN.get(kinds[1][place]) != code:
                return
        before = self._plans.get(kinds)
        has_failed = before is not None and before.frame is None and before.dtypes == plan.dtypes
        if not has_failed and len(self._plans) < MAX_SHAPES:
            plan.repeat(kinds[1])
            self._plans[kinds] = self._latest[kinds[0]] = plan

    def _shape_of(self, names: tuple[str, ...], codes: str) -> Shape:
        """Return the shape of these keys and codes: interned, or one that its records describe themselves."""
        shape = self._interned.get((names, codes)) or self._intern(names, codes)
        return shape or Shape(names, codes, layout.INLINE_SHAPE | self._rank)

    def _commit(
        self, lane: RingWriter, next_order: Callable[[], int], step: int, shape: Shape, found: Sequence[Any]
    ) -> None:
        seq = lane.seq + 1
        head = shape.head
        if shape.fixed and head & layout.SHAPE_MASK and shape.frame_bytes < LARGE_PAYLOAD:
            try:
                lane.offer_body(shape.pack(seq, next_order(), step, time_ns(), head, *found), b"", seq)
                return
            except TooLarge:
                pass
        payload = _definition_of(shape) + pack_payload(shape.codes, found)
        if len(payload) > min(LARGE_PAYLOAD, lane.largest):
            prefix = BODY.pack(seq, next_order(), step, time_ns(), layout.BLOCK_SHAPE | self._rank)
            if lane.blocks.offer(lane, prefix, head.to_bytes(8, "little") + payload, seq):
                return
        if len(payload) > lane.largest:
            raise TooLargeRecord(f"a record of {len(payload):,} bytes; this lane takes {lane.largest:,}")
        lane.offer_body(BODY.pack(seq, next_order(), step, time_ns(), head), payload, seq)

    def _intern(self, names: tuple[str, ...], codes: str) -> Shape | None:
        """Give the shape an id and write its definition; None when there is no room or someone else is at it."""
        me = object()
        try:
            if self._claim.setdefault("intern", me) is not me:
                return None
            number = self._next_id
            if number > MAX_SHAPES:
                return None
            shape = Shape(names, codes, number | self._rank)
            body = number.to_bytes(8, "little") + shape.definition()
            at = self._keys + self._used
            used = self._used + 8 + len(body)
            if used > self._room:
                return None
            check = crc32(body) << 32 | len(body)
            if not self._mark[0]:
                raise Forked
            self._next_id = number + 1
            self._mem[at + 8 : self._keys + used] = body
            self._words[at >> 3] = check
            self._used = used
            self._words[layout.KEYS_USED] = used
            self._interned[names, codes] = shape
            return shape
        finally:  # no call here, see "the token" in `shm/ring.py`
            if "intern" in self._claim and self._claim["intern"] is me:
                del self._claim["intern"]

    @property
    def device(self) -> Device | None:
        return self._device

    @property
    def media(self) -> Media | None:
        return self._media

    def detach(self) -> None:
        """In a forked child, for good: whoever still holds this encoder gets `Forked`."""
        self._mark = b"\0"
        if self._media is not None:
            self._media.detach()
        if self._device is not None:
            self._device.detach()


def _definition_of(shape: Shape) -> bytes:
    """Return the definition that precedes the values of a record whose shape is not interned; else nothing."""
    if shape.head & layout.SHAPE_MASK:
        return b""
    definition = shape.definition()
    return len(definition).to_bytes(8, "little") + definition


def _usual(shape: Shape, kinds: tuple[type, ...]) -> Shape | None:
    """Return the shape by which the hot path takes records like this one; None where it does not take them."""
    if not any(map(tensor.is_plain, kinds)):
        return shape if shape.exact else None
    if not all([kind in tensor.BUILTIN or tensor.is_plain(kind) for kind in kinds]):  # noqa: C419
        return None
    number = tensor.reader(shape.codes)
    if number is None:
        return None
    usual = Shape(shape.names, shape.codes, shape.head)
    usual.exact = number
    usual.pack = tensor.checked(shape.codes, shape.pack)
    return usual


class _RankEncoder(Encoder):
    """Shapes of another encoder, whose ids they keep, under a rank of its own."""

    __slots__ = ("_first",)

    def __init__(self, first: Encoder, rank: int) -> None:
        super().__init__(first._mem, rank, first._mark, first._device, first._media)
        self._first = first

    def of_rank(self, rank: int) -> Encoder:
        return self._first.of_rank(rank)

    def _intern(self, names: tuple[str, ...], codes: str) -> Shape | None:
        shape = self._first._interned.get((names, codes)) or self._first._intern(names, codes)
        if shape is None:
            return None
        mine = Shape(names, codes, shape.head & layout.SHAPE_MASK | self._rank)
        self._interned[names, codes] = mine
        return mine
