"""Tokens, their roles, and the file that keeps their digests.

Runs in the collector (any thread), and in `logclient server token`, which edits the file while a collector runs: that
knows a new token at once, and that one was revoked after `LOOK_S`.

::

    <data>/tokens.json, mode 0600
    {"version": 1, "tokens": [{"name", "roles": ["ingest", ...], "digest": hex, "created_ns": n}]}

Invariants:

- a token is 256 random bits; only its digest is stored, so no pass-word hash is needed, and it is shown once;
- digests are compared in constant time, and always all of them;
- the file is replaced as a whole, under a lock; one that another user could have written is not believed;
- no token is part of an error, a log line or a `repr`.

Does not: decide what a role is needed for. Ingest asks for `ingest`, the HTTP API for `read`, changes of names, tags
and notes for `edit`, requests to stop or to save for `control`, deleting for `admin`.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from logclient.errors import BadArgument, Unsupported
from logclient.shm.regular import open_regular

from ..wal.whole import write_whole
from .store.interface import StoreError

INGEST, READ, EDIT, CONTROL, ADMIN = "ingest", "read", "edit", "control", "admin"
ROLES = (INGEST, READ, EDIT, CONTROL, ADMIN)

FILE, LOCK = "tokens.json", "tokens.lock"
VERSION = 1
MAX_TOKENS = 10_000
MAX_TOKEN_CHARACTERS = 512  # whatever is longer is none, and is not hashed
LOOK_S = 0.5

_PREFIX = "lct_"  # so that scanners of repositories can find one that leaked
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a caller, and the name of the token that gives them (never the token itself)."""

    name: str
    roles: frozenset[str]
    made_ns: int = 0  # a name may be given again after it was revoked

    def may(self, role: str) -> bool:
        """An administrator may do everything."""
        return role in self.roles or ADMIN in self.roles

    @property
    def role(self) -> str:
        """In words, for answers: "admin", "ingest,read", ..."""
        return ",".join(role for role in ROLES if role in self.roles)


