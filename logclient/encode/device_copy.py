"""Copies from a device into a cell, without anybody waiting for the device.

Runs in the training process, inside `log()`. Two ways, chosen with the first value:

- *registered*: the cells' memory is page-locked, and the device writes the values straight into the cell, behind what
  the stream that is current for the tensors has to do before. No later call has to do anything;
- *pinned*: where the driver refuses to lock that memory, the device copies into a pinned buffer and an event is
  recorded behind it; a later call of `log`, `flush`, `finish` or `status` that finds the event done moves the values
  into the cell. Arrays of JAX go the same way, with a copy to the host that they start themselves.

Invariants:

- nothing here waits for a device: no `item`, no synchronisation, no query that blocks; the first value locks memory;
- a tensor stays what it was at the call: its memory is not given to another stream before it was read;
- nothing is recorded for autograd;
- locked memory stays mapped until it is unlocked: a mapping that took its address would be refused;
- an error of a CUDA call of ours is not left behind for the user's next call to raise.
"""

from __future__ import annotations

import sys
from _collections import deque  # type: ignore[import-not-found]  # `collections` takes 3 ms to import
from struct import pack
from time import monotonic_ns

from ..guest import foreign
from ..shm.cells import ABSENT, TYPES, Cells, Claim
from ..shm.layout import CELL_HEADER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MAX_VIEWS = 16_384  # of cells by number and type of values; some 500 bytes each
_HOST_COPY_NS = 5_000_000
_ALREADY_LOCKED, _NOT_LOCKED = 712, 713  # cudaErrorHostMemoryAlreadyRegistered, ...NotRegistered
_PORTABLE = 1  # cudaHostRegisterPortable: locked for every device of the process
_locked: list[
    CudaCopies
] = []  # of every run of this process; those that are over are unlocked by the next one


class CannotLock(Exception):
    """Neither way works; the message says why."""


def copies_into(cells: Cells) -> CudaCopies:
    """Made for these cells, or found, where a call was interrupted that had made it. Raises CannotLock."""
    found = [made for made in tuple(_locked) if made.cells is cells]
    return found[0] if found else CudaCopies(cells)


def is_captured() -> bool:
    """Is what goes to the current CUDA stream being captured into a graph? Then nothing of ours may be asked for."""
    return bool(sys.modules["torch"]._C._cuda_isCurrentStreamCapturing())


class _Copy:
    """A copy that later calls complete, stage by stage."""

    __slots__ = ("claims", "seen_ns", "stage", "what")

    def __init__(self, what: Any) -> None:
        self.what = what
        self.claims: dict[int, object] = {}  # stage -> token (see `shm/ring.py`) of the call that is at it
        self.stage = 0
        self.seen_ns = 0


def _advance(
    queue: deque[_Copy], stage: int, is_there: Callable[[_Copy], bool], take: Callable[[_Copy], None]
) -> None:
    """Take copies from the front as long as they are there; `take` sets their next stage.

    Whatever interrupts, a copy is in its queue until it is taken, and taken once; nobody waits for another call.
    """
    while queue:
        try:
            copy = queue[0]
        except IndexError:  # another thread took the last one
            return
        me = object()
        try:
            if copy.claims.setdefault(stage, me) is not me or copy.stage < stage:
                return  # another call is at it, or was interrupted before it had moved it here
            if copy.stage == stage:
                if not is_there(copy):
                    return
                take(copy)
        finally:  # no call here, see "the token" in `shm/ring.py`
            if copy.stage > stage and queue and queue[0] is copy:
                del queue[0]
            if stage in copy.claims and copy.claims[stage] is me:
                del copy.claims[stage]


