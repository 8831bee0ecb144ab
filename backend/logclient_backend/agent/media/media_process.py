"""The media process: takes values out of their rings, stores blobs in the run folder, then commits references.

Forked by the supervisor (`media_keeper.py`). It alone of the agent reads raw values and encodes them; it touches the
disk of the run folder and the files that users name, and may hang with either.

Invariants:

- blob, then reference, then the raw value is released: a reference leads to a blob that is past an fsync, and whatever
  kills this process, the next one goes on behind the last reference: no value is lost or stored twice;
- one such process works at a time: it holds the record lock on `media.lock` while it lives, which the kernel frees even
  where nobody can tell whether it is dead;
- while it hangs, or the disk takes nothing, rings overwrite their oldest values, and the jump of seqs counts them;
- one raw value is in memory at a time; a value that two processes died on while they encoded it, or that takes longer
  than _ENCODE_S, is given up with a reference that says so;
- it is nicer than the rest of the agent, and ends with it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from typing import Any

from logclient.shm import layout
from logclient.shm.media_ring import RawValue
from logclient.shm.regular import open_regular
from logclient.shm.shm_dir import folder_name
from logclient.shm.side_stream import MEDIA

from ... import failpoint
from ...runs.media_reference import Reference
from ..host.pauses import Pipes, Sleeper
from ..host.shm_dir_handle import ShmDirHandle, side_of_file
from ..host.status import StatusPage
from ..settings import Settings
from .blobs import Blob, BlobFolder
from .encoded import Encoded, described, encode, mime_of, said_of, size_of, with_images
from .media_files import MediaFile, MediaFiles
from .pixels import BadValue

_NICE = 5  # on top of the agent's own
_ENCODE_S = 60.0
_MAX_DEATHS = 2
_TOGETHER = 32  # blobs that are settled together
_TOGETHER_BYTES = 16 << 20
_HURRIED = 0.25  # of a ring that waits: then speed goes before size
_SHORT_S, _REST_S, _HANGING_S = 0.02, 1.0, 0.25
_MAX_PAUSE_S = 5.0  # after a failed write
_GIVE_UP_S = 60.0  # of failed writes, once nobody logs any more
_LOCK = "media.lock"
LOST_KEY = "(damaged)"  # of a value of which not even the key can be read


def run(handle: ShmDirHandle, status: StatusPage, settings: Settings, pipes: Pipes) -> int:
    """The whole life of this process; its exit code."""
    parent = os.getppid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.nice(_NICE)
    for kept in handle.kept():
        if side_of_file(kept.name) != MEDIA:
            handle.let_go(kept)  # a descriptor of ours would hold memory that is given back

    def is_wanted() -> bool:
        status.beat(layout.AGENT_MEDIA_BEAT)
        return os.getppid() == parent and not status.words[layout.AGENT_MEDIA_STOP]

    lock = open_regular(handle.file(_LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    while is_wanted():
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:  # one that was killed, and that the kernel has not let go
            time.sleep(_HANGING_S)
    process = MediaProcess(handle, status, settings, pipes, MediaFiles(handle))
    for kept in handle.kept():
        handle.let_go(kept)
    while is_wanted():
        process.look()
        process.sleep()
    return 0


class MediaProcess:
    """The work of the process, look by look."""

    def __init__(
        self, handle: ShmDirHandle, status: StatusPage, settings: Settings, pipes: Pipes, files: MediaFiles
    ) -> None:
        self._handle = handle
        self._words = status.words
        self._settings = settings
        self._pipes = pipes
        self._files = files
        self._sleeper = Sleeper(pipes.media)
        self._blobs: BlobFolder | None = None
        self._pause_s = _SHORT_S
        self._fails_since = 0.0  # monotonic; 0.0: the last write succeeded
        self._fail_pause_s = 0.0

    def sleep(self) -> None:
        """Sleep until something may have come."""
        self._sleeper.sleep(self._fail_pause_s or self._pause_s)

    def look(self) -> None:
        """Store what is there, of each file a few values."""
        some = False
        for file in self._files.look():
            try:
                while self._store_some(file):
                    some = True
                    self._failed(None)
                    self._pipes.worker.ring()
            except OSError as error:
                self._give_back(file)
                self._failed(error)
                if not self._is_hopeless(file):
                    continue
                self._store_some(file, lost=f"it could not be written: {error.strerror or error}")
            if not file.reader.has_some and not file.has_owner(self._handle) and not file.reader.has_some:
                file.finish()
                self._pipes.worker.ring()
        self._pause_s = _SHORT_S if some else min(_REST_S, 2 * self._pause_s)

    def _failed(self, error: OSError | None) -> None:
        self._words[layout.AGENT_MEDIA_ERROR] = 0 if error is None else error.errno or 0
        if error is None:
            self._fails_since = self._fail_pause_s = 0.0
        else:
            self._fails_since = self._fails_since or time.monotonic()
            self._fail_pause_s = min(_MAX_PAUSE_S, max(_HANGING_S, 2 * self._fail_pause_s))
            self._blobs = None  # the folder may be gone, and is made anew then

    def _is_hopeless(self, file: MediaFile) -> bool:
        is_long = self._fails_since and time.monotonic() - self._fails_since > _GIVE_UP_S
        return bool(is_long) and not file.has_owner(self._handle)

    def _give_back(self, file: MediaFile) -> None:
        if self._blobs is not None:
            self._blobs.drop()
        file.reader.go_back()

    def _folder(self) -> BlobFolder | None:
        """Return where blobs go; None as long as there is no run folder. Raises OSError."""
        if self._blobs is None:
            base = self._handle.shm_dir.folder_answer().get("dir")
            if not isinstance(base, str) or not base:
                return None
            shm_dir = self._handle.shm_dir
            folder = os.path.join(base, folder_name(shm_dir.run_id), str(shm_dir.node))
            if not os.path.isdir(folder):  # the copier makes it
                return None
            self._blobs = BlobFolder(folder, self._settings.media_disk_bytes)
        return self._blobs

    def _store_some(self, file: MediaFile, lost: str = "") -> bool:
        """Store the next values of a file together; False where there are none. Raises OSError."""
        blobs = None if lost else self._folder()
        if (blobs is None and not lost) or not file.reader.has_some:
            return False
        made: list[tuple[RawValue, str, Reference, str]] = []
        size = 0
        together = 1 if file.reader.has_suspect else _TOGETHER
        while len(made) < together and size < _TOGETHER_BYTES:
            value = file.reader.take()
            if value is None:
                break
            if value.seq <= file.references.seq:  # the one before us died before it released it
                file.reader.release(value)
                continue
            size += len(value.payload)
            key, reference = self._store(file, value, blobs, lost)
            value.payload = b""
            made.append((value, key, reference, reference.text()))
        failpoint.hit("media.written")
        if blobs is not None and blobs.waiting:
            blobs.settle()
        failpoint.hit("media.settled")
        for value, key, reference, text in made:
            if not file.references.offer(value, key, text):
                file.reader.go_back()  # the worker has to take some first; their blobs are there
                self._pipes.worker.ring()
                return False
            if reference.lost:
                file.reader.note_lost()
            failpoint.hit("media.referred")
            file.reader.release(value)
            self._words[layout.AGENT_MEDIA_STORED] += 1
        return bool(made)

    def _store(
        self, file: MediaFile, value: RawValue, blobs: BlobFolder | None, lost: str
    ) -> tuple[str, Reference]:
        """Write the blob of one value; returns its key and its reference."""
        if value.damage:
            return LOST_KEY, Reference("value", lost=value.damage)
        kind, key = "value", LOST_KEY
        given: dict[str, Any] = {}
        try:
            kind, key, given = described(value)
            if lost or blobs is None:
                raise BadValue(lost)
            made = self._encode(file, value)
            if made.images and made.data is not None:
                made.data = with_images(made.data, [_cell(blobs, image) for image in made.images])
            return key, _refer(made, _add(blobs, made))
        except BadValue as why:
            return key, Reference(kind, lost=str(why), fields=said_of(given))
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:  # one value that is odd ends no other
            return key, Reference(kind, lost=f"it could not be stored ({type(error).__name__})")

    def _encode(self, file: MediaFile, value: RawValue) -> Encoded:
        if file.reader.deaths(value) >= _MAX_DEATHS:
            raise BadValue(f"{_MAX_DEATHS} processes died while they encoded it")
        file.reader.begin(value)
        signal.setitimer(signal.ITIMER_REAL, _ENCODE_S)  # it kills: nothing in a library can hold that up
        try:
            failpoint.hit("media.encode")
            return encode(value, is_hurried=file.reader.fill > _HURRIED)
        except (ArithmeticError, LookupError, TypeError, ValueError, MemoryError) as error:
            raise BadValue(f"it could not be encoded ({type(error).__name__})") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            file.reader.end()


def _add(blobs: BlobFolder, made: Encoded) -> Blob | None:
    """Write the bytes of a value, if it has some. Raises OSError, and BadValue where a user's file cannot be read."""
    if made.path:
        return blobs.add_file(made.path)
    return None if made.data is None else blobs.add(made.data)


def _cell(blobs: BlobFolder, image: Encoded | str) -> dict[str, Any]:
    """Write the image of a table's cell; returns what the cell says of it. Raises OSError."""
    if isinstance(image, str):
        return Reference("image", lost=image).table()
    if blobs.waiting >= _TOGETHER:  # each of them keeps a file open
        blobs.settle()
    try:
        return _refer(image, _add(blobs, image)).table()
    except BadValue as why:
        return Reference("image", lost=str(why), fields=image.fields).table()


def _refer(made: Encoded, blob: Blob | None) -> Reference:
    if blob is None:
        return Reference(made.kind, fields=made.fields)
    mime = mime_of(blob.start, made.kind) if made.path else made.mime
    fields = size_of(blob.start) | made.fields if mime.startswith("image/") else made.fields
    return Reference(made.kind, blob.sha256, blob.size, mime, fields=fields)
