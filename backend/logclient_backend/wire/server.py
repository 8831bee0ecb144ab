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

import logging
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from logclient.errors import Corrupt
from logclient_proto.v1 import control_pb2
from logclient_proto.v1 import ingest_pb2 as pb

from . import convert, messages
from .address import Address, is_loopback
from .batch import MOST_BYTES
from .decode import ParcelReader
from .messages import Description, Hello, NotTaken, Parcel, Welcome
from .replies import Replies

_log = logging.getLogger(__name__)

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
class Caller:
    """Who calls: the token it sent (empty: none) and where from. Nothing is checked yet."""

    token: str = field(repr=False)
    peer: str
    is_loopback: bool


class Conversation(Protocol):
    """What a service does with one node's conversation. All calls come from one thread."""

    @property
    def welcome(self) -> Welcome:
        """Asked once, at the start."""

    def take(self, parcel: Parcel) -> None:
        """The next parcel. It is under way until `Replies.ack` or a final `Replies.refuse` names it.

        May wait, which makes the client wait. Raises `NotTaken` as `Replies.refuse` takes it; `Corrupt` counts as
        INVALID and final for this parcel.
        """

    def heard(self) -> None:
        """The client is there and has nothing to send."""

    def closed(self, why: str) -> None:
        """The last call; `why` in words. Replies go nowhere from now on."""


