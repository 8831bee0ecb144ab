"""Numbers, words and texts <-> bytes, with numpy. What tail rows and blocks are made of.

A `Packer` belongs to one thread at a time (zstd contexts do).

::

    numbers   u8 STRIDE, i64 first, i64 stride          n numbers at an even pace
              u8 DELTA, i64 first, words                n - 1 differences, modulo 2**64
    words     u8 RAW, the words
              u8 SAME, one word                         all are equal
              u8 SHUFFLED, a zstd frame                 byte 0 of each word, then byte 1 of each, ... byte 7
    bytes     u8 RAW, the bytes
              u8 PACKED, a zstd frame
    texts     u32 length of the numbers that follow, numbers (the size of each), bytes (all of them, joined)

Words stay words: no NaN loses its payload and no zero its sign. zstd frames carry a check of their content.

Invariants: how many are asked for is known from elsewhere and checked; what does not fit raises `ValueError`;
no loop over values (texts apart).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

if TYPE_CHECKING:
    from collections.abc import Sequence

Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

RAW, SAME, SHUFFLED, STRIDE, DELTA, PACKED = range(6)
LEVEL = 1  # level 3 is 1 % smaller at best, and twice as slow
WORTH_BYTES = 192  # below this a zstd frame is no gain
MAX_BYTES = 1 << 28  # of one piece, unpacked

_EVEN = Struct("<Bqq")
_FIRST = Struct("<Bq")
_SIZE = Struct("<I")


class Packer:
    """Packs and unpacks; one a thread."""

    __slots__ = ("_compress", "_decompress")

    def __init__(self) -> None:
        compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=True)
        self._compress = compressor.compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def words(self, words: npt.NDArray[np.generic]) -> bytes:
        """8-byte items, at least one."""
        plain = np.ascontiguousarray(words).view(np.uint64)
        if plain[0] == plain[-1] and (plain == plain[0]).all():
            return b"\x01" + plain[:1].tobytes()
        if plain.nbytes < WORTH_BYTES:
            return b"\x00" + plain.tobytes()
        planes = np.ascontiguousarray(plain.view(np.uint8).reshape(-1, 8).T)
        packed = self._compress(planes)  # type: ignore[arg-type]  # any buffer
        return b"\x02" + packed if len(packed) < plain.nbytes else b"\x00" + plain.tobytes()

    def read_words(self, data: bytes | memoryview, count: int) -> Words:
        """`count` words; not to be written to."""
        kind, body = data[0], memoryview(data)[1:]
        size = 8 * count
        if kind == SHUFFLED:
            planes = np.frombuffer(self._unpacked(body, size), np.uint8).reshape(8, count)
            return np.ascontiguousarray(planes.T).view(np.uint64).reshape(count)
        if kind == SAME and len(body) == 8:
            return np.full(count, np.frombuffer(body, np.uint64)[0])
        if kind != RAW or len(body) != size:
            raise ValueError(f"{count} words expected, found {len(body)} bytes of kind {kind}")
        return np.frombuffer(body, np.uint64)

    def numbers(self, numbers: npt.NDArray[np.generic]) -> bytes:
        """64-bit numbers, signed or not, at least one."""
        column = numbers.view(np.int64)
        first = int(column[0])
        if len(column) == 1:
            return _EVEN.pack(STRIDE, first, 0)
        steps = np.diff(column)
        if steps[0] == steps[-1] and (steps == steps[0]).all():
            return _EVEN.pack(STRIDE, first, int(steps[0]))
        return _FIRST.pack(DELTA, first) + self.words(steps)

    def read_numbers(self, data: bytes | memoryview, count: int) -> Ints:
        """`count` numbers, signed."""
        kind = data[0]
        if kind == STRIDE and len(data) == _EVEN.size:
            _, first, stride = _EVEN.unpack(data)
            return np.arange(count, dtype=np.int64) * np.int64(stride) + np.int64(first)
        if kind != DELTA or count < 2:
            raise ValueError(f"{count} numbers expected, found kind {kind} of {len(data)} bytes")
        made = np.empty(count, np.int64)
        made[0] = _FIRST.unpack_from(data)[1]
        made[1:] = self.read_words(data[_FIRST.size :], count - 1).view(np.int64)
        return np.cumsum(made, out=made)

    def plain(self, data: bytes) -> bytes:
        """Bytes of any kind."""
        if len(data) >= WORTH_BYTES:
            packed = self._compress(data)
            if len(packed) < len(data):
                return b"\x05" + packed
        return b"\x00" + data

    def read_plain(self, data: bytes | memoryview) -> bytes:
        kind, body = data[0], memoryview(data)[1:]
        if kind == RAW:
            return bytes(body)
        if kind != PACKED:
            raise ValueError(f"bytes expected, found kind {kind}")
        return self._unpacked(body, None)

    def texts(self, texts: Sequence[bytes]) -> bytes:
        """At least one."""
        sizes = self.numbers(np.fromiter(map(len, texts), np.int64, len(texts)))
        return b"".join((_SIZE.pack(len(sizes)), sizes, self.plain(b"".join(texts))))

    def read_texts(self, data: bytes | memoryview, count: int) -> list[bytes]:
        view = memoryview(data)
        (size,) = _SIZE.unpack_from(view)
        sizes = self.read_numbers(view[4 : 4 + size], count)
        joined = self.read_plain(view[4 + size :])
        if int(sizes.min()) < 0 or int(sizes.sum()) != len(joined):
            raise ValueError(f"texts of {int(sizes.sum())} bytes expected, found {len(joined)}")
        return [joined[start:end] for start, end in pairwise(accumulate(sizes.tolist(), initial=0))]

    def _unpacked(self, frame: memoryview, size: int | None) -> bytes:
        try:
            declared = zstandard.frame_content_size(frame)
            if not 0 <= declared <= MAX_BYTES or (size is not None and declared != size):
                raise ValueError(f"a zstd frame of {size} bytes expected, found one of {declared}")
            return self._decompress(frame, max_output_size=declared)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
