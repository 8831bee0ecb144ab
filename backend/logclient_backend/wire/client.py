"""The shipper's side of the wire: `Session`, one conversation with a collector; `describe`, one question.

The caller's thread makes all calls; two threads of the session's own send and receive, and neither outlives `close`
for longer than grpc takes to notice.

Invariants:

- no call waits beyond the deadline it was given, whatever the other side does: no answer, half a message, garbage, a
  stopped process;
- every kind of trouble is one `NotTaken`, with a sentence, and after it the session is of no more use;
- at most `Welcome.window_bytes` (and one parcel) are under way.

Does not: keep parcels, try again, or pause: that is `ship/`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError

from logclient.errors import Corrupt
from logclient_proto.v1 import control_pb2
from logclient_proto.v1 import ingest_pb2 as pb

from . import channel, convert, messages
from .batch import BatchWriter, hole
from .credentials import Access
from .messages import Ack, Description, Hello, NotTaken, Parcel, Request, Welcome
from .node_report import NodeReport

_SLICE_S = 0.2
# sent in one conversation before all are sent anew: a run may never log one set of keys twice
_MAX_TABLES = 4096
_MAX_TABLE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """Deadlines of a client."""

    connect_s: float = 15.0  # until the welcome
    ack_s: float = 45.0  # for any answer while something is under way
    alive_s: float = 10.0  # silence of ours after which we send a keepalive


class Session:
    """One conversation. `open`, then `send` and `poll`, then `close`."""

    def __init__(
        self,
        access: Access,
        hello: Hello,
        patience: Patience | None = None,
        *,
        packs: bool | None = None,
    ) -> None:
        """`packs`: compress; None: where the collector is on another machine."""
        self._access = access
        self._hello = hello
        self._patience = patience or Patience()
        self._changed = threading.Condition()
        self._requests: deque[bytes | None] = deque()
        self._replies: deque[Welcome | Ack | NotTaken | Request] = deque()
        self._failure: NotTaken | None = None
        self._is_woken = False
        self._under_way: deque[tuple[int, int]] = deque()
        self._under_way_bytes = 0
        self._number = 0
        self._window_bytes = self._most_parcel_bytes = 0
        self._received_at = self._sent_at = 0.0
        self._table_bytes = 0
        # on the machine itself bytes cost less than packing them
        self._writer = BatchWriter(packs=not access.address.is_loopback if packs is None else packs)
        self._channel: grpc.Channel | None = None
        self._call: grpc.Call | None = None
        self._receiver: threading.Thread | None = None
        self.sent_bytes = 0
        self.requests: deque[Request] = deque()  # to stop or to save, for whoever polls

    # ---- beginning and end -------------------------------------------------------------------------------------

    def open(self, wanted: Callable[[], bool] = lambda: True) -> Welcome:
        """Connect and send the hello; the answer, or `NotTaken`, also where it is no longer wanted."""
        self._channel = channel.open_channel(self._access)
        ship = self._channel.stream_stream("/logclient.v1.Ingest/Ship", bytes, bytes)
        self._requests.append(convert.hello(self._hello).SerializeToString())
        self._sent_at = self._received_at = time.monotonic()
        call = ship(self._outgoing(), metadata=channel.metadata(self._access))
        self._call = call
        self._receiver = threading.Thread(target=self._receive, args=(call,), name="replies", daemon=True)
        self._receiver.start()
        deadline = time.monotonic() + self._patience.connect_s
        with self._changed:
            while not (self._replies or self._failure) and wanted():
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(_SLICE_S, left))
            first = self._replies.popleft() if self._replies else None
        if isinstance(first, NotTaken):
            raise self._fail(first)
        if not isinstance(first, Welcome):
            raise self._fail(self._failure or self._silent(self._patience.connect_s))
        if first.protocol != messages.PROTOCOL:
            older = "the collector" if first.protocol < messages.PROTOCOL else "logclient"
            raise self._fail(
                NotTaken(
                    f"{self._access.address} speaks protocol {first.protocol}, this logclient "
                    f"{messages.PROTOCOL}: update {older}",
                    messages.WRONG_PROTOCOL,
                    retry_after_s=60.0,
                )
            )
        self._window_bytes, self._most_parcel_bytes = first.window_bytes, first.most_parcel_bytes
        return first

    def close(self, timeout_s: float = 0.0) -> bool:
        """Close our side, and wait for the end; False where that did not come in time."""
        with self._changed:
            self._requests.append(None)
            self._changed.notify_all()
        is_done = True
        if self._receiver is not None:
            self._receiver.join(timeout_s)
            is_done = not self._receiver.is_alive()
        if self._call is not None and not is_done:
            self._call.cancel()  # type: ignore[no-untyped-call]
        made, self._channel = self._channel, None
        if made is not None and is_done:
            made.close()
        elif made is not None:
            # grpc waits there until the transport is given up: 20 s, where the other side is stopped
            threading.Thread(target=made.close, name="closing", daemon=True).start()
        return is_done

    # ---- sending --------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """May another parcel be sent?"""
        return self._under_way_bytes < self._window_bytes and self._failure is None

    @property
    def under_way(self) -> int:
        """Parcels sent and not answered."""
        return len(self._under_way)

    def send(self, parcel: Parcel) -> bool:
        """Give it a number and let it go; never waits. Only where there is room. False: it is larger than they take."""
        parcel.number = self._number + 1
        message = pb.ShipRequest()
        self._fill(message.parcel, parcel)
        data = message.SerializeToString()
        parcel.size_bytes = len(data)
        if len(data) > self._most_parcel_bytes:
            self._writer.forget()  # the key tables that it sent do not arrive
            return False
        self._number += 1
        with self._changed:
            if not self._under_way:
                self._received_at = time.monotonic()  # from now on an answer is due
            self._under_way.append((parcel.number, len(data)))
            self._under_way_bytes += len(data)
            self._put(data)
        return True

    def _fill(self, made: pb.Parcel, parcel: Parcel) -> None:
        made.number = parcel.number
        if self._writer.tables > _MAX_TABLES or self._table_bytes > _MAX_TABLE_BYTES:
            self._writer.forget()
            self._table_bytes = 0
        tables = self._writer.tables
        for item in parcel.batches:
            made.batches.append(self._writer.batch(item))
            if self._writer.tables > tables:
                tables = self._writer.tables
                self._table_bytes += sum(map(len, item.shape.names))
        made.holes.extend(map(hole, parcel.holes))
        if parcel.documents is not None:
            made.documents.json.CopyFrom(self._writer.packed(parcel.documents))
        if parcel.edits is not None:
            made.edits.json.CopyFrom(self._writer.packed(parcel.edits))

    def report(self, report: NodeReport) -> None:
        """Send what was seen on the node, which is not answered; never waits."""
        with self._changed:
            data = convert.report(report).SerializeToString()
            if len(data) > self._most_parcel_bytes:
                data = convert.report(NodeReport(report.kind)).SerializeToString()
            self._put(data)

    def keep_alive(self) -> None:
        """Send a keepalive, if we sent nothing for a while."""
        if time.monotonic() - self._sent_at >= self._patience.alive_s:
            with self._changed:
                self._put(pb.ShipRequest(alive=pb.Alive()).SerializeToString())

    def _put(self, data: bytes) -> None:
        self._requests.append(data)
        self._sent_at = time.monotonic()
        self.sent_bytes += len(data)
        self._changed.notify_all()

    # ---- receiving --------------------------------------------------------------------------------------------------

    def poll(self, wait_s: float) -> list[Ack | NotTaken]:
        """Answers that came, or come within `wait_s` or until `wake`: acks, refusals of single parcels.

        A request of somebody's to the run ends the wait, too, and is put into `requests`.

        Raises `NotTaken` where the conversation is over.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._replies or self._failure or self._is_woken, wait_s)
            self._is_woken = False
            found = list(self._replies)
            self._replies.clear()
        answers: list[Ack | NotTaken] = []
        for reply in found:
            if isinstance(reply, NotTaken) and not (reply.parcel and reply.is_final):
                self._failure = self._failure or reply
            elif isinstance(reply, Ack):
                self._settle(reply.upto)
                answers.append(reply)
            elif isinstance(reply, NotTaken):
                answers.append(reply)
            elif isinstance(reply, Request):
                self.requests.append(reply)
        if answers:
            return answers  # first what is settled, then, at the next call, what went wrong
        if self._failure is None and self._under_way:
            silent_s = time.monotonic() - self._received_at
            if silent_s > self._patience.ack_s:
                self._failure = self._silent(silent_s)
        if self._failure is not None:
            raise self._fail(self._failure)
        return []

    def wake(self) -> None:
        """End the wait of `poll`, or of the next one; from any thread."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def _settle(self, upto: int) -> None:
        while self._under_way and self._under_way[0][0] <= upto:
            self._under_way_bytes -= self._under_way.popleft()[1]

    # ---- the threads -----------------------------------------------------------------------------------------------

    def _outgoing(self) -> Iterator[bytes]:
        """Yield messages to grpc's thread; ends with None, and when the conversation has failed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requests or self._failure)
                data = self._requests.popleft() if self._requests else None
            if data is None:
                return
            yield data

    def _receive(self, call: Iterator[bytes]) -> None:
        failure = NotTaken("the collector ended the conversation", messages.UNREACHABLE)
        try:
            for data in call:
                reply = convert.read_reply(data)
                with self._changed:
                    self._received_at = time.monotonic()
                    if reply is not None:
                        self._replies.append(reply)
                        self._changed.notify_all()
        except grpc.RpcError as error:
            failure = channel.trouble(error, self._access.address)
        except (Corrupt, DecodeError, RecursionError):
            failure = NotTaken(
                f"what answers at {self._access.address} does not speak our protocol", messages.WRONG_PROTOCOL
            )
        except Exception as error:  # noqa: BLE001 - grpc raises what it likes when a channel is closed under it
            failure = NotTaken(
                f"{self._access.address}: the connection broke: {type(error).__name__}", messages.UNREACHABLE
            )
        with self._changed:
            # a refusal that came before is more exact than the status that follows it
            refusal = next((each for each in self._replies if _is_end(each)), None)
            self._failure = self._failure or refusal or failure  # type: ignore[assignment]
            self._changed.notify_all()

    def _silent(self, seconds: float) -> NotTaken:
        return NotTaken(
            f"{self._access.address}{channel.through(self._access.address)} has not answered for {seconds:.0f} s",
            messages.UNREACHABLE,
        )

    def _fail(self, failure: NotTaken) -> NotTaken:
        """Nothing more comes of this conversation."""
        self._failure = self._failure or failure
        self.close()
        return failure


def _is_end(reply: Welcome | Ack | NotTaken | Request) -> bool:
    return isinstance(reply, NotTaken) and not (reply.parcel and reply.is_final)


def describe(access: Access, timeout_s: float = 5.0) -> Description:
    """Return the collector's description of itself, or `NotTaken`."""
    connection = channel.open_channel(access)
    try:
        ask = connection.unary_unary(
            "/logclient.v1.Control/Describe",
            request_serializer=control_pb2.DescribeRequest.SerializeToString,
            response_deserializer=control_pb2.DescribeReply.FromString,
        )
        request = control_pb2.DescribeRequest()
        return convert.read_description(ask(request, timeout=timeout_s, metadata=channel.metadata(access)))
    except grpc.RpcError as error:
        raise channel.trouble(error, access.address) from None
    finally:
        connection.close()
