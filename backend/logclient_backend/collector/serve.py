"""The collector as a whole: what it is made of, in which order it starts, and how it ends.

One committing process, and web processes that answer over HTTP. Threads of the former: `main` waits for signals; the
wire's own, two per conversation; `commit`; `upkeep`; `web`, which watches the web processes; `control`; `alerts`. The
module of each states what it may touch.

Start: data folder, store (which takes its lock), both sockets, tokens, then everything at once. A collector that
could not start has made no token.

Stop: no new conversations; what is queued is committed and acknowledged; then the rest, by a deadline. `kill -9` is
safe at any time: nothing is acknowledged that is not in the store, and clients send again what was not.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, cast

from logclient.errors import BadArgument

from ..admission.connections import ConnectionLimits
from ..runs.edits import Changes, Edits
from ..wire.address import Address, is_loopback
from ..wire.messages import NotTaken
from ..wire.server import Server, ServerTls
from ..wire.service import Limits as WireLimits
from . import tls
from .alerting import Alerting
from .backup import backup
from .blobs import Blobs
from .catalog import LATE_S, LOST_S, Catalog, edits_in, state_now, uploaded_in
from .commit import Committer
from .committing import MAX_ORDER_BYTES, MAX_ORDERS, orders
from .control_socket import Control
from .data_folder import WEB_SOCKET, DataFolder
from .descriptor_limits import AdmittedCallers, plan, raise_limit
from .eventlog import EventLog
from .http import HttpServer
from .ingest import Ingest
from .limits import Limits
from .metrics import Metrics
from .sessions import Sessions
from .site import Site
from .stop_requests import StopRequests
from .store.interface import Store, StoreError
from .store.open import open_store
from .tokens import ADMIN, Tokens
from .upkeep import Upkeep
from .web_process import resident_bytes
from .web_processes import MAX_PROCESSES, OwnServer, WebPort, WebProcesses

T = TypeVar("T")

GRACE_S = 15.0  # for a stop
_SAME_S = 0.5  # two signals within that are one: `timeout` sends to the process and to its group
_LEAVE_S = 10.0  # after that, for what cannot be given a deadline
KEEP_DELETED_S = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of `logclient server`."""

    data: DataFolder
    listen: Address
    http: Address
    version: str
    tls: tuple[str, str] | None = None  # files with certificate and key
    no_auth: bool = False
    durable: bool = True
    keep_deleted_s: float = KEEP_DELETED_S
    late_s: float = LATE_S
    lost_s: float = LOST_S
    names: frozenset[str] = frozenset()
    site: Site = field(default_factory=Site)
    limits: Limits = field(default_factory=Limits)
    is_over_folder: bool = False  # that of `logclient ui`: filled from a folder again and again
    alerts: str = ""  # file of targets for alerts; empty: none are sent
    warnings: tuple[str, ...] = ()  # of the place where the data lie


