"""The memory of a process for media values: how much it may be, and when it is reserved.

Runs in the training process, in the constructor of its first media value, else in the first `log` with one.

Invariants:

- a run takes no more of the mount than its share, with all its lanes, segments and media files; of what is left of that
  a process takes half at most, so that others get some;
- the file appears with the process's lanes in place: it names them, and is swept after them.
"""

from __future__ import annotations

from ..guest.descriptors import AboveStandard
from ..shm.proc import file_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..encode.lanes import Lanes
    from ..shm.media_ring import MediaWriter
    from .session import Session


def make(session: Session, taken: Lanes) -> MediaWriter:
    """Reserve the memory beside these lanes. Raises OSError."""
    from ..shm.media_ring import MIN_BYTES, MediaWriter  # most processes log no media value

    shm_dir = session.shm_dir
    left = shm_dir.budget_bytes - shm_dir.taken_bytes()
    size = min(session.settings.media_bytes, left // 2, file_limit()) // 4096 * 4096
    if size < MIN_BYTES:
        raise OSError(f"{max(0, size):,} bytes are left for this process, {MIN_BYTES:,} are needed")
    about = {"kind": "media", "pid": session.pid, "rank": session.rank, "process": taken.process.hex()}
    with AboveStandard():
        return MediaWriter(shm_dir.path, size, taken.process, session.rank, about, session.mark)


def reserve(session: Session) -> None:
    """Reserve it now, unless it was before."""
    encoder = session.encoder if session.mark[0] else None
    if encoder is not None and encoder.media is not None:
        encoder.media.reserve()
