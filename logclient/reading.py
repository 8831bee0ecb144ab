"""The doorway of `logclient.read` and `logclient.edit`: the one place where the client imports the backend.

The module is not called `read`, or importing it would put it in the place of the function. Runs in a user's program;
a trainer that does not read runs never loads this.
"""

from __future__ import annotations

import os

from .errors import BadArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from logclient_backend.read import Runs as Runs


def open_runs(path_or_url: str | os.PathLike[str], token: str | None) -> Runs:
    """See `logclient.read`; `BadArgument` where numpy is not installed."""
    try:
        from logclient_backend.read import read  # numpy, requests, grpc: not before somebody asks
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "numpy":
            raise
        raise BadArgument("logclient.read needs numpy: pip install numpy") from None
    return read(path_or_url, token=token)


def edit_run(
    where: str | os.PathLike[str] | None, run: str, token: str | None, wish: dict[str, Any]
) -> dict[str, Any]:
    """See `logclient.edit`."""
    from logclient_backend.remote.editing import edit
    from logclient_backend.runs.edits import Changes

    return edit(None if where is None else os.fspath(where), run, Changes(**wish), token=token)
