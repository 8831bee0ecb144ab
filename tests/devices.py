"""A device without one: arrays whose values come when the test says so, by the way that arrays of JAX take.

The name of the class and of its module are what `logclient.encode.tensor.is_jax` goes by. Whoever reads a value before
it is there fails the test: that would have been a wait. Its copy to the host follows a little later than the array says
that it is computed, as on a real device.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

HOST_COPY_S = 0.001


class Arrived:
    """What a hanging device is released by."""

    def __init__(self, *, at: float = 0.0) -> None:
        """`at`: time.monotonic() from which values are there; 0: at once."""
        self.at = at

    def __bool__(self) -> bool:
        return time.monotonic() >= self.at

    def is_on_host(self) -> bool:
        return time.monotonic() >= self.at + HOST_COPY_S


class ArrayImpl:
    """One value on a device."""

    is_fully_addressable = True

    def __init__(self, value: object, arrived: Arrived | None = None, dtype: str = "float32") -> None:
        self._value = np.array(value, dtype)
        self._arrived = Arrived() if arrived is None else arrived
        self.dtype = self._value.dtype
        self.size = self._value.size
        self.shape = self._value.shape
        self.donated = False
        self.copies_started = 0

    def is_deleted(self) -> bool:
        return self.donated

    def is_ready(self) -> bool:
        return bool(self._arrived)

    def copy_to_host_async(self) -> None:
        self.copies_started += 1

    def devices(self) -> set[Any]:
        return {type("Gpu", (), {"platform": "gpu"})}

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.donated:
            raise RuntimeError("Array has been deleted")
        assert self._arrived.is_on_host() and self.copies_started, "somebody waited for the device"
        return self._value

    def __float__(self) -> float:
        raise AssertionError("somebody waited for the device")


ArrayImpl.__module__ = "jaxlib._jax"
