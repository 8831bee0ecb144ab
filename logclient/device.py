"""Values that lie on a device: their record is committed at once, the values come when the device is that far.

Runs in the training process, inside `log()`, only for records with such values.

Invariants:

- step, time and host values of the record are those of the call; so are the device values, whatever happens to the
  tensors afterwards;
- what cannot be had without waiting is left out, counted, and said once; the rest of the record arrives;
- such records have lanes of their own: a device that hangs holds up no other record.
"""

from __future__ import annotations

from time import time_ns

from . import cells, foreign, layout, tensor
from .copies import CannotLock, CudaCopies, JaxCopies
from .lanes import is_empty
from .ring import TooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .lanes import Lanes
    from .ring import Mark, RingWriter
    from .shapes import Encoder
    from .values import Points

_WIDEST_FIRST = (tensor.DOUBLE, tensor.INT, tensor.FLOAT)  # so that values stay aligned


class _LeftOut(Exception):
    """Why the device values of a record cannot be had."""


class Device:
    """What one process incarnation needs to log device values. Makes nothing before the first one."""

    __slots__ = ("_cells", "_cuda", "_jax", "_lanes", "_lose", "_mark", "_no_cells", "_no_cuda", "_room")

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

    def offer(self, encoder: Encoder, next_order: Callable[[], int], step: int, points: Points) -> bool:
        """Commit a record with device values; False, with those left out of `points`, where that cannot be."""
        lane = None
        me = object()
        try:
            self.settle()
            try:
                lane = self._lanes.device.pop()
            except IndexError as error:
                if not is_empty(error):
                    raise
                points.leave_device_values_out("no lane for device values is free")
                return False
            try:
                self._commit(encoder, next_order, step, points, lane, me)
            except _LeftOut as why:
                points.leave_device_values_out(str(why))
                return False
            return True
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
        points: Points,
        lane: RingWriter,
        me: object,
    ) -> None:
        values, codes = list(points.values), list(points.codes)
        by_type: dict[int, list[Any]] = {}
        found: dict[int, list[int]] = {}
        for place, code in enumerate(codes):
            if code == tensor.CODE:
                kind, codes[place] = tensor.kind_of(values[place].dtype)
                by_type.setdefault(kind, []).append(values[place])
                found.setdefault(kind, []).append(place)
                values[place] = 0
        groups = [(kind, by_type[kind]) for kind in _WIDEST_FIRST if kind in by_type]
        copies = self._copies([one for _, some in groups for one in some])
        shape = encoder.shape_of(tuple(points.names), "".join(codes))
        payload = encoder.payload_of(shape, values)
        if cells.REFERENCE.size + len(payload) > lane.largest:
            raise _LeftOut("too much else in one call")
        head, first, size = cells.describe([(place, kind) for kind, _ in groups for place in found[kind]])
        area = self._memory()
        claimed = area.claim(size, me)
        if claimed is None:
            raise _LeftOut("too many values are on their way from the device already, or in one call")
        cell, taken = claimed
        area.begin(cell, head, lane)
        try:
            foreign.call(copies.start, cell, taken, first, groups)
        except foreign.Failed as error:
            raise _LeftOut(f"copying it from the device failed ({error})") from None
        prefix = encoder.body(lane.seq + 1, next_order(), step, time_ns(), layout.DEVICE_SHAPE)
        try:
            lane.offer_body(prefix, cells.REFERENCE.pack(shape.head, cell, taken) + payload, lane.seq + 1)
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

    def _copies(self, values: list[Any]) -> CudaCopies | JaxCopies:
        """Who copies these. With the first of them the memory is locked."""
        area = self._memory()
        kinds = {tensor.is_tensor(value) for value in values}
        if len(kinds) > 1:
            raise _LeftOut("arrays of JAX and tensors of torch in one call")
        if kinds == {False}:
            if self._jax is None:
                self._jax = JaxCopies(area, self._lose)
            return self._jax
        if self._cuda is None and not self._no_cuda:
            try:
                self._cuda = CudaCopies(area)
            except CannotLock as error:
                self._no_cuda = f"its value cannot be had without waiting: {error}"
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
