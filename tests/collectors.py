"""A collector in memory over the real wire, for tests of what ships; with the faults that tests make.

`MemoryCollector` keeps what it takes and checks nothing. `python -m tests.collectors PORT` runs one as a process that
can be killed and stopped; what it took is lost with it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from logclient_backend.runs.document_head import revision_of
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seqs import SeqSet
from logclient_backend.wire.address import Address
from logclient_backend.wire.messages import (
    Description,
    HeldStream,
    Hello,
    NotTaken,
    Parcel,
    Welcome,
    digest,
)
from logclient_backend.wire.node_report import NodeReport
from logclient_backend.wire.outbound import Replies
from logclient_backend.wire.server import Server
from logclient_backend.wire.service import Caller, Limits


@dataclass
class KeptNode:
    """What one node of a run sent."""

    items: list[StreamColumns] = field(default_factory=list)
    stored: dict[bytes, SeqSet] = field(default_factory=dict)
    gaps: dict[bytes, dict[str, SeqSet]] = field(default_factory=dict)
    documents: bytes = b""
    repeated: int = 0  # records that came again

    def take(self, parcel: Parcel) -> None:
        for item in parcel.batches:
            seen = self.stored.setdefault(item.stream, SeqSet())
            new = seen.unseen(item.columns.seq)
            self.repeated += len(item.columns) - (len(item.columns) if new is None else len(new))
            if new is None:
                self.items.append(item)
            else:
                self.items += [item.with_columns(item.columns.part(at, at + 1)) for at in new]
            seen.add_seqs(item.columns.seq)
        for gap in parcel.holes:
            self.gaps.setdefault(gap.stream, {}).setdefault(gap.cause, SeqSet()).add(gap.first, gap.last)
        self.documents = parcel.documents or self.documents

    @property
    def records(self) -> int:
        return sum(len(item.columns) for item in self.items)

    def held(self) -> dict[bytes, HeldStream]:
        streams = self.stored.keys() | self.gaps.keys()
        return {
            stream: HeldStream(self.stored.get(stream, SeqSet()).copy(), self.gaps.get(stream, {}))
            for stream in streams
        }

    def steps(self) -> list[int]:
        return sorted(step for item in self.items for step in item.columns.step)


class Talk:
    """One conversation with a `MemoryCollector`."""

    def __init__(self, collector: MemoryCollector, node: KeptNode, replies: Replies) -> None:
        self._collector = collector
        self._node = node
        self._replies = replies
        self.parcels: list[Parcel] = []
        self.reports: list[NodeReport] = []
        self.why = ""
        self.has_ended = False

    @property
    def welcome(self) -> Welcome:
        limits = self._collector.limits
        return Welcome(
            self._collector.id,
            self._collector.window_bytes,
            limits.most_parcel_bytes,
            self._node.held(),
            digest(self._node.documents),
            revision_of(self._node.documents),
            public_url=self._collector.public_url,
            http_address=self._collector.http_address,
        )

    def take(self, parcel: Parcel) -> None:
        collector = self._collector
        fault = collector.on_parcel
        if fault is not None:
            fault(parcel)  # may raise NotTaken
        with collector.lock:
            self._node.take(parcel)
            self.parcels.append(parcel)
            collector.parcels += 1
        if collector.acks:
            self._replies.ack(parcel.number)

    def keepalive(self) -> None:
        pass

    def report(self, report: NodeReport) -> None:
        self.reports.append(report)

    def closed(self, why: str) -> None:
        self.why = why
        self.has_ended = True


class MemoryCollector:
    """Takes everything, unless told otherwise by its plain attributes."""

    def __init__(self, *, limits: Limits | None = None, token: str = "") -> None:
        self.id = os.urandom(8).hex()
        self.limits = limits or Limits(conversations=16)
        self.window_bytes = 8 << 20
        self.token = token
        self.public_url = self.http_address = ""
        self.lock = threading.Lock()
        self.nodes: dict[tuple[str, str], KeptNode] = {}
        self.talks: list[Talk] = []
        self.hellos: list[Hello] = []
        self.parcels = 0
        self.deleted: set[str] = set()
        self.acks = True
        self.on_parcel: Callable[[Parcel], None] | None = None
        self.server = Server(self, self.limits)
        self.address = Address("127.0.0.1", 0)

    def start(self, port: int = 0) -> MemoryCollector:
        self.address = self.server.listen(Address("127.0.0.1", port))
        self.server.start()
        return self

    def stop(self, grace_s: float = 0.0) -> bool:
        return self.server.stop(grace_s)

    def __enter__(self) -> MemoryCollector:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def node(self) -> KeptNode:
        """The only one."""
        (found,) = self.nodes.values()
        return found

    @property
    def records(self) -> int:
        with self.lock:
            return sum(node.records for node in self.nodes.values())

    def admit(self, token: str) -> str:
        if self.token and token != self.token:
            raise NotTaken("that token opens nothing here", "unauthorized", is_final=True)
        return "test"

    def refused(self, caller: Caller, why: NotTaken) -> None:
        pass

    def open(self, hello: Hello, caller: Caller, replies: Replies) -> Talk:
        self.hellos.append(hello)
        if hello.run in self.deleted:
            if not hello.revive:
                text = f"run {hello.run} was deleted here; sync it with --revive to take it back"
                raise NotTaken(text, "deleted", is_final=True)
            self.deleted.discard(hello.run)
        with self.lock:
            node = self.nodes.setdefault((hello.run, hello.node), KeptNode())
            talk = Talk(self, node, replies)
            self.talks.append(talk)
        return talk

    def describe(self, caller: Caller) -> Description:
        return Description(self.id, "0", self.limits.most_parcel_bytes, "", "ingest")


def gaps_of(node: KeptNode) -> list[Gap]:
    """Holes that the node told of."""
    return [
        Gap(stream, b"", 0, first, last, cause)
        for stream, gaps in node.gaps.items()
        for cause, seqs in gaps.items()
        for first, last in seqs.ranges()
    ]


if __name__ == "__main__":
    made = MemoryCollector().start(int(sys.argv[1]))
    print(made.address.port, flush=True)
    threading.Event().wait()
