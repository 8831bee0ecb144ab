"""The collector's side of the wire: a gRPC server in front of a `Service` that is plain Python.

Each conversation has two threads: one of the server's pool sends the replies, one of its own reads, decodes, and makes
all calls of that conversation's `Conversation`, one after the other. A service may hand the parcels of all
conversations to one committing thread; that answers through `Replies`, whose methods never wait.

Invariants:

- memory is bounded: of a conversation (`window_bytes`), of all together (`most_bytes`), of one message, of what it
  becomes when it is unpacked, and of all that are unpacked at once; beyond the first two nothing is read, so the client
  waits;
- conversations are bounded: one too many is refused with `busy` and a time to come again, as is every one while the
  server is being stopped;
- what does not check ends that conversation and nothing else, with a sentence in a Refusal and in the status;
- a client that says nothing, or no hello, is let go by a deadline;
- `Conversation.closed` is called once, last, in the same thread, whatever happened.

Does not: know a store, a token or a run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial

import grpc

from logclient_proto.v1 import control_pb2

from . import convert, messages
from .address import Address, is_loopback
from .messages import NotTaken
from .reading import Reading, busy
from .replies import Replies
from .room import Room
from .service import Caller, Limits, Service

SERVICE, CONTROL = "logclient.v1.Ingest", "logclient.v1.Control"

_SPARE_THREADS = 8  # that answer Describe, and those who are too many
_STATUS = {
    messages.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    messages.WRONG_PROTOCOL: grpc.StatusCode.INVALID_ARGUMENT,
    messages.DELETED: grpc.StatusCode.FAILED_PRECONDITION,
    messages.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    messages.DISK: grpc.StatusCode.RESOURCE_EXHAUSTED,
    messages.STOPPING: grpc.StatusCode.UNAVAILABLE,
    messages.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
}


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files, read."""

    certificate: bytes
    key: bytes = field(repr=False)


class Server:
    """Made with a service; `listen` as often as wanted, `start`, `stop`."""

    def __init__(self, service: Service, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._service = service
        self._room = Room(self.limits.most_bytes)
        self._unpacking = Room(self.limits.most_unpacking_bytes)
        self._open: set[Replies] = set()
        self._lock = threading.Lock()
        self._is_stopping = False
        most = self.limits.conversations
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(most + _SPARE_THREADS, thread_name_prefix="reply"),
            options=[
                ("grpc.so_reuseport", 0),  # a second collector on this port is told so
                ("grpc.max_receive_message_length", self.limits.most_parcel_bytes + (1 << 16)),
                ("grpc.max_metadata_size", 1 << 14),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
            maximum_concurrent_rpcs=most + _SPARE_THREADS,
        )
        ship = grpc.stream_stream_rpc_method_handler(self._ship)
        describe = grpc.unary_unary_rpc_method_handler(
            self._describe,
            request_deserializer=control_pb2.DescribeRequest.FromString,
            response_serializer=control_pb2.DescribeReply.SerializeToString,
        )
        self._grpc.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Ship": ship}),
                grpc.method_handlers_generic_handler(CONTROL, {"Describe": describe}),
            )
        )

    @property
    def conversations(self) -> int:
        return len(self._open)

    @property
    def bytes_under_way(self) -> int:
        """Of parcels that are taken and not committed."""
        return self._room.taken

    def listen(self, address: Address, tls: ServerTls | None = None) -> Address:
        """Listen there too, from `start` on; `OSError` where that cannot be. The address, with the port it became."""
        if address.is_tls != (tls is not None):
            raise ValueError("an address with TLS goes with a certificate")
        try:
            if tls is None:
                port = self._grpc.add_insecure_port(address.target)
            else:
                pair = (tls.key, tls.certificate)
                port = self._grpc.add_secure_port(address.target, grpc.ssl_server_credentials([pair]))
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(
                f"cannot listen on {address.target}: is another program there, or no such address here?"
            )
        return Address(address.host, port, address.is_tls)

    def start(self) -> None:
        self._grpc.start()

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
        gone = self._grpc.stop(max(0.0, deadline - time.monotonic()) if is_settled else 0.0)
        return gone.wait(5.0) and is_settled

    # ---- Describe ------------------------------------------------------------------------------------------

    def _describe(
        self, request: control_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> control_pb2.DescribeReply:
        return convert.description(self._service.describe(caller_of(context)))

    # ---- Ship ----------------------------------------------------------------------------------------------

    def _ship(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """In a thread of the pool: gives the replies as they come, until the conversation is over."""
        replies = Replies(self._room.give, context)
        with self._lock:
            refused = self._why_not()
            if refused is None:
                self._open.add(replies)
        if refused is not None:
            replies.end(refused)
        else:
            if not context.add_callback(replies.cut):
                replies.cut()
            reading = Reading(self._service, self.limits, self._room, self._unpacking, replies)
            let_go = partial(self._let_go, replies)
            reader = threading.Thread(
                target=reading.run, args=(requests, caller_of(context), let_go), name="ingest", daemon=True
            )
            try:
                reader.start()
            except RuntimeError:  # no more threads
                replies.end(busy("the collector has no thread left", self.limits))
                let_go()
        yield from replies.messages(self.limits.silence_s, self.limits.hello_s)
        failure = replies.failure
        if failure is not None:
            context.set_code(_STATUS.get(failure.reason, grpc.StatusCode.UNKNOWN))
            context.set_details(convert.refusal(failure).refusal.text)

    def _why_not(self) -> NotTaken | None:
        if self._is_stopping:
            return NotTaken("the collector is being stopped", messages.STOPPING, retry_after_s=1.0)
        if len(self._open) >= self.limits.conversations:
            return busy(f"the collector has {self.limits.conversations} conversations, its most", self.limits)
        return None

    def _let_go(self, replies: Replies) -> None:
        with self._lock:
            self._open.discard(replies)


def caller_of(context: grpc.ServicerContext) -> Caller:
    """Who calls."""
    token = ""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            token = value[7:].strip()
    peer = context.peer()
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return Caller(token, peer, is_loopback(host))
