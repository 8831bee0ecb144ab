"""`TargetFile`: the file of targets as it is now, read again when it changes.

Its disk may hang, so a child with a deadline reads it. The first reading comes at once; later ones where somebody is
about to send, where the disk did not answer, or after a while.

====== ==========================================================================
state
====== ==========================================================================
""      nobody has read it yet
ok      `targets` is what it says
missing there is no file: `targets` is empty
refused it cannot be used, for `trouble`: `targets` is what it said before
silent  its disk does not answer: likewise
====== ==========================================================================
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from logclient.errors import BadArgument

from .attempt import Attempt
from .targets import MAX_BYTES, Targets, parse, read_ca, read_checked, with_ca

READ_S = 2.0
FRESH_S = 5.0  # not older than that when something is sent
REST_S = 300.0  # between two looks while nothing is: each takes a process
OK, MISSING, REFUSED, SILENT = "ok", "missing", "refused", "silent"


class TargetFile:
    """One file. `look` never waits."""

    def __init__(self, path: str | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`path`: None for a user without a home."""
        self._path = path or ""
        self._clock = clock
        self._child: Attempt | None = None
        self._left_behind: list[Attempt] = []
        self._seen: list[int] | None = None  # identity of what `targets` is made of
        self._read_at = -REST_S  # begin of the last reading that is over
        self._begun_at = 0.0
        self.targets = Targets()
        self.state = "" if self._path else MISSING
        self.trouble = ""
        if self._path and not os.path.isabs(self._path):
            self.state, self.trouble = REFUSED, f"LOGCLIENT_ALERTS={self._path}: write an absolute path"
            self._path = ""

    @property
    def is_reading(self) -> bool:
        return self._child is not None

    def is_fresh(self) -> bool:
        """Was it read just now, or can it not be?"""
        return not self._path or self._clock() - self._read_at < FRESH_S

    def look(self, *, is_wanted: bool = False) -> None:
        """Go on reading; begin where it is time, or `is_wanted` and what is known is old."""
        self._left_behind = [child for child in self._left_behind if not child.reap()]
        now = self._clock()
        if self._child is not None:
            answer = self._child.poll()
            if answer is not None:
                if not self._child.reap():
                    self._left_behind.append(self._child)
                self._child, self._read_at = None, self._begun_at
                self._take(answer)
            return
        is_soon = is_wanted or self.state == SILENT
        is_due = now - self._read_at >= (FRESH_S if is_soon else REST_S)
        if is_due and self._path and not self._left_behind:
            self._begin(now)

    def close(self) -> None:
        for child in (self._child, *self._left_behind):
            if child is not None:
                child.end()

    def _begin(self, now: float) -> None:
        path, seen = self._path, self._seen
        try:
            self._child = Attempt(lambda: _read(path, seen), READ_S)
            self._begun_at = now
        except OSError as error:
            self._read_at = now
            self._fail(SILENT, f"{path} cannot be read: {error.strerror}")

    def _take(self, answer: dict[str, Any]) -> None:
        code = answer["code"]
        if code == "same":
            self.state, self.trouble = OK, ""
        elif code == "missing":
            self.state, self.trouble, self._seen, self.targets = MISSING, "", None, Targets()
        elif code == "read":
            try:
                found = parse(answer["text"].encode(), self._path)
                self.targets = with_ca(found, answer["ca"].encode(), self._path)
            except BadArgument as error:
                self._fail(REFUSED, str(error))
            else:
                self.state, self.trouble, self._seen = OK, "", answer["identity"]
        elif code == "refused":
            self._fail(REFUSED, str(answer["why"]))
        else:
            self._fail(SILENT, f"{self._path} does not answer: its disk may hang")

    def _fail(self, state: str, trouble: str) -> None:
        self.state, self.trouble, self._seen = state, trouble, None


def _read(path: str, seen: list[int] | None) -> dict[str, Any]:
    """Read the file, in a child; `same` where it is what was seen before."""
    try:
        data, found = read_checked(path, MAX_BYTES)
        targets = parse(data, path)
        identity = [_identity(found)]
        ca = b""
        if targets.ca_path:
            identity.append(_identity(os.stat(targets.ca_path)))
        flat = [number for each in identity for number in each]
        if flat == seen:
            return {"code": "same"}
        ca = read_ca(targets, path)
        return {"code": "read", "text": data.decode(), "ca": ca.decode("ascii", "replace"), "identity": flat}
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.filename == path:
            return {"code": "missing"}
        return {"code": "refused", "why": f"{path}: {error.filename} is not there"}
    except BadArgument as error:
        return {"code": "refused", "why": str(error)}
    except OSError as error:
        return {"code": "refused", "why": f"{path} cannot be read: {error.strerror}"}


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
