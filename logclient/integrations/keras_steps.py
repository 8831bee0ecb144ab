"""Keras 3: what happens between a step of the model and the callbacks, in the thread that trains.

Runs in the training process. On torch a metric's `result()` may be its variable, or a view of it (`TruePositives`, and
the example of a metric in Keras's documentation). Keras reads such a value in another thread, when the next batch may
have changed it. So the model's `train_function` is wrapped during a training, and what it returns is copied: where it
lies, by the device, in order with its other work.

Invariants:

- what the step returns or raises reaches Keras as before, but for the copies;
- nothing here waits for a device;
- the wrap goes when the training ends; one that an interrupted training left goes when the next one begins.
"""

from __future__ import annotations

import sys
from typing import Any

import keras

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HELD = ("jax", "torch")  # TensorFlow's step is a graph that takes its data itself


def hold(model: Any, stepped: Callable[[int | None, Any], Any]) -> None:
    """Wrap the step of this model: `stepped` gets the number of batches of each call, if known, and the values."""
    name, original = keras.config.backend(), getattr(model, "train_function", None)
    is_several = (getattr(model, "steps_per_execution", 1) or 1) > 1
    if original is None or name not in _HELD or not (name == "torch" or is_several):
        return
    model.train_function = _Held(original, stepped, in_tuple=name == "jax")


def let_go(model: Any) -> None:
    """Give the model its own step back."""
    held = getattr(model, "train_function", None)
    if type(held) is _Held:
        model.train_function = held.original


class _Held:
    """A model's step, and whom to tell of each call."""

    def __init__(
        self, original: Callable[..., Any], stepped: Callable[[int | None, Any], Any], *, in_tuple: bool
    ) -> None:
        self.original = original
        self._stepped = stepped
        self._in_tuple = in_tuple  # values, and a state

    def __call__(self, *arguments: Any) -> Any:
        data: Any = arguments[-1] if arguments else None
        count = len(data) if type(data) is list else None
        taken = _Taken(data) if count is None and hasattr(data, "__next__") else None
        made = self.original(*arguments[:-1], taken or data)
        logs = self._stepped(taken.count if taken else count, made[0] if self._in_tuple else made)
        if logs is None:  # we failed
            return made
        return (logs, *made[1:]) if self._in_tuple else logs


class _Taken:
    """An iterator over batches, and how many were taken."""

    __slots__ = ("_data", "count")

    def __init__(self, data: Iterator[Any]) -> None:
        self._data = data
        self.count = 0

    def __iter__(self) -> _Taken:
        return self

    def __next__(self) -> Any:
        made = next(self._data)
        self.count += 1
        return made


def copied(logs: Any) -> Any:
    """Return the values with a copy of each that lies in memory which may change."""
    if isinstance(logs, dict):
        return {name: copied(value) for name, value in logs.items()}
    if isinstance(logs, keras.Variable):
        logs = logs.value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(logs, torch.Tensor):
        return logs.detach().clone()
    return logs
