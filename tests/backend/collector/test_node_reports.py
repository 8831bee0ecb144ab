"""What a collector keeps of nodes that do not get on: over the real wire, and within its memory."""

from __future__ import annotations

import os
from collections.abc import Callable

from logclient_backend.collector.node_reports import NodeReports
from logclient_backend.wire import node_report
from logclient_backend.wire.node_report import NodeReport, unpack
from logclient_proto.v1 import ingest_pb2 as pb
from tests.ingest import records
from tests.process.disturbed import wait_until

from .conftest import Inside

Start = Callable[..., Inside]
WAIT_S = 60


def report(content: bytes, kind: str = "stalled") -> NodeReport:
    packed = node_report.pack(content)
    assert packed is not None
    return NodeReport(kind, size=len(content), packed=packed)


def test_newest_report_of_a_node_is_kept_until_it_gets_on(start: Start) -> None:
    """Another node's stays, and a run that is deleted has none."""
    inside = start()
    kept = inside.collector.ingest.node_reports
    first, second = inside.client(node="aa"), inside.client(node="bb")
    for client in (first, second):
        client.send(records(1, 1, stream=os.urandom(16)))
        client.settle()
    assert (kept.of_run("mlp")["aa"].report, kept.of_run("mlp")["aa"].conversations) == (None, 1)
    first.session.report(report(b'{"old": 1}'))
    first.session.report(report(b'{"new": 1}'))
    second.session.report(report(b"{}", "quiet"))

    def has(node: str, kind: str, content: bytes | None) -> bool:
        found = kept.of_run("mlp")[node].report
        if found is None or found.kind != kind:
            return False
        return (unpack(found) if found.packed else None) == content

    wait_until(lambda: has("aa", "stalled", b'{"new": 1}'), WAIT_S, "the newest report is there")
    wait_until(lambda: has("bb", "quiet", b"{}"), WAIT_S, "the other one's, too")
    first.session.report(NodeReport("ok"))
    wait_until(lambda: has("aa", "ok", None), WAIT_S, "it is gone")
    assert has("bb", "quiet", b"{}")
    first.close()
    wait_until(lambda: kept.of_run("mlp")["aa"].conversations == 0, WAIT_S, "the conversation is closed")
    assert inside.collector.delete("mlp")
    assert kept.of_run("mlp") == {}


def test_age_of_a_report_travels(start: Start) -> None:
    """A report that waited for the collector is as old as it is."""
    inside = start()
    client = inside.client()
    made = report(b"{}")
    client.session.report(NodeReport(made.kind, made.made_at - 3600.0, made.size, made.packed))
    kept = inside.collector.ingest.node_reports

    def newest() -> NodeReport | None:
        return kept.of_run("mlp")["aa"].report

    wait_until(lambda: newest() is not None, WAIT_S, "it is there")
    found = newest()
    assert found is not None and found.age_s > 3600


def test_report_too_large_or_of_another_packing_harms_nothing(start: Start) -> None:
    """It is not kept, the reason is, and the conversation goes on; as it does after a message that nobody knows."""
    inside = start()
    kept = inside.collector.ingest.node_reports
    client = inside.client()
    large = os.urandom(node_report.MAX_PACKED_BYTES + 1)
    for size, packed in ((len(large), large), (node_report.MAX_BYTES + 1, b"x")):
        client.session.report(NodeReport("stalled", size=size, packed=packed))
        client.send(records(1, 1))
        client.settle()
        found = kept.of_run("mlp")["aa"].report
        assert found is not None and not found.packed and "is larger than" in found.trouble
    raw = pb.ShipRequest()
    raw.report.kind, raw.report.json.data = 7, b"{}"  # type: ignore[assignment]
    unknown = b"\xfa\x01\x03abc"  # field 31
    with client.session._changed:
        client.session._put(raw.SerializeToString())
        client.session._put(unknown)
    client.send(records(2, 1))
    client.settle()
    found = kept.of_run("mlp")["aa"].report
    assert found is not None and (found.kind, found.packed) == ("off", b"")
    assert inside.store.reader.run("mlp").records == 2


def test_upload_after_the_fact_is_no_sign_of_a_node(start: Start) -> None:
    """`logclient sync` says nothing about who is live."""
    inside = start()
    client = inside.client(is_sync=True)
    client.send(records(1, 1))
    client.session.report(report(b"{}"))
    client.settle()
    client.close()
    assert inside.collector.ingest.node_reports.of_run("mlp") == {}


def test_memory_is_bounded() -> None:
    """The nodes that were seen longest ago go; one alone is always kept."""
    kept = NodeReports(most_bytes=10_000, most_nodes=3)
    for node in "abcd":
        kept.take("run", node, NodeReport("stalled", packed=bytes(10)))
    assert list(kept.of_run("run")) == ["b", "c", "d"]
    kept.seen("run", "b")
    kept.take("run", "e", NodeReport("stalled", packed=bytes(8500)))
    assert list(kept.of_run("run")) == ["b", "e"]
    kept.take("run", "f", NodeReport("stalled", packed=bytes(20_000)))
    assert list(kept.of_run("run")) == ["f"]
    kept.forget("run")
    kept.take("run", "g", NodeReport("stalled", packed=bytes(9000)))
    kept.take("run", "g", NodeReport("ok"))
    kept.take("run", "h", NodeReport("stalled", packed=bytes(8500)))
    assert list(kept.of_run("run")) == ["g", "h"]
