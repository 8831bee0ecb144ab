"""`logclient server migrate`: bring a store to this program's version, or print what that takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from .options import with_json
from .server_commands import check_store, data_folder, with_data
from .text import safe, size

if TYPE_CHECKING:
    from ..collector.store.interface import Outlook


@click.command(
    "migrate",
    short_help="Bring the store to this version, or print what that takes.",
    epilog="Exit codes: 0 it has this version (--dry-run: it can be had), 1 it cannot be, or there is too little room.",
)
@click.option(
    "--dry-run", is_flag=True, help="Change nothing: print the versions, how much is written, how much room."
)
@with_data
@with_json
@click.pass_context
def migrate(ctx: click.Context, dry_run: bool, data: str | None, as_json: bool) -> None:
    """Bring the store of a collector that does not run to the version of this program: all of it or nothing.

    A collector does the same at its start. There is no way back but a backup, or a copy of the data folder.

    \b
    logclient server migrate --dry-run --data DIR
    """
    from ..collector.store.interface import StoreFull
    from ..collector.store.open import open_store, outlook

    found = data_folder(ctx, data)
    check_store(found)
    plan = outlook(found.store)
    is_due = plan.version < plan.newest
    if is_due and plan.free_bytes < plan.needed_bytes:
        raise StoreFull(f"{_versions(plan)}: {_takes(plan)}. That is too little room: make some first.")
    took_s = None
    if is_due and not dry_run:
        started = time.monotonic()
        open_store(found.store).close()
        took_s = time.monotonic() - started
    if as_json:
        from . import screen

        screen.print_json(
            {
                "version": plan.version,
                "newest": plan.newest,
                "rows": plan.rows,
                "bytes": plan.bytes,
                "needed_bytes": plan.needed_bytes,
                "free_bytes": plan.free_bytes,
                "file_bytes": plan.file_bytes,
                "read_s": plan.read_s,
                "seconds": took_s,
            }
        )
    elif not is_due:
        click.echo(f"{safe(found.path)}: the store has version {plan.version}, that of this program")
    elif took_s is None:
        click.echo(
            f"{safe(found.path)}: {_versions(plan)}. {_takes(plan)}. Reading them took {plan.read_s:.2f} s; the whole "
            "takes some times that. Nothing was changed: stop the collector and copy the folder, then start the new one"
        )
    else:
        click.echo(f"{safe(found.path)}: {_versions(plan)}, in {took_s:.1f} s")


def _versions(plan: Outlook) -> str:
    return f"the store goes from version {plan.version} to {plan.newest}"


def _takes(plan: Outlook) -> str:
    return (
        f"{plan.rows:,} rows of some {size(plan.bytes)} are written anew, of a file of {size(plan.file_bytes)}, with "
        f"{size(plan.needed_bytes)} of room for a moment; {size(plan.free_bytes)} are free"
    )
