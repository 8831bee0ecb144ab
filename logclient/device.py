"""Values that lie on a device: their record is committed at once, the values come when the device is that far.

Runs in the training process, inside `log()`, only for records with such values.

Invariants:

- step, time and host values of the record are those of the call; so are the device values, whatever happens to the
  tensors afterwards;
- what cannot be had without waiting is left out, counted, and said once; the rest of the record arrives;
- such records have lanes of their own: a device that hangs holds up no other record;
- none is forgotten as long as its values may come: later ones go without theirs.
"""

from __future__ import annotations

from struct import Struct
from time import time_ns

from . import cells, foreign, layout, tensor
from .copies import CannotLock, CudaCopies, JaxCopies
from .lanes import is_empty
from .record import STRUCT_CODES, pack_payload
from .ring import TooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .lanes import Lanes
    from .record import Shape
    from .ring import Mark, RingWriter
    from .shapes import Encoder
    from .values import Points

_WIDEST_FIRST = (tensor.DOUBLE, tensor.INT, tensor.FLOAT)  # so that values stay aligned
_MOST_PLANS = 1024


class _LeftOut(Exception):
    """Why the device values of a record cannot be had."""


class Plan:
    """How records of the same keys and types are laid out: made once, used with every call."""

    __slots__ = ("cell_bytes", "content", "dtypes", "first", "groups", "index", "pack", "shape")

    def __init__(self, shape: Shape, values: Sequence[Any], places: list[int]) -> None:
        """`places`: where `values` holds device values."""
        by_kind: dict[int, list[int]] = {kind: [] for kind in _WIDEST_FIRST}
        for place in places:
            by_kind[tensor.kind_of(values[place].dtype)[0]].append(place)
        self.shape = shape
        self.groups = [(kind, some) for kind, some in by_kind.items() if some]
        self.dtypes = [(place, values[place].dtype) for place in places]
        self.index = -1  # of the CUDA device on which they all are, if that can be told at a glance
        if all(tensor.is_tensor(values[place]) for place in places):
            indexes = {values[place].get_device() for place in places}
            if len(indexes) == 1 and not any(values[place].ndim for place in places):
                self.index = indexes.pop()
        self.content, self.first = cells.describe(
            [(place, kind) for kind, some in self.groups for place in some]
        )
        self.cell_bytes = 16 + len(self.content)
        self.pack = (
            Struct("<" + "".join(STRUCT_CODES[code] for code in shape.codes)).pack if shape.fixed else None
        )

    def fits(self, values: Sequence[Any]) -> bool:
        """Are these 0-d tensors on the same device, and of the same types?"""
        index = self.index
        for place, dtype in self.dtypes:
            value = values[place]
            if value.dtype is not dtype or value.ndim or value.get_device() != index:
                return False
        return True

    def payload(self, values: list[Any]) -> bytes:
        """The record's payload with zeros for device values, which `values` loses. Raises StructError, TypeError."""
        for place, _ in self.dtypes:
            values[place] = 0
        return pack_payload(self.shape.codes, values) if self.pack is None else self.pack(*values)


