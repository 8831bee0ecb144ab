"""The collector behind the wire: who may ship, what of it is taken, and what each conversation is answered.

`Ingest` is a `wire.service.Service`; its calls come from the threads of the wire, one per conversation, and what they
take goes to the committing thread (`commit.py`). One conversation ships one node of one run.

Invariants:

- nobody without a token that may ingest writes anything or learns which runs there are; a token that is revoked
  ends its conversations at their next word;
- ids, names, documents and counts are checked here, before anything is queued;
- a conversation waits (and so makes its client wait) for room and for its pace, by a deadline; then it is
  refused with a time to come again.

Does not: decode, store, or answer questions.
"""

from __future__ import annotations

import threading
import time

from logclient.errors import Unsupported
from logclient.shm.record import Shape
from logclient.shm.side_stream import SIDES, side_of

from ..runs.document_head import revision_of
from ..runs.edits import loads
from ..wire.messages import (
    DELETED,
    DISK,
    INVALID,
    PROTOCOL,
    STOPPING,
    UNAUTHORIZED,
    UNKNOWN,
    Description,
    HeldStream,
    Hello,
    NotTaken,
    Parcel,
    Welcome,
    digest,
)
from ..wire.node_report import NodeReport
from ..wire.outbound import Replies
from ..wire.service import Caller
from .catalog import stored_edits
from .commit import DISK_RETRY_S, Committer, Source, deleted_run
from .eventlog import EventLog
from .limits import Limits, Pace, RunLimits, busy, check_ids
from .metrics import Metrics
from .node_reports import NodeReports
from .stop_requests import StopRequests
from .store.interface import Store, StoreError, StoreFull, side_id
from .tokens import INGEST, Grant, Tokens

_MAX_SHAPES = 1000  # that a conversation remembers to have checked
_UNAUTHORIZED_RETRY_S = 60.0
_LOOK_S = 0.5  # between two looks at the tokens of open conversations


