"""The call recorder as a run of this process sees it: begun by the user or a setting, in forked children, at the end.

Runs in the training process. The recorder itself, `calls/`, is loaded by `init`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .session import Session


def begin(session: Session, include: Iterable[str], exclude: Iterable[str] = ()) -> bool:
    """Keep the last calls into these packages, see `Run.trace`; False, and said once, where that cannot be."""
    if not session.mark[0]:
        session.after_fork()
    why = session.closed or session.trouble
    if not why and session.lanes is not None:
        why = _recorder().begin(session, session.lanes, include, exclude)
    if why:
        session.warn_once("trace", f"calls are not recorded: {why}")
    return not why


def go_on(session: Session) -> None:
    """Record in a forked child what its parent recorded."""
    packages = _recorder().inherited()
    if packages is not None:
        begin(session, *packages)


def leave(session: Session) -> None:
    """Let go of the parent's recorder in a forked child."""
    _recorder().leave(session)


def end(session: Session) -> None:
    """The run is over in this process."""
    _recorder().end(session)


def _recorder() -> Any:
    from ..calls import recorder

    return recorder
