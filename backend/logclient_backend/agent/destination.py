"""Where the run goes: as the launcher found out at `init`, or as wanted if its disk did not answer in time.

Runs in the worker's main thread; reads the meeting place only.
"""

from __future__ import annotations

import os
import time

from logclient.meeting import folder_name

from .copier import Copier
from .place import Place

_USABLE = ("ok", "fallback")
_PATIENCE_S = 5.0


class Destination:
    """Tells the copier its folder, once there is one."""

    def __init__(self, place: Place, copier: Copier) -> None:
        self._place = place
        self._copier = copier
        self._started = time.monotonic()
        self._state = ""

    @property
    def is_there(self) -> bool:
        return bool(self._copier.folder)

    @property
    def is_nowhere(self) -> bool:
        """No folder can be used: everything stays in shared memory, until `logclient recover --dir`."""
        return self._state == "none"

    def look(self, *, is_wanted: bool) -> None:
        """Has the answer come? Without one it is as the user wished, if there is anything to write."""
        if self.is_there:
            return
        meeting = self._place.meeting
        answer = self._place.answer
        self._state = answer.get("state", "")
        base = answer.get("dir") or "" if self._state in _USABLE else ""
        is_late = time.monotonic() - self._started > _PATIENCE_S or self._place.is_removed
        if not self._state and is_wanted and is_late:
            base = meeting.dir
        if base:
            self._copier.folder = os.path.join(base, folder_name(meeting.run_id), meeting.node)
            self._copier.wake()
