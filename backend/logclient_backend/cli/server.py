"""`logclient server`: be a collector. What looks after one is in `server_commands.py`."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from logclient.errors import BadArgument

from ..agent.output.mounts import mount_of, network_of
from ..alerts import targets
from . import server_commands as caretaker
from . import server_login as login
from . import server_migrate as migrating
from .options import amount, with_json
from .server_commands import with_data
from .text import ago, safe, size

if TYPE_CHECKING:
    from ..collector.data_folder import DataFolder
    from ..collector.serve import Collector
    from ..wire.address import Address

_TOKEN_FILE = "admin-token"
_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT))  # end a collector


@click.group("server", invoke_without_command=True)
@with_data
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:7788", show_default=True, help="Where agents ship to."
)
@click.option("--http", metavar="HOST:PORT", help="The HTTP API; default the same host and the next port.")
@click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM): both ports speak TLS.")
@click.option("--tls-key", metavar="FILE", help="Its private key (PEM).")
@click.option(
    "--public-name",
    metavar="NAME",
    multiple=True,
    help="Name by which browsers reach the HTTP API, besides addresses and localhost; may be given again.",
)
@click.option(
    "--public-url",
    metavar="URL",
    help="Address of the page in a browser, with a proxy before it that of the proxy; agents hand it to `run.url`.",
)
@click.option(
    "--root-path",
    metavar="PATH",
    help="Path below which a proxy puts everything; default: that of --public-url.",
)
@click.option("--no-auth", is_flag=True, help="Ask nobody for a token; on a loopback address only.")
@click.option(
    "--save-login",
    is_flag=True,
    help="Make a token for this user (ingest, read) and write it with the address to the client's config file.",
)
@amount(
    "--keep-deleted keep_deleted_days",
    click.FloatRange(0, 36500),
    7.0,
    "DAYS",
    "How long a deleted run can be brought back.",
)
@amount(
    "--late late_s",
    click.FloatRange(1),
    15.0,
    "SECONDS",
    "Silence after which a running run is shown as late.",
)
@amount("--lost lost_s", click.FloatRange(2), 60.0, "SECONDS", "Silence after which it is shown as lost.")
@click.option(
    "--fast-commits",
    is_flag=True,
    help="Do not wait for the disk at each commit: a power failure may cost what was acknowledged last.",
)
@click.option(
    "--alerts",
    metavar="FILE",
    help="Send alerts of all runs to the targets in this file (docs/alerts.md); default: send none.",
)
@click.option(
    "--limit",
    "limits",
    metavar="NAME=VALUE",
    multiple=True,
    help="Change one of the limits that docs/server.md lists; may be given again.",
)
@with_json
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Be a collector: take in what agents and `logclient sync` ship, and answer questions over HTTP.

    Prints where it listens once it does; at its first start it makes an administrator's token and shows it once. Ends
    with SIGTERM or Ctrl-C, when what it has taken is stored; a second one ends it at once.

    \b
    logclient server --data /srv/logclient
    logclient server --data DIR --listen 0.0.0.0:7788 --tls-cert cert.pem --tls-key key.pem
    logclient server token add ci --role ingest --data DIR
    """
    if ctx.invoked_subcommand is not None:
        return
    # threads take over what is blocked when they are made, and numpy makes some when it is imported
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        code = _serve(**given)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    raise click.exceptions.Exit(code)


for each in (caretaker.token, caretaker.backup, caretaker.restore, caretaker.delete, caretaker.undelete):
    command.add_command(each)
command.add_command(migrating.migrate)


def _serve(
    *,
    data: str | None,
    listen: str,
    http: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    public_name: tuple[str, ...],
    public_url: str | None,
    root_path: str | None,
    no_auth: bool,
    save_login: bool,
    keep_deleted_days: float,
    late_s: float,
    lost_s: float,
    fast_commits: bool,
    alerts: str | None,
    limits: tuple[str, ...],
    as_json: bool,
) -> int:
    if not data:
        raise BadArgument("say where the data shall lie: `logclient server --data DIR`")
    if (tls_cert is None) != (tls_key is None):
        raise BadArgument("--tls-cert and --tls-key go together")
    if save_login and no_auth:
        raise BadArgument("--save-login saves a token, and with --no-auth there is none")
    from ..collector import http as web

    web.check_installed()
    from importlib.metadata import version

    from ..collector import data_folder as folders
    from ..collector import serve, site

    if alerts:
        targets.load(alerts := os.path.abspath(alerts))
    tls = (os.path.abspath(tls_cert), os.path.abspath(tls_key)) if tls_cert and tls_key else None
    folder = folders.make(data)
    made = serve.Settings(
        data=folder,
        listen=(grpc := _address(listen, tls is not None)),
        http=_http_address(http, grpc),
        version=version("logclient"),
        tls=tls,
        no_auth=no_auth,
        durable=not fast_commits,
        keep_deleted_s=keep_deleted_days * 86400,
        late_s=late_s,
        lost_s=max(late_s, lost_s),
        names=frozenset(public_name),
        site=site.make(public_url, root_path, is_tls=tls is not None),
        limits=_limits(limits),
        alerts=alerts or "",
        warnings=tuple(_warnings(folder)),
    )
    where = login.free_file() if save_login else ""
    return serve.run(made, lambda collector: _announce(collector, where, as_json), _SIGNALS)


