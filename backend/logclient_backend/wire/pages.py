"""Answers about a run, as bytes of protobuf: its contents, and pages of records. Pure; no grpc.

Runs in a collector's HTTP API, and in whoever reads from one. The messages are in `query.proto`.

Invariant: a reader believes nothing: what does not fit raises `Corrupt` with a sentence, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from logclient.errors import Corrupt
from logclient_proto.v1 import query_pb2 as pb

from ..wal.coverage import Spans
from ..wal.encoded import StreamColumns
from . import batch

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_SEQ = 1 << 62  # a million records a second for 100,000 years


def pack_contents(spans: Spans) -> bytes:
    """Return the coverage of each stream, and its gaps."""
    made = pb.Contents()
    for span in spans.values():
        held = batch.held(span.stream, span.stored, span.gaps)
        made.streams.add(
            stream=span.stream,
            process=span.process,
            lane=span.lane,
            stored=held.stored,
            holes=held.holes,
            first_step=span.first_step,
            first_time_ns=span.first_time,
            last_step=span.last_step,
            last_time_ns=span.last_time,
        )
    return made.SerializeToString()


def read_contents(data: bytes) -> Spans:
    """Raises `Corrupt` where it is none."""
    try:
        message = pb.Contents.FromString(data)
    except DecodeError as error:
        raise Corrupt("contents", 0, "a message of contents", error) from error
    spans = Spans()
    for each in message.streams:
        if len(each.stream) != 16 or len(each.process) != 16 or each.lane > 0xFFFF:
            raise Corrupt("contents", 0, "ids of 16 bytes and a small lane", each.lane)
        span = spans.of(each.stream, each.process, each.lane)
        span.fill(
            batch.read_ranges(each.stored).ranges(),
            (each.first_step, each.first_time_ns),
            (each.last_step, each.last_time_ns),
        )
        if span.stored and span.stored.last >= _MAX_SEQ:
            raise Corrupt("contents", 0, "seqs that can be counted", span.stored.last)
        for hole in each.holes:
            for first, last in batch.read_ranges([hole.range]).ranges():
                span.add_gap(first, last, batch.cause_name(hole.cause))
    return spans


def pack_page(items: Iterable[StreamColumns], after: int, *, packs: bool = True) -> bytes:
    """Records, and the seq to ask for next; 0: that was all. `packs`: compress."""
    writer = batch.BatchWriter(packs=packs)
    made = pb.RecordPage(next=after)
    for item in items:
        if len(item) <= batch.MAX_RECORDS:
            made.batches.append(writer.batch(item))
            continue
        for start in range(0, len(item), batch.MAX_RECORDS):
            part = item.columns.part(start, start + batch.MAX_RECORDS)
            made.batches.append(writer.batch(item.with_columns(part)))
    return made.SerializeToString()


def read_page(data: bytes) -> tuple[list[StreamColumns], int]:
    """(records, seq to ask for next). Raises `Corrupt` where it is none."""
    try:
        message = pb.RecordPage.FromString(data)
    except DecodeError as error:
        raise Corrupt("a page of records", 0, "a message of records", error) from error
    reader = batch.BatchReader()
    return [reader.batch(each) for each in message.batches], message.next
