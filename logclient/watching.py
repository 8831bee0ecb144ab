"""`logclient.watch`: norms of a model's gradients and parameters, taken where they lie, logged without waiting.

Runs in the training process, in hooks that autograd calls. Loaded by the first `watch`; torch is whoever's model it is.

Invariants:

- a backward pass that is not looked at costs a counter: two parameters have a hook, no other is touched;
- what is taken is computed on the device, in few kernels, and handed to `Run.log` as it is: no value is asked for here;
- it is taken when the whole backward pass is over, behind DDP's averaging, and no collective is called: any rank may
  watch, or not;
- a failure of ours is swallowed, counted as a refused record and said once; it never comes out of `backward()`;
- the model is not kept alive, and neither its copies nor its pickles hold anything of ours.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial

from .errors import BadArgument
from .guest import foreign
from .null import NullRun
from .run import Run, refuse, session_of, why_closed
from .shm.notices import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_MAX_VALUES = 1000  # of one record: what is on its way from a device has room for 8 such at a time
_WRAPPERS = ("module", "_orig_mod")  # where DDP and its kin, and torch.compile, have the model that they wrap
_WRAPPING = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.", "accelerate.", "deepspeed.")
_MISSED = 4  # gradients of the other parameter after which the one that counts passes is taken to have none any more
_JUMPS = 3  # of what DDP queues: for the first pass of a static graph it queues twice
_EDGES = tuple(10.0**power for power in range(-8, 2))  # of a histogram, whose keys end in their names
_LOWEST = "0"  # the bucket below the first edge
_DEVICES = ("cpu", "cuda")

_warned: set[str] = set()  # warned of while there was no run to keep it
_watches: weakref.WeakKeyDictionary[Any, _Watch] = weakref.WeakKeyDictionary()


def watch(
    model: Any,
    every: int,
    gradients: bool,
    parameters: bool,
    histograms: bool,
    step: Callable[[], int] | None,
    current: Callable[[], Run | NullRun],
) -> None:
    """Implement `logclient.watch`; `current` gives the run to log to."""
    run = current()
    if isinstance(run, NullRun) and not why_closed(run):
        return  # disabled: not even a counter
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return _refuse(run, f"watch takes a torch.nn.Module, not a {type(model).__name__}")
    if type(every) is not int or every < 1:
        return _refuse(run, "watch(every=...) is an int from 1 on: so many backward passes")
    unwatch(model)
    made = _Watch(_unwrapped(model), every, (gradients, parameters, histograms), step, current)
    _watches[_unwrapped(model)] = made
    if not made.hooks:
        made.warn("no parameter of the model is trained, so that no backward pass is seen: watch it later")


def _refuse(run: Run | NullRun, why: str) -> None:
    """Nothing is watched: raised in strict mode, else said once."""
    if isinstance(run, Run):
        session = session_of(run)
        if session.settings.strict:
            raise BadArgument(why)
        session.warn_once(f"watch {why}", f"nothing is watched: {why}")
    elif why not in _warned:
        _warned.add(why)
        write_stderr(f"nothing is watched: {why}")


def unwatch(model: Any = None) -> None:
    """Implement `logclient.unwatch`."""
    for watched in [*_watches] if model is None else [_unwrapped(model)]:
        try:
            found = _watches.pop(watched, None)
        except TypeError:  # nothing that could have been watched
            return
        if found is not None:
            found.remove()


class _Watch:
    """One model's watch: counts backward passes, and takes its norms at the end of some."""

    def __init__(
        self,
        model: Any,
        every: int,
        what: tuple[bool, bool, bool],
        step: Callable[[], int] | None,
        current: Callable[[], Run | NullRun],
    ) -> None:
        self._model = weakref.ref(model)
        self._every = every
        self._gradients, self._parameters, self._histograms = what
        self._step = step
        self._current = current
        self._torch: Any = sys.modules["torch"]
        self._passes = 0
        self._left = 1
        self._leader = 0  # index of the hook that counts
        self._missed = 0
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # last and first: of a body that is frozen later, or one of several heads, the other one still has gradients
        ends = {id(parameter): parameter for parameter in (*trained[-1:], *trained[:1])}
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._seen, index))
            for index, parameter in enumerate(ends.values())
        ]

    def remove(self) -> None:
        """Let go of the model's parameters."""
        for hook in self.hooks:
            hook.remove()

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
        queue = self._torch.autograd.Variable._execution_engine.queue_callback
        self._guarded(queue, partial(self._queue, jumps - 1, step))

    def _take(self, step: int) -> None:
        run = self._current()
        if isinstance(run, NullRun) or why_closed(run):
            return
        values = self._guarded(self._values)
        if not values:
            return
        if self._step is not None:
            step = self._step()  # the user's, as is what it raises
        entries = [*values.items()]
        for first in range(0, len(entries), _MAX_VALUES):
            run.log(step, dict(entries[first : first + _MAX_VALUES]))

    def _values(self) -> dict[str, Any]:
        """By key, as tensors of no dimension where their parameters lie."""
        torch, model = self._torch, self._model()
        if model is None or self._is_captured():
            return {}
        found: dict[str, Any] = {}
        with torch.no_grad():
            trained = [(_plain(name), each) for name, each in model.named_parameters() if each.requires_grad]
            if self._gradients:
                self._measure(
                    "grad", [(name, each.grad) for name, each in trained if each.grad is not None], found
                )
            if self._parameters:
                self._measure("param", trained, found)
        return found

    def _measure(self, kind: str, named: Iterable[tuple[str, Any]], found: dict[str, Any]) -> None:
        torch = self._torch
        local = [(name, _local(each)) for name, each in named]
        usable = [(name, each) for name, each in local if each.layout is torch.strided and each.numel()]
        usable = [(name, each) for name, each in usable if each.device.type in _DEVICES]
        if len(usable) < len(local):
            self.warn("sparse and empty parameters, and those on devices other than CUDA's, have no norms")
        by_device: dict[Any, list[tuple[str, Any]]] = {}
        for name, each in usable:
            by_device.setdefault(each.device, []).append((name, each))
        for some in by_device.values():
            tensors = [each for _, each in some]
            norms = _norms(torch, tensors)
            found.update((f"{kind}/{name}/norm", norm) for (name, _), norm in zip(some, norms, strict=True))
            if len(by_device) == 1:  # from several devices it would have to be gathered first
                found[f"{kind}/norm"] = torch.linalg.vector_norm(torch.stack(norms))
            if self._histograms:
                for bucket, shares in _shares(torch, tensors):
                    found.update(
                        (f"{kind}/{name}/share/{bucket}", share)
                        for (name, _), share in zip(some, shares, strict=True)
                    )

    def _is_captured(self) -> bool:
        """Is the backward pass being recorded into a CUDA graph? What we add would be played again with it."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _guarded(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ours; None where it failed. What a signal handler raises meanwhile passes through."""
        try:
            return function(*arguments)
        except Exception as error:
            if foreign.is_users(error):
                raise
            why = f"watch failed, the training goes on without it: {type(error).__name__}: {str(error)[:300]}"
            refuse(self._current(), "in watch", why)
        return None

    def warn(self, why: str) -> None:
        """Once in a run."""
        run = self._current()
        if isinstance(run, Run):
            session_of(run).warn_once(f"watch {why}", f"watch: {why}")


