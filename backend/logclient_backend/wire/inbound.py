"""Inbound half of a conversation: read, checked, decoded and handed to the service, in a thread of its own.

Made by `server.py`; the other direction is `outbound.py`.

Invariants:

- nothing is read beyond the room that there is: of the conversation, of all together, of what is unpacked;
- what does not check ends this conversation and nothing else, with a sentence;
- `Conversation.closed` is called once, last, in the same thread, whatever happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import grpc
from google.protobuf.message import DecodeError

from logclient.errors import Corrupt
from logclient_proto.v1 import ingest_pb2 as pb

from . import convert, messages
from .byte_budget import Room
from .decode import ParcelReader
from .messages import NotTaken
from .outbound import Replies
from .service import Caller, Conversation, Limits, Service

MAX_HELLO_BYTES = 4096

_log = logging.getLogger(__name__)


class Reading:
    """The reading half of one conversation."""

    def __init__(
        self, service: Service, limits: Limits, room: Room, unpacking: Room, replies: Replies
    ) -> None:
        """`room`: of parcels under way; `unpacking`: of those that are decoded and not taken yet."""
        self._service = service
        self._limits = limits
        self._room = room
        self._unpacking = unpacking
        self._replies = replies

    def run(
        self,
        requests: Iterator[bytes],
        caller: Caller,
        take_turn: Callable[[], None],
        let_go: Callable[[], None],
    ) -> None:
        """From the hello to the end.

        `take_turn` is called after the hello, may wait, and raises `NotTaken`; `let_go` is called once it is over,
        before the conversation is closed.
        """
        replies = self._replies
        conversation: Conversation | None = None
        why = "the client closed it"
        try:
            conversation = self._begin(requests, caller, take_turn)
            if conversation is not None:
                self._take_all(requests, conversation)
            replies.finish(None)  # OK, once all is settled
        except NotTaken as refused:
            why = refused.text
            replies.end(refused)
        except Corrupt as error:
            why = str(error)
            replies.end(NotTaken(why, messages.WRONG_PROTOCOL))
        except grpc.RpcError as error:  # what reading raises where the call is over
            # the call keeps the error, whose traceback keeps the call: its stream would count on until a collection
            error.with_traceback(None)
            replies.cut()
        except Exception as error:  # noqa: BLE001 - a fault of ours ends this conversation, and no other
            why = f"a fault in the collector: {type(error).__name__}"
            _log.exception("a conversation ended by a fault in the collector")
            replies.end(NotTaken(f"{why}; its log has more", messages.UNKNOWN))
        finally:
            replies.wait_over(None)
            let_go()
            if conversation is not None:
                conversation.closed(replies.failure.text if replies.failure is not None else why)

    def _begin(
        self, requests: Iterator[bytes], caller: Caller, take_turn: Callable[[], None]
    ) -> Conversation | None:
        data = next(requests, None)
        if data is None:
            return None
        if len(data) > MAX_HELLO_BYTES:
            raise Corrupt("hello", 0, f"at most {MAX_HELLO_BYTES} bytes", len(data))
        message = _request(data)
        if message.WhichOneof("what") != "hello":
            raise Corrupt("conversation", 0, "a hello first", message.WhichOneof("what"))
        hello = convert.read_hello(message.hello)
        if hello.protocol < messages.PROTOCOL:
            raise NotTaken(
                f"this logclient speaks protocol {hello.protocol}, the collector {messages.PROTOCOL}: update logclient",
                messages.WRONG_PROTOCOL,
            )
        self._replies.received(is_hello=True)
        take_turn()
        conversation = self._service.open(hello, caller, self._replies)
        self._replies.welcome(conversation.welcome)
        return conversation

    def _take_all(self, requests: Iterator[bytes], conversation: Conversation) -> None:
        limits, replies = self._limits, self._replies
        reader = ParcelReader(limits.most_unpacked_bytes)
        window_bytes = conversation.welcome.window_bytes
        number = 0
        for data in requests:
            replies.received()
            message = _request(data)
            kind = message.WhichOneof("what")
            if kind == "alive":
                conversation.keepalive()
                replies.received(wants_ack=True)
            elif kind == "report":
                conversation.report(convert.read_report(message.report))
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
                    raise busy("the collector has more under way than it can commit", limits)
                replies.taken(number, size)
                if not self._take(message.parcel, size, reader, conversation):
                    return
            elif kind == "hello":
                raise Corrupt("conversation", 0, "one hello", "another")

    def _take(self, message: pb.Parcel, size: int, reader: ParcelReader, conversation: Conversation) -> bool:
        """False: the client has to begin again behind it, since key tables that it sent may be lost."""
        replies = self._replies
        number = message.number
        if size > self._limits.most_parcel_bytes:
            return _skip(
                replies,
                number,
                f"a parcel of {size} bytes; at most {self._limits.most_parcel_bytes} are taken",
            )
        try:
            unpacked = reader.size(message)
        except Corrupt as error:
            return _skip(replies, number, str(error))
        if not self._unpacking.take(unpacked, replies, self._limits.room_s):
            if replies.is_over:
                return False
            raise busy("the collector has more to unpack than it can commit", self._limits)
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


def busy(text: str, limits: Limits) -> NotTaken:
    """Return a refusal for now: the client tries again later."""
    return NotTaken(f"{text}; it is tried again later", messages.BUSY, retry_after_s=limits.retry_after_s)


def _request(data: bytes) -> pb.ShipRequest:
    try:
        return pb.ShipRequest.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise Corrupt("message", 0, "one of this protocol", "other bytes") from error
