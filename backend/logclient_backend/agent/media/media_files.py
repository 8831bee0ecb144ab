"""The media files of a shm directory that the media process works on.

Runs in the media process; touches tmpfs only.

Invariants:

- a file is worked on until the process that it belongs to is gone (its lane file is swept) and no value is left in it;
  then it is marked as finished, and the worker removes it once the references are stored;
- what is known of a folder that was removed is what the supervisor kept open: those files are served, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from logclient.shm import layout
from logclient.shm.media_ring import MediaReader, ReferenceWriter
from logclient.shm.side_stream import MEDIA

from ..host.mapping import map_file
from ..host.shm_dir_handle import LANES, ShmDirHandle, open_regular, side_of_file

_MAX_BYTES = 1 << 31


class MediaFile:
    """One file, mapped by the one media process that works."""

    def __init__(self, name: str, fd: int) -> None:
        """Raises ValueError where it is no media file, OSError where it cannot be mapped."""
        size = os.fstat(fd).st_size
        if not layout.KEYS_OFFSET < size <= _MAX_BYTES:
            raise ValueError(f"{size} bytes is no size of a media file")
        self.name = name
        mem = memoryview(map_file(fd, size))
        self._words = mem.cast("Q")
        self.reader = MediaReader(mem)
        self.references = ReferenceWriter(mem)
        self.reader.conclude()
        self._owner = self.reader.owner.hex() + LANES

    @property
    def is_finished(self) -> bool:
        """Was it marked as finished?"""
        return bool(self._words[layout.STATE] == layout.STATE_FINISHED)

    def has_owner(self, handle: ShmDirHandle) -> bool:
        """May its process still log?"""
        return os.path.lexists(handle.file(self._owner))

    def finish(self) -> None:
        """Mark it: nothing more comes."""
        self._words[layout.STATE] = layout.STATE_FINISHED


class MediaFiles:
    """All of them."""

    def __init__(self, handle: ShmDirHandle) -> None:
        self._handle = handle
        self._files: dict[str, MediaFile] = {}
        self._bad: set[str] = set()
        self._changed_ns = -1
        for kept in handle.kept():
            if side_of_file(kept.name) == MEDIA and kept.fd >= 0:
                self._open(kept.name, os.dup(kept.fd))

    def look(self) -> Iterator[MediaFile]:
        """Yield the files with which there may be something to do."""
        if self._changed_ns < 0 or self._handle.has_changed_since(self._changed_ns):
            self._changed_ns = self._handle.changed_ns()
            for name in sorted(os.listdir(self._handle.path)):
                if name not in self._files and name not in self._bad and side_of_file(name) == MEDIA:
                    self._open(name, open_regular(self._handle.file(name)))
        for file in tuple(self._files.values()):
            yield file
            if file.is_finished:
                del self._files[file.name]
                self._bad.add(file.name)

    def _open(self, name: str, fd: int) -> None:
        if fd < 0:
            return
        try:
            file = MediaFile(name, fd)
        except (ValueError, OSError):  # the worker sets aside what is no lane file
            self._bad.add(name)
            return
        finally:
            os.close(fd)
        self._files[name] = file

    def __len__(self) -> int:
        return len(self._files)
