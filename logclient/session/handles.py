"""The runs that this process has open, by shm directory, with a weak reference to the `Run` that the user holds.

Runs in the training process: `note` in `init` and in a forked child that logs, the finalizer wherever the last
reference goes: inside another run's `log`, in a signal handler, in a collection of garbage, in a forked child.

Invariants:

- what the finalizer does is one store into the lane file, of the PID of the process that it runs in. The agent ends the
  run where that is the process of the lanes, so a child that was forked ends nothing of its parent's;
- the finalizer runs no bytecode: what a handler of the user's raised in it would be swallowed;
- what the process holds of the run (lanes, lock, locked memory) stays here until `dropped.py` lets it go: in the next
  `init`, `flush` or `finish`, or in the exit hook.
"""

from __future__ import annotations

import os
from _functools import partial  # type: ignore[import-not-found]  # without Python around it, as `functools` has
from _operator import setitem
from _weakref import ReferenceType

from ..shm import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..run import Run
    from .session import Session

    _RunReference = ReferenceType[Run]
else:
    _RunReference = ReferenceType


class Handle(_RunReference):
    """A weak reference to a run, and the session that is to be closed once the run is gone."""

    __slots__ = ("session",)
    session: Session
    # the number that a store of the reference itself stores: a call of a C function, with no argument
    __index__ = os.getpid


by_shm_dir: dict[str, Handle] = {}


def note(run: Run, session: Session) -> None:
    """This process has the run open, with these lanes; to be called again when they change."""
    lanes = session.lanes
    if lanes is None:
        handle = Handle(run)
    else:
        handle = Handle(run, partial(setitem, lanes.words, layout.DROPPED))
    handle.session = session
    by_shm_dir[session.shm_dir.path] = handle


def find(path: str) -> Run | None:
    """The run of that shm directory that this process, or the one it was forked from, has open."""
    handle = by_shm_dir.get(path)
    return None if handle is None else handle()


def sessions() -> list[Session]:
    """Sessions whose run the user still holds."""
    return [handle.session for handle in tuple(by_shm_dir.values()) if handle() is not None]


def session_at(path: str) -> Session | None:
    """The session of the run that `find` returns."""
    handle = by_shm_dir.get(path)
    return None if handle is None or handle() is None else handle.session


def user_of(session: Session) -> Run | None:
    """The run by which the user holds this session, if it is still there."""
    handle = by_shm_dir.get(session.shm_dir.path)
    return None if handle is None or handle.session is not session else handle()


def forget(session: Session) -> None:
    """The run is closed in this process, or in a forked child: is its parent's."""
    handle = by_shm_dir.get(session.shm_dir.path)
    if handle is not None and handle.session is session:
        del by_shm_dir[session.shm_dir.path]
