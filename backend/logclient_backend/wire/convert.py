"""The small messages of a conversation <-> `messages.py`. Records are `batch.py`'s business. Pure; no grpc.

What does not fit raises `Corrupt` with a sentence, nothing else.
"""

from __future__ import annotations

import time

from logclient.errors import Corrupt
from logclient.shm import stop_requests
from logclient_proto.v1 import control_pb2
from logclient_proto.v1 import ingest_pb2 as pb

from . import batch, messages, node_report
from .messages import Ack, Description, HeldStream, Hello, NotTaken, Request, Welcome
from .node_report import NodeReport
from .sanitize import one_line
from .web_address import MAX_URL_CHARACTERS

MAX_ID_BYTES = 512  # of a run; a node's is at most 64
MAX_TEXT_BYTES = 1000

_REASONS = {
    messages.UNKNOWN: pb.REASON_UNKNOWN,
    messages.INVALID: pb.REASON_INVALID,
    messages.DELETED: pb.REASON_DELETED,
    messages.BUSY: pb.REASON_BUSY,
    messages.DISK: pb.REASON_DISK,
    messages.STOPPING: pb.REASON_STOPPING,
    messages.UNAUTHORIZED: pb.REASON_UNAUTHORIZED,
    messages.WRONG_PROTOCOL: pb.REASON_PROTOCOL,
    messages.OUTDATED: pb.REASON_OUTDATED,
}
_KINDS = {
    stop_requests.STOP: pb.Request.KIND_STOP,
    stop_requests.SAVE: pb.Request.KIND_SAVE,
    stop_requests.CLEAR: pb.Request.KIND_CLEAR,
}
_REPORT_KINDS = {
    node_report.OFF: pb.Report.KIND_UNKNOWN,
    node_report.OK: pb.Report.KIND_OK,
    node_report.QUIET: pb.Report.KIND_QUIET,
    node_report.STALLED: pb.Report.KIND_STALLED,
}
_REPORT_KIND_NAMES = {int(number): name for name, number in _REPORT_KINDS.items()}
_MAX_AGE_MS = 366 * 86_400_000
_KIND_NAMES = {int(number): name for name, number in _KINDS.items()}
_REASON_NAMES = {int(number): name for name, number in _REASONS.items()}


def hello(value: Hello) -> pb.ShipRequest:
    made = pb.ShipRequest()
    made.hello.protocol = value.protocol
    made.hello.client = value.client
    made.hello.run = value.run
    made.hello.node = value.node
    made.hello.revive = value.revive
    made.hello.is_sync = value.is_sync
    return made


def read_hello(message: pb.Hello) -> Hello:
    run, node = message.run, message.node
    if not 1 <= len(run.encode("utf-8", "surrogatepass")) <= MAX_ID_BYTES:
        raise Corrupt("hello: run", 0, f"1 to {MAX_ID_BYTES} bytes", len(run))
    if not 1 <= len(node) <= 64:
        raise Corrupt("hello: node", 0, "1 to 64 characters", len(node))
    return Hello(run, node, one_line(message.client, 100), message.revive, message.is_sync, message.protocol)


def welcome(value: Welcome) -> pb.ShipReply:
    made = pb.ShipReply()
    made.welcome.protocol = value.protocol
    made.welcome.collector = value.collector
    made.welcome.window_bytes = value.window_bytes
    made.welcome.most_parcel_bytes = value.most_parcel_bytes
    made.welcome.documents_digest = value.documents_digest
    made.welcome.documents_revision = value.documents_revision
    made.welcome.takes_edits = value.takes_edits
    made.welcome.edits_digest = value.edits_digest
    made.welcome.public_url = value.public_url
    made.welcome.http_address = value.http_address
    made.welcome.held.extend(
        batch.held(stream, held.stored, dict(held.gaps)) for stream, held in value.held.items()
    )
    return made


def read_welcome(message: pb.Welcome) -> Welcome:
    if not message.collector or not message.window_bytes or not message.most_parcel_bytes:
        raise Corrupt("welcome", 0, "an id, a window and a limit", "none")
    held = {}
    for each in message.held:
        stream, stored, gaps = batch.read_held(each)
        held[stream] = HeldStream(stored, gaps)
    return Welcome(
        one_line(message.collector, 100),
        message.window_bytes,
        message.most_parcel_bytes,
        held,
        message.documents_digest,
        message.documents_revision,
        message.protocol,
        message.takes_edits,
        message.edits_digest,
        one_line(message.public_url, MAX_URL_CHARACTERS),
        one_line(message.http_address, 200),
    )


