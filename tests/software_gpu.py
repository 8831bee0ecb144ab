"""What `logclient` needs of torch, with a GPU in software: streams that run on when the test says so.

Stands in for the module `torch` (`installed`). A command waits in its stream until `gpu.run` comes by; memory of a
tensor that is gone is given to the next one of its stream at once, as torch's allocator does, so what was copied too
late or from the wrong memory is a wrong value. Reading a device's value is an error: it would have been a wait.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pytest

Memory: TypeAlias = "np.ndarray[Any, Any]"

_DTYPES = {
    "float32": "f4",
    "float64": "f8",
    "float16": "f2",
    "int64": "i8",
    "int32": "i4",
    "uint8": "u1",
    "bool": "?",
}


class Dtype:
    def __init__(self, name: str) -> None:
        self.name, self.numpy = name, np.dtype(_DTYPES[name])

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Stream:
    """Commands of one device, in order."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.commands: deque[Callable[[], bool]] = deque()  # each says whether it is done
        self.free: list[Memory] = []  # memory of tensors that are gone

    def run(self) -> None:
        while self.commands and self.commands[0]():
            self.commands.popleft()

    def wait_stream(self, other: Stream) -> None:
        passed: list[bool] = []
        other.commands.append(lambda: not passed.append(True))  # type: ignore[func-returns-value]
        self.commands.append(lambda: bool(passed))


class Gpu:
    """The devices, and what the driver was asked for."""

    def __init__(self, devices: int = 2, locks: bool = True, maps: bool = True) -> None:
        """`locks`: the driver locks memory that is not its own; `maps`: device 0 sees it as a tensor of its own."""
        self.locks, self.maps = locks, maps
        self.default = [Stream(index) for index in range(devices)]
        self.current = list(self.default)
        self.streams = list(self.default)
        self.locked: dict[int, Memory] = {}
        self.areas: dict[int, Memory] = {}
        self.capturing: Stream | None = None
        self.is_whole = True  # the graph that is captured
        self.launches = 0

    def run(self) -> None:
        """The devices do all that they were asked to."""
        while any(stream.commands for stream in self.streams):
            before = sum(len(stream.commands) for stream in self.streams)
            for stream in self.streams:
                stream.run()
            if sum(len(stream.commands) for stream in self.streams) == before:
                raise RuntimeError("streams wait for each other")

    def launch(self, index: int, command: Callable[[], Any]) -> None:
        self.launches += 1

        def run() -> bool:
            command()
            return True

        self.current[index].commands.append(run)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current[stream.index] = self.current[stream.index], stream
        try:
            yield
        finally:
            self.current[stream.index] = before

    @contextmanager
    def captured(self, stream: Stream) -> Iterator[None]:
        """What goes to the stream is captured into a graph. None but a stream of its own takes that."""
        assert stream not in self.default
        self.capturing, self.is_whole = stream, True
        try:
            with self.stream(stream):
                yield
        finally:
            self.capturing = None
        assert self.is_whole, "the capture was ended by a call that the driver forbids meanwhile"

    def forbidden_in_a_capture(self) -> None:
        """Of what ends one, whoever does it."""
        if self.capturing is not None:
            self.is_whole = False
            raise RuntimeError("operation not permitted when stream is capturing")

    def number(self, stream: Stream) -> int:
        """As torch has it: the default one of each device is 0."""
        return 0 if stream in self.default else 1 + self.streams.index(stream)

    def new_stream(self, index: int = 0) -> Stream:
        self.streams.append(Stream(index))
        return self.streams[-1]


class Tensor:
    """On a device (`device.type` is "cuda"), or on the host."""

    requires_grad = False

    __module__ = "torch"
    layout = "strided"
    is_nested = is_quantized = False

    def __init__(self, gpu: Gpu, data: Memory, dtype: Dtype, index: int, home: Stream | None = None) -> None:
        self._gpu, self._data, self.dtype, self._index = gpu, data, dtype, index
        self._home = home  # whose memory it is
        self._others: list[Stream] = []  # that use it, too
        self.device = SimpleNamespace(type="cpu" if index < 0 else "cuda", index=index)

    def __del__(self) -> None:
        if self._home is not None and not any(stream.commands for stream in self._others):
            self._home.free.append(self._data)

    def get_device(self) -> int:
        return self._index

    @property
    def is_cpu(self) -> bool:
        return bool(self.device.type == "cpu")

    @property
    def ndim(self) -> int:
        return self._data.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data.shape)

    def numel(self) -> int:
        return int(self._data.size)

    def data_ptr(self) -> int:
        return int(self._data.ctypes.data)

    def record_stream(self, stream: Stream) -> None:
        if stream is not self._home:
            self._others.append(stream)

    def _same(self, data: Memory, dtype: Dtype | None = None) -> Tensor:
        return Tensor(self._gpu, data, dtype or self.dtype, self._index)

    def view(self, dtype: Dtype) -> Tensor:
        return self._same(self._data.view(dtype.numpy), dtype)

    def reshape(self, shape: tuple[int, ...]) -> Tensor:
        return self._same(self._data.reshape(shape))

    def narrow(self, _: int, start: int, length: int) -> Tensor:
        return self._same(self._data[start : start + length])

    def __getitem__(self, part: slice) -> Tensor:
        return self._same(self._data[part])

    def unbind(self) -> list[Tensor]:
        return [self._same(self._data[index : index + 1].reshape(())) for index in range(len(self._data))]

    def detach(self) -> Tensor:
        return self

    def numpy(self) -> Memory:
        assert self._index < 0, "somebody waited for the device"
        return self._data

    def item(self) -> Any:
        return self.numpy().item()

    def __float__(self) -> float:
        return float(self.item())

    def to(self, where: Any, non_blocking: bool = False) -> Tensor:
        source, dtype, index = self._data, self.dtype, self._index
        if isinstance(where, Dtype):
            dtype = where
        else:
            index = where.index
        made = np.empty_like(source, dtype.numpy)
        self._gpu.launch(self._index, lambda: np.copyto(made, source, casting="unsafe"))
        if index != self._index:
            self._gpu.current[index].wait_stream(self._gpu.current[self._index])
        return Tensor(self._gpu, made, dtype, index)

    def copy_(self, source: Tensor, non_blocking: bool = False) -> None:
        data, other = self._data, source._data
        assert non_blocking or self._index == source._index, "somebody waited for the device"
        self._gpu.launch(source._index, lambda: np.copyto(data, other, casting="unsafe"))

    def add_(self, value: float) -> None:
        data = self._data
        self._gpu.launch(self._index, lambda: np.add(data, value, out=data, casting="unsafe"))


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._passed = False

    def record(self, stream: Stream) -> None:
        stream.commands.append(self._pass)

    def _pass(self) -> bool:
        self._passed = True
        return True

    def query(self) -> bool:
        self._gpu.forbidden_in_a_capture()
        return self._passed


