"""Targets of alerts: a TOML file of the machine that sends, and how it is checked.

The file is `~/.config/logclient/alerts.toml`, beside `config.toml`; LOGCLIENT_ALERTS names another one, and a collector
is given one by `logclient server --alerts FILE`::

    ca = "/etc/ssl/team.pem"       # for HTTPS, in place of the usual authorities
    commands = true                # without it no command is run
    rules = ["loss > 10", {when = "spike", key = "train/*"}]      # for every run, besides what `init` gives

    [[targets]]
    name = "team"                  # in messages and logs: the URL is a secret, and is in none
    url = "https://hooks.slack.com/services/..."
    format = "slack"               # {"text": "..."}; or "json", the default: the event
    events = ["stalled", "gone"]   # kinds; default: all

    [[targets]]
    name = "requeue"
    command = ["/usr/bin/scontrol", "requeue", "1234"]     # no shell; the event as JSON on standard input
    events = ["stalled"]           # must be given
    timeout_s = 30

Invariants:

- nothing of it comes from a run, the wire or the HTTP API;
- it is refused where it belongs to somebody else than this user or root, or where others may write to it;
- no URL, command or line of it is in a message.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from logclient.errors import BadArgument
from logclient.shm.alert_rules import checked

from .event import EVENT_KINDS, TEST

MAX_BYTES = 1 << 16
MAX_CA_BYTES = 1 << 20
MAX_TARGETS = 16
COMMAND_S, MAX_COMMAND_S = 30.0, 600.0
_MAX_URL = 2_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_LINE = re.compile(r"at line (\d+)")


@dataclass(frozen=True, slots=True)
class Target:
    """One receiver: `url` or `command`, both secret."""

    name: str
    url: str = field(default="", repr=False)
    is_slack: bool = False
    command: tuple[str, ...] = field(default=(), repr=False)
    events: frozenset[str] = frozenset(EVENT_KINDS)
    timeout_s: float = COMMAND_S

    def wants(self, kind: str) -> bool:
        return kind in self.events or kind == TEST


@dataclass(frozen=True, slots=True)
class Targets:
    """The content of the file."""

    targets: tuple[Target, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    ca_path: str = ""
    ca: bytes | None = field(default=None, repr=False)  # PEM; None: the usual authorities
    are_commands_on: bool = False


def read_checked(path: str, max_bytes: int) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a file that nobody else can have written. Raises BadArgument or OSError; may hang."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise BadArgument(f"{path} is no file")
        if found.st_uid not in (os.geteuid(), 0):
            raise BadArgument(f"{path} belongs to another user: it is read where it is your own or root's")
        if found.st_mode & 0o022:
            raise BadArgument(f"others may write to {path}: run `chmod go-w {path}`")
        data = b""
        while len(data) <= max_bytes and (part := os.read(fd, max_bytes + 1 - len(data))):
            data += part
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise BadArgument(f"{path} is larger than {max_bytes:,} bytes")
    return data, found


def load(path: str) -> Targets:
    """Return what the file at `path` says, its certificates included. Raises BadArgument or OSError; may hang."""
    found = parse(read_checked(path, MAX_BYTES)[0], path)
    return with_ca(found, read_ca(found, path), path)


def read_ca(targets: Targets, path: str) -> bytes:
    """Return the certificates that the file at `path` names; empty where it names none."""
    if not targets.ca_path:
        return b""
    try:
        return read_checked(os.path.realpath(targets.ca_path), MAX_CA_BYTES)[0]
    except OSError as error:
        raise BadArgument(f"{path}: ca: {targets.ca_path} cannot be read: {error.strerror}") from None


def with_ca(targets: Targets, ca: bytes, path: str) -> Targets:
    """Return the targets with these certificates."""
    if not targets.ca_path:
        return targets
    if b"-----BEGIN CERTIFICATE-----" not in ca:
        raise BadArgument(f"{path}: ca: {targets.ca_path} holds no certificate in PEM form")
    return Targets(targets.targets, targets.rules, targets.ca_path, ca, targets.are_commands_on)


def parse(data: bytes, path: str) -> Targets:
    """Return what the bytes of the file say; the certificates are not read. Raises BadArgument."""
    import tomllib  # in agents that send alerts alone

    try:
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # its text may show a part of the file
        line = _LINE.search(str(error))
        where = f" (line {line.group(1)})" if line else ""
        raise BadArgument(f"{path} is no TOML file{where}") from None
    _only(content, ("ca", "commands", "rules", "targets"), path)
    try:
        rules = tuple(checked(_given(content, "rules", list, [], path)))
    except BadArgument as error:
        raise BadArgument(f"{path}: {error}") from None
    are_commands_on = _given(content, "commands", bool, False, path)
    listed = _given(content, "targets", list, [], path)
    if len(listed) > MAX_TARGETS:
        raise BadArgument(f"{path}: {len(listed)} targets, and at most {MAX_TARGETS} are taken")
    targets: list[Target] = []
    for number, each in enumerate(listed, 1):
        target = _target(each, f"{path}: target {number}", are_commands_on=are_commands_on)
        if any(target.name == other.name for other in targets):
            raise BadArgument(f"{path}: two targets have the name {target.name!r}")
        targets.append(target)
    ca_path = _given(content, "ca", str, "", path)
    if ca_path and not os.path.isabs(ca_path):
        ca_path = os.path.join(os.path.dirname(path), ca_path)
    return Targets(tuple(targets), rules, ca_path, None, are_commands_on)


def _target(given: Any, where: str, *, are_commands_on: bool) -> Target:
    if not isinstance(given, dict):
        raise BadArgument(f"{where} is no table: write [[targets]]")
    name = _given(given, "name", str, "", where)
    if not _NAME.fullmatch(name):
        raise BadArgument(
            f"{where}: 'name' is 1 to 40 letters, digits, '.', '_' or '-', and starts with none of these"
        )
    where = f"{where} ({name})"
    _only(given, ("name", "url", "format", "command", "events", "timeout_s"), where)
    if ("url" in given) == ("command" in given):
        raise BadArgument(f"{where} needs a 'url' or a 'command', and not both")
    events = frozenset(EVENT_KINDS)
    if "events" in given:
        events = frozenset(_texts(given, "events", where))
        if unknown := sorted(events - set(EVENT_KINDS)):
            raise BadArgument(
                f"{where}: 'events' has no kind {unknown[0]!r}; there are {', '.join(EVENT_KINDS)}"
            )
    if "url" in given:
        _only(given, ("name", "url", "format", "events"), where)
        form = _given(given, "format", str, "json", where)
        if form not in ("json", "slack"):
            raise BadArgument(f"{where}: 'format' is json or slack")
        return Target(name, _url(given["url"], where), form == "slack", events=events)
    _only(given, ("name", "command", "events", "timeout_s"), where)
    command = tuple(_texts(given, "command", where))
    if not command or not os.path.isabs(command[0]):
        raise BadArgument(
            f"{where}: 'command' is a list of texts, and the first is the absolute path of a program"
        )
    if "events" not in given:
        raise BadArgument(f"{where}: a command needs 'events', the kinds for which it is run")
    if not are_commands_on:
        raise BadArgument(
            f"{where} is a command, and these are off: write commands = true at the top of the file"
        )
    timeout_s = given.get("timeout_s", COMMAND_S)
    if type(timeout_s) not in (int, float) or not 0 < timeout_s <= MAX_COMMAND_S:
        raise BadArgument(f"{where}: 'timeout_s' is a number of seconds from 0 to {MAX_COMMAND_S:.0f}")
    return Target(name, command=command, events=events, timeout_s=float(timeout_s))


def _url(given: Any, where: str) -> str:
    """Check a URL. It is in no message: whoever knows it may write to the channel behind it."""
    wrong = f"{where}: 'url' is https://HOST/PATH, in ASCII, of at most {_MAX_URL:,} characters"
    if not isinstance(given, str) or not given.isascii() or not given.isprintable() or " " in given:
        raise BadArgument(wrong)
    try:
        parts = urlsplit(given)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or len(given) > _MAX_URL:
        raise BadArgument(wrong)
    return given


def is_open(url: str) -> bool:
    """Can others read on the way what goes to this URL?"""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


def _texts(given: Mapping[str, Any], name: str, where: str) -> list[str]:
    found: list[str] = _given(given, name, list, [], where)
    if not all(isinstance(each, str) and "\0" not in each for each in found):
        raise BadArgument(f"{where}: {name!r} is a list of texts")
    return found


def _given(given: Mapping[str, Any], name: str, kind: type, default: Any, where: str) -> Any:
    value = given.get(name, default)
    if type(value) is not kind:
        words = {str: "a text", bool: "true or false", list: "a list"}[kind]
        raise BadArgument(f"{where}: {name!r} is {words}")
    return value


def _only(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            raise BadArgument(f"{where}: there is no setting {name[:40]!r}; there are {', '.join(known)}")
