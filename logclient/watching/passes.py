"""Backward passes of a model or of some tensors, counted by hooks: a *taker* gets its turn at the end of some.

Runs in the training process, in hooks that autograd calls. torch is whoever's tensors these are.

Invariants:

- a backward pass that is not looked at costs a counter: two parameters have a hook, no other is touched;
- a turn comes when the whole backward pass is over, behind DDP's averaging, and no collective is called: any rank may
  watch, or not;
- a failure of ours is swallowed, counted as a refused record and said once; it never comes out of `backward()`;
- neither copies of the tensors nor their pickles hold anything of ours.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial

from ..guest import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..session.session import Session

_MAX_VALUES = 1000  # of one record: what is on its way from a device has room for 8 such at a time
_WRAPPERS = ("module", "_orig_mod")  # where DDP and its kin, and torch.compile, have the model that they wrap
_WRAPPING = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.", "accelerate.", "deepspeed.")
_INSERTED = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_MISSED = 4  # gradients of the other parameter after which the one that counts passes is taken to have none any more
_JUMPS = 3  # of what DDP queues: for the first pass of a static graph it queues twice
_DEVICES = ("cpu", "cuda")

made: weakref.WeakSet[Taker] = weakref.WeakSet()  # kept by their hooks


class Taker:
    """Counts backward passes, and logs values at the end of the first and of each `every`-th."""

    word = ""  # for notices and counters

    def __init__(self, parameters: list[Any], every: int, step: Callable[[], int] | None) -> None:
        self.torch: Any = sys.modules["torch"]
        self._every = every
        self._step = step
        self._passes = 0
        self._left = 1
        self._leader = 0  # index of the hook that counts
        self._missed = 0
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        # last and first: of a body that is frozen later, or one of several heads, the other one still has gradients
        ends = {id(parameter): parameter for parameter in (*trained[-1:], *trained[:1])}
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._seen, index))
            for index, parameter in enumerate(ends.values())
        ]
        made.add(self)

    def target(self) -> tuple[Callable[[int, dict[str, Any]], None], Session] | None:
        """Return the `log` to call and the session behind it; None where nothing is logged now."""
        raise NotImplementedError

    def values(self) -> dict[str, Any]:
        """Return values by key, as tensors of no dimension where their tensors lie."""
        raise NotImplementedError

    def is_of(self, model: Any) -> bool:
        raise NotImplementedError

    def remove(self) -> None:
        """Let go of the parameters."""
        for hook in self.hooks:
            hook.remove()
        made.discard(self)

    def warn(self, why: str) -> None:
        """Once in a run."""
        target = self.target()
        if target is not None:
            target[1].warn_once(f"{self.word} {why}", f"{self.word}: {why}")

    def usable(self, named: list[tuple[str, Any]]) -> dict[Any, list[tuple[str, Any]]]:
        """Return by device the parts of these tensors that this rank has, but for those that have no sums."""
        local = [(name, local_part(each)) for name, each in named]
        found = [(name, each) for name, each in local if each.layout is self.torch.strided and each.numel()]
        found = [(name, each) for name, each in found if each.device.type in _DEVICES]
        if len(found) < len(local):
            self.warn("sparse and empty parameters, and those on devices other than CUDA's, are left out")
        by_device: dict[Any, list[tuple[str, Any]]] = {}
        for name, each in found:
            by_device.setdefault(each.device, []).append((name, each))
        return by_device

    def _seen(self, index: int, parameter: Any) -> None:
        """A gradient has come."""
        if index == self._leader:
            self._missed = 0
        else:
            self._missed += 1
            if self._missed < _MISSED:
                return
            self._leader, self._missed = index, 0
        self._passes += 1
        self._left -= 1
        if not self._left:
            self._left = self._every
            self._queue(_JUMPS, self._passes - 1)

    def _queue(self, jumps: int, step: int) -> None:
        """Have it taken when the backward pass is over, behind what DDP has queued by then."""
        if not jumps:
            return self._take(step)
        queue = self.torch.autograd.Variable._execution_engine.queue_callback
        self._guarded(queue, partial(self._queue, jumps - 1, step))

    def _take(self, step: int) -> None:
        target = self.target()
        if target is None or self._is_captured():
            return
        values = self._guarded(self._values)
        if not values:
            return
        if self._step is not None:
            step = self._step()  # the user's, as is what it raises
        entries = [*values.items()]
        for first in range(0, len(entries), _MAX_VALUES):
            target[0](step, dict(entries[first : first + _MAX_VALUES]))

    def _values(self) -> dict[str, Any]:
        with self.torch.no_grad():
            return self.values()

    def _is_captured(self) -> bool:
        """Is the backward pass being recorded into a CUDA graph? What we add would be played again with it."""
        cuda = self.torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ours; None where it failed. What a signal handler raises meanwhile passes through."""
        try:
            return function(*arguments)
        except Exception as error:
            if foreign.is_users(error):
                raise
            failed = f"{type(error).__name__}: {str(error)[:300]}"
            target = self.target()
            if target is not None:
                target[1].refuse(
                    f"in {self.word}", f"{self.word} failed, the training goes on without it: {failed}"
                )
        return None


def unwatch(model: Any = None) -> None:
    """Implement `logclient.unwatch`."""
    wanted = None if model is None else unwrapped(model)
    for taker in [*made]:
        if model is None or taker.is_of(wanted):
            taker.remove()


def unwrapped(model: Any) -> Any:
    """Return the model as the user wrote it, so that its parameters have their own names."""
    for _ in range(8):  # wrappers in wrappers
        parts = getattr(model, "_modules", {})
        inner = [parts[name] for name in _WRAPPERS if parts.get(name) is not None]
        if not inner or not f"{type(model).__module__}.".startswith(_WRAPPING):
            break
        model = inner[0]
    return model


def plain(name: str) -> str:
    """Return the name of a parameter without what wrappers around a part of the model put in."""
    if "_" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _INSERTED)


def local_part(tensor: Any) -> Any:
    """Return this rank's part of a tensor that ranks hold together."""
    to_local = getattr(tensor, "to_local", None)
    return tensor.detach() if to_local is None else to_local().detach()


def norms(torch: Any, tensors: list[Any], order: int = 2) -> list[Any]:
    """Return the norm of each tensor, in few kernels, with 32 bits at least."""
    if all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors):
        return list(torch._foreach_norm(tensors, order))
    try:
        return list(torch._foreach_norm(tensors, order, torch.float32))  # 16 bits hold no sum of squares
    except (TypeError, RuntimeError):  # older torch, or complex parameters
        wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
        return [torch.linalg.vector_norm(tensor, order) for tensor in wide]
