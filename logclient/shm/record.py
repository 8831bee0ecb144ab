"""One record: how its values are laid out in a frame.

The training process packs (`Shape.pack`, `pack_payload`); the agent and readers unpack (`columns.py`).
A *shape* is the list of keys of a record with one type code each, interned once per process:

====  =====================================================  =================
code  value                                                  in the payload
====  =====================================================  =================
d     float, exact                                           its 8 bytes
r     float, rounded from a wider number                     its 8 bytes
q     int within 64 bits                                     its 8 bytes
b     bool                                                   0 or 1
i     int beyond 64 bits                                     offset, length; bytes behind the words
s     text, UTF-8                                            offset, length; bytes behind the words
====  =====================================================  =================

Invariants:

- the payload of a shape without `i` and `s` has a fixed length, so frames of one shape form a matrix;
- a frame with INLINE_SHAPE carries its shape's definition before the words; with BLOCK_SHAPE its payload lies
  in a block and starts with the real head word.

Does not: decide what a user's value is (`values.py`), touch mapped memory (`ring.py`).
"""

from __future__ import annotations

from struct import Struct, pack, unpack_from

from ..errors import Corrupt
from . import layout

TYPE_CHECKING = False  # importing `typing` costs 4 ms of the 20 ms that `import logclient` may take
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeAlias

    Value: TypeAlias = "float | int | bool | str"

VARIABLE = frozenset("is")
FLOATS = frozenset("dr")
NUMBERS = frozenset("drqbi")
CODES = NUMBERS | {"s"}
PREFIX = Struct("<QQQqqQ")  # length and CRC, seq, order, step, time, head
STRUCT_CODES = {"d": "d", "r": "d", "q": "q", "b": "q", "i": "Q", "s": "Q"}
BODY = Struct("<QQqqQ")  # the same without its first word


class Shape:
    """Keys and type codes of a record; equal shapes are interchangeable."""

    __slots__ = ("codes", "exact", "fixed", "frame_bytes", "head", "names", "pack")

    def __init__(self, names: tuple[str, ...], codes: str, head: int = layout.INLINE_SHAPE) -> None:
        """`head` is the frame's head word (shape id and rank); only a producer needs it."""
        self.names = names
        self.codes = codes
        self.head = head
        self.fixed = not VARIABLE.intersection(codes)
        self.frame_bytes = layout.FRAME_PREFIX + 8 * len(codes)
        # packs a whole frame body from (seq, order, step, time, head, *values)
        self.pack: Callable[..., bytes] = Struct(
            BODY.format + "".join(STRUCT_CODES[code] for code in codes)
        ).pack
        # float.conjugate is the cheapest call that returns a float unchanged and refuses, without
        # touching it, whatever is none: `pack` alone would call __float__, on a device tensor a wait
        self.exact: Callable[[Any], float] | None = float.conjugate if codes == "d" * len(codes) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self.names == other.names and self.codes == other.codes

    def __hash__(self) -> int:
        return hash((self.names, self.codes))

    def __repr__(self) -> str:
        return f"Shape({self.names!r}, {self.codes!r})"

    def definition(self) -> bytes:
        """The bytes from which `from_definition` makes this shape again; length a multiple of 8."""
        encoded = [name.encode() for name in self.names]
        sizes = pack(f"<{len(encoded)}H", *map(len, encoded))
        body = b"".join((pack("<I", len(encoded)), self.codes.encode(), sizes, *encoded))
        return body + bytes(-len(body) % 8)

    @classmethod
    def from_definition(cls, data: bytes, head: int = layout.INLINE_SHAPE) -> Shape:
        """Raises `Corrupt` where the bytes are no definition."""
        try:
            (count,) = unpack_from("<I", data)
            codes = bytes(data[4 : 4 + count]).decode("ascii")
            sizes = unpack_from(f"<{count}H", data, 4 + count)
            at = 4 + 3 * count
            if at + sum(sizes) > len(data) or len(codes) != count:
                raise ValueError("names reach beyond the end")
            names = []
            for size in sizes:
                names.append(bytes(data[at : at + size]).decode())
                at += size
            return cls(tuple(names), codes, head)
        except (ValueError, KeyError, OverflowError, MemoryError) as error:
            raise Corrupt("shape definition", 0, "keys with type codes", error) from error
        except Exception as error:  # struct.error has no cheaper name here
            raise Corrupt("shape definition", 0, "keys with type codes", error) from error


def pack_payload(codes: str, values: Iterable[Value]) -> bytes:
    """Words, then the bytes of texts and large ints; length a multiple of 8."""
    words: list[Value] = []
    tail: list[bytes] = []
    offset = 8 * len(codes)
    for code, value in zip(codes, values, strict=True):
        if code in VARIABLE:
            data = value.encode() if code == "s" else _int_bytes(value)  # type: ignore[union-attr, arg-type]
            words.append(offset | len(data) << 32)
            tail.append(data)
            offset += len(data)
        else:
            words.append(value)
    body = b"".join((pack("<" + "".join(STRUCT_CODES[code] for code in codes), *words), *tail))
    return body + bytes(-len(body) % 8)


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def variable_cells(shape: Shape, payload: bytes | memoryview) -> list[bytes]:
    """The raw bytes of each value of one payload: 8 for a fixed code, its own length for `i` and `s`."""
    cells = []
    for index, code in enumerate(shape.codes):
        cell = bytes(payload[8 * index : 8 * index + 8])
        if code in VARIABLE:
            offset, size = unpack_from("<II", cell)
            if offset + size > len(payload):
                raise Corrupt("record", offset, f"{size} bytes", f"{len(payload) - offset}")
            cell = bytes(payload[offset : offset + size])
        cells.append(cell)
    return cells
