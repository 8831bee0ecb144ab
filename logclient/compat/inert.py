"""Stand-ins for what is not there: every use of them does nothing, and gives another one.

Runs in the training process, wherever code written for another tracker uses a name that we do not have. Each name is
said once. What only carries data to be shown (images, tables) keeps none of it: it could be large, or on a device.
"""

from __future__ import annotations

from logclient.run import Run
from logclient.stats import tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

_told: set[str] = set()


def say(run: object, line: str) -> None:
    """Once in a run; once in a process where there is none."""
    if isinstance(run, Run):
        if run._notices.once(line, line):
            run._write_notices()
    elif line not in _told:
        _told.add(line)
        tell(line)


class Inert:
    """Can be called, entered, iterated, indexed and subclassed, and nothing comes of it."""

    __slots__ = ("_name",)

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)  # protocols that it does not have
        return Inert(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_name":
            object.__setattr__(self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Inert):
            return args[0]  # it stands in for a decorator
        return Inert(f"{self._name}()")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __getitem__(self, key: object) -> Inert:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __enter__(self) -> Inert:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __repr__(self) -> str:
        return f"<{self._name}, which does nothing here>"


class Media:
    """Something to be shown: accepts what it is made with, and keeps nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{type(self).__name__}.{name}")
