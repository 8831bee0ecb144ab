"""The collector's side of the wire: a gRPC server in front of a `Service` that is plain Python.

Each conversation has two threads: one of the server's pool sends the replies, one of its own reads, decodes, and makes
all calls of that conversation's `Conversation`, one after the other. A service may hand the parcels of all
conversations to one committing thread; that answers through `Replies`, whose methods never wait.

Invariants:

- a call without a token that may ship is refused before a byte of its first message is read (`gate.py`);
- connections that show no token are bounded, and make room for others (`admission/`);
- memory is bounded: of a conversation (`window_bytes`), of all together (`most_bytes`), of one message, of what it
  becomes when it is unpacked, and of all that are unpacked at once; beyond the first two nothing is read, so the client
  waits;
- conversations are bounded: where more nodes ship, they take turns (`turns.py`); while the server is being stopped
  each is refused;
- what does not check ends that conversation and nothing else, with a sentence in a Refusal and in the status;
- a client that sends nothing, or no hello, is let go by a deadline;
- `Conversation.closed` is called once, last, in the same thread, whatever happened.

Does not: know a store, a token or a run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial

import grpc

from ..admission import openings
from ..admission.acceptor import Acceptor
from ..admission.connections import ConnectionLimits
from ..admission.inner_socket import InnerSocket
from ..admission.listening import listen
from . import convert, messages
from .address import Address, is_loopback
from .blobs import answer
from .byte_budget import Room
from .gate import STATUS, Gate, token_in
from .inbound import Reading, busy
from .messages import NotTaken
from .outbound import Replies
from .service import BlobService, Caller, Limits, Service
from .turns import Ticket, Turns

_SPARE_THREADS = 8  # for calls that are answered at once
_MIN_STREAMS = 32  # of one connection; those of cancelled calls count until their conversation is over
_FLUSH_S = 1.0  # for the last words to reach the clients


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files, read."""

    certificate: bytes
    key: bytes = field(repr=False)


