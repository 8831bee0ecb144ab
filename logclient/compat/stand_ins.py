"""Stand-ins for names that this layer does not have: every use of one does nothing and gives another one.

Runs in the training process, wherever code written for another tracker uses a name that we do not have. Each name is
said once.

Invariants:

- whatever is done with a stand-in works: it is called, compared, converted, formatted, iterated, entered, subclassed,
  raised against, pickled; as a number it is NaN (0 as an int), as a path an empty folder or file, in a condition False;
- a name that W&B has as a class and this layer has, too, is that class wherever it is looked for (`classes`), and a
  name that ends like an exception's is an exception.
"""

from __future__ import annotations

import os

from logclient.errors import LogclientError
from logclient.run import Run, session_of
from logclient.shm.notices import write_stderr

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

_EXCEPTIONS = ("Error", "Exception", "Warning")
_NAN = float("nan")

_warned: set[str] = set()
_scratch: dict[int, str] = {}  # process -> its temporary folder
classes: dict[str, type] = {}  # what a stand-in's attribute of this name is instead


def warn(run: object, line: str, cause: str = "") -> None:
    """Write a line once for its cause (default: the line itself) in a run; once in a process where there is no run."""
    if isinstance(run, Run):
        session_of(run).warn_once(cause or line, line)
    elif (cause or line) not in _warned:
        _warned.add(cause or line)
        write_stderr(line)


def known(name: str) -> type | None:
    """The class that stands for this name, if it is one of ours or an exception's name."""
    if name not in classes and name[:1].isupper() and name.endswith(_EXCEPTIONS):
        kind = type(name, (classes.get("Error", LogclientError),), {"__doc__": "Never raised here."})
        return classes.setdefault(name, kind)
    return classes.get(name)


def scratch(name: str) -> str:
    """A folder of this process under this name, removed when the process ends."""
    me = os.getpid()
    if me not in _scratch:
        import atexit
        import tempfile  # not before somebody wants it

        _scratch[me] = tempfile.mkdtemp(prefix="wandb-files-")
        atexit.register(_remove, me)
    folder = os.path.join(_scratch[me], name)
    os.makedirs(folder, exist_ok=True)
    return folder


def _remove(process: int) -> None:
    if process == os.getpid():
        import shutil

        shutil.rmtree(_scratch.get(process, ""), ignore_errors=True)


class Subclassed:
    """Base of classes that a program derives from a stand-in: takes every argument, has every attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{type(self).__name__}.{name}")


class Inert:
    """A stand-in: see the head of this file."""

    __slots__ = ("_name",)

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # protocols that it does not have
        return known(name) or Inert(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_name":
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Inert):
            return args[0]  # it stands in for a decorator
        return Inert(f"{self._name}()")

    # ---- as a class ---------------------------------------------------------------------------------------

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return () if any(isinstance(base, type) for base in bases) else (Subclassed,)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__

    # ---- as a container, a context, an iterator -------------------------------------------------------------

    def __getitem__(self, key: object) -> Inert:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __delitem__(self, key: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __next__(self) -> Inert:
        return self

    def __len__(self) -> int:
        return 0

    def __contains__(self, item: object) -> bool:
        return False

    def __enter__(self) -> Inert:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def __aenter__(self) -> Inert:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    def __await__(self) -> Iterator[Any]:
        return iter(())

    # ---- as a number or a text --------------------------------------------------------------------------------

    def __float__(self) -> float:
        return _NAN

    def __int__(self) -> int:
        return 0

    def __round__(self, digits: int | None = None) -> Any:
        return 0 if digits is None else _NAN

    def __lt__(self, other: object) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def _itself(self, *others: object) -> Inert:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _itself
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = _itself
    __neg__ = __pos__ = __abs__ = __invert__ = __and__ = __rand__ = _itself

    def __divmod__(self, other: object) -> tuple[Inert, Inert]:
        return self, self

    def __fspath__(self) -> str:
        folder = scratch("empty")
        if not self._name.endswith((".name", ".path", ".file()")):
            return folder
        path = f"{folder}.file"
        os.close(os.open(path, os.O_CREAT, 0o600))
        return path

    def __format__(self, spec: str) -> str:
        for value in (repr(self), _NAN, 0):
            try:
                return format(value, spec)
            except ValueError:
                pass
        return repr(self)

    def __repr__(self) -> str:
        return f"<{self._name}, which does nothing here>"
