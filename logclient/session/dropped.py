"""The end of runs whose last handle was dropped without `finish`: their agent ends them, here their memory is let go.

Runs in the training process: in `init`, `flush`, `finish` and the exit hook. Loaded by `init`.

Invariants:

- what was accepted is waited for by the exit hook, as that of a run that is still open; everybody else only looks;
- a forked child lets go of its copy and touches nothing of its parent's.
"""

from __future__ import annotations

import os
import time

from .. import config as settings
from ..guest import foreign
from ..guest.descriptors import Mapped
from ..launching import parent_run as parents
from ..shm import layout
from ..shm.notices import write_stderr
from ..shm.wake import wake
from ..spawn import agent_for_fork as calling
from ..spawn import reap
from . import handles, waiting
from .ending import patience_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .session import Session


def forget(session: Session) -> None:
    """Forget a run that is closed in this process."""
    handles.forget(session)
    leave_family(session.shm_dir.path)


def let_go_durable() -> None:
    """Let go of those that are on disk; the agents of the others are woken, or called where none lives.

    Waits for nothing, and costs next to nothing where every run has its handle.
    """
    for path, session in _dropped():
        is_nowhere = session.folder.get("state") == "none"  # then there is no disk to wait for
        if session.pid != os.getpid() or is_nowhere or waiting.is_durable(session):
            _let_go(path, session)
            continue
        wake(session.shm_dir)
        try:
            calling.call_if_needed(session.shm_dir, session.status_page, session.settings.stall_s)
        except Exception as error:
            if foreign.is_users(error):
                raise


def end_all(begun: float, state: dict[str, Any]) -> None:
    """The process ends in that state since `begun`: wait until they are on disk, all together as long as for one."""
    for path, session in _dropped():
        if session.pid == os.getpid():
            deadline = begun + patience_s(state, session.settings.finish_timeout_s)
            done, trouble = waiting.until_durable(session, max(0.0, deadline - time.monotonic()))
            if not done and not session.settings.quiet:
                who = f"nobody works on it ({trouble})" if trouble else "the agent goes on with it"
                write_stderr(
                    f"{session.shm_dir.shown}, whose handle was dropped, is not on disk after "
                    f"{time.monotonic() - begun:.1f} s: {who}, and `logclient recover` finishes the job"
                )
        _let_go(path, session)


def _dropped() -> Iterator[tuple[str, Session]]:
    for path, handle in tuple(handles.by_shm_dir.items()):
        if handle() is None:
            yield path, handle.session


def _let_go(path: str, session: Session) -> None:
    """Give up all that this process holds of it."""
    is_ours = session.pid == os.getpid()
    handles.by_shm_dir.pop(path, None)
    if session.console is not None:
        if is_ours:
            session.console.end()
        session.console.leave()
        session.console = None
    session.counters.publish()
    session.counters.detach()
    lanes, page = session.lanes, session.status_page
    if lanes is not None:
        if is_ours:
            lanes.words[layout.STATE] = layout.STATE_FINISHED
        lanes.close()
        lanes.detach()
        lanes.forget()
        lanes.map.let_go()
    if page is not None and isinstance(page.obj, Mapped):
        page.obj.let_go()
    device = None if session.encoder is None else session.encoder.device
    if device is not None:
        if is_ours:
            device.release()
        else:
            device.detach()
    if session.live is not None:
        session.live.release()
    session.lanes = session.documents = session.encoder = session.live = None
    session.stop_recording()
    if is_ours:
        wake(session.shm_dir)
        leave_family(path)


def leave_family(path: str) -> None:
    """Reap what is left of a run that has ended in this process, and name another run to children."""
    if reap.got_orphans():
        reap.ended()
    if settings.parent_shm_dir() == parents.handle(path):
        others = [each for each in handles.sessions() if each.is_owner and each.pid == os.getpid()]
        settings.hand_on(parents.handle(others[-1].shm_dir.path) if others else None)