class CudaCopies:
    """Tensors of CUDA and ROCm devices."""

    def __init__(self, cells: Cells) -> None:
        """Raises CannotLock."""
        self.cells = cells
        self._pending: deque[_Copy] = deque()  # of the values' start and end, and the event behind them
        self._torch: Any = sys.modules["torch"]
        self._gather: Any = getattr(self._torch, "_foreach_copy_", None)
        self._stream_key = self._torch._C._cuda_getCurrentStream  # the public call takes ten times as long
        self._streams: dict[tuple[int, ...], Any] = {}
        self._views: dict[tuple[int, int, int], Any] = {}
        self._groups: dict[tuple[int, tuple[tuple[int, int], ...]], list[list[Any]]] = {}
        self.way, self.trouble = "registered", ""
        self.is_over = False
        for old in tuple(_locked):
            old.unlock()
        self._on_device = -1  # index of the device that sees the area as memory of its own
        with self._torch.inference_mode(False):  # else nobody could write to it outside of one
            self._area = self._locked_area()
            self._typed = {kind: self._area.view(self._dtype(kind)) for kind in TYPES}
            if self.way == "registered":
                self._let_device_write()
        _locked.append(self)

    def _locked_area(self) -> Any:
        torch = self._torch
        area = torch.frombuffer(self.cells.map, dtype=torch.uint8)
        code = int(torch.cuda.cudart().cudaHostRegister(area.data_ptr(), area.numel(), _PORTABLE))
        if not code:
            return area
        self._clear_error()
        if code == _ALREADY_LOCKED:  # by a call that was interrupted
            return area
        self.way = "pinned"
        self.trouble = f"the driver does not lock shared memory (error {code})"
        return self._pinned(area.numel())

    def _pinned(self, size: int) -> Any:
        try:
            return self._torch.empty(size, dtype=self._torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            if foreign.is_users(error):
                raise
            self._clear_error()
            raise CannotLock(f"{self.trouble}, and no pinned buffer can be had") from None

    def _let_device_write(self) -> None:
        """Show the area to one device as a tensor of its own: a kernel that gathers can write there."""
        try:
            seen = self._torch.as_tensor(_Seen(self._area.data_ptr(), self._area.numel()), device="cuda")
            if seen.data_ptr() == self._area.data_ptr():
                self._direct = {kind: seen.view(self._dtype(kind)) for kind in TYPES}
                self._on_device = int(seen.device.index)
        except (RuntimeError, TypeError, ValueError) as error:
            if foreign.is_users(error):
                raise
            self._clear_error()

    def _dtype(self, kind: int) -> Any:
        torch = self._torch
        return {"f": torch.float32, "d": torch.float64, "q": torch.int64}[TYPES[kind][0]]

    def _clear_error(self) -> None:
        """Have the error of a failed call raised here: the driver's own call that forgets it is not to be had."""
        for _ in range(3):
            try:
                self._torch.zeros(1, device="cuda")
                return
            except RuntimeError as error:
                if foreign.is_users(error):
                    raise

    def unlock(self) -> None:
        """Give the memory back, if its run is over and nothing is on its way into it any more."""
        if not self.is_over or self._pending or (self.way == "registered" and self.cells.in_flight()):
            return
        if self.way == "registered":
            code = int(self._torch.cuda.cudart().cudaHostUnregister(self._area.data_ptr()))
            if code:
                self._clear_error()
            if code not in (0, _NOT_LOCKED):  # the second: by a call that was interrupted
                return
        if self in _locked:
            _locked.remove(self)
            self.cells.map.let_go()

    def start(self, cell: int, first: int, groups: list[tuple[int, list[Any]]], me: Claim) -> None:
        """Have the values written from byte `first` of the cell on, group by group (type, tensors)."""
        torch = self._torch
        device = groups[0][1][0].device
        index = device.index
        stream = self._stream(index)
        at = cell + first
        for kind, tensors in groups:
            for tensor in tensors:
                tensor.record_stream(stream)
            if any([tensor.requires_grad for tensor in tensors]):  # noqa: C419 - a third of the time
                with torch.no_grad():  # costs as much as two of the calls here
                    self._write(at, kind, tensors, device, me)
            else:
                self._write(at, kind, tensors, device, me)
            at += TYPES[kind][1] * len(tensors)
        if self.way == "pinned":
            event = torch.cuda.Event()
            event.record(stream)
            copy, amount = _Copy((cell + first, at, event)), sum([len(tensors) for _, tensors in groups])
            append = self._pending.append
            me.asked = amount
            append(copy)

    def is_direct(self, index: int) -> bool:
        """Does the device of that index write by kernels of its own, so that `gather` works?"""
        return self._on_device == index >= 0 and self._gather is not None

    def held(self, index: int, dtypes: list[tuple[int, Any]], values: Sequence[Any]) -> list[Any] | None:
        """The tensors at those places, ready for `gather`; None where one is no 0-d tensor of that device and dtype."""
        key = self._stream_key(index)
        if key[0] and is_captured():  # nobody can capture what goes to the default stream
            return None
        stream = self._streams.get(key) or self._stream(index)
        tensors = []
        for place, dtype in dtypes:
            tensor = values[place]
            if tensor.dtype is not dtype or tensor.ndim or tensor.get_device() != index:
                return None
            tensor.record_stream(stream)
            tensors.append(tensor.detach() if tensor.requires_grad else tensor)
        return tensors

    def gather(self, at: int, kinds: tuple[tuple[int, int], ...], tensors: list[Any], me: Claim) -> None:
        """Have those of `held` written from byte `at` on: so many of each type in turn. A kernel for each type."""
        key = at, kinds
        groups = self._groups.get(key)
        if groups is None:
            groups = self._make_groups(at, kinds)
            if len(self._groups) * len(tensors) >= MAX_VIEWS:
                self._groups.clear()
            self._groups[key] = groups
        first = 0
        for views in groups:
            last = first + len(views)
            some = tensors[first:last]
            me.asked = last  # no call between
            self._gather(views, some, True)
            me.launched = first = last

    def _make_groups(self, at: int, kinds: tuple[tuple[int, int], ...]) -> list[list[Any]]:
        groups = []
        for kind, amount in kinds:
            size = TYPES[kind][1]
            groups.append(list(self._direct[kind].narrow(0, at // size, amount).unbind()))
            at += size * amount
        return groups

    def _write(self, at: int, kind: int, tensors: list[Any], device: Any, me: Claim) -> None:
        """One call of the driver where they are 0-d, of one dtype and on the usual device."""
        torch = self._torch
        if any([tensor.ndim or tensor.device != device for tensor in tensors]):  # noqa: C419
            tensors = [tensor.reshape(()).to(device, non_blocking=True) for tensor in tensors]
        view = self._view(at, kind, len(tensors))
        last = me.launched + len(tensors)
        if self._on_device == device.index:
            me.asked = last  # no call between
            torch.stack(tensors, out=view)
            me.launched = last
            return
        cast = self._dtype(kind)
        if any([tensor.dtype is not cast for tensor in tensors]):  # noqa: C419
            tensors = [tensor.to(cast) for tensor in tensors]
        row = torch.stack(tensors)
        if self.way == "registered":
            me.asked = last  # no call between
        view.copy_(row, non_blocking=True)
        if self.way == "registered":
            me.launched = last

    def _view(self, at: int, kind: int, amount: int) -> Any:
        """Return that part of the area as a tensor; making one takes as long as filling it."""
        key = at, kind, amount
        view = self._views.get(key)
        if view is None:
            typed = self._typed if self._on_device < 0 else self._direct
            view = typed[kind].narrow(0, at // TYPES[kind][1], amount)
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view

    def _stream(self, index: int) -> Any:
        key = self._stream_key(index)
        stream = self._streams.get(key)
        if stream is None:
            if len(self._streams) >= 256:
                self._streams.clear()
            stream = self._streams[key] = self._torch.cuda.current_stream(index)
        return stream

    def settle(self) -> None:
        """Move finished transfers of the pinned buffer into their cells. Never waits."""
        if self._pending and is_captured():
            return  # asking for an event would end the capture
        _advance(self._pending, 0, lambda copy: bool(copy.what[2].query()), self._take)

    def _take(self, copy: _Copy) -> None:
        start, end, _ = copy.what
        mem, values = self.cells.mem, memoryview(self._area[start:end].numpy())
        mem[start:end] = values
        copy.stage = 1  # no call between: what is there is never written again

    @property
    def waiting(self) -> int:
        """Copies that a later call has to complete."""
        return len(self._pending)


class _Seen:
    """Memory at that address, as libraries of CUDA show theirs to each other."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class JaxCopies:
    """Arrays of JAX: each starts its own copy to the host; a later call looks whether it is there.

    An array says when it is computed, but not when that copy has arrived, and reading it before would be a wait. The
    copy of one value follows within microseconds, so it is read `_HOST_COPY_NS` after the array was seen to be
    computed.
    """

    def __init__(self, cells: Cells, lose: Callable[[int], None]) -> None:
        self._cells = cells
        self._lose = lose
        self._pending: deque[_Copy] = deque()  # of cell, where its values start, and (type, array) of each
        self._computed: deque[_Copy] = deque()

    def start(self, cell: int, first: int, groups: list[tuple[int, list[Any]]], me: Claim) -> None:
        """Start the copies of a record, as `CudaCopies.start` does."""
        arrays = [(kind, array) for kind, some in groups for array in some]
        for _, array in arrays:
            array.copy_to_host_async()
        copy, append, amount = _Copy((cell, first, arrays)), self._pending.append, len(arrays)
        me.asked = amount  # no call between
        append(copy)

    def settle(self) -> None:
        """Move what has arrived into its cell. Looks, and does not wait."""
        _advance(self._pending, 0, _is_computed, self._see)
        now = monotonic_ns()
        _advance(self._computed, 1, lambda copy: now - copy.seen_ns >= _HOST_COPY_NS, self._read)

    def _see(self, copy: _Copy) -> None:
        copy.seen_ns = monotonic_ns()  # after the look: this process may have been stopped before it
        self._computed.append(copy)
        copy.stage = 1

    def _read(self, copy: _Copy) -> None:
        cell, first, arrays = copy.what
        values, lost = b"", []
        for index, (kind, array) in enumerate(arrays):
            letter, size = TYPES[kind]
            value = _value(array)
            if value is None:
                lost.append(index)
            values += ABSENT * (size // 4) if value is None else pack(letter, value)
        marks = self._cells.marks(cell, lost)
        mem, start, head = self._cells.mem, cell + first, cell + CELL_HEADER
        stop, end = start + len(values), head + len(marks)
        mem[start:stop] = values
        mem[head:end] = marks
        copy.stage = 2  # no call between: what is there is never written again
        copy.what = ()  # no array is kept
        self._lose(len(lost))

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._computed)


def _is_computed(copy: _Copy) -> bool:
    return all(array.is_deleted() or array.is_ready() for _, array in copy.what[2])


def _value(array: Any) -> Any:
    """Return the value of an array that is ready; None where it was donated to a later computation, or failed."""
    try:
        return foreign.call(_read, array)
    except foreign.Failed:
        return None


def _read(array: Any) -> Any:
    numpy = sys.modules["numpy"]
    return numpy.asarray(array).reshape(()).item()
