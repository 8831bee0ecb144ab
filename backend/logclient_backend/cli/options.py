"""Options that several verbs have, and what they lead to."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from logclient.config import Config
from logclient.errors import BadArgument

from ..runs import contents, folder, live
from ..runs.contents import Contents
from ..runs.folder import Found
from ..runs.follow import FolderFollower
from ..runs.view import RunView, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..remote.server import Server
    from ..wal.scan import Item, StreamColumns

F = TypeVar("F", bound=Callable[..., Any])


class Follower(Protocol):
    """A run that is looked at again and again."""

    poll_s: float
    run: RunView

    def last(self, count: int) -> Iterator[StreamColumns]: ...

    def poll(self) -> Iterator[Item]: ...

    def look_again(self) -> None: ...

    def notices(self) -> list[str]: ...

    @property
    def is_over(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Source:
    """The place of runs: a folder, or a server where one is given. It is never taken from the environment unasked:
    what `logclient ls` shows would depend on a variable that was set for the trainer.
    """

    dir: str | None = None
    server: str | None = None
    token_file: str = ""

    def open_server(self) -> Server:
        """The server's HTTP API."""
        from ..remote import access, server  # grpc and requests, which folders can do without

        assert self.server is not None
        return server.Server(access.find(self.server, token_file=self.token_file))

    def run(self, wanted: str | None) -> RunView:
        """The run that is meant; `NoRun` where that is none or more than one."""
        if self.server is None:
            return one_run(self.dir, wanted)
        from ..remote import listing, runs

        asked = self.open_server()
        return runs.load(asked, listing.resolve(asked, wanted)).view()

    def contents(
        self,
        run: RunView,
        *,
        curves: int,
        only: Callable[[str], bool] | None,
        progress: Callable[[int], None],
    ) -> Contents:
        """Return the stored contents of a run that `run` gave."""
        if self.server is None:
            return contents.read(run, curves=curves, only=only, progress=progress)
        from ..remote import contents as remote_contents

        return remote_contents.read(run, curves=curves, only=only, progress=progress)

    def follower(self, run: RunView) -> Follower:
        """Return a follower of new records of a run that `run` gave."""
        if self.server is None:
            return FolderFollower(run, run_folder(self.dir))
        from ..remote.follow import ServerFollower

        return ServerFollower(run)


def with_source(function: F) -> F:
    """--dir, --server and --token-file, as `source`."""

    @functools.wraps(function)
    def wrapped(*args: Any, dir: str | None, server: str | None, token_file: str, **more: Any) -> Any:
        if dir is not None and server is not None:
            raise BadArgument("--dir and --server: runs are looked for in one of them, give one")
        if server is None and token_file:
            raise BadArgument("--token-file is for --server: give that too")
        return function(*args, source=Source(dir, server, token_file), **more)

    made = click.option(
        "--token-file",
        metavar="FILE",
        default="",
        help="File with the server's token; default LOGCLIENT_TOKEN, else the config file.",
    )(wrapped)
    made = click.option(
        "--server",
        metavar="URL",
        help="Look at a server instead: http://HOST:PORT or grpc://HOST:PORT; `-`: the one of LOGCLIENT_SERVER "
        "or of the config file.",
    )(made)
    return with_dir(made)  # type: ignore[return-value]


def with_dir(function: F) -> F:
    return click.option(
        "--dir",
        "dir",
        metavar="DIR",
        help="Folder with the runs; default LOGCLIENT_DIR, else ./logclient-runs.",
    )(function)


def with_json(function: F) -> F:
    return click.option(
        "--json", "as_json", is_flag=True, help="Strict JSON; NaN and infinities are strings."
    )(function)


def run_folder(dir: str | None) -> str:
    """The folder that is meant."""
    return os.path.abspath(dir or Config.from_env().dir or "logclient-runs")


def all_runs(dir: str | None) -> tuple[str, list[Found]]:
    """The folder, and what lies in it."""
    base = run_folder(dir)
    return base, folder.find(base, places=live.scan())


def one_run(dir: str | None, wanted: str | None) -> RunView:
    """The run that is meant; `NoRun` where that is none or more than one."""
    base, runs = all_runs(dir)
    return view(folder.resolve(runs, wanted, base))