class Collector:
    """Started when it is made; `stop` once."""

    def __init__(self, settings: Settings, log: EventLog | None = None) -> None:
        self.settings = settings
        self.log = log or EventLog()
        self.metrics = Metrics()
        self.started_ns = time.time_ns()
        self.admin_token = ""  # at the first start only
        self._is_stopping = False
        self._certificate = tls.read(settings.tls, _names(settings)) if settings.tls else None
        check_addresses(settings)
        data = settings.data
        self.store: Store = open_store(data.store, is_durable=settings.durable)
        try:
            self._make(data, self._certificate.tls if self._certificate is not None else None)
        except BaseException:
            self._undo()
            raise

    def _make(self, data: DataFolder, pair: ServerTls | None) -> None:
        settings, limits, reader = self.settings, self.settings.limits, self.store.reader
        catalog = Catalog(
            reader.documents,
            reader.contents,
            edits_in(reader),
            uploaded_in(reader),
            is_over_folder=settings.is_over_folder,
            lost_s=settings.lost_s,
        )
        self.committer = Committer(
            self.store, catalog, self.metrics, self.log, queue_bytes=limits.queue_bytes
        )
        self.tokens = Tokens(data.path, no_auth=settings.no_auth)
        self.blobs = Blobs(data.path, limits.media_bytes, self._has_run)
        self.sessions = Sessions(data.path, self.tokens.is_valid)
        self.stop_requests = StopRequests(data.path, reader, self.log)
        self.committer.on_documents = self.stop_requests.documents_came
        self.ingest = Ingest(
            self.store,
            self.tokens,
            self.committer,
            self.metrics,
            self.log,
            limits,
            settings.version,
            self.stop_requests,
        )
        room = plan(raise_limit(), limits.conversations)
        if room.conversations < limits.conversations:
            self.log.event(
                f"warning: by the limit of open files at most {room.conversations} nodes ship at once, and more take "
                f"turns: raise it (LimitNOFILE= of the service, ulimit -n)"
            )
        self.wire = Server(
            self.ingest,
            WireLimits(
                conversations=room.conversations,
                waiting=min(64, room.conversations),
                most_bytes=limits.under_way_bytes,
                most_parcel_bytes=limits.parcel_bytes,
                most_unpacked_bytes=limits.unpacked_bytes,
                most_unpacking_bytes=limits.queue_bytes,
                room_s=limits.wait_s,
                retry_after_s=limits.retry_after_s,
            ),
            room.wire,
            blobs=self.blobs,
            log=self.log.write,
        )
        self.address = self.wire.listen(settings.listen, pair)
        self.port = WebPort(_beside(settings.http, self.address), tls=settings.tls)
        self.http = self._make_http(room.http)
        web = self.port.address
        # clients may have come by a name, and only that is in the certificate
        self.ingest.public_url = settings.site.url
        self.ingest.http_address = f":{web.port}" if web.host == self.address.host else web.target
        self.upkeep = Upkeep(
            self.store,
            self.metrics,
            self.log,
            keep_deleted_s=settings.keep_deleted_s,
            purge=self.store.writer.purge,
            blobs=self.blobs,
        )
        self.alerting = self._make_alerting()
        self._ask()
        self.control = Control(
            data,
            {
                "about": lambda order: self.facts(),
                "backup": self._backup,
                "delete": lambda order: {"done": self.delete(str(order.get("run") or ""))},
                "undelete": lambda order: {"done": self.undelete(str(order.get("run") or ""))},
            },
            self.log,
        )
        self.web_control = Control(
            data,
            orders(self, self.ingest.node_reports, self.metrics.text),
            self.log,
            name=WEB_SOCKET,
            most_orders=MAX_ORDERS,
            most_bytes=MAX_ORDER_BYTES,
        )
        if not data.has_tokens and not settings.no_auth:
            self.admin_token = self.tokens.add("admin", [ADMIN])
        self.committer.start()
        self.ingest.start()
        self.wire.start()
        self.upkeep.start()
        if self.alerting is not None:
            self.alerting.start()
        self.http.start()
        if not self.settings.is_over_folder:  # `logclient ui` prints a link instead
            self.log.event(f"collecting on {self.address}, HTTP API on {self.port.url}, data in {data.path}")
        for line in self.warnings():
            self.log.event(f"warning: {line}")

    def _has_run(self, name: str) -> bool:
        run = self.store.reader.run(name)
        return run is not None and not run.deleted_ns

    def _make_alerting(self) -> Alerting | None:
        settings, reader = self.settings, self.store.reader
        if not settings.alerts:
            return None

        def state(name: str) -> tuple[str, str] | None:
            run = reader.run(name)
            if run is None or run.deleted_ns:
                return None
            now = state_now(run, time.time_ns(), late_s=settings.late_s, lost_s=settings.lost_s)
            return now.name, now.cause

        made = Alerting(settings.alerts, settings.data.path, state, self.metrics, self.log)
        self.committer.on_committed = made.committed
        return made

    def _undo(self) -> None:
        """Undo a start that failed: nobody listens, and another collector may have the store."""
        if hasattr(self, "http"):
            self.http.stop(0.0)
        elif hasattr(self, "port"):
            self.port.close()
        if hasattr(self, "wire"):
            self.wire.stop(0.0)
        self.store.close()

    # ---- for the HTTP API and for orders --------------------------------------------------------------------

    def delete(self, run: str) -> bool:
        """Into the bin; False where there is no such run."""
        done = self._change(lambda: self._delete(run))
        if done:
            self.log.event(f"run {run!r} was deleted; until it goes for good it can be brought back")
        return done

    def undelete(self, run: str) -> bool:
        """Out of it again; False where it is not deleted."""
        done = self._change(lambda: self.store.writer.undelete(run))
        if done:
            self.log.event(f"run {run!r} was brought back")
        return done

    def edit(self, run: str, changes: Changes, who: str) -> Edits:
        """Store edits of a run; return all that it has."""
        return self._change(lambda: self.committer.edit(run, changes, who))

    def _change(self, change: Callable[[], T]) -> T:
        """In the committing thread."""
        try:
            return cast(T, self.committer.call(change))
        except NotTaken as error:
            raise StoreError(error.text) from None
        except TimeoutError:
            raise StoreError("the collector is too busy to do it now; it may still do it later") from None

    def _delete(self, run: str) -> bool:
        self.committer.forget(run)
        self.ingest.node_reports.forget(run)
        return self.store.writer.delete(run, time.time_ns())

    def _backup(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        folder = str(order.get("folder") or "")
        made = backup(self.store, self.settings.data, folder, has_media=order.get("media") is not False)
        self.log.event(f"a backup was made in {folder}")
        return made

    def facts(self) -> dict[str, Any]:
        """Facts about the collector for its users."""
        data = self.settings.data
        backup_ns, backup_folder = data.last_backup()
        return {
            "grpc": str(self.address),
            "http": self.port.url,
            "public_url": self.settings.site.url,
            "data": data.path,
            "free_bytes": data.free_bytes(),
            "started_ns": self.started_ns,
            "last_backup_ns": backup_ns,
            "last_backup": backup_folder,
            "pid": os.getpid(),
            "warnings": self.warnings(),
        }

    def warnings(self) -> list[str]:
        """Sentences about things that somebody should look at."""
        certificate = self._certificate
        of_tls = certificate.troubles() if certificate is not None else []
        alerts = self.alerting.trouble if self.alerting is not None else ""
        now = [each for each in (self.committer.trouble, self.http.failure, alerts) if each]
        return [*self.settings.warnings, *of_tls, *self.settings.data.troubles(), *now]

    def not_ready(self) -> str:
        """Why it cannot take data now, in words that anybody may read (no path); empty: it can."""
        if self._is_stopping:
            return "the collector is being stopped"
        if self.committer.trouble:
            return "the disk of the collector takes no data: it is full, or fails"
        return "the HTTP API does not work" if self.http.failure else ""

    def _make_http(self, limits: ConnectionLimits) -> OwnServer | WebProcesses:
        settings, port = self.settings, self.port
        if not settings.limits.web_processes:
            server = HttpServer(port.sockets, self.log, limits, tls=port.tls)
            return OwnServer(port, server, lambda: self._make_app(server))
        given = {
            "data": settings.data.path,
            "version": settings.version,
            "no_auth": settings.no_auth,
            "late_s": settings.late_s,
            "lost_s": settings.lost_s,
            "is_over_folder": settings.is_over_folder,
            "names": sorted(settings.names),
            "site": asdict(settings.site),
        }
        count = settings.limits.web_processes
        return WebProcesses(count, port, given, limits, self.store.seen_feed, self.log)

    def _make_app(self, server: HttpServer) -> Any:
        """Return the API of a collector without web processes."""
        from .web.app import make_app
        from .web.context import Backing

        settings = self.settings
        return make_app(
            Backing(
                store=self.store,
                check=self.tokens.check,
                state=lambda run, now_ns: state_now(
                    run, now_ns, late_s=settings.late_s, lost_s=settings.lost_s
                ),
                delete=self.delete,
                undelete=self.undelete,
                edit=self.edit,
                stop_requests=self.stop_requests,
                node_reports=self.ingest.node_reports,
                blobs=self.blobs,
                metrics=self.metrics.text,
                not_ready=self.not_ready,
                facts=self.facts,
                callers=AdmittedCallers(server.acceptor, self.tokens, self.sessions),
                sessions=self.sessions,
                names=settings.names,
                site=settings.site,
                is_over_folder=settings.is_over_folder,
            )
        )

    def _ask(self) -> None:
        """Gauges of what others keep."""
        ask, data = self.metrics.ask, self.settings.data
        ask("info", lambda: {(("collector", self.store.id), ("version", self.settings.version)): 1})
        ask("start_time_seconds", lambda: self.started_ns / 1e9)
        ask("connections", lambda: self.wire.conversations)
        ask("turned_away_total", lambda: self.wire.turned_away + self.http.turned_away)
        ask("last_commit_timestamp_seconds", lambda: self.committer.last_commit_ns / 1e9)
        ask("queue_parcels", lambda: self.committer.queue_parcels)
        ask("queue_bytes", lambda: self.committer.queue_bytes)
        ask("under_way_bytes", lambda: self.wire.bytes_under_way)
        ask("disk_free_bytes", data.free_bytes)
        ask("last_backup_timestamp_seconds", lambda: data.last_backup()[0] / 1e9)
        ask("alerts_waiting", lambda: self.alerting.waiting if self.alerting is not None else 0)
        ask("resident_bytes", resident_bytes)
        ask("cpu_seconds_total", time.process_time)
        ask("web_processes", lambda: self.http.figures()["processes"])
        ask("web_resident_bytes", lambda: self.http.figures()["resident_bytes"])
        ask("web_cpu_seconds_total", lambda: self.http.figures()["cpu_seconds"])
        self.metrics.ask_store(self.store.statistics)

    # ---- the end ----------------------------------------------------------------------------------------------

    def stop(self, grace_s: float = GRACE_S) -> bool:
        """By the deadline; False where something was not committed or would not end."""
        self._is_stopping = True
        deadline = time.monotonic() + grace_s

        def left(least_s: float = 0.5) -> float:
            return max(least_s, deadline - time.monotonic())

        self.log.event("stopping: what is queued is committed")
        self.control.stop()
        self.ingest.stop()
        is_well = self.wire.stop(left() * 0.7)
        is_well &= self.committer.stop(left())
        is_well &= self.http.stop(left())
        self.web_control.stop()
        is_well &= self.upkeep.stop(left())
        if self.alerting is not None:
            self.alerting.stop(left())
        if is_well:
            self.store.close()
        text = (
            "stopped" if is_well else "stopped, though not all was committed in time: clients send it again"
        )
        self.log.event(text)
        return is_well


def run(settings: Settings, announce: Callable[[Collector], None], signals: Set[int]) -> int:
    """Be a collector until a signal ends it; the exit code. For the main thread of a process of its own.

    The first of these signals stops it with grace, the second at once: what was acknowledged is safe either way.
    No thread may take them: the caller blocks them before anything makes one, numpy's import included.
    """
    log = EventLog()
    log.take_over()
    collector = Collector(settings, log)
    announce(collector)
    while signal.sigtimedwait(signals, 3600.0) is None:
        pass
    done: list[bool] = []
    stopping = threading.Thread(target=lambda: done.append(collector.stop()), name="stop", daemon=True)
    stopping.start()
    began = time.monotonic()
    while stopping.is_alive() and time.monotonic() < began + GRACE_S + _LEAVE_S:
        if signal.sigtimedwait(signals, 0.05) is not None and time.monotonic() > began + _SAME_S:
            collector.log.event("stopped at once: clients send again what was not acknowledged")
            os._exit(1)
    if done != [True]:
        os._exit(1)  # something hangs, a disk perhaps: an orderly exit would wait for it
    return 0


def check_addresses(settings: Settings) -> None:
    """`BadArgument` for too many processes, and for what would be open to everybody."""
    if settings.limits.web_processes > MAX_PROCESSES:
        raise BadArgument(f"--limit web_processes: at most {MAX_PROCESSES}")
    wide = [each for each in (settings.listen, settings.http) if not each.is_loopback]
    if wide and settings.no_auth:
        raise BadArgument(
            f"--no-auth lets everybody in, so it goes with a loopback address only, and {wide[0].host} is none: "
            f"leave --no-auth out, and make tokens with `logclient server token add`"
        )


def _names(settings: Settings) -> list[str]:
    """Names and addresses by which clients are meant to come."""
    hosts = {settings.listen.host, settings.http.host} - {"0.0.0.0", "::"}
    return sorted(settings.names | {host for host in hosts if not is_loopback(host)})


def _beside(http: Address, grpc: Address) -> Address:
    """Port -1: the next one after that of gRPC; where that one was chosen by the system, this one is too."""
    return Address(http.host, grpc.port + 1, http.is_tls) if http.port == -1 else http
