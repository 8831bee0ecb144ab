"""Parcels as they come from a client: checked for size before anything is unpacked, then decoded.

A `ParcelReader` belongs to one conversation and its thread. No grpc.

Invariant: what a parcel becomes in memory is bounded before it is made: a message of 60 bytes may promise 65,536
records. What does not fit raises `Corrupt`, nothing else.
"""

from __future__ import annotations

from logclient.errors import Corrupt
from logclient.shm.record import VARIABLE
from logclient_proto.v1 import ingest_pb2 as pb

from ..wal.encoded import unpacked_bytes
from . import batch
from .batch import BatchReader
from .messages import Parcel

MAX_TABLE_BYTES = 64 << 20  # of the key tables of a conversation

_RECORD_BYTES = 32  # seq, order, step, time
_TEXT_BYTES = 56  # of each text, besides its own
_COLUMN_BYTES = 64  # of each column, besides its words
_KEY_BYTES = 80  # of each name in a table, besides its own
_HOLE_BYTES = 200


class ParcelReader:
    """Reads the parcels of one conversation."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._tables: dict[int, int] = {}
        self._reader = BatchReader()

    def size(self, message: pb.Parcel) -> int:
        """Bytes that it becomes; `Corrupt` where that is too much."""
        total = _HOLE_BYTES * len(message.holes)
        if message.HasField("documents"):
            total += message.documents.json.size
        if message.HasField("edits"):
            total += message.edits.json.size
        for each in message.batches:
            total += _unpacked_bytes(each, self._reader.codes(each))
        if total > self._most_bytes:
            raise Corrupt("parcel", 0, f"at most {self._most_bytes} bytes when unpacked", total)
        return total

    def parcel(self, message: pb.Parcel, size_bytes: int) -> Parcel:
        """Raises `Corrupt` where it is none, or too much."""
        unpacked_bytes = self.size(message)
        has_documents = message.HasField("documents")
        for each in message.batches:
            if each.HasField("table"):
                self._count_table(each)
        return Parcel(
            message.number,
            [self._reader.batch(each) for each in message.batches],
            [batch.read_hole(each) for each in message.holes],
            batch.unpack(message.documents.json) if has_documents else None,
            size_bytes,
            batch.unpack(message.edits.json) if message.HasField("edits") else None,
            unpacked_bytes,
        )

    def _count_table(self, message: pb.RecordBatch) -> None:
        names = message.table.names
        self._tables[message.keys] = _KEY_BYTES * len(names) + sum(map(len, names))
        if sum(self._tables.values()) > MAX_TABLE_BYTES:
            raise Corrupt("key tables", 0, f"at most {MAX_TABLE_BYTES} bytes in a conversation", "more")


def _unpacked_bytes(message: pb.RecordBatch, codes: str) -> int:
    try:
        packed_bytes = len(message.bodies) + unpacked_bytes(message.bodies)
    except ValueError as error:
        raise Corrupt("parcel", 0, "packed bodies", error) from error
    variable = sum(map(codes.count, VARIABLE))
    return (
        message.records * (_RECORD_BYTES + 8 * (len(codes) - variable) + _TEXT_BYTES * variable)
        + _COLUMN_BYTES * len(codes)
        + message.text_bytes
        + packed_bytes
        + (_KEY_BYTES * len(message.table.names) if message.HasField("table") else 0)
    )
