"""Run in an environment of its own: packs and unpacks a batch, ships one parcel over loopback, prints what it used."""

from __future__ import annotations

import time
from array import array

import google.protobuf
from google.protobuf.internal import api_implementation

import logclient
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap
from logclient_backend.wire.address import Address
from logclient_backend.wire.batch import BatchReader, BatchWriter
from logclient_backend.wire.client import Session, describe
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Ack, Description, Hello, Parcel, Welcome
from logclient_backend.wire.outbound import Replies
from logclient_backend.wire.server import Server
from logclient_backend.wire.service import Caller
from logclient_proto.v1 import control_pb2, ingest_pb2, query_pb2  # noqa: F401  that they load is a part of it

DEADLINE_S = 60.0
RECORDS = 1000


class Kept:
    """A service that keeps what it gets, and its only conversation."""

    welcome = Welcome("c" * 32)

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []

    def admit(self, token: str) -> str:
        assert token == "secret"
        return "anybody"

    def refused(self, caller: Caller, why: Exception) -> None: ...

    def open(self, hello: Hello, caller: Caller, replies: Replies) -> Kept:
        assert (hello.run, hello.node) == ("run", "node")
        assert caller.token == "secret"
        self.replies = replies
        return self

    def take(self, parcel: Parcel) -> None:
        self.parcels.append(parcel)
        self.replies.ack(parcel.number)

    def describe(self, caller: Caller) -> Description:
        return Description("c" * 32, "1", 1 << 20)

    def keepalive(self) -> None: ...

    def report(self, report: object) -> None: ...

    def closed(self, why: str) -> None: ...


def columns() -> StreamColumns:
    numbers = range(1, RECORDS + 1)
    cells: list[array[int] | list[bytes]] = [
        array("Q", array("d", [float("nan"), -0.0, *(at / 7 for at in numbers)][:RECORDS]).tobytes()),
        array("Q", [(1 << 64) - at for at in numbers]),
        [str(at).encode() for at in numbers],
    ]
    times = array("q", [10**18 + at * at for at in numbers])
    taken = Columns(
        Shape(("loss", "损失", "note"), "dqs"),
        3,
        array("Q", numbers),
        array("Q", numbers),
        array("q", numbers),
        times,
        cells,
    )
    return StreamColumns(b"s" * 16, b"p" * 16, 1, taken)


def facts(item: StreamColumns) -> tuple[object, ...]:
    """All of it, to be compared."""
    found = item.columns
    numbers = (found.seq, found.order, found.step, found.time)
    shape = (found.shape.names, found.shape.codes)
    return (item.stream, item.process, item.lane, found.rank, shape, *map(list, (*numbers, *found.cells)))


def main() -> None:
    logged, lost = columns(), Gap(b"t" * 16, b"p" * 16, 0, 5, 9, "forgotten")
    for packs in (True, False):
        message = BatchWriter(packs=packs).batch(logged)
        again = BatchReader().batch(type(message).FromString(message.SerializeToString()))
        assert facts(again) == facts(logged)
    service = Kept()
    server = Server(service)
    address = server.listen(Address("127.0.0.1", 0, False))
    server.start()
    access = Access(address, "secret")
    assert describe(access, DEADLINE_S).collector == "c" * 32
    session = Session(access, Hello("run", "node"))
    session.open()
    session.send(Parcel(0, [logged], [lost], b'{"documents": "as they are"}'))
    deadline = time.monotonic() + DEADLINE_S
    answers: list[object] = []
    while Ack(1) not in answers:
        assert time.monotonic() < deadline, answers
        answers += session.poll(1.0)
    assert session.close(DEADLINE_S)
    assert server.stop(DEADLINE_S)
    (parcel,) = service.parcels
    assert list(map(facts, parcel.batches)) == [facts(logged)]
    assert (parcel.holes, parcel.documents) == ([lost], b'{"documents": "as they are"}')
    print(google.protobuf.__version__, api_implementation.Type(), logclient.__file__)


if __name__ == "__main__":
    main()
