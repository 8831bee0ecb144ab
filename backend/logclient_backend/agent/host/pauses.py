"""Pauses of the agent's processes: how they sleep, and what ends a pause early.

Runs in all processes of an agent. Each has a named pipe in the shm directory (`logclient.shm.wake`); a byte
in it ends the pause of that process. So does the end of a process that it watches, through its pidfd.

Invariants:

- a wake-up is never lost: bytes are taken out of the pipe before the look that they ask for;
- a wake-up never waits, and nobody can keep a process from sleeping: between two looks are at least `MIN_S`;
- the end of a process ends one pause, not all that follow, however long its pidfd is kept open;
- without a pipe (the folder takes none, no descriptor is left) `may_be_long` is false, and pauses stay short.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable

from logclient.shm import wake

from .process_handle import Watch
from .shm_dir_handle import ShmDirHandle

MIN_S = 0.004
REST_S = 2.0  # pause of a process at rest
REST_SHARE = 0.4  # at most this share of the stall time: a worker at rest must not look stuck


class Pipe:
    """The named pipe that wakes one process of the agent; opened by its supervisor, inherited by fork."""

    def __init__(self, handle: ShmDirHandle, name: str) -> None:
        self.fd = -1
        path = handle.file(name)
        try:
            os.mkfifo(path, 0o600)
        except OSError:
            pass  # an earlier agent made it, or the folder is gone
        try:
            # for writing too: it has a reader and a writer from now on, whoever else opens and closes it
            self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            pass

    def ring(self) -> None:
        """Wake the process that reads it."""
        if self.fd >= 0:
            try:
                os.write(self.fd, b"\0")
            except OSError:
                pass  # it is full, so its reader has not slept since

    def clear(self) -> None:
        """Take out what was written, however much."""
        try:
            while len(os.read(self.fd, 4096)) == 4096:
                pass
        except OSError:
            pass


class Pipes:
    """The pipes of one shm directory."""

    def __init__(self, handle: ShmDirHandle) -> None:
        self.worker = Pipe(handle, wake.WORKER)
        self.supervisor = Pipe(handle, wake.SUPERVISOR)
        self.shipper = Pipe(handle, wake.SHIPPER)
        self.observer = Pipe(handle, wake.OBSERVER)
        self.media = Pipe(handle, wake.MEDIA)

    def descriptors(self) -> list[int]:
        """Return the descriptors of the pipes that are open."""
        pipes = self.worker, self.supervisor, self.shipper, self.observer, self.media
        return [pipe.fd for pipe in pipes if pipe.fd >= 0]


class Sleeper:
    """Sleeps for one process, until its pipe is rung, a watched process ends, or the time is over."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._poll = select.poll()
        self._watched: dict[int, Watch] = {}  # by descriptor
        self._ended: list[Watch] = []  # seen to have ended, each once
        self._woke_at = 0.0
        if pipe.fd >= 0:
            self._poll.register(pipe.fd, select.POLLIN)

    @property
    def may_be_long(self) -> bool:
        """Can somebody end a pause?"""
        return self._pipe.fd >= 0

    def watch(self, processes: Iterable[Watch]) -> None:
        """End a pause when one of these ends; replaces those watched so far."""
        wanted = {each.fd: each for each in processes if each.fd >= 0}
        self._ended = [each for each in self._ended if wanted.get(each.fd) is each]
        for each in self._ended:
            del wanted[each.fd]
        for fd, each in self._watched.items():
            if wanted.get(fd) is not each:
                self._poll.unregister(fd)
        for fd, each in wanted.items():
            if self._watched.get(fd) is not each:
                self._poll.register(fd, select.POLLIN)
        self._watched = wanted

    def sleep(self, timeout_s: float) -> bool:
        """True if the pause was ended: somebody rang, or a watched process has ended."""
        too_soon_s = self._woke_at + MIN_S - time.monotonic()
        if too_soon_s > 0:
            time.sleep(too_soon_s)
            timeout_s -= too_soon_s
        found = self._poll.poll(max(0.0, 1000 * timeout_s))
        for fd, _ in found:
            if fd == self._pipe.fd:
                self._pipe.clear()
            else:
                self._poll.unregister(fd)
                self._ended.append(self._watched.pop(fd))
        if found:
            self._woke_at = time.monotonic()
        return bool(found)
