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

from _operator import pos
from time import time_ns

from ..guest import foreign
from ..shm import cells, layout
from ..shm.record import BODY, Shape, pack_payload
from ..shm.ring import Forked, TooLarge
from . import tensor
from .device_copy import CannotLock, JaxCopies, copies_into, is_captured
from .lanes import is_empty
from .values import INT64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..shm.ring import Mark, RingWriter
    from ..typed import DeviceStatus
    from .device_copy import CudaCopies
    from .lanes import Lanes

_WIDEST_FIRST = (tensor.DOUBLE, tensor.INT, tensor.FLOAT)  # so that values stay aligned


class _LeftOut(Exception):
    """Why the device values of a record cannot be had."""


class Plan:
    """The layout of records with the same keys and types: made once, used with every call."""

    __slots__ = (
        "cell_bytes",
        "content",
        "definition",
        "dtypes",
        "first",
        "frame",
        "groups",
        "head",
        "index",
        "ints",
        "kinds",
        "others",
        "rank",
        "shape",
        "types",
        "zeros",
    )

    def __init__(
        self, shape: Shape, values: Sequence[Any], places: list[int], rank: int, definition: bytes
    ) -> None:
        """Lay out a record.

        `places`: where `values` holds device values; `rank` as it stands in a head word; `definition`: what precedes
        the values where the shape has no number.
        """
        by_kind: dict[int, list[int]] = {kind: [] for kind in _WIDEST_FIRST}
        for place in places:
            by_kind[tensor.kind_of(values[place].dtype)[0]].append(place)
        self.shape = shape
        self.rank = rank
        self.head = shape.head & layout.SHAPE_MASK | rank
        self.definition = definition
        self.groups = [(kind, some) for kind, some in by_kind.items() if some]
        self.kinds = tuple([(kind, len(some)) for kind, some in self.groups])
        self.dtypes = [(place, values[place].dtype) for _, some in self.groups for place in some]
        self.index = -1  # of the CUDA device on which they all are, if that can be told at a glance
        if all(tensor.is_tensor(values[place]) for place in places):
            indexes = {values[place].get_device() for place in places}
            if len(indexes) == 1 and not any(values[place].ndim for place in places):
                self.index = indexes.pop()
        self.content, self.first = cells.describe(
            [(place, kind) for kind, some in self.groups for place in some]
        )
        self.cell_bytes = 16 + len(self.content)
        self.others = len(values) - len(places)
        of_host = set(range(len(values))).difference(places)
        self.ints = [place for place in of_host if shape.codes[place] == "q"]
        self.zeros = [0] * len(places)
        # of what `Device.offer_again` commits: whole frames, the reference to a cell first
        self.frame: Shape | None = None
        self.types: tuple[type, ...] = ()

    def payload(self, values: Sequence[Any]) -> bytes:
        """Return the record's payload with zeros for device values. Raises StructError, TypeError."""
        return self.definition + pack_payload(self.shape.codes, self.without(values))

    def without(self, values: Sequence[Any]) -> list[Any]:
        """Zeros in place of device values."""
        left = [*values]
        for place, _ in self.dtypes:
            left[place] = 0
        return left

    def repeat(self, types: tuple[type, ...]) -> None:
        """Have `Device.offer_again` take records with values of these types."""
        self.types = types
        frame = Shape((), "qqq" + self.shape.codes, layout.DEVICE_SHAPE | self.rank)
        frame.exact = pos  # leaves any number as it is
        self.frame = frame