class Server:
    """Made with a service; `listen` as often as wanted, `start`, `stop`."""

    def __init__(
        self,
        service: Service,
        limits: Limits | None = None,
        connection_limits: ConnectionLimits | None = None,
        *,
        blobs: BlobService | None = None,
        log: Callable[[str, str], None] = lambda cause, text: None,
    ) -> None:
        """`connection_limits`: of each port; `log` takes a cause and a line for the log.

        `blobs` takes those of media values; without it there are none.
        """
        self.limits = limits or Limits()
        self._service = service
        self._blobs = blobs
        self._connection_limits = connection_limits or ConnectionLimits()
        self._log = log
        self._room = Room(self.limits.most_bytes)
        self._unpacking = Room(self.limits.most_unpacking_bytes)
        self._open: set[Replies] = set()
        self._greeting: dict[str, int] = {}  # conversations that have not sent their hello yet, by holder
        self._lock = threading.Lock()
        self._is_stopping = False
        self._acceptors: list[tuple[Acceptor, InnerSocket]] = []
        most, waiting = self.limits.conversations, self.limits.waiting
        self._turns = Turns(most, waiting)
        self._gate = Gate(
            service.admit, self._ship, self._describe, self._refused, None if blobs is None else self._blob
        )
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(
                most + waiting + self.limits.greeting + _SPARE_THREADS, thread_name_prefix="reply"
            ),
            handlers=[self._gate],
            options=[
                ("grpc.max_receive_message_length", self.limits.most_parcel_bytes + (1 << 16)),
                ("grpc.max_metadata_size", 1 << 14),
                # beyond it grpc resets a stream without a word: so it is more than one holder of a token may begin
                ("grpc.max_concurrent_streams", max(_MIN_STREAMS, self.limits.greeting)),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.server_handshake_timeout_ms", int(1000 * self._connection_limits.token_s)),
            ],
        )

    @property
    def conversations(self) -> int:
        return self._turns.held

    @property
    def bytes_under_way(self) -> int:
        """Bytes of parcels that are taken and not committed."""
        return self._room.taken

    def listen(self, address: Address, tls: ServerTls | None = None) -> Address:
        """Listen there too, from `start` on; `OSError` where that cannot be. The address, with the port it became."""
        if address.is_tls != (tls is not None):
            raise ValueError("an address with TLS goes with a certificate")
        try:
            listening = listen(address.host, address.port)
        except OSError as error:
            raise OSError(
                f"cannot listen on {address.target}: is another program there, or no such address here? "
                f"({error.strerror or error})"
            ) from error
        port: int = listening[0].getsockname()[1]
        inner = InnerSocket(lambda target: self._listen_within(target, tls))
        opening = openings.http2 if tls is None else openings.tls
        acceptor = Acceptor(listening, opening, self._connection_limits, log=self._log, name="acceptor-grpc")
        self._acceptors.append((acceptor, inner))
        return Address(address.host, port, address.is_tls)

    def _listen_within(self, target: str, tls: ServerTls | None) -> bool:
        try:
            if tls is None:
                return bool(self._grpc.add_insecure_port(target))
            pair = (tls.key, tls.certificate)
            return bool(self._grpc.add_secure_port(target, grpc.ssl_server_credentials([pair])))
        except RuntimeError:
            return False

    def start(self) -> None:
        self._grpc.start()
        for acceptor, inner in self._acceptors:
            acceptor.start(inner.hand_on)

    def stop(self, grace_s: float) -> bool:
        """Refuse what comes, let what is under way be committed, and end; False where that took longer than `grace_s`.

        The service must go on committing meanwhile.
        """
        self._is_stopping = True
        deadline = time.monotonic() + grace_s
        why = NotTaken(
            "the collector is being stopped; what it has not acknowledged is sent again later",
            messages.STOPPING,
            retry_after_s=1.0,
        )
        with self._lock:
            waiting = list(self._open)
        for replies in waiting:
            replies.finish(why)
        is_settled = sum(
            replies.wait_over(max(0.0, deadline - time.monotonic())) for replies in waiting
        ) == len(waiting)
        for acceptor, _ in self._acceptors:
            acceptor.close_listening()
        gone = self._grpc.stop(max(0.0, deadline - time.monotonic()) if is_settled else 0.0)
        is_gone = gone.wait(5.0)
        for acceptor, inner in self._acceptors:
            acceptor.stop(_FLUSH_S)
            inner.close()
        self._gate.close()
        return is_gone and is_settled

    # ---- connections -----------------------------------------------------------------------------------------

    @property
    def turned_away(self) -> int:
        """Connections that were closed without having shown a token."""
        return sum(acceptor.turned_away for acceptor, _ in self._acceptors)

    def _caller(self, context: grpc.ServicerContext) -> Caller:
        key = context.peer()
        peer = next((found for acceptor, _ in self._acceptors if (found := acceptor.peer_of(key))), key)
        host = peer.partition(":")[2].rpartition(":")[0].strip("[]")
        return Caller(token_in(context.invocation_metadata()), peer, is_loopback(host))

    def _refused(self, why: NotTaken, context: grpc.ServicerContext) -> None:
        for acceptor, _ in self._acceptors:
            acceptor.refuse(context.peer())
        self._service.refused(self._caller(context), why)

    # ---- Describe ------------------------------------------------------------------------------------------

    def _describe(self, context: grpc.ServicerContext) -> bytes:
        return convert.description(self._service.describe(self._caller(context))).SerializeToString()

    # ---- Blob ----------------------------------------------------------------------------------------------

    def _blob(self, who: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        """In a thread of the gate's."""
        key = context.peer()
        for acceptor, _ in self._acceptors:
            acceptor.enter(key, who)
        try:
            assert self._blobs is not None
            return answer(request, self._blobs)
        finally:
            for acceptor, _ in self._acceptors:
                acceptor.leave(key)

    # ---- Ship ----------------------------------------------------------------------------------------------

    def _ship(self, who: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """In a thread of the pool: gives the replies as they come, until the conversation is over."""
        key = context.peer()
        for acceptor, _ in self._acceptors:
            acceptor.enter(key, who)
        try:
            yield from self._converse(who, requests, context)
        finally:
            for acceptor, _ in self._acceptors:
                acceptor.leave(key)

    def _converse(
        self, who: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        replies = Replies(self._room.give)
        with self._lock:
            refused = self._why_not(who)
            if refused is None:
                self._open.add(replies)
                self._greeting[who] = self._greeting.get(who, 0) + 1
        if refused is not None:
            replies.end(refused)
        else:
            if not context.add_callback(replies.cut):
                replies.cut()
            self._read(who, requests, self._caller(context), replies)
        yield from replies.messages(self.limits.silence_s, self.limits.hello_s)
        failure = replies.failure
        if failure is not None:
            context.set_code(STATUS.get(failure.reason, grpc.StatusCode.UNKNOWN))
            context.set_details(convert.refusal(failure).refusal.text)

    def _read(self, who: str, requests: Iterator[bytes], caller: Caller, replies: Replies) -> None:
        """Start the thread that does."""
        ticket = Ticket(who, partial(replies.finish, self._your_turn_is_over()))
        reading = Reading(self._service, self.limits, self._room, self._unpacking, replies)
        has_greeted = threading.Event()

        def greeted() -> None:
            """The hello is there, or will not come."""
            if has_greeted.is_set():
                return
            has_greeted.set()
            with self._lock:
                self._greeting[who] -= 1
                if not self._greeting[who]:
                    del self._greeting[who]

        def take_turn() -> None:
            greeted()
            if not self._turns.take(ticket, self.limits.turn_s, lambda: replies.is_over):
                raise self._take_turns()

        def let_go() -> None:
            greeted()
            self._turns.leave(ticket)
            with self._lock:
                self._open.discard(replies)

        reader = threading.Thread(
            target=reading.run, args=(requests, caller, take_turn, let_go), name="ingest", daemon=True
        )
        try:
            reader.start()
        except RuntimeError:  # no more threads
            replies.end(busy("the collector has no thread left", self.limits))
            let_go()

    def _why_not(self, who: str) -> NotTaken | None:
        if self._is_stopping:
            return NotTaken("the collector is being stopped", messages.STOPPING, retry_after_s=1.0)
        greeting, most = sum(self._greeting.values()), self.limits.greeting
        if greeting >= most or self._greeting.get(who, 0) >= max(1, most // 2):
            return busy(f"{greeting} conversations have begun and not sent their hello yet", self.limits)
        return None

    def _take_turns(self) -> NotTaken:
        text = f"more nodes ship than the collector has conversations ({self.limits.conversations}): they take turns"
        return busy(text, self.limits)

    def _your_turn_is_over(self) -> NotTaken:
        refusal = self._take_turns()
        return NotTaken(refusal.text, refusal.reason, retry_after_s=min(1.0, self.limits.retry_after_s))
