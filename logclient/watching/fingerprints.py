"""`run.fingerprint`: a few sums of each tensor, by which ranks that should hold the same are compared.

Keys are `fingerprint/<replicas>/<tensor>/<sum>`. The sums are:

- `bits`: the bits of each element as an integer, added up, its lowest 52 bits. It does not depend on the order in which
  a device adds, so replicas that are equal bit for bit have equal ones, on whatever devices they lie;
- `sum` and `norm`: of the values, for replicas that are equal within a tolerance only. Whole numbers and 8-bit floats
  have none.

A tensor of which each rank holds a part has the place of that part behind its name: `weight#1` is the second one. So
only equal parts are compared, whatever ranks hold them.
"""

from __future__ import annotations

import sys
import weakref

from ..errors import BadArgument
from ..guest import foreign
from .passes import Taker, local_part, made, norms, plain, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..session.session import Session

    Target = tuple[Callable[[int, dict[str, Any]], None], Session]

PREFIX = "fingerprint"
BITS, SUM, NORM = "bits", "sum", "norm"
_MASK = (1 << 52) - 1  # whatever reads numbers as floating point has these exactly
_MAX_WORD = 64  # characters
_PIECE = 1 << 23  # elements that are widened to 64 bits at a time: 64 MiB


def fingerprint(
    find: Callable[[], Target | None],
    params: Any,
    every: int,
    replicas: str,
    step: Callable[[], int] | None,
) -> None:
    """Implement `Run.fingerprint`; `find` gives the `log` to call and the session behind it."""
    target = find()
    if target is None:
        return
    session = target[1]
    torch = sys.modules.get("torch")
    if torch is None:
        return _refuse(
            session, f"fingerprint takes a torch.nn.Module or tensors, not a {type(params).__name__}"
        )
    if type(every) is not int or every < 1:
        return _refuse(session, "fingerprint(every=...) is an int from 1 on: so many backward passes")
    if type(replicas) is not str or not 0 < len(replicas) <= _MAX_WORD or "/" in replicas:
        return _refuse(
            session, f"fingerprint(replicas=...) is a text of up to {_MAX_WORD} characters without a slash"
        )
    try:
        found = foreign.call(_tensors, torch, params)
        if not found:
            return _refuse(
                session, f"fingerprint takes a torch.nn.Module or tensors, not a {type(params).__name__}"
            )
        foreign.call(_begin, torch, find, params, found, every, replicas, step)
    except foreign.Failed as failed:
        _refuse(session, f"fingerprint cannot use what it was given ({failed})")


def _begin(
    torch: Any,
    find: Callable[[], Target | None],
    params: Any,
    named: list[tuple[str, Any]],
    every: int,
    replicas: str,
    step: Callable[[], int] | None,
) -> None:
    model = unwrapped(params) if isinstance(params, torch.nn.Module) else None
    for taker in [*made]:
        if isinstance(taker, _Fingerprint) and taker.replicas == replicas and taker.is_of_any(model, named):
            taker.remove()
    taken = _Fingerprint(find, model, named, every, replicas, step)
    if not taken.hooks:
        taken.warn("none of the tensors is trained, so that no backward pass is seen: call it later")


def _refuse(session: Session, why: str) -> None:
    """Nothing is taken: raised in strict mode, else said once."""
    if session.settings.strict:
        raise BadArgument(why)
    session.warn_once(f"fingerprint {why}", f"no fingerprint is taken: {why}")


def _tensors(torch: Any, params: Any) -> list[tuple[str, Any]]:
    """Return names and tensors of a module, a dict, pairs, or tensors on their own; none where it is neither."""
    if isinstance(params, torch.nn.Module):
        return [(plain(name), each) for name, each in unwrapped(params).named_parameters()]
    if isinstance(params, torch.Tensor):
        return [("0", params)]
    try:
        entries = [*(params.items() if hasattr(params, "items") else params)]
    except TypeError:
        return []
    pairs = [entry if isinstance(entry, tuple) else (str(at), entry) for at, entry in enumerate(entries)]
    found = [(plain(str(pair[0])), pair[1]) for pair in pairs if len(pair) == 2]
    return (
        found if all(isinstance(each, torch.Tensor) for _, each in found) and len(found) == len(pairs) else []
    )


