"""Picks another token after the collector refused the current one.

A token is revoked, and its user puts another one into the config file, or starts a new attempt of the run with another
LOGCLIENT_TOKEN, while the agent of the attempt before lives and goes on for both. It takes them from where they are:
the file, and the environment of the run's trainers on this node, which the kernel shows to their user alone.

Invariants:

- no token is written anywhere, and none goes to another collector than the one that its user meant it for: that of the
  file goes where the file says, that of a trainer where its LOGCLIENT_SERVER says;
- each is tried once before one is tried again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from logclient.errors import BadArgument

from ...wire import address, credentials
from ...wire.credentials import Access
from ..host.shm_dir_handle import ShmDirHandle, is_lane_file, open_regular, watch_of

_MAX_BYTES = 4 << 20  # of an environment


class Tokens:
    """One per process that ships."""

    def __init__(self, access: Access, server: str, trainers: Callable[[], Iterable[int]] = tuple) -> None:
        """`access`: what it began with; `server`: as `init` was told; `trainers`: PIDs, those that came last first."""
        self._access = access
        self._server = server
        self._trainers = trainers
        self._refused: set[str] = set()

    def access(self, *, is_refused: bool) -> Access:
        """For the next conversation; `is_refused`: the last one's token was."""
        if not is_refused:
            return self._access
        self._refused.add(self._access.token)
        found = list(self._there())
        fresh = [each for each in found if each.token not in self._refused]
        if not fresh:
            self._refused.clear()  # one may have been made good meanwhile
            fresh = found
        self._access = fresh[0] if fresh else self._access
        return self._access

    def _there(self) -> Iterator[Access]:
        now = self._access
        for pid in self._trainers():
            if token := _token_of(pid, now):
                yield Access(now.address, token, now.ca)
        try:
            found = credentials.find(self._server)
        except BadArgument:
            return  # the file is in the middle of being edited
        if found is not None and found.address == now.address:
            yield found


def _token_of(pid: int, access: Access) -> str:
    """Return the token in the environment of a trainer that ships to the same collector; empty where there is none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            content = file.read(_MAX_BYTES)
    except OSError:
        return ""
    variables = dict(line.partition(b"=")[::2] for line in content.split(b"\0"))
    server, token = (
        variables.get(name, b"").decode("utf-8", "replace").strip()
        for name in (b"LOGCLIENT_SERVER", b"LOGCLIENT_TOKEN")
    )
    try:
        is_meant = address.parse(server) == access.address
    except BadArgument:
        return ""
    return token if is_meant and token.isascii() and token.isprintable() and " " not in token else ""


def trainers_of(handle: ShmDirHandle) -> list[int]:
    """PIDs of the run's living processes on this node, the newest first; none where PIDs here mean nothing."""
    found = []
    try:
        names = [name for name in os.listdir(handle.path) if is_lane_file(name)]
    except OSError:
        return []
    for name in names:
        fd = open_regular(handle.file(name))
        if fd < 0:
            continue
        try:
            watch = watch_of(fd)
        finally:
            os.close(fd)
        if watch is not None:
            if not watch.has_ended():
                found.append((watch.ticks, watch.pid))
            watch.close()
    return [pid for _, pid in sorted(found, reverse=True)]
