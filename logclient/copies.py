"""How values get from a device into a cell, without anybody waiting for the device.

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
from collections import deque
from struct import pack
from time import monotonic_ns

from . import foreign
from .cells import TYPES, Cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_VIEWS = 16_384  # of cells by number and type of values; some 500 bytes each
_HOST_COPY_NS = 5_000_000
_PORTABLE = 1  # cudaHostRegisterPortable: locked for every device of the process
_locked: list[
    CudaCopies
] = []  # of every run of this process; those that are over are unlocked by the next one


class CannotLock(Exception):
    """Neither way works; the message says why."""


def _move(queue: deque[Any], is_there: Callable[[Any], bool], take: Callable[[Any], None]) -> None:
    """Take entries from the front as long as they are there. Whatever interrupts, an entry is in the queue or taken."""
    while queue:
        entry = queue.popleft()
        try:
            found = is_there(entry)
        except BaseException:
            queue.appendleft(entry)
            raise
        if not found:
            queue.appendleft(entry)
            return
        take(entry)


class CudaCopies:
    """Tensors of CUDA and ROCm devices."""

    def __init__(self, cells: Cells) -> None:
        """Raises CannotLock."""
        self._cells = cells
        self._pending: deque[tuple[int, int, Any]] = (
            deque()
        )  # the values' start and end, event behind their copy
        self._torch: Any = sys.modules["torch"]
        self._stack = self._torch.stack
        self._capturing = self._torch._C._cuda_isCurrentStreamCapturing
        self._stream_key = self._torch._C._cuda_getCurrentStream  # the public call takes ten times as long
        self._streams: dict[tuple[int, ...], Any] = {}
        self._views: dict[tuple[int, int, int], Any] = {}
        self.way, self.trouble = "registered", ""
        self.is_over = False
        torch = self._torch
        for old in tuple(_locked):
            old.unlock()
        area = torch.frombuffer(cells.map, dtype=torch.uint8)
        code = int(torch.cuda.cudart().cudaHostRegister(area.data_ptr(), area.numel(), _PORTABLE))
        if code:
            self._clear_error()
            self.way = "pinned"
            self.trouble = f"the driver does not lock shared memory (error {code})"
            area = self._pinned(area.numel())
        self._area = area
        self._typed = {kind: area.view(self._dtype(kind)) for kind in TYPES}
        self._on_device = -1  # index of the device that sees the area as memory of its own
        if self.way == "registered":
            self._let_device_write()
        _locked.append(self)

    def _pinned(self, size: int) -> Any:
        try:
            return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
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
        if not self.is_over or self._pending or (self.way == "registered" and self._cells.in_flight()):
            return
        if self.way == "registered" and int(
            self._torch.cuda.cudart().cudaHostUnregister(self._area.data_ptr())
        ):
            self._clear_error()
            return
        if self in _locked:
            _locked.remove(self)
            self._cells.map.let_go()

    def is_possible(self) -> str:
        """Why a copy cannot be asked for just now, else nothing."""
        if self._capturing():
            return "logged while a CUDA graph is captured: its value would be that of no replay"
        return ""

    def start(self, cell: int, first: int, groups: list[tuple[int, list[Any]]]) -> None:
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
                    self._write(at, kind, tensors, device)
            else:
                self._write(at, kind, tensors, device)
            at += TYPES[kind][1] * len(tensors)
        if self.way == "pinned":
            event = torch.cuda.Event()
            event.record(stream)
            self._pending.append((cell + first, at, event))

    def start_plain(self, cell: int, first: int, groups: list[tuple[int, list[Any]]], index: int) -> None:
        """The same for 0-d tensors that are all on the device of that index."""
        if self._on_device != index or len(groups) > 1:
            return self.start(cell, first, groups)
        stream = self._stream(index)
        ((kind, tensors),) = groups
        has_history = False
        for tensor in tensors:
            tensor.record_stream(stream)
            has_history |= tensor.requires_grad
        if has_history:
            with self._torch.no_grad():
                self._stack(tensors, out=self._view(cell + first, kind, len(tensors)))
        else:
            self._stack(tensors, out=self._view(cell + first, kind, len(tensors)))

    def _write(self, at: int, kind: int, tensors: list[Any], device: Any) -> None:
        """One call of the driver where they are 0-d, of one dtype and on the usual device."""
        torch = self._torch
        if any([tensor.ndim or tensor.device != device for tensor in tensors]):  # noqa: C419
            tensors = [tensor.reshape(()).to(device, non_blocking=True) for tensor in tensors]
        view = self._view(at, kind, len(tensors))
        if self._on_device == device.index:
            torch.stack(tensors, out=view)
            return
        cast = self._dtype(kind)
        if any([tensor.dtype is not cast for tensor in tensors]):  # noqa: C419
            tensors = [tensor.to(cast) for tensor in tensors]
        view.copy_(torch.stack(tensors), non_blocking=True)

    def _view(self, at: int, kind: int, amount: int) -> Any:
        """That part of the area as a tensor; making one takes as long as filling it."""
        key = at, kind, amount
        view = self._views.get(key)
        if view is None:
            typed = self._typed if self._on_device < 0 else self._direct
            view = typed[kind].narrow(0, at // TYPES[kind][1], amount)
            if len(self._views) >= MOST_VIEWS:
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
        """Of the way by a pinned buffer: move what has arrived into its cell. Looks, and does not wait."""
        _move(self._pending, lambda entry: bool(entry[2].query()), self._take)

    def _take(self, entry: tuple[int, int, Any]) -> None:
        start, end, _ = entry
        self._cells.mem[start:end] = memoryview(self._area[start:end].numpy())

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
        self._pending: deque[tuple[int, int, list[tuple[int, Any]]]] = deque()
        self._computed: deque[tuple[int, Any]] = deque()  # when that was seen, and the entry

    def start(self, cell: int, first: int, groups: list[tuple[int, list[Any]]]) -> None:
        """As of `CudaCopies`."""
        arrays = [(kind, array) for kind, some in groups for array in some]
        for _, array in arrays:
            array.copy_to_host_async()
        self._pending.append((cell, first, arrays))

    def settle(self) -> None:
        """Move what has arrived into its cell. Looks, and does not wait."""
        now = monotonic_ns()
        _move(self._pending, _is_computed, lambda entry: self._computed.append((now, entry)))
        _move(self._computed, lambda seen: now - seen[0] >= _HOST_COPY_NS, lambda seen: self._read(*seen[1]))

    def _read(self, cell: int, first: int, arrays: list[tuple[int, Any]]) -> None:
        at, lost = cell + first, 0
        for index, (kind, array) in enumerate(arrays):
            letter, size = TYPES[kind]
            value = _value(array)
            if value is None:
                lost += 1
                self._cells.lose(cell, index)
            else:
                self._cells.mem[at : at + size] = pack(letter, value)
            at += size
        self._lose(lost)

    @property
    def waiting(self) -> int:
        return len(self._pending) + len(self._computed)


def _is_computed(entry: tuple[int, int, list[tuple[int, Any]]]) -> bool:
    return all(array.is_deleted() or array.is_ready() for _, array in entry[2])


def _value(array: Any) -> Any:
    """Of an array that is ready; None where it was given away to a later computation (donated) or failed."""
    try:
        return foreign.call(_read, array)
    except foreign.Failed:
        return None


def _read(array: Any) -> Any:
    numpy = sys.modules["numpy"]
    return numpy.asarray(array).reshape(()).item()
