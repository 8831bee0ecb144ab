"""Numbers of few bytes, and `Reader`, which takes a body apart.

Pure bytes. A varint has 7 bits a byte, lowest first, bit 7 set in all but the last; zigzag makes 0, -1, 1, -2
into 0, 1, 2, 3. What reaches beyond the end raises `ValueError`.
"""

from __future__ import annotations


def put_varint(out: bytearray, value: int) -> None:
    """Append an unsigned number, 7 bits a byte."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def put_zigzag(out: bytearray, value: int) -> None:
    """Append a signed number; near zero is short."""
    put_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def zigzag(value: int) -> int:
    """The signed number that an unsigned one stands for."""
    return -((value + 1) >> 1) if value & 1 else value >> 1


def get_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """(the number, the position behind it)."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 98:
            raise ValueError("a number reaches beyond the end")
        byte = data[at]
        at += 1
        if byte < 128:
            return value | byte << shift, at
        value |= (byte & 127) << shift
        shift += 7


class Reader:
    """A position in the bytes of one body."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise ValueError(f"{size} bytes expected at {self.at} of {len(self.data)}")
        part = bytes(self.data[self.at : end])
        self.at = end
        return part

    def varint(self) -> int:
        value, self.at = get_varint(self.data, self.at)
        return value

    def zigzag(self) -> int:
        return zigzag(self.varint())
