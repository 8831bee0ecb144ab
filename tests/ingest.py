"""What speaks to a collector in tests: records made by hand, and one conversation."""

from __future__ import annotations

from array import array
from typing import Any

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wire.address import Address
from logclient_backend.wire.client import Patience, Session
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Ack, Hello, NotTaken, Parcel

PATIENCE = Patience(connect_s=60.0, ack_s=60.0)
STREAM, PROCESS = b"s" * 16, b"p" * 16


def records(
    first: int, count: int, *, stream: bytes = STREAM, names: tuple[str, ...] = ("loss",)
) -> StreamColumns:
    """Records of one stream by seq; step is the seq, and each value its float."""
    seq = array("Q", range(first, first + count))
    value = array("Q", array("d", map(float, seq)).tobytes())
    return StreamColumns(
        stream,
        PROCESS,
        0,
        Columns(
            Shape(names, "d" * len(names)),
            None,
            seq,
            seq,
            array("q", seq),
            array("q", [10**18 + number for number in seq]),
            [value for _ in names],
        ),
    )


class Client:
    """One conversation."""

    def __init__(
        self,
        address: Address,
        token: str,
        run: str = "mlp",
        node: str = "aa",
        *,
        ca: bytes | None = None,
        **hello: Any,
    ) -> None:
        self.session = Session(Access(address, token, ca), Hello(run, node, "test", **hello), PATIENCE)
        try:
            self.welcome = self.session.open()
        except BaseException:
            self.session.close()
            raise

    def send(self, *batches: StreamColumns, documents: bytes | None = None) -> None:
        assert self.session.send(Parcel(0, batches, documents=documents))

    def settle(self) -> list[Ack | NotTaken]:
        """Until all that was sent is answered; raises what ends the conversation."""
        found: list[Ack | NotTaken] = []
        while self.session.under_way:
            found += self.session.poll(60.0)
        return found

    def close(self) -> None:
        self.session.close(60.0)