def _address(text: str, is_tls: bool, default_port: int | None = None) -> Address:
    from ..wire import address

    if "://" in text:
        raise BadArgument(f"{text!r}: write HOST:PORT; TLS comes with --tls-cert and --tls-key")
    found = address.parse(text, may_be_any_port=True)
    return address.Address(found.host, found.port, is_tls)


def _http_address(text: str | None, grpc: Address) -> Address:
    from ..wire.address import Address

    if text is not None:
        return _address(text, grpc.is_tls)
    if grpc.port == 65535:
        raise BadArgument("there is no port behind 65535 for the HTTP API: say which with --http")
    return Address(grpc.host, -1 if grpc.port else 0, grpc.is_tls)


def _limits(given: tuple[str, ...]) -> Any:
    import dataclasses

    from ..collector.limits import Limits

    found = Limits()
    for each in given:
        name, _, value = each.partition("=")
        if name not in Limits.__slots__:
            raise BadArgument(f"--limit {each}: there are {', '.join(Limits.__slots__)}")
        try:
            number = type(getattr(found, name))(value)
        except ValueError:
            raise BadArgument(f"--limit {each}: expected a number behind the =") from None
        if not 0 < number < 1 << 50 and (name, number) != ("web_processes", 0):
            raise BadArgument(f"--limit {each}: expected a number above 0")
        found = dataclasses.replace(found, **{name: number})
    return found


def _warnings(folder: DataFolder) -> list[str]:
    """Return warnings about places where data would not last."""
    kind = mount_of(os.path.realpath(folder.path))[1]
    if kind in ("tmpfs", "ramfs", "devtmpfs"):
        return [
            f"{folder.path} is in memory ({kind}): a reboot takes all runs with it; use a folder on a disk"
        ]
    if kind in ("overlay", "aufs"):
        return [
            f"{folder.path} is in a container's own layer ({kind}), which goes with the container: mount a volume there"
        ]
    if network := network_of(os.path.realpath(folder.path)):
        return [
            f"{folder.path} is on a network file system ({network}), where a database may be damaged: use a disk"
        ]
    return []


def _announce(collector: Collector, login_file: str, as_json: bool) -> None:
    """To whoever started it; from now on it takes data."""
    from ..wal.whole import write_whole

    facts = collector.facts()
    token = collector.admin_token
    if login_file:
        facts["login_file"] = login_file
        if trouble := login.save(collector, login_file):
            facts["warnings"] = [*facts["warnings"], trouble]
    if token and _is_log(sys.stdout):
        path = os.path.join(facts["data"], _TOKEN_FILE)
        write_whole(path, f"{token}\n".encode(), 0o600)
        facts["admin_token_file"] = path
    elif token:
        facts["admin_token"] = token
    if as_json:
        import json

        text = json.dumps(facts)
    else:
        text = "\n".join(_words(collector, facts))
    try:
        click.echo(text)
        sys.stdout.flush()
    except OSError:
        pass  # nobody reads it: no reason not to serve


def _words(collector: Collector, facts: dict[str, Any]) -> list[str]:
    when = (
        f"last backup {ago(facts['last_backup_ns'], time.time_ns())}"
        if facts["last_backup_ns"]
        else "no backup yet"
    )
    lines = [
        f"collects on   {facts['grpc']}",
        f"HTTP API      {facts['http']}  (what it answers: {facts['http']}/docs)",
        f"page          {facts['public_url'] or facts['http']}  (the dashboard, in a browser)",
        f"data          {safe(facts['data'])}  ({size(facts['free_bytes'])} free, {when})",
    ]
    if "admin_token" in facts:
        lines.append(f"admin token   {facts['admin_token']}  (shown this once)")
    if "admin_token_file" in facts:
        lines.append(f"admin token   in {safe(facts['admin_token_file'])}: take it, and remove the file")
    if "login_file" in facts:
        lines.append(f"login         saved for this user in {safe(facts['login_file'])}")
    if collector.settings.no_auth:
        lines.append(
            "NO TOKEN IS ASKED FOR (--no-auth): every user of this machine may read, write and delete"
        )
    if not collector.settings.listen.is_loopback and collector.settings.tls is None:
        lines.append("NOT ENCRYPTED: tokens and data can be read on the way; use --tls-cert and --tls-key")
    lines += [f"warning: {safe(line)}" for line in facts["warnings"]]
    return lines


def _is_log(stream: Any) -> bool:
    """Does somebody keep what is written there? systemd's journal is a socket."""
    try:
        return stat.S_ISSOCK(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