class Device:
    """Memory and copies for the device values of one process incarnation. Makes nothing before the first value."""

    __slots__ = (
        "_cells",
        "_cuda",
        "_jax",
        "_lanes",
        "_lose",
        "_making",
        "_mark",
        "_no_cells",
        "_no_cuda",
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
        self._making: dict[str, object] = {}  # the token (see `shm/ring.py`) of the call that makes some

    def offer_again(self, plan: Plan, next_order: Callable[[], int], step: int, found: Sequence[Any]) -> bool:
        """Commit a record like the one of the plan. False, with nothing done, where it takes more than usual."""
        copies, area, frame = self._cuda, self._cells, plan.frame
        if copies is None or area is None or frame is None or self._jax is not None:
            return False
        for place in plan.ints:
            if not -INT64 <= found[place] < INT64:
                return False
        try:
            tensors = copies.held(plan.index, plan.dtypes, found)
        except Exception as error:
            if foreign.is_users(error):
                raise
            return False
        if tensors is None:
            return False
        try:
            lane = self._lanes.device.pop()
        except IndexError as error:
            if not is_empty(error):
                raise
            return False
        me = cells.Claim()
        try:
            use = lane.next_position(frame.frame_bytes)
            claimed = None if use is None else area.claim(plan.cell_bytes, me)
            if use is None or claimed is None:
                return False
            cell, taken = claimed
            if not self._mark[0]:
                raise Forked
            area.uses[cell] = use
            area.mem[cell + 16 : cell + plan.cell_bytes] = plan.content
            try:
                copies.gather(cell + plan.first, plan.kinds, tensors, me)
            except Exception as error:
                if foreign.is_users(error):
                    raise
                plan.frame = None  # the usual way tells why
                area.give_up(me, me.launched)
                return False
            values = plan.without(found) if plan.others else plan.zeros
            lane.offer(frame, next_order(), step, (plan.head, cell, taken, *values))
            return True
        except BaseException as error:
            committed = lane.resync()
            if not committed:
                area.give_up(me, me.asked)
            if not foreign.is_own(error):
                raise
            return committed
        finally:
            claims = area.claims
            if me.cell in claims and claims[me.cell] is me:
                del claims[me.cell]
            lane.home.append(lane)
            lane = None  # type: ignore[assignment]  # as in `Run.log`

    def is_usual(self, plan: Plan) -> bool:
        """May records like it go the short way, `offer_again`?"""
        is_known = plan.shape.fixed and bool(plan.shape.head & layout.SHAPE_MASK)
        return is_known and self._cuda is not None and self._cuda.is_direct(plan.index)

    def offer(self, plan: Plan, next_order: Callable[[], int], step: int, values: list[Any]) -> str:
        """Commit a record with device values; returns why they cannot be had, with nothing done, else nothing."""
        lane = None
        me = cells.Claim()
        try:
            if self._cuda is None or self._cuda.waiting or self._jax is not None:
                self.settle()
            lane = self._lanes.take_device()
            if lane is None:
                return self._no_lane()
            try:
                self._commit(next_order, step, values, plan, lane, me)
            except BaseException as error:
                committed = lane.resync()
                if not committed and self._cells is not None:
                    self._cells.give_up(me, me.asked)
                if type(error) is _LeftOut:
                    return str(error)
                if not foreign.is_own(error):
                    raise
                if not committed:
                    return f"a failure of logclient itself: {type(error).__name__}: {error}"
            return ""
        finally:
            claims = {} if self._cells is None else self._cells.claims
            if me.cell in claims and claims[me.cell] is me:
                del claims[me.cell]
            if lane is not None:
                lane.home.append(lane)
                lane = None

    def _commit(
        self,
        next_order: Callable[[], int],
        step: int,
        values: list[Any],
        plan: Plan,
        lane: RingWriter,
        me: cells.Claim,
    ) -> None:
        groups = [(kind, [values[place] for place in places]) for kind, places in plan.groups]
        copies = self._copies(groups)
        payload = plan.payload(values)
        if cells.REFERENCE.size + len(payload) > lane.largest:
            raise _LeftOut("too much else in one call")
        area = self._memory()
        if plan.cell_bytes > cells.LARGEST:
            raise _LeftOut("more values of a device in one call than there is room for")
        oldest = lane.in_the_way(layout.FRAME_PREFIX + cells.REFERENCE.size + len(payload))
        claimed = None
        if not any(area.is_awaited(frame[layout.FRAME_PREFIX :]) for frame in oldest):
            claimed = area.claim(plan.cell_bytes, me)
        if claimed is None:
            raise _LeftOut("the device is so far behind that there is no room for more of its values")
        cell, taken = claimed
        area.begin(cell, plan.content, lane)
        try:
            foreign.call(copies.start, cell, plan.first, groups, me)
        except foreign.Failed as error:
            me.asked = me.launched
            raise _LeftOut(f"copying it from the device failed ({error})") from None
        seq = lane.seq + 1
        prefix = BODY.pack(seq, next_order(), step, time_ns(), layout.DEVICE_SHAPE | plan.rank)
        try:
            lane.offer_body(prefix, cells.REFERENCE.pack(plan.head, cell, taken) + payload, seq)
        except TooLarge:
            raise _LeftOut("too much else in one call") from None
        area.name(cell, lane)

    def _no_lane(self) -> str:
        if not self._lanes.device_count:
            self._no_cells = "no shared memory for device values: this process has too little of it"
        return self._no_cells or "no lane for device values is free: more than two calls at once have some"

    def _memory(self) -> cells.Cells:
        """Made with the first device value."""
        if self._cells is None and not self._no_cells:
            self._make(self._make_cells)
        if self._cells is None:
            raise _LeftOut(self._no_cells)
        return self._cells

    def _make_cells(self) -> None:
        if self._cells is not None:
            return
        stem = self._lanes.path[: -len("lanes")]
        try:
            self._cells = cells.reserve(f"{stem}device", self._room, self._mark)
        except OSError as error:
            if foreign.is_users(error):
                raise
            self._no_cells = f"no shared memory for device values: {error}"

    def _copies(self, groups: list[tuple[int, list[Any]]]) -> CudaCopies | JaxCopies:
        """Return the copier for these values. With the first of them the memory is locked."""
        kinds = {tensor.is_tensor(value) for _, some in groups for value in some}
        if len(kinds) > 1:
            raise _LeftOut("arrays of JAX and tensors of torch in one call")
        area = self._memory()
        if kinds == {False}:
            if self._jax is None:
                self._make(lambda: self._make_jax(area))
            return self._jax  # type: ignore[return-value]
        try:
            if foreign.call(is_captured):
                raise _LeftOut("logged while a CUDA graph is captured: its value would be that of no replay")
        except foreign.Failed as error:
            raise _LeftOut(f"the device cannot be asked for it ({error})") from None
        if self._cuda is None and not self._no_cuda:
            self._make(lambda: self._make_cuda(area))
        if self._cuda is None:
            raise _LeftOut(self._no_cuda)
        return self._cuda

    def _make_jax(self, area: cells.Cells) -> None:
        if self._jax is None:
            self._jax = JaxCopies(area, self._lose)

    def _make_cuda(self, area: cells.Cells) -> None:
        if self._cuda is not None or self._no_cuda:
            return
        try:
            self._cuda = copies_into(area)
        except CannotLock as error:
            self._no_cuda = f"its value cannot be had without waiting: {error}"
        except Exception as error:
            if foreign.is_users(error):
                raise
            self._no_cuda = f"its value cannot be had without waiting ({type(error).__name__})"

    def _make(self, make: Callable[[], None]) -> None:
        """Make what the first value needs, in one call; other calls that come meanwhile do not wait for it."""
        me = object()
        try:
            if self._making.setdefault("", me) is not me:
                raise _LeftOut("another call is about the first device value just now")
            make()
        finally:  # no call here, see "the token" in `shm/ring.py`
            if "" in self._making and self._making[""] is me:
                del self._making[""]

    def settle(self) -> None:
        """See to copies that need a later call. Looks, and does not wait."""
        for copies in (self._cuda, self._jax):
            if copies is not None and copies.waiting:
                try:
                    foreign.call(copies.settle)
                except foreign.Failed:
                    continue  # the device is lost, or busy with a capture: what is missing is counted at the end

    def describe(self) -> DeviceStatus:
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
