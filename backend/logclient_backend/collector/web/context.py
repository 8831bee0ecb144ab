"""Foundation of the HTTP API; made by the process around it (`serve.py`), or by a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...runs.edits import Changes, Edits
from ...runs.state import State
from ..blobs import Blobs
from ..node_reports import NodeReports, SeenNode
from ..sessions import Sessions
from ..site import Site
from ..stop_requests import Kept
from ..store.interface import ReadableStore, Run
from ..tokens import Grant
from .origin_check import Callers


def _nothing() -> str:
    return ""


def _no_facts() -> Mapping[str, Any]:
    return {}


class Requests(Protocol):
    """Requests to stop or to save, as `stop_requests.StopRequests` keeps them."""

    def ask(self, run: str, kind: str, reason: str, by: str, *, save: bool = False) -> tuple[Kept, int]: ...

    def of_run(self, run: str) -> Sequence[Kept]: ...


class Reports(Protocol):
    """Reports of nodes, as `node_reports.NodeReports` keeps them."""

    def page(
        self, run: str, after: str, *, most_bytes: int, most_nodes: int
    ) -> tuple[Sequence[tuple[str, SeenNode]], bool]: ...


@dataclass(frozen=True, slots=True)
class Backing:
    """All functions may be called in any thread."""

    store: ReadableStore
    check: Callable[[str | None], Grant | None]  # what the bearer of this token may do
    state: Callable[[Run, int], State]  # of a run, at that time
    delete: Callable[[str], bool]  # False: there is no such run
    undelete: Callable[[str], bool]  # False: it is not deleted
    edit: Callable[[str, Changes, str], Edits]  # of this run, by whom; all edits that it has then
    stop_requests: Requests
    sessions: Sessions
    node_reports: Reports = field(default_factory=NodeReports)
    blobs: Blobs | None = None
    metrics: Callable[[], str] = _nothing  # in Prometheus's text format
    not_ready: Callable[[], str] = _nothing  # why it cannot serve now; empty: it can
    facts: Callable[[], Mapping[str, Any]] = (
        _no_facts  # for /api/v1/info: addresses, where data lies, last backup
    )
    callers: Callers = field(default_factory=Callers)
    names: frozenset[str] = (
        frozenset()
    )  # names of this host that may be asked for, besides addresses and localhost
    site: Site = field(default_factory=Site)  # the address by which browsers come
    is_over_folder: bool = False  # `logclient ui`: no agent sends anything, the documents of a folder do