class Service(Protocol):
    """What a collector is to the wire. Calls come from many threads at once."""

    def open(self, hello: Hello, caller: Caller, replies: Replies) -> Conversation:
        """Begin. `NotTaken` where it shall not be: the conversation ends with that."""

    def describe(self, caller: Caller) -> Description:
        """Also for those who may do nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is taken at once."""

    conversations: int = 256
    most_bytes: int = 64 << 20  # of parcels under way, of all conversations together
    most_parcel_bytes: int = 16 << 20
    most_unpacked_bytes: int = MOST_BYTES  # of one parcel, decoded
    most_unpacking_bytes: int = 2 * MOST_BYTES  # of all that are decoded and that no service has taken yet
    hello_s: float = 10.0  # a client says who it is within that
    silence_s: float = 90.0  # and something at least that often
    room_s: float = 10.0  # a parcel waits so long for room at most, then its client is told to come again
    retry_after_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files, read."""

    certificate: bytes
    key: bytes = field(repr=False)


class _Room:
    """Bytes of all parcels under way."""

    def __init__(self, most: int) -> None:
        self.taken = 0
        self._most = most
        self._changed = threading.Condition()

    def take(self, size: int, replies: Replies, timeout_s: float) -> bool:
        """False where there is none in time, or the conversation is over. One parcel alone always finds room."""
        with self._changed:

            def is_free() -> bool:
                return replies.is_over or not self.taken or self.taken + size <= self._most

            if not self._changed.wait_for(is_free, timeout_s) or replies.is_over:
                return False
            self.taken += size
            return True

    def give(self, size: int) -> None:
        with self._changed:
            self.taken -= size
            self._changed.notify_all()


class Server:
    """Made with a service; `listen` as often as wanted, `start`, `stop`."""

    def __init__(self, service: Service, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._service = service
        self._room = _Room(self.limits.most_bytes)
        self._unpacking = _Room(self.limits.most_unpacking_bytes)
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
            reader = threading.Thread(
                target=self._read, args=(requests, caller_of(context), replies), name="ingest", daemon=True
            )
            try:
                reader.start()
            except RuntimeError:  # no more threads
                replies.end(self._busy("the collector has no thread left"))
                self._let_go(replies)
        yield from replies.messages(self.limits.silence_s, self.limits.hello_s)
        failure = replies.failure
        if failure is not None:
            context.set_code(_STATUS.get(failure.reason, grpc.StatusCode.UNKNOWN))
            context.set_details(convert.refusal(failure).refusal.text)

    def _why_not(self) -> NotTaken | None:
        if self._is_stopping:
            return NotTaken("the collector is being stopped", messages.STOPPING, retry_after_s=1.0)
        if len(self._open) >= self.limits.conversations:
            return self._busy(f"the collector has {self.limits.conversations} conversations, its most")
        return None

    def _busy(self, text: str) -> NotTaken:
        return NotTaken(
            f"{text}; it is tried again later", messages.BUSY, retry_after_s=self.limits.retry_after_s
        )

    def _let_go(self, replies: Replies) -> None:
        with self._lock:
            self._open.discard(replies)

    def _read(self, requests: Iterator[bytes], caller: Caller, replies: Replies) -> None:
        """The conversation's own thread."""
        conversation: Conversation | None = None
        why = "the client closed it"
        try:
            conversation = self._begin(requests, caller, replies)
            if conversation is not None:
                self._take_all(requests, conversation, replies)
            replies.finish(None)  # OK, once all is settled
        except NotTaken as refused:
            why = refused.text
            replies.end(refused)
        except Corrupt as error:
            why = str(error)
            replies.end(NotTaken(why, messages.WRONG_PROTOCOL))
        except grpc.RpcError:  # what reading raises where the call is over
            replies.cut()
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this conversation, and no other
            why = f"a fault in the collector: {type(error).__name__}"
            replies.end(NotTaken(f"{why}; its log has more", messages.UNKNOWN))
            _log.exception("a conversation ended by a fault in the collector")
        finally:
            replies.wait_over(None)
            self._let_go(replies)
            if conversation is not None:
                conversation.closed(replies.failure.text if replies.failure is not None else why)

    def _begin(self, requests: Iterator[bytes], caller: Caller, replies: Replies) -> Conversation | None:
        data = next(requests, None)
        if data is None:
            return None
        message = _request(data)
        if message.WhichOneof("what") != "hello":
            raise Corrupt("conversation", 0, "a hello first", message.WhichOneof("what"))
        hello = convert.read_hello(message.hello)
        if not hello.protocol >= 1:
            raise Corrupt("hello: protocol", 0, "from 1 on", hello.protocol)
        conversation = self._service.open(hello, caller, replies)
        replies.welcome(conversation.welcome)
        return conversation

    def _take_all(self, requests: Iterator[bytes], conversation: Conversation, replies: Replies) -> None:
        limits = self.limits
        reader = ParcelReader(limits.most_unpacked_bytes)
        window_bytes = conversation.welcome.window_bytes
        number = 0
        for data in requests:
            replies.heard()
            message = _request(data)
            kind = message.WhichOneof("what")
            if kind == "alive":
                conversation.heard()
                replies.repeat_ack()
            elif kind == "parcel":
                number += 1
                if message.parcel.number != number:
                    raise Corrupt("parcel: number", 0, number, message.parcel.number)
                size = len(data)
                if not replies.wait_window(window_bytes, limits.silence_s):
                    return
                if not self._room.take(size, replies, limits.room_s):
                    if replies.is_over:
                        return
                    raise self._busy("the collector has more under way than it can commit")
                replies.taken(number, size)
                if not self._take(message.parcel, size, reader, conversation, replies):
                    return
            elif kind == "hello":
                raise Corrupt("conversation", 0, "one hello", "another")

    def _take(
        self,
        message: pb.Parcel,
        size: int,
        reader: ParcelReader,
        conversation: Conversation,
        replies: Replies,
    ) -> bool:
        """False: the client has to begin again behind it, since key tables that it told of may be lost."""
        number = message.number
        if size > self.limits.most_parcel_bytes:
            return _skip(
                replies,
                number,
                f"a parcel of {size} bytes; at most {self.limits.most_parcel_bytes} are taken",
            )
        try:
            unpacked = reader.size(message)
        except Corrupt as error:
            return _skip(replies, number, str(error))
        if not self._unpacking.take(unpacked, replies, self.limits.room_s):
            if replies.is_over:
                return False
            raise self._busy("the collector has more to unpack than it can commit")
        try:
            try:
                parcel = reader.parcel(message, size)
            except Corrupt as error:
                return _skip(replies, number, str(error))
            try:
                conversation.take(parcel)
            except Corrupt as error:
                replies.refuse(NotTaken(str(error), messages.INVALID, is_final=True), number)
            except NotTaken as refused:
                replies.refuse(refused, number)
        finally:
            self._unpacking.give(unpacked)
        return True


def _skip(replies: Replies, number: int, text: str) -> bool:
    replies.refuse(NotTaken(text, messages.INVALID, is_final=True), number)
    replies.finish(NotTaken(f"parcel {number} was refused; begin again behind it", messages.INVALID))
    return False


def caller_of(context: grpc.ServicerContext) -> Caller:
    """Who calls."""
    token = ""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            token = value[7:].strip()
    peer = context.peer()
    host = peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return Caller(token, peer, is_loopback(host))


def _request(data: bytes) -> pb.ShipRequest:
    try:
        return pb.ShipRequest.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise Corrupt("message", 0, "one of this protocol", "other bytes") from error
