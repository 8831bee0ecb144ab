"""Whatever bytes a client sends as messages: its call ends with a status, and the neighbours are served on.

Over a real gRPC server on loopback: with a service that takes all that decodes, and with the whole collector and its
store. Messages are random bytes, good ones with bytes changed, cut or repeated, and well-formed ones that say nonsense.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import queue
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.collector import data_folder as folders
from logclient_backend.collector.eventlog import EventLog
from logclient_backend.collector.serve import Collector, Settings
from logclient_backend.wal.encoded import Body, StreamColumns, pack, unpack
from logclient_backend.wire import messages
from logclient_backend.wire.address import Address
from logclient_backend.wire.batch import BatchWriter
from logclient_backend.wire.messages import Description, Hello, NotTaken, Parcel, Welcome
from logclient_backend.wire.outbound import Replies
from logclient_backend.wire.server import Server
from logclient_backend.wire.service import Caller, Limits
from logclient_proto.v1 import ingest_pb2 as pb

pytestmark = pytest.mark.timeout(300)

DEADLINE_S = 60.0
MAX_BYTES = 1 << 20
SHIP = "/logclient.v1.Ingest/Ship"
# never UNKNOWN or INTERNAL, which is what a fault of ours looks like, nor DEADLINE_EXCEEDED, which is silence
STATUSES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
}


class Taking:
    """A conversation that takes all that decodes."""

    welcome = Welcome("0" * 32)

    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    def take(self, parcel: Parcel) -> None:
        for item in parcel.batches:
            assert len(item.columns.seq) == len(item.columns.step) == len(item.columns.time)
        self._replies.ack(parcel.number)

    def keepalive(self) -> None: ...

    def report(self, report: object) -> None: ...

    def closed(self, why: str) -> None: ...


class Service:
    def admit(self, token: str) -> str:
        return "anybody"

    def refused(self, caller: Caller, why: NotTaken) -> None: ...

    def open(self, hello: Hello, caller: Caller, replies: Replies) -> Taking:
        if not hello.run:
            raise NotTaken("a run has an id", messages.INVALID, is_final=True)
        return Taking(replies)

    def describe(self, caller: Caller) -> Description:
        return Description("0" * 32, "0", MAX_BYTES)


class Neighbour:
    """A client with good manners, all the time."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies = ship(channel)(iter(self._requests.get, None), timeout=DEADLINE_S * 100)
        self._requests.put(HELLO)
        assert self._next().WhichOneof("what") == "welcome"
        self._parcels = 0

    def _next(self) -> pb.ShipReply:
        return pb.ShipReply.FromString(next(self._replies))

    def is_served(self) -> bool:
        self._parcels += 1
        self._requests.put(parcel(self._parcels))
        reply = self._next()
        while reply.WhichOneof("what") == "ack" and reply.ack.upto < self._parcels:
            reply = self._next()
        return reply.ack.upto == self._parcels

    def close(self) -> None:
        self._requests.put(None)
        assert list(self._replies) == []
        assert self._replies.code() is grpc.StatusCode.OK


def ship(channel: grpc.Channel) -> Any:
    """The method, bytes for bytes."""
    return channel.stream_stream(SHIP, request_serializer=None, response_deserializer=None)


def some_columns() -> StreamColumns:
    names = ("loss", "count", "note")
    words: list[array[int] | list[bytes]] = [
        array("Q", range(1, 4)),
        array("Q", range(3)),
        [b"a", b"", b"ccc"],
    ]
    seq, order = array("Q", (1, 2, 5)), array("Q", (1, 2, 3))
    step, time = array("q", (0, 1, -1)), array("q", (7, 8, 10))
    columns = Columns(Shape(names, "dqs"), 3, seq, order, step, time, words)
    return StreamColumns(b"s" * 16, b"p" * 16, 0, columns)


def parcel(number: int = 1) -> bytes:
    made = pb.Parcel(number=number, batches=[BatchWriter().batch(some_columns())])
    return pb.ShipRequest(parcel=made).SerializeToString()


HELLO = pb.ShipRequest(hello=pb.Hello(protocol=2, run="run", node="n" * 32)).SerializeToString()
BOMB = zstandard.ZstdCompressor().compress(bytes(50 << 20))