class Ingest:
    """State that all conversations share."""

    def __init__(
        self,
        store: Store,
        tokens: Tokens,
        committer: Committer,
        metrics: Metrics,
        log: EventLog,
        limits: Limits,
        version: str,
        stop_requests: StopRequests,
    ) -> None:
        self.http_address = ""  # sent to clients; known once it listens
        self.public_url = ""  # sent to clients, too
        self.stop_requests = stop_requests
        self.node_reports = NodeReports()
        self.store = store
        self.tokens = tokens
        self.committer = committer
        self.metrics = metrics
        self.log = log
        self.limits = limits
        self._version = version
        self._lock = threading.Lock()
        self._runs: dict[str, RunLimits] = {}
        self._shipments: set[Shipment] = set()
        self._has_ended = threading.Event()
        self._watch = threading.Thread(target=self._look_at_tokens, name="tokens", daemon=True)

    def start(self) -> None:
        """Begin to look after the tokens of conversations."""
        self._watch.start()

    def stop(self) -> None:
        self._has_ended.set()

    def _look_at_tokens(self) -> None:
        """End the conversations of revoked tokens, silent ones too."""
        while not self._has_ended.wait(_LOOK_S):
            with self._lock:
                shipments = tuple(self._shipments)
            for each in shipments:
                try:
                    each.check_token()
                except (StoreError, Unsupported) as error:
                    self.log.write("tokens", f"tokens cannot be looked at: {error}")
                    break

    def admit(self, token: str) -> str:
        """The name of the token, where it may ship."""
        try:
            return self._grant(token).name
        except (StoreError, Unsupported) as error:
            raise NotTaken(str(error), UNKNOWN, retry_after_s=DISK_RETRY_S) from error

    def refused(self, caller: Caller, why: NotTaken) -> None:
        """At the gate, before anything of the call was read."""
        self.metrics.count("refused_total", reason=why.reason)
        self.log.write(f"refused {why.reason}", f"a client at {caller.peer} was refused: {why.text}")

    def open(self, hello: Hello, caller: Caller, replies: Replies) -> Shipment:
        """A conversation begins; `NotTaken` where it shall not be."""
        try:
            return self._open_or_fail(hello, caller, replies)
        except NotTaken as refused:
            self.metrics.count("refused_total", reason=refused.reason)
            if refused.reason not in (DELETED, STOPPING):
                who = f"{hello.client or 'a client'} at {caller.peer}"
                self.log.write(f"refused {refused.reason}", f"{who} was refused: {refused.text}")
            raise

    def describe(self, caller: Caller) -> Description:
        """Also for those who may do nothing: that there is a collector is no secret."""
        grant = self.tokens.check(caller.token)
        return Description(
            self.store.id if grant is not None else "",
            self._version,
            self.limits.parcel_bytes,
            self.http_address,
            grant.role if grant is not None else "",
            PROTOCOL,
            self.public_url,
        )

    def _open_or_fail(self, hello: Hello, caller: Caller, replies: Replies) -> Shipment:
        """Open a conversation; an error of the store is a refusal, too."""
        try:
            return self._open(hello, caller, replies)
        except StoreError as error:
            reason = DISK if isinstance(error, StoreFull) else UNKNOWN
            raise NotTaken(str(error), reason, retry_after_s=DISK_RETRY_S) from error
        except TimeoutError as error:
            raise busy("the collector has more to commit than it can", self.limits.retry_after_s) from error

    def _open(self, hello: Hello, caller: Caller, replies: Replies) -> Shipment:
        grant = self._grant(caller.token)
        check_ids(hello)
        reader = self.store.reader
        if reader.is_deleted(hello.run):
            if not hello.revive:
                raise deleted_run()
            self.committer.call(lambda: self.store.writer.undelete(hello.run))
            self.log.event(f"run {hello.run!r} was brought back by token {grant.name}")
        run = self._enter(hello.run)
        try:
            held = reader.held(hello.run, hello.node)
        except BaseException:
            self._leave(hello.run)
            raise
        welcome = Welcome(
            self.store.id,
            self.limits.window_bytes,
            self.limits.parcel_bytes,
            {stream: HeldStream(seqs, held.gaps.get(stream, {})) for stream, seqs in held.stored.items()}
            | {
                stream: HeldStream(gaps=gaps)
                for stream, gaps in held.gaps.items()
                if stream not in held.stored
            },
            digest(held.documents or b""),
            revision_of(held.documents or b""),
            PROTOCOL,
            takes_edits=True,
            edits_digest=stored_edits(held.edits).digest,
            public_url=self.public_url,
            http_address=self.http_address,
        )
        self.metrics.count("connections_total")
        made = Shipment(
            self, Source(hello.run, hello.node, hello.is_sync, replies), grant, run, welcome, replies
        )
        with self._lock:
            self._shipments.add(made)
        if not hello.is_sync:
            self.stop_requests.opened(hello.run, hello.node, replies)
            self.node_reports.opened(hello.run, hello.node)
        return made

    def _grant(self, token: str) -> Grant:
        grant = self.tokens.check(token)
        if grant is None:
            known = "this token is not known here" if token else "a token is needed here, and none was sent"
            made_with = "logclient server token add NAME --role ingest --data DIR"
            text = f"{known}; set LOGCLIENT_TOKEN to one made with `{made_with}`"
            raise NotTaken(text, UNAUTHORIZED, retry_after_s=_UNAUTHORIZED_RETRY_S)
        if not grant.may(INGEST):
            text = f"the token {grant.name} may not write: it takes one with the role ingest"
            raise NotTaken(text, UNAUTHORIZED, retry_after_s=_UNAUTHORIZED_RETRY_S)
        return grant

    def _enter(self, run: str) -> RunLimits:
        with self._lock:
            found = self._runs.get(run)
        if found is None:
            reader = self.store.reader
            is_new = reader.run(run) is None
            parts = {} if is_new else {"": run} | {side: side_id(run, side) for side in SIDES}
            found = RunLimits(
                self.limits,
                [stream for id in parts.values() for stream in reader.contents(id)],
                {side: reader.key_names(id) for side, id in parts.items()},
            )
        with self._lock:
            found = self._runs.setdefault(run, found)
            if found.conversations >= self.limits.run_conversations:
                text = f"the run has {found.conversations} conversations, its most"
                raise busy(text, self.limits.retry_after_s)
            found.conversations += 1
            return found

    def leave(self, shipment: Shipment, run: str) -> None:
        """Note that a conversation is over."""
        with self._lock:
            self._shipments.discard(shipment)
        self._leave(run)

    def _leave(self, run: str) -> None:
        with self._lock:
            found = self._runs[run]
            found.conversations -= 1
            if not found.conversations:
                del self._runs[run]


