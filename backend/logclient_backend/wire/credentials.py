"""Finds collector and token: in a call, the environment, or the config file.

For the agent and the command line. The file is `~/.config/logclient/config.toml` (XDG_CONFIG_HOME)::

    server = "grpcs://collector.example:7788"
    token = "..."
    ca = "/etc/ssl/collector.pem"     # for grpcs, where the system does not know who signed its certificate

Invariants:

- a token is in no text of ours: no repr, no error, no argument of a process;
- the file's token goes to the file's server only, where it names one: `--server` elsewhere does not send it there;
- a file that others may read is refused, with the command that helps.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass, field
from typing import Any

from logclient import config as settings
from logclient.errors import BadArgument
from logclient.shm.regular import read_regular

from . import address
from .address import Address

_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Access:
    """A collector, and what opens it."""

    address: Address
    token: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)  # PEM; None: what the system trusts


def find(server: str = "", token_file: str = "") -> Access | None:
    """Access to `server`, else to LOGCLIENT_SERVER, else to the config file's; None where none is named.

    The token is that of `token_file`, else LOGCLIENT_TOKEN, else the config file's. `BadArgument` states what is wrong.
    """
    wanted = server or settings.server_variable()
    path = settings.config_file()
    content = _read_config(path) if path else {}
    configured = _text(content, "server", path)
    if not (wanted or configured):
        return None
    found = address.parse(wanted or configured)
    token = _read_token(token_file) if token_file else _checked(settings.token_variable(), "LOGCLIENT_TOKEN")
    if not token and (not configured or address.parse(configured) == found):
        token = _checked(_text(content, "token", path), path or "")
    ca = _text(content, "ca", path)
    return Access(found, token, _read_ca(ca, path) if ca and found.is_tls else None)


def renewed(access: Access, server: str) -> Access:
    """Read again what opens the collector of `access`, whose token was refused; `access` where nothing new is there.

    A run stays with its collector: the token of another one in the config file is for other runs.
    """
    try:
        found = find(server)
    except BadArgument:
        return access  # the file is in the middle of being edited
    return found if found is not None and found.address == access.address else access


def _read_config(path: str) -> dict[str, Any]:
    try:
        data = _read_private(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadArgument(f"{path} cannot be read: {error.strerror}") from error
    try:
        return tomllib.loads(data.decode())
    except ValueError:  # its text may show a line of the file, and so the token
        raise BadArgument(
            f'{path} is no TOML file; its lines look like server = "grpc://host:7788"'
        ) from None


def _read_private(path: str) -> bytes:
    """`BadArgument` where it belongs to somebody else, or others may read it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise BadArgument(f"{path} is no file")
        if facts.st_uid not in (os.getuid(), 0):
            raise BadArgument(f"{path} belongs to another user; a token is read from your own file only")
        if facts.st_mode & 0o077:
            raise BadArgument(f"{path} may hold a token and others may read it; run: chmod 600 {path}")
        data = os.read(fd, _MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > _MAX_BYTES:
        raise BadArgument(f"{path} is larger than {_MAX_BYTES} bytes")
    return data


def _read_token(path: str) -> str:
    try:
        data = _read_private(path)
    except OSError as error:
        raise BadArgument(f"the token file {path} cannot be read: {error.strerror}") from error
    token = data.decode("ascii", "replace").strip()
    if not token:
        raise BadArgument(f"the token file {path} is empty")
    return _checked(token, path)


def _read_ca(path: str, origin: str | None) -> bytes:
    try:
        # a link is followed here: that is how systems keep their certificates
        data = read_regular(
            os.path.realpath(os.path.join(os.path.dirname(origin or ""), path)), max_bytes=1 << 22
        )
    except FileNotFoundError:
        raise BadArgument(f"{origin}: ca: there is no such file as {path}") from None
    except PermissionError:
        raise BadArgument(f"{origin}: ca: {path} cannot be read by this user") from None
    except OSError as error:
        raise BadArgument(f"{origin}: ca: {path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise BadArgument(f"{origin}: ca: {path} holds no certificate in PEM form")
    return data


def _text(content: dict[str, Any], name: str, path: str | None) -> str:
    value = content.get(name, "")
    if not isinstance(value, str):
        raise BadArgument(f"{path}: {name} is no text; write it in quotes")
    return value


def _checked(token: str, origin: str) -> str:
    """A token goes into a header: anything but printable ASCII is a mistake made when it was copied."""
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadArgument(f"the token in {origin} has characters that no token has; copy it again")
    return token


@dataclass(frozen=True, slots=True)
class Opens:
    """Token and certificate authority for a host's web address."""

    token: str = field(default="", repr=False)
    ca: bytes | None = field(default=None, repr=False)


def find_for(host: str, token_file: str = "", *, wants_token: bool = True) -> Opens:
    """Return the credentials for the web address of a collector on that host, whatever its port is."""
    path = settings.config_file()
    content = _read_config(path) if path else {}
    configured = _text(content, "server", path)
    token = ""
    if wants_token:
        token = (
            _read_token(token_file) if token_file else _checked(settings.token_variable(), "LOGCLIENT_TOKEN")
        )
        if not token and (not configured or address.parse(configured).host == host):
            token = _checked(_text(content, "token", path), path or "")
    ca = _text(content, "ca", path)
    return Opens(token, _read_ca(ca, path) if ca else None)