class _Fingerprint(Taker):
    """The fingerprints of one model, or of some tensors, for one word. Keeps none of them alive."""

    word = "fingerprint"

    def __init__(
        self,
        find: Callable[[], Target | None],
        model: Any,
        named: list[tuple[str, Any]],
        every: int,
        replicas: str,
        step: Callable[[], int] | None,
    ) -> None:
        self.target = find  # type: ignore[method-assign]
        self.replicas = replicas
        self._model = None if model is None else weakref.ref(model)
        self._named = [] if model is not None else [(name, weakref.ref(each)) for name, each in named]
        leaves = [each for _, each in named if each.is_leaf]
        super().__init__(leaves, every, step)

    def is_of(self, model: Any) -> bool:
        return self._model is not None and self._model() is model

    def is_of_any(self, model: Any, named: list[tuple[str, Any]]) -> bool:
        """Is it of this model, or of the first of these tensors?"""
        if model is not None:
            return self.is_of(model)
        return bool(self._named) and self._named[0][1]() is named[0][1]

    def values(self) -> dict[str, Any]:
        """Return the sums."""
        found: dict[str, Any] = {}
        # of a small tensor that is split, some ranks have nothing
        there = [(f"{name}{_place(each)}", each) for name, each in self._now() if local_part(each).numel()]
        for some in self.usable(there).values():
            stems = [f"{PREFIX}/{self.replicas}/{name}" for name, _ in some]
            tensors = [self.torch.view_as_real(each) if each.is_complex() else each for _, each in some]
            floats = [at for at, each in enumerate(tensors) if _has_norm(each)]
            sizes = norms(self.torch, [tensors[at] for at in floats]) if floats else []
            found.update(zip([f"{stem}/{BITS}" for stem in stems], _bits(self.torch, tensors), strict=True))
            for at, size in zip(floats, sizes, strict=True):
                wide = self.torch.promote_types(tensors[at].dtype, self.torch.float32)
                found[f"{stems[at]}/{SUM}"] = tensors[at].sum(dtype=wide)
                found[f"{stems[at]}/{NORM}"] = size
        return found

    def _now(self) -> list[tuple[str, Any]]:
        """Return the tensors as they are now: a model's parameters may have been replaced."""
        if self._model is not None:
            model = self._model()
            return [] if model is None else [(plain(name), each) for name, each in model.named_parameters()]
        return [(name, each) for name, ref in self._named if (each := ref()) is not None]


def _place(tensor: Any) -> str:
    """Return which part of a DTensor this rank holds: its coordinates along those dimensions that split it."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return ""
    coordinates = tensor.device_mesh.get_coordinate() or ()
    split = [
        str(at)
        for at, placement in zip(coordinates, placements, strict=False)
        if type(placement).__name__ != "Replicate"
    ]
    return "#" + ".".join(split) if split else ""


def _has_norm(tensor: Any) -> bool:
    return bool(tensor.is_floating_point()) and tensor.element_size() > 1


def _bits(torch: Any, tensors: list[Any]) -> list[Any]:
    """Return the sum of each tensor's bits, as an int64 of no dimension."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [_added(torch, each.view(whole[each.element_size()])) for each in tensors]
    return list((torch.stack(sums) & _MASK).unbind())


def _added(torch: Any, whole: Any) -> Any:
    """Return the sum of whole numbers. torch widens them all before it adds, so a large tensor is added by pieces."""
    if whole.numel() <= _PIECE or not whole.is_contiguous():
        return whole.sum(dtype=torch.int64)
    return torch.stack([piece.sum(dtype=torch.int64) for piece in whole.view(-1).split(_PIECE)]).sum()