class Shipment:
    """One conversation; its calls come from one thread."""

    def __init__(
        self,
        ingest: Ingest,
        source: Source,
        grant: Grant,
        run: RunLimits,
        welcome: Welcome,
        replies: Replies,
    ) -> None:
        self.welcome = welcome
        self._ingest = ingest
        self._source = source
        self._replies = replies
        self._grant = grant
        self._run = run
        self._pace = Pace(ingest.limits.parcels_per_s)
        self._streams: set[bytes] = set()
        self._shapes: dict[
            int, Shape
        ] = {}  # by id(); the conversation's reader gives the same object each time

    def take(self, parcel: Parcel) -> None:
        """Check it and queue it."""
        try:
            self._take(parcel)
        except NotTaken as refused:
            self._ingest.metrics.count("refused_total", reason=refused.reason)
            if not (refused.is_final and refused.reason == INVALID):
                self._source.is_over = True
            raise

    def _take(self, parcel: Parcel) -> None:
        ingest, limits = self._ingest, self._ingest.limits
        self._check_grant()
        self._check(parcel)
        self._is_seen()
        ingest.metrics.count("received_bytes_total", parcel.size_bytes)
        wait_s = self._pace.take()
        if wait_s > limits.wait_s:
            raise busy(f"more than {limits.parcels_per_s:g} parcels a second", limits.retry_after_s)
        if wait_s > 0:
            time.sleep(wait_s)
        if not ingest.committer.put(self._source, parcel, parcel.unpacked_bytes, limits.wait_s):
            raise busy("the collector has more to commit than it can", limits.retry_after_s)

    def keepalive(self) -> None:
        """The client is there and has nothing to send."""
        self._check_grant()
        self._is_seen()
        self._ingest.committer.keepalive(self._source)

    def report(self, report: NodeReport) -> None:
        """Keep what the observer of the node saw, for whoever asks."""
        self._check_grant()
        if not self._source.is_sync:
            self._ingest.node_reports.take(self._source.run, self._source.node, report)

    def _is_seen(self) -> None:
        if not self._source.is_sync:
            self._ingest.node_reports.seen(self._source.run, self._source.node)

    def closed(self, why: str) -> None:
        """End the conversation; what is queued is committed all the same."""
        self._ingest.stop_requests.closed(self._source.run, self._source.node, self._replies)
        if not self._source.is_sync:
            self._ingest.node_reports.closed(self._source.run, self._source.node)
        self._ingest.leave(self, self._source.run)

    def check_token(self) -> None:
        """End the conversation where its token was revoked; any thread."""
        try:
            self._check_grant()
        except NotTaken as refused:
            self._source.is_over = True  # what is queued was sent after that, or will be sent again
            self._replies.end(refused)

    def _check_grant(self) -> None:
        if not self._ingest.tokens.is_valid(self._grant):
            text = f"the token {self._grant.name} was revoked"
            raise NotTaken(text, UNAUTHORIZED, retry_after_s=_UNAUTHORIZED_RETRY_S)

    def _check(self, parcel: Parcel) -> None:
        """`NotTaken` where it is too much of something."""
        limits = self._ingest.limits
        if parcel.documents is not None and len(parcel.documents) > limits.documents_bytes:
            text = (
                f"documents of {len(parcel.documents):,} bytes, and at most {limits.documents_bytes:,} are taken: "
                f"keep config and summary small"
            )
            raise NotTaken(text, INVALID, is_final=True)
        if parcel.edits is not None:
            try:
                loads(parcel.edits)
            except (ValueError, Unsupported) as error:
                raise NotTaken(f"edits that cannot be used: {error}", INVALID, is_final=True) from None
        for stream in {each.stream for each in parcel.batches} | {each.stream for each in parcel.holes}:
            if stream not in self._streams:
                self._run.take_stream(stream)
                self._streams.add(stream)
        for batch in parcel.batches:
            if id(batch.shape) not in self._shapes:
                self._run.take_keys(batch.shape, side_of(batch.stream))
                if len(self._shapes) >= _MAX_SHAPES:
                    self._shapes.clear()
                self._shapes[id(batch.shape)] = batch.shape
