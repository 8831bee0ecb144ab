"""The file of the embedded engine: opening it, locking it, and connections to it.

In the store's folder (mode 0700, its files 0600): `store.db` (SQLite in WAL mode, with `-wal` and `-shm` beside it) and
`lock`. A `Database` belongs to one process, and others may read what it has committed (`ReadOnlyDatabase`). A `Session`
(a connection and a packer) belongs to one thread at a time.

Invariants:

- a file of a newer version, or of another program, is refused before SQLite sees it: not a byte of it, nor of the files
  beside it, is touched;
- one process at a time has the folder (a record lock that a dead process cannot keep);
- every change is made under `lock`, so the writer and the upkeep never wait for each other inside SQLite.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from logclient.errors import BadArgument, Corrupt, Unsupported
from logclient.shm import modes
from logclient.shm.regular import MAX_STORE_BYTES, open_regular

from ....wal.files import REAL
from ..interface import StoreError, StoreFull
from . import schema
from .pack import Packer

FILE, LOCK = "store.db", "lock"
MAX_IDLE = 16  # sessions that are kept for the next reader
_WAL_PAGES = 4000  # of a commit's own checkpoint; the upkeep comes before it
_BUSY_S = 60.0
_FAILING = {
    sqlite3.SQLITE_FULL: "is full",
    sqlite3.SQLITE_IOERR: "is failing",
    sqlite3.SQLITE_CANTOPEN: "does not let its files be opened",
    sqlite3.SQLITE_READONLY: "cannot be written",
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_held: set[tuple[int, int]] = (
    set()
)  # folders that this process has open: record locks do not keep it from itself
_held_lock = threading.Lock()


class Session:
    """One connection with what belongs to it."""

    __slots__ = ("connection", "packer")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.packer = Packer()


class DatabaseWatch:
    """See `interface.Watch`: a connection of its own, on which SQLite says whether others have committed."""

    def __init__(self, session: Session) -> None:
        self._connection = session.connection
        self._version = -1

    def has_changed(self) -> bool:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        changed, self._version = version != self._version, version
        return bool(changed)

    def close(self) -> None:
        self._connection.close()


class Connections:
    """Connections to a store's file, for readers; any thread."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.path = os.path.join(folder, FILE)
        self.id = ""
        self._idle: list[Session] = []

    def session(self) -> Session:
        """Return a new connection; the caller closes it."""
        raise NotImplementedError

    def read_meta(self) -> dict[str, str]:
        """Return what the store knows of itself."""
        with self.reading() as session:
            return dict(session.connection.execute("SELECT name, value FROM meta").fetchall())

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one state of the store."""
        with errors(self.folder):
            try:
                session = self._idle.pop()
            except IndexError:
                session = self.session()
                session.connection.execute("PRAGMA query_only=1")
            try:
                session.connection.execute("BEGIN")
                yield session
            except BaseException:
                session.connection.close()
                raise
            session.connection.execute("COMMIT")
            if len(self._idle) < MAX_IDLE:
                self._idle.append(session)
            else:
                session.connection.close()

    def watch(self) -> DatabaseWatch:
        """Return what notices commits."""
        with errors(self.folder):
            return DatabaseWatch(self.session())

    def close(self) -> None:
        """Close the connections that no reader uses now."""
        while self._idle:
            self._idle.pop().connection.close()


class ReadOnlyDatabase(Connections):
    """The file of a store that another process has open: what that has committed can be read at once.

    Takes no lock and changes nothing: SQLite opens the file for reading.
    """

    def __init__(self, folder: str) -> None:
        """`StoreError` where there is no store."""
        super().__init__(folder)
        if version_of(self.path, newest=schema.VERSION) is None:
            raise StoreError(f"There is no store in {folder}.")
        self.id = self.read_meta()["id"]

    def session(self) -> Session:
        where = f"file:{urllib.parse.quote(os.path.abspath(self.path))}?mode=ro"
        connection = sqlite3.connect(
            where,
            uri=True,
            isolation_level=None,
            timeout=_BUSY_S,
            check_same_thread=False,
            cached_statements=512,
        )
        connection.execute("PRAGMA cache_size=-16384")
        return Session(connection)


class Database(Connections):
    """An open store's file."""

    def __init__(
        self,
        folder: str,
        *,
        synchronous: str = "FULL",
        version: int = schema.VERSION,
        migrations: Mapping[int, schema.Migration] = schema.MIGRATIONS,
    ) -> None:
        """`Unsupported` for a newer version, `StoreError` where the folder cannot be used."""
        if synchronous not in ("FULL", "NORMAL"):
            raise ValueError(f"synchronous is FULL or NORMAL, not {synchronous!r}")
        super().__init__(folder)
        self.open_ns = 0  # for how long the store was open before, all in all
        self.lock = threading.RLock()
        self._synchronous = synchronous
        make_folder(folder)
        self._lock_fd, self._folder_id = _lock_folder(folder)
        try:
            is_new = version_of(self.path, newest=version) is None
            self._prepare(is_new, version, migrations)
            meta = self.read_meta()
            self.id, self.open_ns = meta["id"], int(meta.get("open_ns", 0))
        except BaseException:
            self._unlock()
            raise

    def _prepare(self, is_new: bool, version: int, migrations: Mapping[int, schema.Migration]) -> None:
        with errors(self.folder):
            if is_new:
                self._create()
            connection = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_S)
            try:
                # what was killed inside a transaction is rolled back now: the header may have named a later version
                (found,) = connection.execute("PRAGMA user_version").fetchone()
                if found < version:
                    schema.migrate(connection, found, version, migrations)
                connection.execute("PRAGMA journal_mode=WAL")
            finally:
                connection.close()

    def _create(self) -> None:
        """Whole or not at all: SQLite writes the first page of a new file before the transaction that fills it."""
        made = self.path + ".new"
        for left in (made, made + "-journal"):
            modes.remove_if_there(left)
        os.close(os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = sqlite3.connect(made, isolation_level=None)
        try:
            connection.execute(f"PRAGMA page_size={schema.PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            connection.execute("BEGIN IMMEDIATE")
            schema.create(connection, secrets.token_hex(16))
            connection.execute("COMMIT")
        finally:
            connection.close()
        os.rename(made, self.path)
        REAL.fsync_folder(self.folder)

    def session(self) -> Session:
        connection = sqlite3.connect(
            self.path, isolation_level=None, timeout=_BUSY_S, check_same_thread=False, cached_statements=512
        )
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute(f"PRAGMA wal_autocheckpoint={_WAL_PAGES}")
        connection.execute("PRAGMA journal_size_limit=16777216")
        connection.execute("PRAGMA cache_size=-16384")
        return Session(connection)

    @contextmanager
    def looking(self, session: Session) -> Iterator[None]:
        """One state of the store, for a session that also writes; not for long: the SQLite WAL grows meanwhile."""
        with errors(self.folder):
            session.connection.execute("BEGIN")
            try:
                yield
            finally:
                session.connection.execute("COMMIT")

    @contextmanager
    def changing(self, session: Session) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing."""
        connection = session.connection
        with self.lock, errors(self.folder):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    try:
                        connection.execute("ROLLBACK")
                    except sqlite3.Error:
                        pass  # an error that ended the transaction by itself; the first one is raised
                raise

    def close(self) -> None:
        super().close()
        self._unlock()

    def _unlock(self) -> None:
        with _held_lock:
            _held.discard(self._folder_id)
            os.close(self._lock_fd)


def make_folder(folder: str) -> None:
    """Make it, 0700; `StoreError` where that cannot be."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        if os.stat(folder).st_uid == os.geteuid():
            os.chmod(folder, 0o700)
    except OSError as error:
        raise _no_folder(folder, error) from error


def _no_folder(folder: str, error: OSError) -> StoreError:
    return StoreError(
        f"The folder {folder} cannot be used for a store: {error.strerror}. Choose another one with --data."
    )


def _lock_folder(folder: str) -> tuple[int, tuple[int, int]]:
    """The descriptor that holds the lock, and device and inode of the folder."""
    taken = StoreError(
        f"Another collector has the store in {folder} open. Stop it, or choose another folder."
    )
    try:
        status = os.stat(folder)
        folder_id = (status.st_dev, status.st_ino)
        with _held_lock:  # a second descriptor, once closed, would free this process's lock
            if folder_id in _held:
                raise taken
            fd = open_regular(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise taken from None
                raise
            _held.add(folder_id)
            return fd, folder_id
    except OSError as error:
        raise _no_folder(folder, error) from error


def version_of(path: str, *, newest: int) -> int | None:
    """The version of the store in this file, from its header alone; None: there is none yet.

    `Unsupported` where it is newer than `newest`, `StoreError` where the file is something else.
    """
    try:
        with open(open_regular(path, max_bytes=MAX_STORE_BYTES), "rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    if not head:
        return None  # made, and killed before the first transaction
    application = int.from_bytes(head[68:72], "big")
    version = int.from_bytes(head[60:64], "big")
    if not head.startswith(b"SQLite format 3\0") or len(head) < 100 or application != schema.APPLICATION:
        raise StoreError(
            f"{path} is no store of logclient. Choose another folder with --data, or move it away."
        )
    if version > newest:
        raise Unsupported(
            f"{path} has version {version} and this program knows versions up to {newest}. Nothing was changed. "
            "Start the newer logclient that wrote it, or restore a backup from before."
        )
    return version


@contextmanager
def errors(folder: str) -> Iterator[None]:
    """Raise errors of SQLite as sentences."""
    try:
        yield
    except sqlite3.Error as error:
        raise _store_error(folder, error) from error
    except BadArgument:  # a question that makes no sense, which means nothing for the file
        raise
    except OSError as error:
        raise _full(folder, "is full" if error.errno in _NO_ROOM else "is failing", error) from error
    except ValueError as error:
        raise Corrupt(os.path.join(folder, FILE), 0, "packed columns", error) from error


def _store_error(folder: str, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _FAILING:
        return _full(folder, _FAILING[code], error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(
            f"The store in {folder} is damaged ({error}). Stop the collector and restore a backup with "
            "`logclient server restore`; what agents still hold is sent again."
        )
    return StoreError(f"The store in {folder} cannot be used: {error}.")


def _full(folder: str, how: str, error: Exception) -> StoreFull:
    return StoreFull(
        f"The disk that holds the store in {folder} {how} ({error}). Nothing was changed, reading goes on. Make room "
        "or mend the disk: it goes on by itself."
    )
