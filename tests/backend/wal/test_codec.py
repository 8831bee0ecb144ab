"""Every value and every column comes back bit by bit."""

from __future__ import annotations

import struct
from array import array

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient_backend.wal.codec import Codec, ramp
from logclient_backend.wal.seal import is_same
from logclient_backend.wal.varint import get_varint, put_varint, put_zigzag, zigzag

from .samples import FLOATS, column, records, rows

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
SPECIAL_WORDS = [
    0x8000_0000_0000_0000,  # -0.0
    0x7FF0_0000_0000_0000,  # inf
    0xFFF0_0000_0000_0000,
    0x7FF8_0000_0000_0000,  # nan
    0x7FF0_0000_0000_0001,  # a signalling one
    0xFFFF_DEAD_BEEF_0001,
    0x7FF8_0000_2000_0000,  # whose payload is a float32's
    0x0000_0000_0000_0001,  # the smallest
    0x47EF_FFFF_E000_0000,  # the largest float32
]
WORDS = st.one_of(
    U64,
    st.sampled_from(SPECIAL_WORDS),
    st.floats(width=32).map(lambda value: int.from_bytes(struct.pack("<d", value), "little")),
)


def back(columns: Columns, dense: bool, base_ns: int = 0) -> Columns:
    body = Codec(dense=dense).encode(columns, base_ns)
    return Codec().decode(
        body, columns.shape, columns.rank, len(columns), columns.seq[0], columns.step[0], base_ns
    )


@st.composite
def any_columns(draw) -> Columns:
    """Records with any numbers in any column, regular or not."""
    count = draw(st.integers(1, 70))

    def numbers(code, values):
        if draw(st.booleans()):
            limit = (2**63 if code == "q" else 2**64) - 1
            stride = draw(st.integers(0, 1000))
            first = draw(st.integers(0, limit - stride * count))
            return array(code, [first + stride * at for at in range(count)])
        return array(code, draw(st.lists(values, min_size=count, max_size=count)))

    codes = draw(st.text("drqbsi", max_size=6))
    blobs = st.binary(max_size=60)
    cells = [
        draw(st.lists(blobs, min_size=count, max_size=count))
        if code in "si"
        else array("Q", draw(st.lists(WORDS, min_size=count, max_size=count)))
        for code in codes
    ]
    seq = array("Q", sorted(draw(st.lists(U64, min_size=count, max_size=count, unique=True))))
    return Columns(
        Shape(tuple(f"key{at}" for at in range(len(codes))), codes),
        draw(st.one_of(st.none(), st.integers(0, 2**32 - 2))),
        seq,
        numbers("Q", U64),
        numbers("q", I64),
        numbers("q", I64),
        cells,
    )


@given(any_columns(), st.booleans(), I64)
def test_any_records_come_back_bit_by_bit(columns, dense, base_ns):
    """Words, texts, seqs, steps and times at and beyond every edge are the same when decoded."""
    assert is_same(back(columns, dense, base_ns), columns)


@given(st.lists(st.sampled_from(SPECIAL_WORDS), min_size=1, max_size=200), st.booleans())
def test_special_floats_keep_their_bits(words, dense):
    """The sign of zero and the payload of a NaN survive, also where all fit a float32."""
    columns = records(range(1, len(words) + 1), shape=Shape(("x",), "d"))
    columns.cells = [array("Q", words)]
    assert back(columns, dense).cells == columns.cells


@pytest.mark.parametrize("dense", [False, True])
def test_texts_and_large_ints_come_back(dense):
    """Empty, long and many-byte texts and ints beyond 64 bits of both signs survive."""
    shape = Shape(("text", "huge"), "si")
    texts = ["", "ß", "x" * 70_000, "日本語", "\0"]
    ints = [2**64, -(2**64), 2**2000, -(2**63) - 1, 0]
    columns = records(range(1, 6), shape=shape)
    columns.cells = [column("s", texts), column("i", ints)]
    found = back(columns, dense)
    assert [values for _, _, values in found.values()] == [texts, ints]


@pytest.mark.parametrize("count", [1, 2, 250, 5000])
def test_float32_takes_five_bytes_and_less_when_dense(count):
    """Doubles that hold float32 values cost no more than 5 bytes in an open segment."""
    columns = records(range(1, count + 1), shape=Shape(("x",) * 10, "d" * 10))
    values = array("f", [(seq * 7919 % 10007) / 10007 - 0.5 for seq in range(10 * count)])
    words = array("Q", array("d", values).tobytes())
    columns.cells = [words[at * count : (at + 1) * count] for at in range(10)]
    plain, dense = (len(Codec(dense=dense).encode(columns, 0)) for dense in (False, True))
    assert plain <= 10 * count * 5 + 12 * count + 40
    assert dense <= plain
    assert rows(back(columns, True)) == rows(columns)


def test_columns_that_only_look_regular_are_kept():
    """First, second and last value of a range do not make a range."""
    columns = records(range(1, 5))
    for numbers in ([0, 1, 7, 3], [5, 5, 4, 5], [0, -2, 9, -6]):
        columns.step = array("q", numbers)
        columns.order = array("Q", [number + 100 for number in numbers])
        for dense in (False, True):
            assert is_same(back(columns, dense), columns)


def test_regular_columns_cost_nothing():
    """Consecutive seqs, orders and steps take a few bytes, however many they are."""
    few, many = (records(range(1, count + 1), shape=Shape((), "")) for count in (10, 4000))
    for columns in (few, many):
        columns.time = array("q", [5] * len(columns))
    assert len(Codec().encode(many, 0)) <= len(Codec().encode(few, 0)) + 4


@given(I64, st.integers(-5000, 5000), st.integers(1, 5000))
@example(2**63 - 2048, 1, 2048)
@example(-(2**63), 1, 5000)
def test_ramp_equals_range(first, stride, count):
    """A ramp is the range it stands for, or raises beyond 64 bits."""
    numbers = range(first, first + stride * count, stride) if stride else [first] * count
    try:
        expected = array("q", numbers)
    except OverflowError:
        with pytest.raises(OverflowError):
            ramp(first, stride, count)
    else:
        assert ramp(first, stride, count) == expected


@given(st.integers(-(2**65), 2**65))
def test_varints_come_back(number):
    """Signed numbers of a little over 64 bits come back, and know where they end."""
    out = bytearray()
    put_zigzag(out, number)
    value, at = get_varint(bytes(out) + b"rest", 0)
    assert (zigzag(value), at) == (number, len(out))
    unsigned = bytearray()
    put_varint(unsigned, abs(number))
    assert get_varint(bytes(unsigned), 0) == (abs(number), len(unsigned))


@given(st.binary(max_size=200), st.integers(0, 70_000))
def test_foreign_bytes_raise_value_error(body, count):
    """Bytes that are no body raise ValueError, nothing else, and take no memory for it."""
    try:
        Codec().decode(body, FLOATS, None, count, 1, 1, 0)
    except ValueError:
        pass


@given(any_columns(), st.booleans(), st.data())
def test_a_changed_body_decodes_or_raises_value_error(columns, dense, data):
    """A body with changed bytes (its check is not this layer's) gives records or ValueError."""
    body = bytearray(Codec(dense=dense).encode(columns, 0))
    for _ in range(3):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        Codec().decode(bytes(body), columns.shape, None, len(columns), columns.seq[0], columns.step[0], 0)
    except ValueError:
        pass
