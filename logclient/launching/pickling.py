"""Pickles the call that goes to a rank of `logclient.launch`, and the result that comes back.

Runs in the process that calls `launch` and in its ranks.

A function of a notebook or of the script itself (of `__main__`) is sent by its code, with the globals that it and all
that it calls use. In the rank they are the contents of `__main__`, so a rank needs neither the notebook nor a second
run of the script, and what pickles by name there (a checkpoint, a data loader, a nested launch) works.
On the way back, classes and functions of `__main__` are told by name alone: an exception of the caller's own class is
caught by the caller's own `except`.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_MAIN = "__main__"
_MODULE, _FUNCTION = type(sys), type(lambda: None)


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Raises whatever pickling raises."""
    import dill  # costs 0.1 s and is needed by nobody else

    contents = vars(sys.modules[_MAIN])
    wanted = {"__package__"}  # what relative imports inside functions go by

    class Pickler(dill.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            if thing is contents:
                return contents_of_main, ()
            if type(thing) is _FUNCTION and thing.__globals__ is contents:
                wanted.update(_globals_of(thing.__code__))
            if _is_of_main(thing) and hasattr(thing, "__members__"):
                return make_enum, _parts_of_enum(thing)
            return _by_name(thing)

    file = io.BytesIO()
    pickler = Pickler(file, recurse=False)
    pickler.dump((fn, args))
    sent: set[str] = set()
    while more := (wanted & contents.keys()) - sent:
        pickler.dump({name: contents[name] for name in sorted(more)})  # knows what went before
        sent |= more
    pickler.dump(None)
    return file.getvalue()


def unpack_call(data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """In the rank. Raises whatever unpickling raises."""
    import dill

    unpickler = dill.Unpickler(io.BytesIO(data))
    fn, args = unpickler.load()
    while more := unpickler.load():
        contents_of_main().update(more)
    return fn, args


def pack(value: object) -> bytes:
    """A return value or an exception. Raises whatever pickling raises."""
    import dill

    class Pickler(dill.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            return (of_main, (thing.__qualname__,)) if _is_of_main(thing) else _by_name(thing)

    file = io.BytesIO()
    Pickler(file, recurse=False).dump((value,))
    return file.getvalue()


def unpack(data: bytes) -> Any:
    """Raises whatever unpickling raises."""
    import dill

    (value,) = dill.Unpickler(io.BytesIO(data)).load()
    return value


def contents_of_main() -> dict[str, Any]:
    return vars(sys.modules[_MAIN])


def of_main(name: str) -> Any:
    """The class or function of that name, where it came from."""
    found: Any = sys.modules[_MAIN]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _parts_of_enum(kind: Any) -> tuple[Any, ...]:
    """dill cannot send one by value: its members and it refer to each other."""
    members = {name: member.value for name, member in kind.__members__.items()}
    own = (_FUNCTION, property, staticmethod, classmethod)
    others = {
        name: value
        for name, value in vars(kind).items()
        if type(value) in own and getattr(getattr(value, "fget", value), "__module__", "") == _MAIN
    }
    return kind.__name__, kind.__qualname__, kind.__bases__, members, others


def make_enum(
    name: str, qualname: str, bases: tuple[type, ...], members: dict[str, Any], others: dict[str, Any]
) -> type:
    meta: Any = type(bases[-1])
    contents = meta.__prepare__(name, bases)
    for key, value in {"__module__": _MAIN, "__qualname__": qualname, **others, **members}.items():
        contents[key] = value
    made: type = meta(name, bases, contents)
    return made


def _globals_of(code: Any) -> Iterator[str]:
    """Names that this code, and the code inside it, reads as globals."""
    import dis

    for step in dis.get_instructions(code):
        if step.opname == "LOAD_NAME" or (step.opname.startswith("LOAD_") and "GLOBAL" in step.opname):
            yield str(step.argval)
    for constant in code.co_consts:
        if type(constant) is type(code):
            yield from _globals_of(constant)


def _is_of_main(thing: object) -> bool:
    """Is it a class or function that `__main__` has under its own name?"""
    if not isinstance(thing, type) and type(thing) is not _FUNCTION:
        return False
    return thing.__module__ == _MAIN and "<" not in thing.__qualname__


def _by_name(thing: object) -> Any:
    """A module is told by its name: its contents, which dill would send, the rank imports itself."""
    if type(thing) is _MODULE and sys.modules.get(thing.__name__) is thing:
        return import_module, (thing.__name__,)
    return NotImplemented
