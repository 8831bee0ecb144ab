"""Questions of web processes to the committing process, over a socket in the data folder; both sides of them.

`orders` makes the functions that answer (`control_socket.Control`, its threads); `Committing` and its users ask, in the
threads of a web process. Nothing else of the committing process is needed to answer over HTTP.

Invariants:

- each question has a deadline, and at most `MAX_WAITING` wait at once: a committing process that hangs takes no more
  threads than that from other questions; what gets no answer is an error with a sentence;
- `facts` and `not_ready` never fail: they report that the committing process does not answer.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from logclient.errors import BadArgument

from ..runs import edits
from ..runs.edits import Changes, Edits
from ..wire.messages import Request
from ..wire.node_report import NodeReport
from .control_socket import Orders, ask
from .data_folder import WEB_SOCKET, DataFolder
from .node_reports import NodeReports, SeenNode
from .stop_requests import Kept, NotNow, StopRequests
from .store.interface import StoreError

MAX_WAITING = 8  # questions of one web process at once
MAX_ORDERS = 32  # of all, at the committing process
MAX_ORDER_BYTES = 8 << 20  # of one: notes of a run are long
ASK_S = 5.0
CHANGE_S = 35.0  # what has to be committed
LOOK_S = 2.0  # readiness, facts: for machines that ask often
_MAX_BYTES = 32 << 20  # of an answer; reports of nodes are the largest


class Subject(Protocol):
    """The collector, as far as it is asked here."""

    stop_requests: StopRequests

    def delete(self, run: str) -> bool: ...

    def undelete(self, run: str) -> bool: ...

    def edit(self, run: str, changes: Changes, who: str) -> Edits: ...

    def not_ready(self) -> str: ...

    def facts(self) -> dict[str, Any]: ...


def orders(collector: Subject, node_reports: NodeReports, metrics: Callable[[], str]) -> Orders:
    """Return what answers each question."""

    def reports(order: Mapping[str, Any]) -> dict[str, Any]:
        found, has_more = node_reports.page(
            order["run"],
            order["after"],
            most_bytes=int(order["page_bytes"]),
            most_nodes=int(order["page_nodes"]),
        )
        return {"nodes": [[node, _packed(seen)] for node, seen in found], "has_more": has_more}

    def edit(order: Mapping[str, Any]) -> dict[str, Any]:
        try:
            made = collector.edit(order["run"], Changes(**order["changes"]), order["who"])
        except BadArgument as error:
            return {"bad": str(error)}
        return {"edits": base64.b64encode(made.dumps()).decode()}

    def request(order: Mapping[str, Any]) -> dict[str, Any]:
        try:
            made, nodes = collector.stop_requests.ask(
                order["run"], order["kind"], order["reason"], order["by"], save=bool(order["save"])
            )
        except NotNow as error:
            return {"not_now": str(error)}
        return {"made": asdict(made), "nodes": nodes}

    return {
        "delete": lambda order: {"done": collector.delete(order["run"])},
        "undelete": lambda order: {"done": collector.undelete(order["run"])},
        "edit": edit,
        "request": request,
        "requests": lambda order: {
            "kept": [asdict(each) for each in collector.stop_requests.of_run(order["run"])]
        },
        "reports": reports,
        "metrics": lambda order: {"text": metrics()},
        "facts": lambda order: {**collector.facts(), "not_ready": collector.not_ready()},
        "not_ready": lambda order: {"why": collector.not_ready()},
    }


class Committing:
    """The committing process, for a web process; any thread."""

    def __init__(self, data: DataFolder, version: str) -> None:
        self._data = data
        self._version = version
        self._free = threading.Semaphore(MAX_WAITING)

    def ask(self, do: str, *, timeout_s: float = ASK_S, **order: Any) -> dict[str, Any]:
        """Return its answer; `StoreError` where there is none in time."""
        if not self._free.acquire(timeout=timeout_s / 4):
            raise StoreError("the collector is too busy: too many questions wait for its committing process")
        try:
            answer = ask(self._data, do, timeout_s=timeout_s, name=WEB_SOCKET, most_bytes=_MAX_BYTES, **order)
        finally:
            self._free.release()
        if answer is None:
            raise StoreError("the committing process of the collector is not there: it starts, or ends")
        return {name: value for name, value in answer.items() if name != "ok"}

    def delete(self, run: str) -> bool:
        return bool(self.ask("delete", timeout_s=CHANGE_S, run=run)["done"])

    def undelete(self, run: str) -> bool:
        return bool(self.ask("undelete", timeout_s=CHANGE_S, run=run)["done"])

    def edit(self, run: str, changes: Changes, who: str) -> Edits:
        answer = self.ask("edit", timeout_s=CHANGE_S, run=run, changes=asdict(changes), who=who)
        if "bad" in answer:
            raise BadArgument(answer["bad"])
        return edits.loads(base64.b64decode(answer["edits"]))

    def metrics(self) -> str:
        return str(self.ask("metrics")["text"])

    def facts(self) -> Mapping[str, Any]:
        try:
            return self.ask("facts", timeout_s=LOOK_S)
        except StoreError as error:
            return {"data": self._data.path, "warnings": [str(error)], "not_ready": str(error)}

    def not_ready(self) -> str:
        try:
            return str(self.ask("not_ready", timeout_s=LOOK_S)["why"])
        except StoreError as error:
            return str(error)


class RemoteRequests:
    """See `web.context.Requests`."""

    def __init__(self, committing: Committing) -> None:
        self._committing = committing

    def ask(self, run: str, kind: str, reason: str, by: str, *, save: bool = False) -> tuple[Kept, int]:
        answer = self._committing.ask("request", run=run, kind=kind, reason=reason, by=by, save=save)
        if "not_now" in answer:
            raise NotNow(answer["not_now"])
        return _kept(answer["made"]), int(answer["nodes"])

    def of_run(self, run: str) -> Sequence[Kept]:
        return [_kept(each) for each in self._committing.ask("requests", run=run)["kept"]]


class RemoteReports:
    """See `web.context.Reports`."""

    def __init__(self, committing: Committing) -> None:
        self._committing = committing

    def page(
        self, run: str, after: str, *, most_bytes: int, most_nodes: int
    ) -> tuple[Sequence[tuple[str, SeenNode]], bool]:
        answer = self._committing.ask(
            "reports", run=run, after=after, page_bytes=most_bytes, page_nodes=most_nodes
        )
        return [(node, _seen(packed)) for node, packed in answer["nodes"]], bool(answer["has_more"])


def _kept(content: Mapping[str, Any]) -> Kept:
    return Kept(content["run"], content["attempt"], Request(**content["request"]))


def _packed(seen: SeenNode) -> dict[str, Any]:
    """Return it as JSON has it; the monotonic clock is that of both processes."""
    report = seen.report
    made = None
    if report is not None:
        made = {**asdict(report), "packed": base64.b64encode(report.packed).decode()}
    return {"report": made, "seen_at": seen.seen_at, "conversations": seen.conversations}


def _seen(content: Mapping[str, Any]) -> SeenNode:
    made = content["report"]
    report = None
    if made is not None:
        report = NodeReport(**{**made, "packed": base64.b64decode(made["packed"])})
    return SeenNode(report, content["seen_at"], content["conversations"])
