"""The recorder of this process: which code it records, the ring of each thread, its beginning and end.

Runs in the training process: in `Run.trace`, and in the hooks of `profiled.py` and `monitored.py` where a function or
a thread is new.

Invariants:

- code is recorded where its module, by its `__name__`, is in an included package and in no excluded one. A module that
  runs as `__main__` counts by its name in `__spec__`, too. That is decided once per code object, which is kept: its
  `id` is the key;
- a process has one recorder. In a forked child it ends at once, without a store into its parent's file, and goes on
  in a file of the child's own, with that child's lanes;
- a failure of ours ends it: no hook raises.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, get_ident, get_native_id

from ..encode.about import short
from ..guest import foreign
from ..shm import calls as file
from ..shm import modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType
    from typing import Any

    from ..encode.lanes import Lanes
    from ..session.session import Session

    Ring = tuple[memoryview, memoryview[float], list[int]]

_MAX_DECIDED = 1 << 16  # code objects that are kept
_hooks: Any
if hasattr(sys, "monitoring"):
    from . import monitored as _hooks
else:  # the other one would only take memory
    from . import profiled as _hooks
_now: Recorder | None = None
_handed_on: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # to a forked child that has no lanes yet
_at_fork: list[object] = []  # not empty once the hook for forks is there


class Recorder:
    """The state that the hooks share."""

    def __init__(
        self, owner: Session, calls: file.CallsFile, include: tuple[str, ...], exclude: tuple[str, ...]
    ) -> None:
        self.owner = owner
        self.installed: Any = (None, None)  # hooks, see `profiled.py`
        self.include, self.exclude = include, exclude
        self.is_over = False
        self.on_call: dict[int, int] = {}  # id of a code object -> code of its calls; 0: it is not recorded
        self.on_return: dict[int, int] = {}
        self._file = calls
        self._naming = allocate_lock()  # tried, never waited for
        self._kept: dict[int, CodeType] = {}
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._free = list(range(file.MAX_RINGS - 1, -1, -1))
        self._holders: dict[int, int] = {}  # thread -> index of its ring
        self._followers: dict[int, list[int]] = {}

    def decide(self, code: CodeType, scope: dict[str, Any]) -> int:
        """Return the code of calls of a function that is new: 0 where it is not recorded, -1 to ask again later."""
        if self.is_over:
            return 0
        if not self._naming.acquire(False):
            return -1  # another thread names a function
        try:
            return self._decide(code, scope)
        except RecursionError:
            return -1
        finally:
            self._naming.release()

    def _decide(self, code: CodeType, scope: dict[str, Any]) -> int:
        if len(self._kept) >= _MAX_DECIDED:
            self.on_call.clear()
            self.on_return.clear()
            self._kept.clear()
        number = 0
        if self._is_included(scope):
            what = (code.co_qualname, code.co_filename, code.co_firstlineno)
            number = self._numbers.get(what, 0) or self._file.add_name(*what)
            self._numbers[what] = number
        key = id(code)
        self._kept[key] = code
        self.on_return[key] = number + 1 if number else 0
        self.on_call[key] = number
        return number

    def recorded(self) -> list[CodeType]:
        """Return the code objects that are recorded."""
        return [code for key, code in self._kept.items() if self.on_call.get(key)]

    def _is_included(self, scope: dict[str, Any]) -> bool:
        names = [scope.get("__name__")]
        if names[0] == "__main__":
            names.append(getattr(scope.get("__spec__"), "name", None))
        for name in names:
            if type(name) is str and _is_in(name, self.include) and not _is_in(name, self.exclude):
                return True
        return False

    def ring(self) -> Ring | None:
        """Return codes, times and next slots of a ring for the calling thread; None where no ring is free."""
        if self.is_over:
            return None
        me = get_ident()
        index = self._holders.pop(me, None)  # a thread that ended had the same number
        if index is None and not self._free:
            alive = sys._current_frames()
            for thread in tuple(self._holders):
                if thread not in alive and (ended := self._holders.pop(thread, None)) is not None:
                    self._free.append(ended)
        if index is None:
            try:
                index = self._free.pop()
            except IndexError:
                self._file.words[file.WITHOUT_RING] += 1
                return None
        self._holders[me] = index
        codes, times, slots = self._file.ring(index, get_native_id())
        after = self._followers.get(slots) or [*range(1, slots), 0]
        self._followers[slots] = after
        return codes, times, after

    def end(self) -> None:
        """Record nothing more."""
        self.is_over = True
        _hooks.remove(self)
        self.on_call.clear()
        self.on_return.clear()
        self._kept.clear()
        self._file.map.let_go()


def _is_in(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def begin(owner: Session, lanes: Lanes, include: Iterable[str], exclude: Iterable[str]) -> str:
    """Begin to record, or record other packages from now on; return why not, empty where it works."""
    global _now, _handed_on
    try:
        included, excluded = _packages(include), _packages(exclude)
    except foreign.Failed:
        return f"trace(include={short(include)}) takes names of packages"
    if not included:
        return "no package is named"
    if _now is not None:
        if _now.owner is not owner:
            return "another run of this process records them"
        recorder, _now = _now, None
        recorder.end()
    why = str(_hooks.in_the_way())
    if why:
        return why
    path = lanes.path.removesuffix(".lanes") + file.SUFFIX
    try:
        modes.remove(path)
        room = owner.shm_dir.budget_bytes // 2 - owner.shm_dir.taken_bytes(file.SUFFIX)
        made = file.CallsFile(path, owner.rank, room)
    except OSError as error:
        return f"no shared memory for them: {error}"
    if not _at_fork:
        os.register_at_fork(after_in_child=_end_in_child)
        _at_fork.append(None)
    recorder = _now = Recorder(owner, made, included, excluded)
    _handed_on = None
    _hooks.install(recorder)
    return ""


def _packages(names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        names = names.split(",")
    found = tuple(foreign.call(tuple, names))
    if not all(isinstance(name, str) for name in found):
        raise foreign.Failed("TypeError")
    return tuple(name.strip() for name in found if name.strip())


def end(owner: Session) -> None:
    """End the recorder of this run."""
    global _now
    if _now is not None and _now.owner is owner:
        recorder, _now = _now, None
        recorder.end()


def leave(owner: Session) -> None:
    """Forget the recorder in a forked child of this run, touching nothing of its parent's."""
    if _now is not None and _now.owner is owner:
        _end_in_child()


def _end_in_child() -> None:
    global _now, _handed_on
    if _now is not None:
        recorder, _now = _now, None
        _handed_on = recorder.include, recorder.exclude
        recorder.end()


def inherited() -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the packages that this process's parent recorded when it was forked, once."""
    global _handed_on
    found, _handed_on = _handed_on, None
    return found
