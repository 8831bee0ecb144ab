"""Blobs of media values at a collector: each once by its hash, and a link to it for each run that has it.

Runs in threads of the wire, of the upkeep and of the HTTP API, which may be other processes; the folder is all that
they share. ::

    <data folder>/media/blobs/<2 hex>/<sha256>           0600
                        runs/<hash of a run's id>/id      the id itself, as text
                                                 /<sha256>   a hard link to the blob
                        coming/<sha256>-<hash of run and node>    what has arrived of one so far

Invariants:

- a blob has its name when its bytes were checked against it and are past an fsync;
- no path is made of what a client sent, but of hashes of it;
- who may read a run may read what is linked for it, and nothing else;
- a blob goes with the last run that has it: the number of its links says so.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator

from logclient.shm.regular import MAX_STORE_BYTES, open_regular

from ..wal.files import REAL, discard
from ..wire.blobs import Piece, is_hash
from ..wire.messages import DISK, INVALID, UNKNOWN, NotTaken

FOLDER = "media"
_PIECE = 1 << 20
_STALE_S = 86400.0  # of an upload that nobody goes on with
_KEEP = 0.9  # of the budget, once it is exceeded
_RETRY_S = 30.0
_LOCKS = 64


class Blobs:
    """The folder."""

    def __init__(
        self, data_folder: str, budget_bytes: int = 1 << 62, knows: Callable[[str], bool] | None = None
    ) -> None:
        """`knows`: is there such a run, that was not deleted? Nothing is made before there is a blob."""
        self._path = os.path.join(data_folder, FOLDER)
        self._budget = budget_bytes
        self._knows = knows or (lambda run: True)
        self._locks = [threading.Lock() for _ in range(_LOCKS)]  # by blob: two nodes may send the same
        self._used = -1

    # ---- for the wire ------------------------------------------------------------------------------------------

    def lacking(self, run: str, node: str, asked: list[str]) -> list[str]:
        """Return which of these the run lacks; those that are there for another run are linked for this one."""
        self._check_run(run)
        try:
            return [sha256 for sha256 in asked if not self._link(run, sha256)]
        except OSError as error:
            raise _of_disk(error) from None

    def take(self, run: str, node: str, piece: Piece) -> tuple[int, bool]:
        """Take a piece; returns how many bytes are there, and whether the blob is complete."""
        self._check_run(run)
        lock = self._locks[int(piece.sha256[:8], 16) % _LOCKS]
        with lock:
            try:
                if self._link(run, piece.sha256):
                    return piece.size, True
                return self._take(run, node, piece)
            except OSError as error:
                raise _of_disk(error) from None

    def _check_run(self, run: str) -> None:
        if not self._knows(run):
            text = f"the run {run[:100]!r} is not here yet, or was deleted: its blobs come after its records"
            raise NotTaken(text, UNKNOWN, retry_after_s=_RETRY_S)

    def _take(self, run: str, node: str, piece: Piece) -> tuple[int, bool]:
        coming = os.path.join(self._path, "coming")
        make_private(coming)
        path = os.path.join(coming, f"{piece.sha256}-{_name(f'{run} {node}')}")
        fd = open_regular(path, os.O_RDWR | os.O_CREAT, 0o600, max_bytes=MAX_STORE_BYTES)
        try:
            have = os.fstat(fd).st_size
            if piece.offset == have and have < piece.size:
                REAL.pwrite(fd, piece.data, have)
                have += len(piece.data)
            if have < piece.size:
                return have, False
            if have > piece.size or _digest(fd) != piece.sha256:
                os.ftruncate(fd, 0)
                raise NotTaken(
                    "the bytes of a blob are not those that its hash names", INVALID, is_final=True
                )
            os.fsync(fd)
        finally:
            os.close(fd)
        home = self._blob(piece.sha256)
        make_private(os.path.dirname(home))
        os.rename(path, home)
        REAL.fsync_folder(os.path.dirname(home))
        self._link(run, piece.sha256)
        self._note_used(piece.size)
        return piece.size, True

    def _link(self, run: str, sha256: str) -> bool:
        """Is this blob there for the run? One that is there for another is linked."""
        folder = self._run(run)
        link = os.path.join(folder, sha256)
        if os.path.lexists(link):
            return True
        home = self._blob(sha256)
        if not os.path.lexists(home):
            return False
        if not os.path.isdir(folder):
            make_private(folder)
            with open(os.path.join(folder, "id"), "w", encoding="utf-8", opener=_private) as file:
                file.write(run)
        try:
            os.link(home, link)
            REAL.fsync_folder(folder)
        except FileExistsError:
            pass
        except FileNotFoundError:  # trimmed just now
            return False
        return True

    def _note_used(self, size: int) -> None:
        if self._used < 0:
            self._used = sum(os.stat(path).st_size for path in self._blobs())
        else:
            self._used += size
        if self._used > self._budget:
            self.trim()

    # ---- for readers -------------------------------------------------------------------------------------------

    def open(self, run: str, sha256: str) -> int | None:
        """Return a descriptor of a blob of this run; None where it has none of that hash (any more)."""
        if not is_hash(sha256):
            return None
        try:
            return open_regular(os.path.join(self._run(run), sha256), max_bytes=MAX_STORE_BYTES)
        except OSError:
            return None

    def has(self, run: str, sha256: str) -> bool:
        """Has this run a blob of that hash?"""
        return is_hash(sha256) and os.path.lexists(os.path.join(self._run(run), sha256))

    # ---- for a restore -----------------------------------------------------------------------------------------

    @property
    def home(self) -> str:
        """The folder of the blobs themselves, each by its hash."""
        return os.path.join(self._path, "blobs")

    def link(self, run: str, names: list[str]) -> None:
        """Give a run blobs that are there."""
        for sha256 in names:
            self._link(run, sha256)

    # ---- for the upkeep ----------------------------------------------------------------------------------------

    def sweep(self, is_there: Callable[[str], bool]) -> int:
        """Remove what belonged to runs that are gone for good, and old uploads; returns how many blobs went."""
        for folder in _listed(os.path.join(self._path, "runs")):
            try:
                with open(os.path.join(folder, "id"), encoding="utf-8") as file:
                    run = file.read()
            except OSError:
                continue  # it is only just being made
            if not is_there(run):
                shutil.rmtree(folder, ignore_errors=True)
        gone = 0
        for path in list(self._blobs()):
            if os.stat(path).st_nlink == 1:
                discard(REAL, path)
                gone += 1
        for path in _listed(os.path.join(self._path, "coming")):
            if time.time() - os.stat(path).st_mtime > _STALE_S:
                discard(REAL, path)
        self._used = -1
        return gone

    def trim(self) -> int:
        """Remove the oldest blobs until the budget is kept; returns how many went."""
        found = sorted((os.stat(path).st_mtime_ns, os.stat(path).st_size, path) for path in self._blobs())
        used, gone = sum(size for _, size, _ in found), 0
        runs = _listed(os.path.join(self._path, "runs"))
        for _, size, path in found[:-1]:
            if used <= _KEEP * self._budget:
                break
            for folder in runs:
                discard(REAL, os.path.join(folder, os.path.basename(path)))
            discard(REAL, path)
            used, gone = used - size, gone + 1
        self._used = used
        return gone

    def _blobs(self) -> Iterator[str]:
        for folder in _listed(self.home):
            yield from _listed(folder)

    def _blob(self, sha256: str) -> str:
        return os.path.join(self.home, sha256[:2], sha256)

    def _run(self, run: str) -> str:
        return os.path.join(self._path, "runs", _name(run))


def make_private(folder: str) -> None:
    """Make a folder that is the user's alone; those above it that are not there, too."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_private(os.path.dirname(folder))
        make_private(folder)


def _name(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _digest(fd: int) -> str:
    found, at = hashlib.sha256(), 0
    while piece := os.pread(fd, _PIECE, at):
        found.update(piece)
        at += len(piece)
    return found.hexdigest()


def _listed(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _of_disk(error: OSError) -> NotTaken:
    text = f"a blob cannot be stored at the collector: {error.strerror or error}"
    return NotTaken(text, DISK, retry_after_s=_RETRY_S)