def _unwrapped(model: Any) -> Any:
    """The model as the user wrote it, so that its parameters have their own names."""
    for _ in range(8):  # wrappers in wrappers
        parts = getattr(model, "_modules", {})
        inner = [parts[name] for name in _WRAPPERS if parts.get(name) is not None]
        if not inner or not f"{type(model).__module__}.".startswith(_WRAPPING):
            break
        model = inner[0]
    return model


def _plain(name: str) -> str:
    """Without what wrappers around a part of the model put in."""
    if "_" not in name:
        return name
    inserted = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    return ".".join(part for part in name.split(".") if part not in inserted)


def _local(tensor: Any) -> Any:
    """Return this rank's part of a tensor that ranks hold together."""
    to_local = getattr(tensor, "to_local", None)
    return tensor.detach() if to_local is None else to_local().detach()


def _norms(torch: Any, tensors: list[Any], order: int = 2) -> list[Any]:
    if all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors):
        return list(torch._foreach_norm(tensors, order))
    try:
        return list(torch._foreach_norm(tensors, order, torch.float32))  # 16 bits hold no sum of squares
    except (TypeError, RuntimeError):  # older torch, or complex parameters
        wide = [tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
        return [torch.linalg.vector_norm(tensor, order) for tensor in wide]


def _shares(torch: Any, tensors: list[Any]) -> Iterable[tuple[str, list[Any]]]:
    """By bucket, for each tensor the share of its elements whose size is above its edge, up to the next one.

    Counted with what takes many tensors at once: kernels by the number of edges, not of parameters.
    """
    sizes = torch._foreach_abs(tensors)
    numbers = [float(tensor.numel()) for tensor in tensors]
    higher: list[Any] | None = None
    for edge in reversed(_EDGES):
        above = torch._foreach_sub(sizes, edge)
        torch._foreach_sign_(above)
        torch._foreach_clamp_min_(above, 0)
        shares = torch._foreach_div(_norms(torch, above, 1), numbers)
        name = f"{edge:.0e}".replace("e-0", "e-").replace("e+0", "e")
        yield name, shares if higher is None else list(torch._foreach_sub(shares, higher))
        higher = shares
    yield _LOWEST, [1 - share for share in higher or ()]
