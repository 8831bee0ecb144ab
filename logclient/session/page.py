"""The run's page in a browser: its address once one is known, else the command that opens it.

Runs in the training process, in whatever thread asks. Reads memory, and where no folder was named yet a file on tmpfs.

An address is known from the file that keeps the pages of collectors beside the login (`Session.page`, read at `init`),
and from what the collector itself told the agent, which counts more.
"""

from __future__ import annotations

from ..shm.health import page_address
from ..shm.run_page import page_of_run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .session import Session


def address_of(session: Session) -> str:
    """Return the address of the run's page; empty where none is known."""
    return page_of_run(page_address(session.status_page) or session.page, session.run_id)


def url_of(session: Session) -> str:
    """Implement `Run.url`."""
    return address_of(session) or f"logclient ui {quoted(session.dir)}"


def line_of(session: Session) -> str:
    """Return what the line at the end of the run adds about the page."""
    found = address_of(session)
    return f"; page: {found}" if found else ""


def quoted(path: str) -> str:
    """Return the text as a shell takes it."""
    is_plain = all(c.isalnum() or c in "/._-+,:@%" for c in path) and path.isascii() and path
    return path if is_plain else "'" + path.replace("'", "'\"'\"'") + "'"