EVERYBODY = Grant("nobody in particular", frozenset(ROLES))  # with --no-auth


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file."""

    name: str
    roles: frozenset[str]
    digest: bytes = field(repr=False)
    created_ns: int

    @property
    def grant(self) -> Grant:
        return Grant(self.name, self.roles, self.created_ns)


class Tokens:
    """The tokens of one data folder."""

    def __init__(self, folder: str, *, no_auth: bool = False) -> None:
        """Reads the file; `no_auth`: everybody may do everything."""
        self._folder = folder
        self._path = os.path.join(folder, FILE)
        self._lock = threading.Lock()
        self._no_auth = no_auth
        self._seen: tuple[int, ...] = ()
        self._looked = 0.0
        self._tokens: tuple[Token, ...] = ()
        self._look()

    @property
    def is_open(self) -> bool:
        """Nobody is asked for a token."""
        return self._no_auth

    def check(self, token: str | None) -> Grant | None:
        """Return the rights of this token's bearer; None where it is no token of ours."""
        if self._no_auth:
            return EVERYBODY
        if not token or len(token) > MAX_TOKEN_CHARACTERS:
            return None
        digest = _digest(token)
        found = _of(digest, self._current())
        if found is None:
            with self._lock:
                self._look()  # it may have been made this very moment
            found = _of(digest, self._tokens)
        return found

    def is_valid(self, grant: Grant) -> bool:
        """Is the token still valid? Asked by conversations that last, and for sessions of browsers."""
        if self._no_auth or _is_of(grant, self._current()):
            return True
        with self._lock:
            self._look()  # another process may have made it this very moment
        return _is_of(grant, self._tokens)

    def list(self) -> tuple[Token, ...]:
        """In the order in which they were made."""
        with self._lock:
            self._look()
            return self._tokens

    def add(self, name: str, roles: Iterable[str]) -> str:
        """A new token; it can not be shown again."""
        wanted = frozenset(roles)
        if not wanted or not wanted <= set(ROLES):
            raise BadArgument(f"roles {sorted(wanted)}: expected some of {', '.join(ROLES)}")
        if not _NAME.fullmatch(name):
            raise BadArgument(
                f"a token cannot be called {name!r}: up to 64 letters, digits and . _ @ -, beginning with one of the "
                f"first two"
            )
        token = _PREFIX + secrets.token_urlsafe(32)
        with self._lock, self._edit():
            if any(each.name == name for each in self._tokens):
                raise BadArgument(
                    f"there is a token called {name!r} already: revoke it first, or choose another name"
                )
            if len(self._tokens) >= MAX_TOKENS:
                raise BadArgument(f"there are {MAX_TOKENS:,} tokens already: revoke those that nobody uses")
            self._save((*self._tokens, Token(name, wanted, _digest(token), time.time_ns())))
        return token

    def revoke(self, name: str) -> bool:
        """It counts no longer, also for conversations that are open; False where there is none of that name."""
        with self._lock, self._edit():
            kept = tuple(each for each in self._tokens if each.name != name)
            if len(kept) == len(self._tokens):
                return False
            self._save(kept)
            return True

    def _current(self) -> tuple[Token, ...]:
        if time.monotonic() - self._looked > LOOK_S:
            with self._lock:
                self._look()
        return self._tokens

    def _look(self) -> None:
        """Read the file if it is another one than last time."""
        self._looked = time.monotonic()
        try:
            fd = open_regular(self._path)
        except FileNotFoundError:
            self._seen, self._tokens = (), ()
            return
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror}") from error
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen != self._seen:
                _check_owner(self._path, found)
                self._tokens = _parse(self._path, file.read(1 << 24))
                self._seen = seen

    def _save(self, tokens: tuple[Token, ...]) -> None:
        entries = [
            {
                "name": each.name,
                "roles": [role for role in ROLES if role in each.roles],
                "digest": each.digest.hex(),
                "created_ns": each.created_ns,
            }
            for each in tokens
        ]
        data = json.dumps({"version": VERSION, "tokens": entries}, indent=1).encode()
        # a token that was revoked does not come back with a power cut
        write_whole(self._path, data, 0o600, sync_folder=True)
        self._look()

    @contextmanager
    def _edit(self) -> Iterator[None]:
        """One editor at a time, and what others wrote is seen."""
        fd = open_regular(os.path.join(self._folder, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            self._look()
            yield
        finally:
            os.close(fd)


def _digest(token: str) -> bytes:
    return hashlib.blake2b(
        token.encode("utf-8", "surrogatepass"), digest_size=32, person=b"logclient-token"
    ).digest()


def _of(digest: bytes, tokens: tuple[Token, ...]) -> Grant | None:
    """All are compared, whichever it is."""
    found = None
    for each in tokens:
        if hmac.compare_digest(each.digest, digest):
            found = each.grant
    return found


def _is_of(grant: Grant, tokens: tuple[Token, ...]) -> bool:
    return any(each.created_ns == grant.made_ns and each.grant == grant for each in tokens)


def _check_owner(path: str, found: os.stat_result) -> None:
    if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
        raise StoreError(
            f"{path} can be written by other users, so its tokens are not believed: make it yours (chown) and "
            f"run `chmod 600` on it, after a look at what it holds"
        )


def _parse(path: str, data: bytes) -> tuple[Token, ...]:
    try:
        content = json.loads(data)
        version = content["version"]
        if type(version) is int and version > VERSION:
            raise Unsupported(f"{path} was written by a newer logclient: update to use it")
        return tuple(
            Token(
                str(entry["name"]),
                frozenset(map(str, entry["roles"])),
                bytes.fromhex(entry["digest"]),
                int(entry["created_ns"]),
            )
            for entry in content["tokens"]
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(
            f"{path} is damaged ({type(error).__name__}): move it away and make new tokens with "
            f"`logclient server token add`"
        ) from error
