"""What goes onto the wire comes off it bit by bit, and what is made up is refused with a sentence."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from logclient.errors import Corrupt
from logclient.shm.columns import Columns
from logclient.shm.record import VARIABLE, Shape
from logclient_backend.wal import encoded
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seal import is_same
from logclient_backend.wal.seqs import SeqSet
from logclient_backend.wire import batch
from logclient_backend.wire.batch import MAX_SEQ, BatchReader, BatchWriter
from logclient_proto.v1 import ingest_pb2 as pb

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
STREAM, PROCESS = b"s" * 16, b"p" * 16


@st.composite
def any_columns(draw) -> Columns:
    """Records with any numbers in any column, at an even pace or not."""
    count = draw(st.integers(1, 200))

    def numbers(code, values):
        if draw(st.booleans()):
            low, high = (0, 2**64 - 1) if code == "Q" else (-(2**63), 2**63 - 1)
            stride = draw(st.integers(-1000, 1000))
            room = abs(stride) * count
            first = draw(st.integers(low + room, high - room))
            return array(code, [first + stride * at for at in range(count)])
        return array(code, draw(st.lists(values, min_size=count, max_size=count)))

    codes = draw(st.text("drqbsi", max_size=6))
    cells = [
        draw(st.lists(st.binary(max_size=60), min_size=count, max_size=count))
        if code in VARIABLE
        else array("Q", draw(st.lists(U64, min_size=count, max_size=count)))
        for code in codes
    ]
    seq = array("Q", sorted(draw(st.sets(st.integers(1, MAX_SEQ), min_size=count, max_size=count))))
    shape = Shape(tuple(f"k{at}" for at in range(len(codes))), codes)
    rank = draw(st.none() | st.integers(0, 1 << 20))
    return Columns(shape, rank, seq, numbers("Q", U64), numbers("q", I64), numbers("q", I64), cells)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(any_columns(), min_size=1, max_size=3), st.booleans())
def test_what_goes_in_comes_out(several: list[Columns], packs: bool) -> None:
    """Over serialised messages, key tables said once."""
    writer, reader = BatchWriter(packs=packs), BatchReader()
    for columns in [*several, *several]:
        item = StreamColumns(STREAM, PROCESS, 3, columns)
        data = writer.batch(item).SerializeToString()
        back = reader.batch(pb.RecordBatch.FromString(data))
        assert (back.stream, back.process, back.lane) == (STREAM, PROCESS, 3)
        assert is_same(back.columns, columns)
        assert back.columns.rank == columns.rank


def simple(count: int = 20) -> Columns:
    shape = Shape(("loss", "note"), "ds")
    words = array("Q", range(count))
    seq = array("Q", range(1, count + 1))
    ints = array("q", range(count))
    return Columns(shape, 0, seq, seq[:], ints, ints[:], [words, [b"text"] * count])


def message(**changes) -> pb.RecordBatch:
    made = BatchWriter(packs=False).batch(StreamColumns(STREAM, PROCESS, 0, simple()))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def damaged(how) -> pb.RecordBatch:
    made = message()
    how(made)
    return made


def _make_large_ints(made: pb.RecordBatch) -> None:
    columns = simple()
    columns.cells[1] = [b"x" * 1250] * 20
    made.table.codes = "di"
    _put(made, columns)


def _put(made: pb.RecordBatch, columns: Columns) -> None:
    changed = BatchWriter(packs=False).batch(StreamColumns(STREAM, PROCESS, 0, columns))
    made.bodies, made.text_bytes = changed.bodies, changed.text_bytes


def _put_seqs(*seqs: int) -> Callable[[pb.RecordBatch], None]:
    def change(made: pb.RecordBatch) -> None:
        columns = simple()
        columns.seq = array("Q", [*seqs, *range(seqs[-1] + 1, seqs[-1] + 21)][:20])
        _put(made, columns)

    return change


def _put_body(**changes: Any) -> Callable[[pb.RecordBatch], None]:
    def change(made: pb.RecordBatch) -> None:
        (body,) = encoded.unpack(made.bodies)
        made.bodies = encoded.pack([body._replace(**changes)])

    return change


def _bomb() -> bytes:
    return b"\1" + zstandard.ZstdCompressor().compress(bytes(batch.MAX_BYTES + 1))


DAMAGE = {
    "no records": lambda m: setattr(m, "records", 0),
    "too many records": lambda m: setattr(m, "records", 1 << 31),
    "one record more": lambda m: setattr(m, "records", 21),
    "a short stream": lambda m: setattr(m, "stream", b"s"),
    "a short process": lambda m: setattr(m, "process", b""),
    "an endless lane": lambda m: setattr(m, "lane", 1 << 31),
    "a key table that never came": lambda m: m.ClearField("table"),
    "a code of nobody's": lambda m: setattr(m.table, "codes", "dX"),
    "codes without names": lambda m: setattr(m.table, "codes", "dsd"),
    "another code": lambda m: setattr(m.table, "codes", "dd"),
    "a name without end": lambda m: m.table.names.__setitem__(0, "x" * 100_000),
    "seqs that stand still": _put_seqs(1, 1),
    "seqs that fall": _put_seqs(5, 4),
    "a key that comes twice": lambda m: m.table.names.__setitem__(0, m.table.names[1]),
    "a key with NUL": lambda m: m.table.names.__setitem__(0, "a\0b"),
    "a key without a name": lambda m: m.table.names.__setitem__(0, ""),
    "an int of 10,000 bits": _make_large_ints,
    "a seq beyond 63 bits": _put_seqs((1 << 63) - 10),
    "a seq of zero": _put_seqs(0),
    "texts larger than said": lambda m: setattr(m, "text_bytes", 79),
    "texts without end": lambda m: setattr(m, "text_bytes", 1 << 40),
    "no bodies": lambda m: setattr(m, "bodies", b"\0"),
    "no bytes": lambda m: setattr(m, "bodies", b""),
    "bodies of no packing": lambda m: setattr(m, "bodies", b"\2" + m.bodies[1:]),
    "bodies that are no zstd": lambda m: setattr(m, "bodies", b"\1" + m.bodies[1:]),
    "bodies that unpack to a lot": lambda m: setattr(m, "bodies", _bomb()),
    "half of a body": lambda m: setattr(m, "bodies", m.bodies[:-8]),
    "a body twice": lambda m: setattr(m, "bodies", m.bodies + m.bodies[1:]),
    "a body of more records": _put_body(records=21),
    "a body of so many records": _put_body(records=1 << 40),
    "a body up to another seq": _put_body(last_seq=21),
    "a body of bytes": _put_body(data=b"\xff" * 40),
    "a body of nothing": _put_body(data=b""),
    "a time beyond 64 bits": _put_body(base_ns=1 << 64),
    "a step beyond 64 bits": _put_body(first_step=1 << 64),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_no_batch_is_refused_with_a_sentence(how: str) -> None:
    """Corrupt, and nothing else, before memory is taken for it."""
    with pytest.raises(Corrupt, match="record batch"):
        BatchReader().batch(damaged(DAMAGE[how]))


@settings(max_examples=300)
@given(st.data())
def test_flipped_bytes_raise_corrupt_or_give_columns(data) -> None:
    """Any bytes at all."""
    raw = bytearray(message().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        made = pb.RecordBatch.FromString(bytes(raw))
    except DecodeError:
        return
    try:
        columns = BatchReader().batch(made).columns
    except Corrupt:
        return
    assert len(columns.step) == len(columns)


def test_gaps_and_what_is_held_come_out() -> None:
    """Causes and ranges."""
    gap = Gap(STREAM, PROCESS, 2, 5, 9, "forgotten")
    assert batch.read_hole(pb.StreamHole.FromString(batch.hole(gap).SerializeToString())) == gap
    stored, gaps = SeqSet([(1, 4), (10, 12)]), {"damaged": SeqSet([(5, 5)]), "trimmed": SeqSet([(6, 9)])}
    assert batch.read_held(batch.held(STREAM, stored, gaps)) == (STREAM, stored, gaps)
    with pytest.raises(Corrupt):
        batch.read_ranges([pb.Range(first=3, last=2)])
