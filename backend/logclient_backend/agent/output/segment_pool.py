"""Files of staged segments: memory on tmpfs that is used again rather than given back and asked for anew.

A `Files` for `OpenSegment`, used in the worker's main thread; the supervisor makes the first spare files. `unlink`
turns a segment that is sealed into a spare one, and the next segment takes that. So storing goes on while somebody
else fills the mount, and after the folder was removed, when nothing can be made there any more.

Invariants:

- a file is opened through the descriptor that `ShmDirHandle` keeps, so that it need not be listed;
- a spare file is all zeros: one that was sealed is wiped, its first bytes first, and then gets a name that says so;
- one spare is kept in reserve, more only where the folder was removed.
"""

from __future__ import annotations

import os

from logclient.errors import Corrupt, Unsupported
from logclient.shm import modes

from ...wal.files import NEW, RealFiles
from ...wal.segment import HEADER_BYTES, parse_header, parse_name, segment_name
from ...wal.writer import OpenSegment
from ..host.shm_dir_handle import NOTE, SEGMENT, SPARE, Kept, ShmDirHandle

_CHUNK = bytes(1 << 18)
_PREPARED = 2  # one to write to, and one to go on with while that is copied and sealed
_RESERVE = 1
_OF_SEGMENTS = (SEGMENT, SPARE, NOTE)


class Memory(RealFiles):
    """The staged segments of one shm directory, by name."""

    mode = modes.FILE

    def __init__(self, handle: ShmDirHandle, segment_bytes: int) -> None:
        self._handle = handle
        self.segment_bytes = segment_bytes
        self._files: dict[str, Kept] = {}
        self._spares: list[Kept] = []

    @property
    def spare_bytes(self) -> int:
        return sum(os.fstat(kept.fd).st_size for kept in self._spares)

    def writers(self) -> list[bytes]:
        """Return the ids of the workers whose segments, or notes of such, are there."""
        self._handle.look()
        named = (
            parse_name(segment_name_of(kept))
            for kept in self._handle.kept()
            if kept.name.endswith(_OF_SEGMENTS)
        )
        return [name.writer for name in named if name is not None]

    def adopt(self) -> list[str]:
        """Take over what dead workers left; names of the segments that hold something."""
        self._handle.look()
        for kept in self._handle.kept():
            if not kept.name.endswith((SEGMENT, SPARE)):
                continue
            name = _name_of(kept)
            if name:
                self._files[name] = kept
            elif kept.name.endswith(SPARE):
                self._spares.append(kept)
            elif os.fstat(kept.fd).st_size:
                self._make_spare(kept)
            else:
                self._give_back(kept)
        return sorted(self._files)

    def prepare(self) -> None:
        """In the supervisor, so that it keeps them open from the start: make the spare files, if there is room."""
        self._handle.look()
        self._spares = [kept for kept in self._handle.kept() if kept.name.endswith(SPARE)]
        while len(self._spares) < _PREPARED:
            path = self._handle.file(f"{os.urandom(8).hex()}{SPARE}")
            try:
                fd = super().open(path, NEW)
            except OSError:
                return
            try:
                self.fallocate(fd, self.segment_bytes)
            except OSError:
                super().unlink(path)
                return
            finally:
                os.close(fd)
            self._handle.look()
            self._spares += [kept for kept in self._handle.kept() if kept.name == os.path.basename(path)]

    def open(self, path: str, flags: int) -> int:
        name = os.path.basename(path)
        if name not in self._files:
            if flags != NEW:
                return super().open(path, flags)
            self._files[name] = self._recycled(path) or self._made(path)
        return os.dup(self._files[name].fd)

    def _recycled(self, path: str) -> Kept | None:
        if not self._spares:
            return None
        kept = self._spares.pop()
        try:
            os.rename(self._handle.file(kept.name), path)
        except OSError:
            pass  # the folder was removed
        kept.name = os.path.basename(path)
        return kept

    def _made(self, path: str) -> Kept:
        os.close(super().open(path, NEW))
        self._handle.look()
        for kept in self._handle.kept():
            if kept.name == os.path.basename(path):
                return kept
        raise FileNotFoundError(2, "removed at once", path)

    def unlink(self, path: str) -> None:
        """Nothing of this segment is needed any more."""
        kept = self._files.pop(os.path.basename(path))
        if len(self._spares) < _RESERVE or self._handle.is_removed:
            try:
                self.fallocate(kept.fd, self.segment_bytes)  # it may have been cut
                return self._make_spare(kept)
            except OSError:
                pass  # the mount is full
        self._give_back(kept)

    def give_back(self, path: str) -> None:
        """Release a file that somebody may be reading: the reader finds it short, never changed."""
        self._give_back(self._files.pop(os.path.basename(path)))

    # ---- notes: of segments that lie on a disk meanwhile ------------------------------------------------

    def note(self, segment: str, content: bytes) -> None:
        """Keep what a successor must know of it. Raises OSError where there is no room, or no folder."""
        modes.publish(self._handle.file(_note_of(segment)), content)
        self._handle.look()

    def notes(self) -> dict[str, bytes]:
        """By segment."""
        found = {}
        for kept in self._handle.kept():
            if kept.name.endswith(NOTE):
                content = self.pread(kept.fd, os.fstat(kept.fd).st_size, 0)
                if content:
                    found[kept.name[: -len(NOTE)] + SEGMENT] = content
        return found

    def drop_note(self, segment: str) -> None:
        """It is needed no more."""
        for kept in self._handle.kept():
            if kept.name == _note_of(segment):
                self._give_back(kept)

    def trim(self, segment: OpenSegment) -> None:
        """Nothing more is added to it: give back the room behind its end."""
        self.truncate(segment.fd, max(1, segment.end))
        segment.capacity_bytes = segment.end

    def _make_spare(self, kept: Kept) -> None:
        size = os.fstat(kept.fd).st_size
        for at in range(0, size, len(_CHUNK)):
            self.pwrite(kept.fd, _CHUNK[: size - at], at)
        spare = f"{os.urandom(8).hex()}{SPARE}"
        try:
            os.rename(self._handle.file(kept.name), self._handle.file(spare))
            kept.name = spare
        except OSError:
            pass  # the folder was removed
        self._spares.append(kept)

    def _give_back(self, kept: Kept) -> None:
        path = self._handle.file(kept.name)
        os.ftruncate(kept.fd, 0)  # whoever else has it open holds no memory with it
        self._handle.let_go(kept)
        modes.remove(path)  # not there where the folder was removed


def _note_of(segment: str) -> str:
    return segment[: -len(SEGMENT)] + NOTE


def segment_name_of(kept: Kept) -> str:
    """Return the name of the segment that a file holds or is a note of; empty: of none."""
    return kept.name[: -len(NOTE)] + SEGMENT if kept.name.endswith(NOTE) else _name_of(kept)


def _name_of(kept: Kept) -> str:
    """Return the name in its header, since a file may have been reused after the folder was gone; empty: it is free."""
    head = os.pread(kept.fd, HEADER_BYTES, 0)
    if not any(head):
        return ""
    try:
        header = parse_header(head, kept.name)
    except (Corrupt, Unsupported):
        return kept.name if parse_name(kept.name) else ""
    return segment_name(header.writer, header.number)