def refusal(value: NotTaken) -> pb.ShipReply:
    made = pb.ShipReply()
    made.refusal.reason = _REASONS.get(value.reason, pb.REASON_UNKNOWN)
    made.refusal.text = one_line(value.text).encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
    made.refusal.parcel = value.parcel
    made.refusal.is_final = value.is_final
    made.refusal.retry_after_ms = max(0, round(1000 * (value.retry_after_s or 0)))
    return made


def read_refusal(message: pb.Refusal) -> NotTaken:
    after = message.retry_after_ms / 1000 if message.retry_after_ms else None
    return NotTaken(
        one_line(message.text) or "the collector refused, and gave no reason",
        _REASON_NAMES.get(message.reason, messages.UNKNOWN),
        is_final=message.is_final,
        retry_after_s=after,
        parcel=message.parcel,
    )


def request(value: Request) -> pb.ShipReply:
    made = pb.ShipReply()
    made.request.id = value.id
    made.request.kind = _KINDS[value.kind]
    made.request.save = value.save
    made.request.reason = value.reason
    made.request.by = value.by
    made.request.time_ns = value.time_ns
    made.request.is_at_once = value.step is None
    made.request.step = value.step or 0
    return made


def read_request(message: pb.Request) -> Request | None:
    """None: a kind of request that a newer collector made up."""
    kind = _KIND_NAMES.get(message.kind)
    if kind is None:
        return None
    return Request(
        one_line(message.id, 16),
        kind,
        message.save,
        one_line(message.reason, stop_requests.MAX_REASON),
        one_line(message.by, stop_requests.MAX_BY),
        message.time_ns,
        None if message.is_at_once else message.step,
    )


def report(value: NodeReport) -> pb.ShipRequest:
    made = pb.ShipRequest()
    made.report.kind = _REPORT_KINDS.get(value.kind, pb.Report.KIND_UNKNOWN)
    if value.packed:
        made.report.age_ms = min(_MAX_AGE_MS, round(1000 * value.age_s))
        made.report.json.packing = pb.PACKING_ZSTD
        made.report.json.size, made.report.json.data = value.size, value.packed
    return made


def read_report(message: pb.Report) -> NodeReport:
    """Return it without its JSON where that is too large, or packed in a way that is not known here."""
    kind = _REPORT_KIND_NAMES.get(message.kind, node_report.OFF)
    made_at = time.monotonic() - min(_MAX_AGE_MS, message.age_ms) / 1000
    packed = message.json
    if len(packed.data) > node_report.MAX_PACKED_BYTES or packed.size > node_report.MAX_BYTES:
        text = f"its report is larger than the {node_report.MAX_PACKED_BYTES >> 10} KiB that are kept here"
        return NodeReport(kind, made_at, trouble=text)
    if packed.data and packed.packing != pb.PACKING_ZSTD:
        text = "its report is packed in a way that is not known here"
        return NodeReport(kind, made_at, trouble=text)
    return NodeReport(kind, made_at, packed.size, packed.data)


def read_reply(data: bytes) -> Welcome | Ack | NotTaken | Request | None:
    """None: a kind of message that a newer collector made up."""
    message = pb.ShipReply.FromString(data)
    kind = message.WhichOneof("what")
    if kind == "welcome":
        return read_welcome(message.welcome)
    if kind == "ack":
        return Ack(message.ack.upto)
    if kind == "refusal":
        return read_refusal(message.refusal)
    if kind == "request":
        return read_request(message.request)
    return None


def ack(upto: int) -> pb.ShipReply:
    return pb.ShipReply(ack=pb.Ack(upto=upto))


def description(value: Description) -> control_pb2.DescribeReply:
    return control_pb2.DescribeReply(
        collector=value.collector,
        version=value.version,
        protocol=value.protocol,
        most_parcel_bytes=value.most_parcel_bytes,
        http_address=value.http_address,
        role=value.role,
        public_url=value.public_url,
    )


def read_description(message: control_pb2.DescribeReply) -> Description:
    return Description(
        one_line(message.collector, 100),
        one_line(message.version, 100),
        message.most_parcel_bytes,
        one_line(message.http_address, 200),
        one_line(message.role, 40),
        message.protocol,
        one_line(message.public_url, MAX_URL_CHARACTERS),
    )
