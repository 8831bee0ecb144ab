"""The run's destination: the launcher's answer at `init`, or the wanted folder if its disk did not answer in time.

Runs in the worker's main thread; reads the shm directory and the kernel's list of mounts only.

Invariants:

- a folder that is taken unseen is given up for the one in the user's home when the answer comes after all and says
  so, unless something was written there by then; while there is no answer it is waited for;
- `folder.json` tells where the run really goes.
"""

from __future__ import annotations

import os
import time
from typing import Any

from logclient.shm.shm_dir import folder_name

from ..host.json_file import write_json
from ..host.shm_dir_handle import ShmDirHandle
from .copier import Copier
from .mounts import network_of
from .probe import HAS_FOLDER

_PATIENCE_S = 5.0


class Destination:
    """Tells the copier its folder, once there is one, and how often it may be asked."""

    def __init__(self, handle: ShmDirHandle, copier: Copier, network_sync_s: float) -> None:
        self._handle = handle
        self._copier = copier
        self._network_sync_s = network_sync_s
        self._started = time.monotonic()
        self._state = ""
        self.network = ""  # the type of the network file system that it is on; empty: on none
        self._is_guess = False  # the folder was taken without an answer

    @property
    def is_there(self) -> bool:
        return bool(self._copier.folder)

    @property
    def is_nowhere(self) -> bool:
        """No folder can be used: everything stays in shared memory, until `logclient recover --dir`."""
        return self._state == "none"

    @property
    def is_settled(self) -> bool:
        """Is it known for good where the run goes?"""
        return (self.is_there and not self._is_guess) or self.is_nowhere

    def look(self, *, is_wanted: bool) -> None:
        """Has the answer come? Without one it is as the user wished, if there is anything to write."""
        if self.is_there and not self._is_guess:
            return
        answer = self._handle.answer
        if answer.get("state"):
            self._follow(answer)
        elif not self.is_there and is_wanted:
            is_late = time.monotonic() - self._started > _PATIENCE_S or self._handle.is_removed
            wanted = self._handle.shm_dir.dir
            if is_late and wanted:
                self._is_guess = True
                self._go_to(wanted, network_of(wanted))  # links are not followed: that may hang

    def _follow(self, answer: dict[str, Any]) -> None:
        shm_dir = self._handle.shm_dir
        is_late, self._is_guess = self._is_guess, False
        if is_late and answer["state"] != "ok" and self._copier.has_written:
            # it failed the look and took what came behind: there the run is
            self._handle.answer = {"state": "ok", "dir": shm_dir.dir, "network": network_of(shm_dir.dir)}
            write_json(shm_dir.file("folder.json"), self._handle.answer)
            return
        self._state = answer["state"]
        base = answer.get("dir") or "" if self._state in HAS_FOLDER else ""
        if is_late and self._state != "ok":
            self._copier.write_line(shm_dir.where_it_goes(answer))
        self._go_to(base, str(answer.get("network") or ""))

    def _go_to(self, base: str, network: str) -> None:
        shm_dir = self._handle.shm_dir
        self.network = network
        self._copier.pace_s = self._network_sync_s if network else 0.0
        folder = os.path.join(base, folder_name(shm_dir.run_id), shm_dir.node) if base else ""
        if folder != self._copier.folder:
            self._copier.folder = folder
            self._copier.wake()
