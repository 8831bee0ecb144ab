"""Commands of `logclient server` besides serving: tokens, backup and restore, runs deleted and brought back.

Where a collector runs on that folder it does the work itself (`collector/control_socket.py`); else it is done here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from logclient.errors import BadArgument, NoRun

from . import screen
from .options import with_json
from .text import ago, moment, safe, size

if TYPE_CHECKING:
    from ..collector.data_folder import DataFolder
    from ..collector.tokens import Tokens

F = TypeVar("F", bound=Callable[..., Any])

_BACKUP_S = 24 * 3600.0  # a large store on a slow disk
_ORDER_S = 60.0


def with_data(function: F) -> F:
    return click.option("--data", metavar="DIR", help="The collector's data folder.")(function)


# ---- tokens ----------------------------------------------------------------------------------------------------


def data_folder(ctx: click.Context, data: str | None) -> DataFolder:
    """The folder that is meant: named here, or before the verb."""
    from ..collector import data_folder as folders

    at: click.Context | None = ctx
    while not data and at is not None:
        data = at.params.get("data")
        at = at.parent
    if not data:
        raise BadArgument("say which collector is meant: --data DIR")
    return folders.use(data)


@click.group("token", short_help="Make, list and revoke tokens.")
def token() -> None:
    """Make, list and revoke tokens; a collector that runs notices within a second.

    \b
    logclient server token add alice --role ingest --role read --data DIR
    logclient server token list --data DIR
    logclient server token revoke alice --data DIR
    """


def _tokens(ctx: click.Context, data: str | None) -> Tokens:
    from ..collector.tokens import Tokens

    return Tokens(data_folder(ctx, data).path)


@token.command("add", epilog="Exit codes: 0 made, 2 no such role, or the name is taken.")
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    metavar="ROLE",
    help="ingest (ship), read (ask), edit (names, tags, notes), control (stop, save), or admin (everything, deleting "
    "too); may be given again.",
)
@with_data
@with_json
@click.pass_context
def add(ctx: click.Context, name: str, roles: tuple[str, ...], data: str | None, as_json: bool) -> None:
    """Make a token and show it, this once: only a digest of it is kept.

    \b
    logclient server token add alice --role ingest --role read --data DIR
    """
    made = _tokens(ctx, data).add(name, roles)
    if as_json:
        _print({"name": name, "roles": sorted(set(roles)), "token": made})
    else:
        click.echo(made)


@token.command("list", epilog="Exit codes: 0 listed.")
@with_data
@with_json
@click.pass_context
def list_(ctx: click.Context, data: str | None, as_json: bool) -> None:
    """List the tokens: name, roles, since when; never the token itself.

    \b
    logclient server token list --data DIR
    """
    found = _tokens(ctx, data).list()
    if as_json:
        _print(
            [
                {"name": each.name, "roles": each.grant.role.split(","), "created_ns": each.created_ns}
                for each in found
            ]
        )
        return
    if not found:
        click.echo("there are no tokens: nobody can use this collector")
        return
    table = screen.table("NAME", "ROLES", "MADE")
    for each in found:
        table.add_row(
            each.name, each.grant.role.replace(",", ", "), screen.line((moment(each.created_ns), "dim"))
        )
    screen.show(table)


@token.command(
    "revoke", short_help="Revoke a token.", epilog="Exit codes: 0 revoked, 3 there is no token of that name."
)
@click.argument("name")
@with_data
@with_json
@click.pass_context
def revoke(ctx: click.Context, name: str, data: str | None, as_json: bool) -> None:
    """Revoke a token; whoever ships with it is refused, and stores on its own disk meanwhile.

    \b
    logclient server token revoke alice --data DIR
    """
    if not _tokens(ctx, data).revoke(name):
        raise NoRun(f"there is no token called {name!r}")
    if as_json:
        _print({"revoked": name})
    else:
        click.echo(f"{name} is revoked")


# ---- the store ---------------------------------------------------------------------------------------------------


@click.command(
    "backup",
    short_help="Copy store, tokens and media to a new folder.",
    epilog="Exit codes: 0 the backup is whole, 1 it is not, or bytes of media values are damaged.",
)
@click.argument("folder", metavar="FOLDER")
@click.option("--no-media", is_flag=True, help="Leave out the bytes of media values.")
@with_data
@with_json
@click.pass_context
def backup(ctx: click.Context, folder: str, no_media: bool, data: str | None, as_json: bool) -> None:
    """Copy store, tokens and the bytes of media values into a new folder, also while the collector works.

    Where one runs it makes the copy itself, so FOLDER has to be one that its user may write. Bytes that are damaged in
    the data folder are left out and named; all else is in the backup, and it can be restored.

    \b
    logclient server backup /backup/logclient-monday --data DIR
    """
    from ..collector import control_socket as control
    from ..collector.backup import backup as copy
    from ..collector.store.open import open_store

    found = data_folder(ctx, data)
    folder = os.path.abspath(folder)
    made: Any = control.ask(found, "backup", timeout_s=_BACKUP_S, folder=folder, media=not no_media)
    if made is None:
        check_store(found)
        store = open_store(found.store)
        try:
            made = copy(store, found, folder, has_media=not no_media)
        finally:
            store.close()
    if as_json:
        _print({name: made.get(name) for name in ("folder", "bytes", "seconds", "media")})
    else:
        what = "the store and its media" if made.get("media") else "the store, without media"
        click.echo(f"{safe(folder)} holds {what}: {size(made['bytes'])}, in {made['seconds']:.1f} s")
    if _warn_of_media(made.get("media")):
        ctx.exit(1)


@click.command(
    "restore",
    short_help="Make a data folder of a backup.",
    epilog="Exit codes: 0 restored, 1 FOLDER holds no whole backup, DIR is in use, or media values are damaged.",
)
@click.argument("folder", metavar="FOLDER")
@with_data
@with_json
@click.pass_context
def restore(ctx: click.Context, folder: str, data: str | None, as_json: bool) -> None:
    """Make a backup the content of a data folder that is new or empty.

    \b
    logclient server restore /backup/logclient-monday --data DIR
    """
    from ..collector import data_folder as folders
    from ..collector.backup import restore as bring_back

    data = data or (ctx.parent.params.get("data") if ctx.parent is not None else None)
    if not data:
        raise BadArgument("say where to: --data DIR")
    made = bring_back(os.path.abspath(folder), folders.make(data))
    if as_json:
        _print(made)
    else:
        when = ago(int(str(made["made_ns"])), time.time_ns())
        click.echo(
            f"{safe(data)} holds what was backed up {when}; start `logclient server --data {safe(data)}`"
        )
    if _warn_of_media(made["media"]):
        ctx.exit(1)


def _warn_of_media(media: Any) -> bool:
    """Write what the copy of media lacks to standard error; are some damaged?"""
    if not media:
        return False
    if media["missing"]:
        click.echo(
            f"{media['missing']} media values have no bytes here: they did not come yet, or were removed",
            err=True,
        )
    if media["damaged"]:
        names = ", ".join(media["damaged_names"])
        click.echo(
            f"{media['damaged']} blobs of media values are damaged and were left out: {names}. "
            f"An older backup may have them, in its folder media",
            err=True,
        )
    return bool(media["damaged"])


@click.command(
    "delete",
    short_help="Delete a run; it can be brought back.",
    epilog="Exit codes: 0 deleted, 3 there is no such run.",
)
@click.argument("run", metavar="RUN")
@with_data
@with_json
@click.pass_context
def delete(ctx: click.Context, run: str, data: str | None, as_json: bool) -> None:
    """Delete a run (its whole id); it can be brought back until --keep-deleted days are over.

    Until then, and after that too, nothing that is shipped late brings it back by itself.

    \b
    logclient server delete 20260102-101500-abcd1234 --data DIR
    """
    _change(data_folder(ctx, data), "delete", run, as_json)


@click.command(
    "undelete",
    short_help="Bring a deleted run back.",
    epilog="Exit codes: 0 brought back, 3 there is no such deleted run.",
)
@click.argument("run", metavar="RUN")
@with_data
@with_json
@click.pass_context
def undelete(ctx: click.Context, run: str, data: str | None, as_json: bool) -> None:
    """Undelete a run; one that is gone for good can be synced again afterwards.

    \b
    logclient server undelete 20260102-101500-abcd1234 --data DIR
    """
    _change(data_folder(ctx, data), "undelete", run, as_json)


def _change(found: DataFolder, what: str, run: str, as_json: bool) -> None:
    from ..collector import control_socket as control
    from ..collector.store.open import open_store

    answer = control.ask(found, what, timeout_s=_ORDER_S, run=run)
    if answer is not None:
        is_done = bool(answer["done"])
    else:
        check_store(found)
        store = open_store(found.store)
        try:
            is_done = (
                store.writer.delete(run, time.time_ns()) if what == "delete" else store.writer.undelete(run)
            )
        finally:
            store.close()
    if not is_done:
        none = f"there is no run {run!r} here" if what == "delete" else f"no run {run!r} is deleted here"
        raise NoRun(f"{none}: give the whole id, as `logclient ls` shows it")
    if as_json:
        _print({f"{what}d": run})
    else:
        click.echo(f"{safe(run)} is {what}d")


def check_store(found: DataFolder) -> None:
    if not found.has_store:
        raise NoRun(f"{found.path} holds no store: was a collector ever started there?")


def _print(value: Any) -> None:
    from . import screen

    screen.print_json(value)
