"""`torch.compile` and this package: a call of ours in a compiled region is one graph break, and is run as it is.

Runs in the training process, when this package is imported. Imports no torch.

Invariants:

- a function given to `keep_out` breaks the graph where it is called, by the mark that `torch.compiler.disable` leaves;
- torch compiles no frame of it, nor of what it calls: its code object is marked in torch's own table, at once where
  torch is loaded, else when `torch._dynamo` is about to be imported, which is before anything can be compiled;
- a call outside of compiled regions costs nothing more: no wrapper, no look.

The import is noticed by a finder in `sys.meta_path` that finds nothing.
"""

from __future__ import annotations

import sys
from types import CodeType, FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_WHY = (
    "logclient takes values out of the graph. With fullgraph=True, return them from the compiled function and log "
    "them where it was called: docs/integrations/torch.md"
)
_PACKAGE = __name__.partition(".")[0]
_entries: dict[CodeType, None] = {}  # of the functions that were given to `keep_out`


def keep_out(*things: Any) -> None:
    """Keep `torch.compile` out of these functions, and of all methods and properties of these classes."""
    for thing in things:
        for function in _functions(thing):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            function._torchdynamo_disable_msg = _WHY  # type: ignore[attr-defined]
            code = function.__code__
            if code not in _entries:
                _entries[code] = None
                if _is_marked:
                    _mark([code])


def _functions(thing: Any) -> Iterator[FunctionType]:
    if isinstance(thing, type):
        for member in vars(thing).values():
            if isinstance(member, (FunctionType, property, staticmethod, classmethod)):
                yield from _functions(member)
    elif isinstance(thing, property):
        yield from (each for each in (thing.fget, thing.fset, thing.fdel) if isinstance(each, FunctionType))
    elif isinstance(thing, (staticmethod, classmethod)):
        yield from _functions(thing.__func__)
    elif isinstance(thing, FunctionType):
        yield thing


def _mark(codes: Any) -> bool:
    """Mark these code objects in torch's table; False where torch is not loaded as far as that."""
    table = _table()
    if table is None:
        return False
    try:
        for code in codes:
            _skipper(table)(code)
    except (
        AttributeError,
        TypeError,
    ):  # a torch that marks code in another way: it compiles us, as any other code
        return False
    return True


def _table() -> Any:
    core = getattr(getattr(sys.modules.get("torch"), "_C", None), "_dynamo", None)
    return getattr(core, "eval_frame", None)


def _skipper(table: Any) -> Callable[[CodeType], object]:
    """Return what marks a code object, in the way of this version of torch."""
    mark = getattr(table, "set_code_exec_strategy", None)
    if mark is None:  # an older torch: marks one frame, and not those that it calls
        skip: Callable[[CodeType], object] = table.skip_code
        return skip
    skips = table._FrameAction.SKIP
    strategy = table._FrameExecStrategy(skips, skips)  # this frame, and those that it calls
    return lambda code: mark(code, strategy)


def _all_codes() -> Iterator[CodeType]:
    """Code objects of the modules of this package that are loaded, nested ones included."""
    for name, module in tuple(sys.modules.items()):
        if f"{name}.".startswith(f"{_PACKAGE}."):
            for thing in tuple(vars(module).values()):
                if getattr(thing, "__module__", None) == name:
                    for function in _functions(thing):
                        yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _begin() -> bool:
    """Mark what there is; True once torch took it."""
    table = _table()
    if table is None:  # most programs: the search below would take a millisecond of the import
        return False
    return _mark(tuple(_entries if hasattr(table, "set_code_exec_strategy") else _all_codes()))


class _Finder:
    """Notices that `torch._dynamo` is about to be imported; finds nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        global _is_marked
        if name == "torch._dynamo" and not _is_marked:
            _is_marked = _begin()


_is_marked = False


def watch_for_torch() -> None:
    """Mark the functions known so far, now or when torch can compile."""
    global _is_marked
    _is_marked = _begin()
    if not _is_marked:
        sys.meta_path.insert(0, _Finder())