@contextlib.contextmanager
def decoder() -> Iterator[str]:
    """Nothing but the wire."""
    running = Server(Service(), Limits(most_parcel_bytes=MAX_BYTES, hello_s=DEADLINE_S))
    try:
        address = running.listen(Address("127.0.0.1", 0, False))
        running.start()
        yield address.target
    finally:
        running.stop(5.0)


@contextlib.contextmanager
def whole_collector(folder: Path) -> Iterator[str]:
    """All of `logclient server`, but its process."""
    free = Address("127.0.0.1", 0)
    settings = Settings(folders.make(str(folder)), free, free, "0", no_auth=True, durable=False)
    running = Collector(settings, EventLog(io.StringIO()))
    try:
        yield running.address.target
    finally:
        assert running.stop(DEADLINE_S)


@pytest.fixture(scope="module", params=["decoder", "collector"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[grpc.Channel]:
    """A channel to it; faults in its threads come to light here."""
    faults: list[Any] = []
    hook, threading.excepthook = threading.excepthook, faults.append
    is_whole = request.param == "collector"
    try:
        with (
            whole_collector(tmp_path_factory.mktemp("collector")) if is_whole else decoder() as target,
            grpc.insecure_channel(target, [("grpc.enable_http_proxy", 0)]) as channel,
        ):
            yield channel
    finally:
        threading.excepthook = hook
    assert not faults, faults


@pytest.fixture(scope="module")
def neighbour(server: grpc.Channel) -> Iterator[Neighbour]:
    polite = Neighbour(server)
    yield polite
    polite.close()


@st.composite
def spoilt(draw: st.DrawFn, good: bytes) -> bytes:
    """A good message with some bytes changed, cut out, repeated or put in."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        to = min(len(data), at + draw(st.integers(0, 30)))
        how = draw(st.sampled_from(("change", "cut", "repeat", "put")))
        if how == "change":
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif how == "cut":
            del data[at:to]
        elif how == "repeat":
            data[at:at] = data[at:to]
        else:
            data[at:at] = draw(st.binary(max_size=12))
    return bytes(data)


u32 = st.sampled_from((0, 1, 2, 3, 65536, 65537, 2**32 - 1)) | st.integers(0, 2**32 - 1)
u64 = st.sampled_from((0, 1, 3, 24, 2**32, 2**63, 2**64 - 1)) | st.integers(0, 2**64 - 1)
s64 = st.sampled_from((0, 1, -1, 2**63 - 1, -(2**63))) | st.integers(-(2**63), 2**63 - 1)
ids = st.sampled_from((b"s" * 16, b"", b"s" * 15)) | st.binary(max_size=20)
texts = st.text(max_size=8)
packed = st.builds(
    pb.Packed,
    packing=st.integers(0, 4),
    size=u64 | st.just(50 << 20),
    data=st.binary(max_size=100) | st.just(BOMB) | st.binary(max_size=48).map(zstandard.compress),
)
GOOD = BatchWriter().batch(some_columns()).bodies
datas = st.binary(max_size=60) | st.sampled_from([each.data for each in unpack(GOOD)])
heads = st.builds(
    lambda records, first, more, step, base_ns, data: Body(records, first, first + more, step, base_ns, data),
    *(u32, u64, u64, s64, s64, datas),
)
bodies = (
    st.lists(heads, max_size=3).map(pack)
    | st.binary(max_size=60)
    | st.sampled_from((GOOD, b"\1" + BOMB, b"\0" + BOMB))
    | spoilt(GOOD)
)
tables = st.builds(
    pb.KeyTable,
    names=st.lists(texts, max_size=4),
    codes=st.text(st.sampled_from("drqbis?"), max_size=4),
)
batches = st.builds(
    pb.RecordBatch,
    stream=ids,
    process=ids,
    lane=u32,
    rank=u32,
    keys=u32,
    table=st.none() | tables,
    records=u32,
    text_bytes=u64,
    bodies=bodies,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
# the names that the agent uses, with anything at all behind them
names = st.sampled_from(
    (
        "version",
        "node",
        "run",
        "run_id",
        "processes",
        "streams",
        "closed",
        "heard_ns",
        "documents",
        "end",
        "ship",
    )
)
documents = st.dictionaries(names, json_values | st.dictionaries(names | texts, json_values, max_size=4)).map(
    lambda content: json.dumps(content).encode()
)
holes = st.builds(
    pb.StreamHole,
    stream=ids,
    process=ids,
    lane=u32,
    hole=st.builds(pb.Hole, cause=st.integers(0, 9), range=st.builds(pb.Range, first=u64, last=u64)),
)
parcels = st.builds(
    pb.Parcel,
    number=st.just(1) | u64,
    batches=st.lists(batches, max_size=3),
    holes=st.lists(holes, max_size=3),
    documents=st.none()
    | st.builds(pb.Documents, json=packed)
    | documents.map(lambda data: pb.Documents(json=pb.Packed(size=len(data), data=data))),
)
hellos = st.builds(pb.Hello, protocol=u32, client=texts, run=texts, node=texts, revive=st.booleans())
nonsense = st.builds(pb.ShipRequest, hello=hellos) | st.builds(pb.ShipRequest, parcel=parcels)
requests = st.one_of(
    st.just(HELLO),
    st.just(parcel()),
    st.binary(max_size=300),
    spoilt(HELLO),
    spoilt(parcel()),
    nonsense.map(pb.ShipRequest.SerializeToString),
)
# half of them get past the hello
conversations = st.lists(requests, max_size=4) | st.lists(requests, max_size=4).map(
    lambda rest: [HELLO, *rest]
)


def status_after(server: grpc.Channel, sent: list[bytes]) -> grpc.StatusCode:
    """Of a call that says this, and then closes its side."""
    call = ship(server)(iter(sent), timeout=DEADLINE_S)
    try:
        for reply in call:
            pb.ShipReply.FromString(reply)
    except grpc.RpcError as error:
        assert error is call
    code: grpc.StatusCode = call.code()
    return code


@pytest.mark.first_is_quick
@given(sent=conversations)
@example(sent=[])
@example(sent=[b""])
@example(sent=[HELLO, HELLO])
@example(sent=[parcel()])
@example(sent=[HELLO, parcel(), parcel()])
@example(sent=[HELLO, b"x" * (MAX_BYTES + 1)])
@example(sent=[b"x" * (MAX_BYTES + (1 << 17))])
@example(sent=[HELLO, b"\x12" + b"\xff" * 9 + b"\x01"])
def test_every_conversation_ends_with_a_status(
    server: grpc.Channel, neighbour: Neighbour, sent: list[bytes]
) -> None:
    """One that says what went wrong; and who has good manners notices nothing."""
    code = status_after(server, sent)
    assert code in STATUSES
    assert neighbour.is_served()


def test_good_conversation_ends_well(server: grpc.Channel) -> None:
    """What is sent above is not refused as a whole for some simple reason."""
    assert status_after(server, [HELLO, parcel(1), parcel(2)]) is grpc.StatusCode.OK


def test_client_that_goes_in_mid_conversation_leaves_no_trace(
    server: grpc.Channel, neighbour: Neighbour
) -> None:
    """Cancelled calls, at any time: the neighbour is served, and new ones are welcome."""
    for count in range(20):
        cancel_one(server, parcels=count, is_welcomed=count % 2 == 1)
        assert neighbour.is_served()
    assert status_after(server, [HELLO, parcel()]) is grpc.StatusCode.OK


@pytest.mark.first_is_quick
def test_streams_of_cancelled_calls_go_without_a_garbage_collection(
    server: grpc.Channel, neighbour: Neighbour
) -> None:
    """More than a connection may have at once, one after the other, and none is refused."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(2 * Limits().greeting):
            cancel_one(server, parcels=2, is_welcomed=True)
            assert neighbour.is_served()
    finally:
        gc.enable()


def cancel_one(server: grpc.Channel, *, parcels: int, is_welcomed: bool) -> None:
    """A call that says hello and sends so many parcels, and is cancelled: at once, or when it was welcomed."""
    stop = threading.Event()

    def some() -> Iterator[bytes]:
        yield HELLO
        yield from map(parcel, range(1, parcels))
        stop.wait(DEADLINE_S)

    call = ship(server)(some(), timeout=DEADLINE_S)
    if is_welcomed:
        assert pb.ShipReply.FromString(next(call)).WhichOneof("what") == "welcome"
    call.cancel()
    stop.set()
