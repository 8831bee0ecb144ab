"""Sessions of browsers: signed cookies, logouts, and one-time codes, for all processes that serve one data folder.

Runs in the collector and in each process that answers HTTP beside it (any thread). A cookie holds whose session it is
and is signed, so a login writes nothing; what ends a session before its time lies in a file.

::

    <data>/session-key    mode 0600: 32 random bytes, the key of all signatures. Where it is removed, all sessions end
    <data>/sessions.json  mode 0600; sessions.lock
    {"version": 1, "generation": n,
     "ended": [{"session": hex, "owner": text, "ends_ns": n}],      logged out, until they would have expired
     "voided": [{"owner": text, "generation": n, "ends_ns": n}],    sessions of that owner from before do not count
     "codes": [{"digest": hex, "name", "roles", "made_ns", "ends_ns"}]}

    cookie = base64url(JSON: session, name, roles, made_ns, generation, ends_ns) + "." + base64url(HMAC-SHA256)

Invariants:

- a session has the rights of its token, and is over with it: in every process, `tokens.LOOK_S` after the token was
  revoked. A grant with `made_ns` 0 is no token's: the process itself gave it;
- a session lasts `SESSION_S`, a code `CODE_S` and one use; a clock that is set back ends both rather than extend them;
- signatures and digests are compared in constant time;
- `MAX_ENDED` logouts are kept. Beyond, all sessions of the owner with most of them end, and its entries go;
- no cookie, code or key is part of an error, a log line or a `repr`.

Does not: read headers or set them (`web/session_cookie.py`), decide what a role is needed for (`web/access.py`).
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from logclient.errors import Unsupported
from logclient.shm.regular import open_regular

from ..wal.whole import write_whole
from .store.interface import StoreError
from .tokens import LOOK_S, ROLES, Grant

KEY, FILE, LOCK = "session-key", "sessions.json", "sessions.lock"
VERSION = 1
SESSION_S = 30 * 86400.0  # a browser asks for the token once a month
CODE_S = 300.0  # time to copy a link, and to open a tunnel for it
MAX_ENDED = 5_000
MAX_CODES = 100  # unused ones; the oldest go
MAX_COOKIE_CHARACTERS = 1024
MAX_CODE_CHARACTERS = 100

_KEY_BYTES = 32
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Session:
    """One login of a browser."""

    id: str = field(repr=False)
    grant: Grant
    generation: int
    ends_ns: int


@dataclass(frozen=True, slots=True)
class _Code:
    digest: str = field(repr=False)
    grant: Grant
    ends_ns: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """The content of the file."""

    generation: int = 0
    ended: tuple[tuple[str, str, int], ...] = ()  # session, owner, when it would have ended
    voided: tuple[tuple[str, int, int], ...] = ()  # owner, generation, when no older session is left
    codes: tuple[_Code, ...] = ()


class Sessions:
    """The sessions of one data folder."""

    def __init__(self, folder: str, is_valid: Callable[[Grant], bool]) -> None:
        """Read key and file, make a key where there is none; `is_valid`: is the token of that grant still one?"""
        self._key_path = os.path.join(folder, KEY)
        self._path = os.path.join(folder, FILE)
        self._lock_path = os.path.join(folder, LOCK)
        self._is_valid = is_valid
        self._lock = threading.Lock()  # of what was read; never held while a file is written
        self._editing = threading.Lock()
        self._looked = 0.0
        self._key = b""
        self._key_seen: tuple[int, ...] = ()
        self._seen: tuple[int, ...] = ()
        self._kept = _Kept()
        self._ended: frozenset[str] = frozenset()
        self._voided: dict[str, int] = {}
        with self._editing, self._edit():
            pass

    # ---- a session ----------------------------------------------------------------------------------------

    def begin(self, grant: Grant) -> tuple[str, Session]:
        """Begin a session with these rights; return its cookie, which nobody keeps but the browser."""
        with self._editing, self._edit():
            key, generation = self._key, self._kept.generation
        ends_ns = time.time_ns() + int(SESSION_S * 1e9)
        made = Session(secrets.token_hex(16), grant, generation, ends_ns)
        body = _pack(made)
        return f"{body}.{_signature(key, body)}", made

    def check(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None where it is none of ours, or over."""
        if not cookie or len(cookie) > MAX_COOKIE_CHARACTERS:
            return None
        if time.monotonic() - self._looked > LOOK_S:
            self._look_again()
        body, _, signature = cookie.rpartition(".")
        if not self._is_signed(body, signature):
            self._look_again()  # the key may have been made this very moment, by another process
            if not self._is_signed(body, signature):
                return None
        found = _unpack(body)
        if found is None or not 0 < found.ends_ns - time.time_ns() <= SESSION_S * 1e9:
            return None
        if found.id in self._ended or found.generation < self._voided.get(_owner(found.grant), 0):
            return None
        return found if self._is_usable(found.grant) else None

    def end(self, session: Session) -> None:
        """Log out: the session is over in this process now, and in others within `LOOK_S`, also after a power cut."""
        with self._editing, self._edit():
            kept = self._kept
            if session.id in self._ended:
                return
            ended = (*kept.ended, (session.id, _owner(session.grant), session.ends_ns))
            self._save(_bounded(replace(kept, ended=ended)))

    # ---- codes --------------------------------------------------------------------------------------------

    def new_code(self, grant: Grant) -> str:
        """Make a code that begins one session with these rights, within `CODE_S`, in any process of the folder."""
        code = secrets.token_urlsafe(24)
        made = _Code(_digest(code), grant, time.time_ns() + int(CODE_S * 1e9))
        with self._editing, self._edit():
            self._save(replace(self._kept, codes=(*self._kept.codes, made)[-MAX_CODES:]))
        return code

    def take_code(self, code: str) -> Grant | None:
        """Return the rights that a code stands for, once; None where it is no code, too old, or used."""
        if not code or len(code) > MAX_CODE_CHARACTERS:
            return None
        digest = _digest(code)
        self._look_again()
        if _found(self._kept.codes, digest) is None:
            return None
        with self._editing, self._edit():
            found = _found(self._kept.codes, digest)  # another process may have been faster
            if found is None:
                return None
            self._save(
                replace(
                    self._kept, codes=tuple(each for each in self._kept.codes if each.digest != found.digest)
                )
            )
        is_due = 0 < found.ends_ns - time.time_ns() <= CODE_S * 1e9
        return found.grant if is_due and self._is_usable(found.grant) else None

    # ---- files --------------------------------------------------------------------------------------------

    def _is_usable(self, grant: Grant) -> bool:
        return not grant.made_ns or self._is_valid(grant)

    def _is_signed(self, body: str, signature: str) -> bool:
        key = self._key
        return bool(key) and hmac.compare_digest(
            _signature(key, body).encode(), signature.encode("utf-8", "replace")
        )

    def _look_again(self) -> None:
        with self._lock:
            self._look()

    def _look(self) -> None:
        """Read what is there now, if it is other than last time; no key: nobody has a session."""
        self._looked = time.monotonic()
        data = _read_changed(self._key_path, self._key_seen)
        if data is not None:
            content, self._key_seen = data
            if content and len(content) != _KEY_BYTES:
                raise StoreError(f"{self._key_path} is damaged: remove it, and every browser logs in again")
            self._key = content
        data = _read_changed(self._path, self._seen)
        if data is not None:
            content, self._seen = data
            self._take(_parse(self._path, content) if content else _Kept())

    def _take(self, kept: _Kept) -> None:
        self._kept = kept
        self._ended = frozenset(session for session, _, _ in kept.ended)
        self._voided = {owner: generation for owner, generation, _ in kept.voided}

    def _save(self, kept: _Kept) -> None:
        now_ns = time.time_ns()
        kept = replace(
            kept,
            ended=tuple(each for each in kept.ended if each[2] > now_ns),
            voided=tuple(each for each in kept.voided if each[2] > now_ns),
            codes=tuple(each for each in kept.codes if each.ends_ns > now_ns),
        )
        # what was ended does not come back with a power cut
        write_whole(self._path, _as_json(kept), 0o600, sync_folder=True)
        self._look_again()

    @contextmanager
    def _edit(self) -> Iterator[None]:
        """One editor at a time, with what others wrote, and with a key."""
        fd = open_regular(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            self._look_again()
            if not self._key:
                write_whole(self._key_path, secrets.token_bytes(_KEY_BYTES), 0o600, sync_folder=True)
                self._look_again()
            yield
        finally:
            os.close(fd)


def _read_changed(path: str, seen: tuple[int, ...]) -> tuple[bytes, tuple[int, ...]] | None:
    """Return content and marks of a file that has changed; None where it has not. Empty: there is none."""
    try:
        fd = open_regular(path, max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return (b"", ()) if seen else None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        marks = (found.st_ino, found.st_size, found.st_mtime_ns)
        if marks == seen:
            return None
        if found.st_uid not in (os.getuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
            raise StoreError(
                f"{path} can be read or written by other users, so no session is believed: remove it, and every "
                f"browser logs in again"
            )
        return file.read(_MAX_BYTES), marks


def _owner(grant: Grant) -> str:
    return f"{grant.made_ns}/{grant.name}"


def _bounded(kept: _Kept) -> _Kept:
    """At most `MAX_ENDED` logouts: beyond, all sessions of the owner with most of them are void."""
    if len(kept.ended) <= MAX_ENDED:
        return kept
    most = Counter(owner for _, owner, _ in kept.ended).most_common(1)[0][0]
    generation = kept.generation + 1
    until = time.time_ns() + int(SESSION_S * 1e9)
    return replace(
        kept,
        generation=generation,
        ended=tuple(each for each in kept.ended if each[1] != most),
        voided=(*(each for each in kept.voided if each[0] != most), (most, generation, until)),
    )


def _digest(code: str) -> str:
    return hashlib.blake2b(
        code.encode("utf-8", "surrogatepass"), digest_size=32, person=b"logclient-code"
    ).hexdigest()


def _found(codes: tuple[_Code, ...], digest: str) -> _Code | None:
    """All are compared, whichever it is."""
    found = None
    for each in codes:
        if hmac.compare_digest(each.digest, digest):
            found = each
    return found


def _signature(key: bytes, body: str) -> str:
    made = hmac.digest(key, b"logclient-session-1:" + body.encode("utf-8", "surrogatepass"), "sha256")
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


def _pack(session: Session) -> str:
    grant = session.grant
    roles = [role for role in ROLES if role in grant.roles]
    content = [session.id, grant.name, roles, grant.made_ns, session.generation, session.ends_ns]
    return base64.urlsafe_b64encode(json.dumps(content, separators=(",", ":")).encode()).decode().rstrip("=")


def _unpack(body: str) -> Session | None:
    """Return the session that was signed; None where a newer version signed something else."""
    try:
        data = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        session, name, roles, made_ns, generation, ends_ns = json.loads(data)
        return Session(
            str(session),
            Grant(str(name), frozenset(map(str, roles)), int(made_ns)),
            int(generation),
            int(ends_ns),
        )
    except (ValueError, TypeError):
        return None


def _as_json(kept: _Kept) -> bytes:
    content = {
        "version": VERSION,
        "generation": kept.generation,
        "ended": [
            {"session": session, "owner": owner, "ends_ns": ends_ns} for session, owner, ends_ns in kept.ended
        ],
        "voided": [
            {"owner": owner, "generation": generation, "ends_ns": ends_ns}
            for owner, generation, ends_ns in kept.voided
        ],
        "codes": [
            {
                "digest": each.digest,
                "name": each.grant.name,
                "roles": [role for role in ROLES if role in each.grant.roles],
                "made_ns": each.grant.made_ns,
                "ends_ns": each.ends_ns,
            }
            for each in kept.codes
        ],
    }
    return json.dumps(content, indent=1).encode()


def _parse(path: str, data: bytes) -> _Kept:
    try:
        content = json.loads(data)
        version = content["version"]
        if type(version) is int and version > VERSION:
            raise Unsupported(f"{path} was written by a newer logclient: update to use it")
        return _Kept(
            int(content["generation"]),
            tuple(
                (str(each["session"]), str(each["owner"]), int(each["ends_ns"])) for each in content["ended"]
            ),
            tuple(
                (str(each["owner"]), int(each["generation"]), int(each["ends_ns"]))
                for each in content["voided"]
            ),
            tuple(map(_read_code, content["codes"])),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(
            f"{path} is damaged ({type(error).__name__}): remove it together with {KEY} beside it, and every browser "
            f"logs in again"
        ) from error


def _read_code(entry: dict[str, Any]) -> _Code:
    grant = Grant(str(entry["name"]), frozenset(map(str, entry["roles"])), int(entry["made_ns"]))
    return _Code(str(entry["digest"]), grant, int(entry["ends_ns"]))
