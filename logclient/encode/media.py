"""Media values on their way into shared memory: the memory, and one value of one call.

Runs in the training process, inside `log()`, and in the constructor of the first media value.

Invariants:

- the memory is reserved once, by the first constructor of a value in a process that has a run open, else by `log`: with
  the first notice and the first device value that is what may take longer than a call of `log` (some 25 ms for 32 MiB);
- a value that does not fit, or cannot be read, is left out and counted; all else of its call is stored;
- one call at a time writes (the token of `shm/ring.py`); a second one leaves its value out, it waits for nobody;
- a forked child writes into no memory of its parent's: it has one of its own.
"""

from __future__ import annotations

from ..guest import foreign, stdlib
from ..shm import layout
from ..shm.counters import Counter
from ..shm.health import no_media
from ..shm.ring import Forked, TooLarge
from .values import LeftOut, NoRoom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..shm.media_ring import MediaWriter
    from ..shm.ring import Mark
    from ..typed import MediaStatus
    from .media_values import Value


def _not_loaded(described: object) -> str:
    raise RuntimeError("no memory was reserved")


class Media:
    """The media memory of one process incarnation. Makes nothing before the first value."""

    __slots__ = ("_claims", "_json", "_make", "_mark", "_over_budget", "_refused", "_why", "file")

    def __init__(self, make: Callable[[], MediaWriter], mark: Mark) -> None:
        """`make` reserves the memory, or raises OSError."""
        self._make = make
        self._mark = mark
        self._why = ""  # why there is none
        self._claims: dict[str, object] = {}
        self._json: Callable[[object], str] = _not_loaded
        self.file: MediaWriter | None = None
        self._over_budget = Counter(0)
        self._refused = Counter(0)

    def counts(self) -> MediaStatus:
        """Return what became of the values of this process."""
        file = self.file
        if file is None:
            found = no_media()
            found["over_budget"], found["refused"] = self._over_budget.value, self._refused.value
            return found
        return file.counts()

    def reserve(self) -> str:
        """Make the memory, once; returns why there is none."""
        me = object()
        try:
            if self.file is not None or self._why:
                return self._why
            if not self._mark[0]:
                return "this process was forked only just now"
            if self._claims.setdefault("make", me) is not me:
                return "its memory is only just being reserved"
            json = stdlib.load("json")  # `dumps` would make an encoder with each call
            self._json = json.JSONEncoder(separators=(",", ":"), default=str).encode
            file = self._make()
            file.count_with(self._over_budget, self._refused, self._mark)
            self.file = file
        except OSError as error:
            if foreign.is_users(error):
                raise
            self._why = f"no shared memory for media values: {error}"
        finally:  # no call here, see "the token" in `shm/ring.py`
            if "make" in self._claims and self._claims["make"] is me:
                del self._claims["make"]
        return self._why

    def offer(self, head: int, step: int, key: str, value: Value) -> tuple[str, int]:
        """Commit one value; returns why something is left out (empty: nothing is), and how many parts of the value.

        0 parts: all of it is. `head`: the rank, as a head word has it.
        """
        why = self.reserve()
        file = self.file
        if why or file is None:
            self._refused.add()
            return why, 0
        me = object()
        try:
            if self._claims.setdefault("write", me) is not me:
                self._refused.add()
                return "another thread is just logging a media value", 0
            described, payload = value.packed(min(file.largest, value.most_bytes))
            described["key"] = key
            unread = described.pop("unread", 0)
            description = self._json(described).encode()
            file.offer(head & ~layout.SHAPE_MASK, step, description, payload)
            omitted = described.get("omitted", 0)
            if not omitted:
                return "", 0
            self._over_budget.add(omitted - unread)
            self._refused.add(unread)
            return "they did not fit (LOGCLIENT_MEDIA_BYTES), or could not be read", omitted
        except LeftOut as reason:
            (self._over_budget if isinstance(reason, NoRoom) else self._refused).add()
            return str(reason), 0
        except TooLarge:
            self._over_budget.add()
            room = f"{len(file.mem):,} bytes of LOGCLIENT_MEDIA_BYTES"
            return f"with its options it does not fit into the {room}", 0
        except Forked:
            return "", 0  # the process that was forked from goes on with the very same call
        except Exception as error:
            if not foreign.is_own(error):
                raise
            self._refused.add()
            return f"it could not be read ({type(error).__name__})", 0
        finally:  # no call here
            if "write" in self._claims and self._claims["write"] is me:
                del self._claims["write"]

    def detach(self) -> None:
        """In a forked child, for good."""
        self._mark = b"\0"
        self._over_budget.detach()
        self._refused.detach()
        if self.file is not None:
            self.file.detach()
            self.file.map.let_go()

    def release(self) -> None:
        """Write nothing more; the memory goes with the last reference."""
        self._over_budget.detach()
        self._refused.detach()
        if self.file is not None:
            self.file.detach()
            self.file.map.let_go()
            self.file = None
        self._why = self._why or "the run is finished"
