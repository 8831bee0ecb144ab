"""`Tee`: stands in for `sys.stdout` or `sys.stderr`, writes to that stream first, then keeps a copy of the text.

Runs in the training process, in whatever thread or handler prints.

Invariants:

- the stream gets every call as it came, and its answer or exception is the caller's; what it refused is not kept;
- whatever else is asked of the tee is asked of the stream: `fileno`, `isatty`, `encoding`, `buffer`, `reconfigure`,
  pickling, its class. `sys.stdout.buffer` and the descriptor lead past the copy;
- keeping the copy raises nothing of its own, and waits for nothing (`console_stream.py`);
- in a forked child, and after the capture has ended, it hands on and keeps nothing.
"""

from __future__ import annotations

from . import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol

    class Keeper(Protocol):
        """Keeps copies while `mark[0]` is not 0."""

        @property
        def mark(self) -> Any: ...

        def keep(self, which: int, text: str) -> None: ...


class Tee:
    """One per stream and capture."""

    __slots__ = ("__weakref__", "_keeper", "_stream", "_which", "write")
    _stream: Any
    _keeper: Keeper
    _which: int
    write: Callable[[str], Any]

    def __init__(self, stream: Any, keeper: Keeper, which: int) -> None:
        """`which` is handed to the keeper with each copy."""
        made = {
            "_stream": stream,
            "_keeper": keeper,
            "_which": which,
            "write": _writer(stream, keeper, which),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write to the stream, and keep a copy of each line once the stream has taken it."""
        self._stream.writelines(self._kept(lines))

    def _kept(self, lines: Iterable[str]) -> Iterator[str]:
        keeper = self._keeper
        for line in lines:
            yield line
            if isinstance(line, str) and keeper.mark[0]:
                try:
                    keeper.keep(self._which, str.__str__(line))
                except BaseException as error:
                    if not _is_own(error):
                        raise

    def flush(self) -> Any:
        """Flush the stream."""
        return self._stream.flush()

    def __enter__(self) -> Any:
        self._stream.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._stream.__exit__(*exc)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __next__(self) -> Any:
        return next(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._stream, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._stream, name)

    def __dir__(self) -> list[str]:
        return dir(self._stream)

    def __repr__(self) -> str:
        return repr(self._stream)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._stream.__reduce_ex__(protocol)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for `isinstance`: some libraries ask whether it is a TextIOWrapper
        return self._stream.__class__


def _writer(stream: Any, keeper: Keeper, which: int) -> Callable[[str], Any]:
    """Return `write` of a tee: no method, since each attribute of an object with `__getattr__` costs as a call does."""
    keep = keeper.keep

    def write(text: str) -> Any:
        """Write to the stream, then keep a copy."""
        written = stream.write(text)
        if keeper.mark[0]:
            try:
                if type(text) is str:
                    keep(which, text)
                elif isinstance(text, str):
                    keep(which, str.__str__(text))
            except BaseException as error:
                if not _is_own(error):
                    raise
        return written

    return write


def without_ended(stream: Any) -> Any:
    """Return the stream that is left when tees on top of it that keep nothing any more are taken away."""
    while type(stream) is Tee and not stream._keeper.mark[0]:
        stream = stream._stream
    return stream


def stream_of(tee: Tee) -> Any:
    """Return the stream below."""
    return without_ended(tee._stream)


def _is_own(error: BaseException) -> bool:
    try:
        return foreign.is_own(error)
    except RecursionError:  # too near the limit to find out
        return error.__class__ in foreign.OWN_KINDS
