"""`logclient server --save-login`: a token for this user, and the config file by which agents and commands find it.

Runs in the collector's process, once it listens: what is written was tried against it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from logclient import config as settings
from logclient.errors import BadArgument
from logclient.shm.regular import read_regular

if TYPE_CHECKING:
    from ..collector.serve import Collector
    from ..wire.address import Address
    from ..wire.credentials import Access

_TRY_S = 2.0
_TRIES_S = 6.0  # all together: somebody waits for the collector to report that it listens


def free_file() -> str:
    """Return the file for the login; `BadArgument` where there is one, or this user has no home."""
    path = settings.config_file()
    if path is None:
        raise BadArgument("--save-login: this user has no home folder to save it in")
    if os.path.lexists(path):
        raise BadArgument(
            f"--save-login: {path} is there already; move it away, or put address and token in yourself"
        )
    return path


def save(collector: Collector, path: str) -> str:
    """Make a token that may write and read, no more: it will lie beside every training script of this user.

    What is wrong with it, in a sentence; empty: nothing is.
    """
    from ..collector.tokens import INGEST, READ
    from ..wal.whole import write_whole
    from ..wire import known_pages
    from ..wire.web_address import page_of

    access, ca, trouble = _tried(collector)
    token = collector.tokens.add(f"login-{time.strftime('%Y%m%d-%H%M%S')}", [INGEST, READ])
    lines = [f'server = "{access.address}"', f'token = "{token}"']
    if ca:
        lines.append(f"ca = {_quoted(ca)}")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_whole(path, "".join(f"{line}\n" for line in lines).encode(), 0o600)
    known_pages.note(
        access.address,
        page_of(collector.ingest.public_url, collector.ingest.http_address, access.address),
    )
    return f"the login in {path} does not work yet: {trouble}" if trouble else ""


def _tried(collector: Collector) -> tuple[Access, str, str]:
    """A way in that clients can check, the file of its `ca`, and what is wrong where none was found."""
    from ..wire import client
    from ..wire.credentials import Access
    from ..wire.messages import NotTaken

    ways = list(_ways(collector))
    first = ways[0][0]
    if not first.is_tls:
        return Access(first), "", ""
    trouble = ""
    deadline = time.monotonic() + _TRIES_S
    for address, file in ways:
        access = Access(address, ca=_content(file))
        try:
            # no token goes along: who answers is not known yet
            client.describe(access, min(_TRY_S, max(0.1, deadline - time.monotonic())))
        except NotTaken as error:
            trouble = error.text  # that of the last is the most exact: there the certificate is trusted
        else:
            return access, file, ""
    return Access(first), ways[-1][1], trouble


def _ways(collector: Collector) -> Iterator[tuple[Address, str]]:
    """Addresses of it on this machine, and files with who signed its certificate (empty: who this machine trusts)."""
    from ..wire.address import Address

    own, tls = collector.address, collector.settings.tls
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(own.host, own.host)
    hosts = dict.fromkeys([here, *sorted(collector.settings.names), "localhost"])
    for file in ("", *(tls[:1] if tls else ())):
        for host in hosts:
            yield Address(host, own.port, own.is_tls), file


def _content(file: str) -> bytes | None:
    if not file:
        return None
    return read_regular(os.path.realpath(file), max_bytes=1 << 22)


def _quoted(path: str) -> str:
    """Return the text as TOML writes it: its escapes are a part of JSON's."""
    import json

    return json.dumps(path, ensure_ascii=False)
