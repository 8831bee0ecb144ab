"""`logclient.watch`: norms of a model's gradients and parameters. The model is not kept alive."""

from __future__ import annotations

import sys
import weakref

from ..errors import BadArgument
from ..null import NullRun
from ..run import Run, session_of, why_closed
from ..shm.notices import write_stderr
from .passes import Taker, made, norms, plain, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..session.session import Session

_EDGES = tuple(10.0**power for power in range(-8, 2))  # of a histogram, whose keys end in their names
_LOWEST = "0"  # the bucket below the first edge

_warned: set[str] = set()  # warned of while there was no run to keep it


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
    watched = unwrapped(model)
    for taker in [*made]:
        if isinstance(taker, _Watch) and taker.is_of(watched):
            taker.remove()
    watch = _Watch(watched, every, (gradients, parameters, histograms), step, current)
    if not watch.hooks:
        watch.warn("no parameter of the model is trained, so that no backward pass is seen: watch it later")


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


class _Watch(Taker):
    """One model's watch."""

    word = "watch"

    def __init__(
        self,
        model: Any,
        every: int,
        what: tuple[bool, bool, bool],
        step: Callable[[], int] | None,
        current: Callable[[], Run | NullRun],
    ) -> None:
        self._model = weakref.ref(model)
        self._gradients, self._parameters, self._histograms = what
        self._current = current
        super().__init__([*model.parameters()], every, step)

    def is_of(self, model: Any) -> bool:
        return self._model() is model

    def target(self) -> tuple[Callable[[int, dict[str, Any]], None], Session] | None:
        run = self._current()
        return None if isinstance(run, NullRun) or why_closed(run) else (run.log, session_of(run))

    def values(self) -> dict[str, Any]:
        """Return norms, and shares where they are wanted."""
        model = self._model()
        if model is None:
            return {}
        found: dict[str, Any] = {}
        trained = [(plain(name), each) for name, each in model.named_parameters() if each.requires_grad]
        if self._gradients:
            self._measure(
                "grad", [(name, each.grad) for name, each in trained if each.grad is not None], found
            )
        if self._parameters:
            self._measure("param", trained, found)
        return found

    def _measure(self, kind: str, named: list[tuple[str, Any]], found: dict[str, Any]) -> None:
        torch = self.torch
        by_device = self.usable(named)
        for some in by_device.values():
            tensors = [each for _, each in some]
            sizes = norms(torch, tensors)
            found.update((f"{kind}/{name}/norm", norm) for (name, _), norm in zip(some, sizes, strict=True))
            if len(by_device) == 1:  # from several devices it would have to be gathered first
                found[f"{kind}/norm"] = torch.linalg.vector_norm(torch.stack(sizes))
            if self._histograms:
                for bucket, shares in _shares(torch, tensors):
                    found.update(
                        (f"{kind}/{name}/share/{bucket}", share)
                        for (name, _), share in zip(some, shares, strict=True)
                    )


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
        shares = torch._foreach_div(norms(torch, above, 1), numbers)
        name = f"{edge:.0e}".replace("e-0", "e-").replace("e+0", "e")
        yield name, shares if higher is None else list(torch._foreach_sub(shares, higher))
        higher = shares
    yield _LOWEST, [1 - share for share in higher or ()]