class Device:
    """What one process incarnation needs to log device values. Makes nothing before the first one."""

    __slots__ = (
        "_cells",
        "_cuda",
        "_jax",
        "_lanes",
        "_lose",
        "_mark",
        "_no_cells",
        "_no_cuda",
        "_plans",
        "_room",
    )

    def __init__(
        self, lanes: Lanes, room: Callable[[], int], lose: Callable[[int], None], mark: Mark
    ) -> None:
        """`room` tells what is left of the run's shared memory, `lose` counts values that never came."""
        self._lanes = lanes
        self._room = room
        self._lose = lose
        self._mark = mark
        self._cells: cells.Cells | None = None
        self._cuda: CudaCopies | None = None
        self._jax: JaxCopies | None = None
        self._no_cells = self._no_cuda = ""  # why there are none
        self._plans: dict[object, Plan] = {}

    def offer_again(
        self, kinds: object, encoder: Encoder, next_order: Callable[[], int], step: int, found: Sequence[Any]
    ) -> bool:
        """Commit a record like one before: same keys, same types. False, with nothing done, where it is none."""
        plan = self._plans.get(kinds)
        if plan is None or not plan.fits(found) or self._cuda is None or self._cuda.is_possible():
            return False
        return not self._offer(encoder, next_order, step, list(found), plan, self._cuda)

    def offer(
        self, encoder: Encoder, next_order: Callable[[], int], step: int, points: Points, kinds: object
    ) -> bool:
        """Commit a record with device values; False, with those left out of `points`, where that cannot be.

        `kinds` stands for its keys and types, where all its values are as the user gave them; else None.
        """
        codes = list(points.codes)
        places = [place for place, code in enumerate(codes) if code == tensor.CODE]
        for place in places:
            codes[place] = tensor.kind_of(points.values[place].dtype)[1]
        shape = encoder.shape_of(tuple(points.names), "".join(codes))
        plan = Plan(shape, points.values, places)
        why = self._offer(encoder, next_order, step, list(points.values), plan)
        if why:
            points.leave_device_values_out(why)
        elif (
            kinds is not None
            and plan.index >= 0
            and shape.head & layout.SHAPE_MASK
            and len(self._plans) < _MOST_PLANS
        ):
            self._plans[kinds] = plan
        return not why

    def _offer(
        self,
        encoder: Encoder,
        next_order: Callable[[], int],
        step: int,
        values: list[Any],
        plan: Plan,
        known: CudaCopies | None = None,
    ) -> str:
        """Why not, or nothing. `known`: who copies these, which fit the plan."""
        lane = None
        me = object()
        try:
            if self._cuda is None or self._cuda.waiting or self._jax is not None:
                self.settle()
            try:
                lane = self._lanes.device.pop()
            except IndexError as error:
                if not is_empty(error):
                    raise
                return "no lane for device values is free"
            try:
                self._commit(encoder, next_order, step, values, plan, lane, me, known)
            except _LeftOut as why:
                return str(why)
            except BaseException as error:
                committed = lane.resync()
                if not foreign.is_own(error):
                    raise
                if not committed:
                    return f"a failure of logclient itself: {type(error).__name__}: {error}"
            return ""
        finally:
            if self._cells is not None:
                self._cells.drop(me)
            if lane is not None:
                lane.home.append(lane)
                lane = None

    def _commit(
        self,
        encoder: Encoder,
        next_order: Callable[[], int],
        step: int,
        values: list[Any],
        plan: Plan,
        lane: RingWriter,
        me: object,
        known: CudaCopies | None,
    ) -> None:
        groups = [(kind, [values[place] for place in places]) for kind, places in plan.groups]
        copies = known or self._copies(groups)
        payload = encoder.definition_of(plan.shape) + plan.payload(values)
        if cells.REFERENCE.size + len(payload) > lane.largest:
            raise _LeftOut("too much else in one call")
        area = self._memory()
        if plan.cell_bytes > cells.LARGEST:
            raise _LeftOut("more values of a device in one call than there is room for")
        oldest = lane.oldest_in_the_way(layout.FRAME_PREFIX + cells.REFERENCE.size + len(payload))
        claimed = None
        if oldest is None or not area.is_awaited(oldest[layout.FRAME_PREFIX :]):
            claimed = area.claim(plan.cell_bytes, me)
        if claimed is None:
            raise _LeftOut("the device is so far behind that there is no room for more of its values")
        cell, taken = claimed
        area.begin(cell, plan.content, lane)
        try:
            if known is None:
                foreign.call(copies.start, cell, plan.first, groups)
            else:
                foreign.call(known.start_plain, cell, plan.first, groups, plan.index)
        except foreign.Failed as error:
            raise _LeftOut(f"copying it from the device failed ({error})") from None
        seq = lane.seq + 1
        prefix = encoder.body(seq, next_order(), step, time_ns(), layout.DEVICE_SHAPE)
        head = encoder.head_of(plan.shape)
        try:
            lane.offer_body(prefix, cells.REFERENCE.pack(head, cell, taken) + payload, seq)
        except TooLarge:
            raise _LeftOut("too much else in one call") from None
        area.name(cell, lane)

    def _memory(self) -> cells.Cells:
        """Made with the first device value."""
        if self._cells is None and not self._no_cells:
            stem = self._lanes.path[: -len("lanes")]
            try:
                if not self._lanes.device_count:
                    raise OSError("this process has too little of it")
                self._cells = cells.reserve(f"{stem}device", self._room, self._mark)
            except OSError as error:
                self._no_cells = f"no shared memory for device values: {error}"
        if self._cells is None:
            raise _LeftOut(self._no_cells)
        return self._cells

    def _copies(self, groups: list[tuple[int, list[Any]]]) -> CudaCopies | JaxCopies:
        """Who copies these. With the first of them the memory is locked."""
        kinds = {tensor.is_tensor(value) for _, some in groups for value in some}
        if len(kinds) > 1:
            raise _LeftOut("arrays of JAX and tensors of torch in one call")
        if kinds == {False}:
            if self._jax is None:
                self._jax = JaxCopies(self._memory(), self._lose)
            return self._jax
        if self._cuda is None and not self._no_cuda:
            try:
                self._cuda = CudaCopies(self._memory())
            except CannotLock as error:
                self._no_cuda = f"its value cannot be had without waiting: {error}"
            except Exception as error:
                if foreign.is_users(error):
                    raise
                self._no_cuda = f"its value cannot be had without waiting ({type(error).__name__})"
        if self._cuda is None:
            raise _LeftOut(self._no_cuda)
        why = self._cuda.is_possible()
        if why:
            raise _LeftOut(why)
        return self._cuda

    def settle(self) -> None:
        """See to copies that need a later call. Looks, and does not wait."""
        for copies in (self._cuda, self._jax):
            if copies is not None and copies.waiting:
                try:
                    foreign.call(copies.settle)
                except foreign.Failed:
                    continue  # the device is lost, or busy with a capture: what is missing is counted at the end

    def describe(self) -> dict[str, Any]:
        """For `status()`: how values come, why not better, and how many copies are on their way."""
        if self._cuda is not None:
            way, trouble = self._cuda.way, self._cuda.trouble
        else:
            trouble = self._no_cells or self._no_cuda
            way = "later call" if self._jax is not None else "none" if trouble else ""
        in_flight = 0 if self._cells is None else self._cells.in_flight()
        return {"way": way, "trouble": trouble, "in_flight": in_flight}

    def detach(self) -> None:
        """In a forked child, for good: the copies and the memory are the parent's."""
        if self._cells is not None:
            self._cells.detach()
        self._jax = None
        self._cuda = None  # `copies` keeps it: what CUDA made must not be freed in a child

    def release(self) -> None:
        """The run is over in this process. Locked memory is kept: copies may be on their way into it."""
        if self._cuda is not None:
            self._cuda.is_over = True
        elif self._cells is not None:
            self._cells.map.let_go()