class Torch(ModuleType):
    """The module: what of it is asked for, and `full` to make values."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__("torch")
        self.gpu = gpu
        for name in _DTYPES:
            setattr(self, name, Dtype(name))
        self.Tensor = Tensor
        self.nn = SimpleNamespace(
            Parameter=type("Parameter", (Tensor,), {"__module__": "torch.nn.parameter"})
        )
        self.strided = Tensor.layout
        self._C = SimpleNamespace(
            _len_torch_dispatch_stack=lambda: 0,
            _len_torch_function_stack=lambda: 0,
            _functorch=SimpleNamespace(is_functorch_wrapped_tensor=lambda tensor: False),
            _cuda_isCurrentStreamCapturing=lambda: gpu.current[0] is gpu.capturing,
            _cuda_getCurrentStream=lambda index: (gpu.number(gpu.current[index]), index, 1),
        )
        self.cuda = SimpleNamespace(
            Event=lambda: Event(gpu),
            cudart=lambda: self,
            current_stream=lambda index: gpu.current[index],
        )

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.gpu.forbidden_in_a_capture()
        if not self.gpu.locks:
            return 801
        self.gpu.locked[address] = self.gpu.areas[address]
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        return 0 if self.gpu.locked.pop(address, None) is not None else 713

    def frombuffer(self, memory: Any, dtype: Dtype) -> Tensor:
        data = np.frombuffer(memory, dtype.numpy)
        self.gpu.areas[int(data.ctypes.data)] = data
        return Tensor(self.gpu, data, dtype, -1)

    def as_tensor(self, seen: Any, device: str) -> Tensor:
        if not self.gpu.maps:
            raise RuntimeError("invalid device pointer")
        address = seen.__cuda_array_interface__["data"][0]
        return Tensor(self.gpu, self.gpu.locked[address], self.uint8, 0)

    def empty(self, size: int, dtype: Dtype, device: str, pin_memory: bool) -> Tensor:
        return Tensor(self.gpu, np.zeros(size, dtype.numpy), dtype, -1)

    def zeros(self, size: int, device: str) -> None:
        return None

    def stack(self, tensors: list[Tensor], out: Tensor | None = None) -> Tensor:
        sources = [tensor._data for tensor in tensors]
        assert not any(tensor.ndim for tensor in tensors)
        first = tensors[0]
        made = out or Tensor(self.gpu, np.empty(len(sources), first.dtype.numpy), first.dtype, first._index)
        assert out is None or out._index == first._index, "a kernel cannot write there"
        target = made._data

        def gather() -> None:
            for index, source in enumerate(sources):
                target[index] = source

        self.gpu.launch(first._index, gather)
        return made

    def _foreach_copy_(self, targets: list[Tensor], sources: list[Tensor], non_blocking: bool) -> None:
        first = sources[0]
        assert {each._index for each in (*targets, *sources)} == {first._index}, "a kernel cannot go there"
        pairs = [(target._data, source._data) for target, source in zip(targets, sources, strict=True)]

        def copy() -> None:
            for target, source in pairs:
                np.copyto(target, source, casting="unsafe")

        self.gpu.launch(first._index, copy)

    @contextmanager
    def inference_mode(self, on: bool) -> Iterator[None]:
        yield

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        yield

    def full(
        self, value: object, dtype: str = "float32", index: int = 0, shape: tuple[int, ...] = ()
    ) -> Tensor:
        """A tensor whose value is written when its stream is that far, in memory that may have been another's."""
        kind: Dtype = getattr(self, dtype)
        home = self.gpu.current[index]
        fitting = [
            at for at, data in enumerate(home.free) if data.dtype == kind.numpy and data.shape == shape
        ]
        data = home.free.pop(fitting[0]) if fitting else np.zeros(shape, kind.numpy)
        self.gpu.launch(index, lambda: data.fill(value))
        return Tensor(self.gpu, data, kind, index, home)


def installed(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Torch:
    """As `torch` for the rest of the test."""
    torch = Torch(Gpu(**options))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch
