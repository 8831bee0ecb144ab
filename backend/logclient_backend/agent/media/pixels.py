"""Raw pixels as a PNG, samples as a WAV, raw numbers as the counts of a histogram.

Runs in the media process. NumPy is used where it is installed, since it is faster; the results are the same without
it, but for the compression of a PNG, whose filter would be too slow.
"""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

_FORMATS = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i1": "b", "i2": "h", "i4": "i", "i8": "q"}
_FORMATS |= {"f2": "e", "f4": "f", "f8": "d", "b1": "B"}
_COLOURS = {1: 0, 3: 2, 4: 6}  # channels -> type in a PNG
_FEW = 4096  # values for which loading NumPy is not worth it


class BadValue(Exception):
    """The payload is not what its description says, or cannot be shown; the message says why."""


def numpy() -> Any:
    """Return the module NumPy; None where there is none that can be used."""
    try:
        import numpy as found
    except Exception:  # noqa: BLE001 - an installation may be broken in any way, and it is optional
        return None
    return found


def numbers(payload: bytes, dtype: str) -> memoryview[Any]:
    """Return a payload as numbers. Raises BadValue."""
    letter = _FORMATS.get(dtype)
    if letter is None or len(payload) % int(dtype[1:]):
        raise BadValue(f"{len(payload):,} bytes of type {dtype}")
    if letter == "e":  # memoryview has no such format
        return memoryview(array("f", (each for (each,) in struct.iter_unpack("<e", payload))))
    return memoryview(payload).cast(letter)  # type: ignore[call-overload, no-any-return]


def png(
    payload: bytes,
    dtype: str,
    shape: Sequence[int],
    layout: str,
    scale: tuple[float, float] | None,
    level: int,
) -> tuple[bytes, dict[str, Any]]:
    """Return a PNG of these pixels, and what is to be said of them. Raises BadValue."""
    height, width, channels = _size(shape, layout)
    if channels not in _COLOURS or math.prod(shape) * int(dtype[1:]) != len(payload) or not len(payload):
        raise BadValue(f"{len(payload):,} bytes are no image of shape {tuple(shape)}")
    if max(height, width) >= 1 << 31:
        raise BadValue(f"an image of {width:,} x {height:,} pixels")
    said: dict[str, Any] = {"width": width, "height": height, "channels": channels}
    np = numpy() if dtype != "u1" or layout == "CHW" or len(payload) > _FEW else None
    if np is None:
        rows = _rows(payload, dtype, channels, width * height, layout, scale, said)
        stride = width * channels
        lines = b"".join([b"\0" + rows[at : at + stride] for at in range(0, len(rows), stride)])
    else:
        lines = _filtered(np, _pixels(np, payload, dtype, (height, width, channels), layout, scale, said))
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS[channels], 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines, level)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join([_chunk(*each) for each in chunks]), said


def _size(shape: Sequence[int], layout: str) -> tuple[int, int, int]:
    if layout == "HW" and len(shape) == 2:
        return shape[0], shape[1], 1
    if len(shape) == 3 and layout in ("HWC", "CHW"):
        return (shape[0], shape[1], shape[2]) if layout == "HWC" else (shape[1], shape[2], shape[0])
    raise BadValue(f"an image of shape {tuple(shape)} and layout {layout}")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _limits(dtype: str, scale: tuple[float, float] | None) -> tuple[float, float]:
    """Return the values that are shown as black and as white."""
    low, high = scale or ((0.0, 1.0) if dtype[0] in "fb" else (0.0, 255.0))
    if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
        raise BadValue(f"an image with the range {low} to {high}")
    return low, high


def _pixels(
    np: Any,
    payload: bytes,
    dtype: str,
    size: tuple[int, int, int],
    layout: str,
    scale: tuple[float, float] | None,
    said: dict[str, Any],
) -> Any:
    height, width, channels = size
    found = np.frombuffer(payload, dtype="?" if dtype == "b1" else f"<{dtype}")
    if layout == "CHW":
        found = found.reshape(channels, height, width).transpose(1, 2, 0)
    found = found.reshape(size)
    if dtype == "u1" and scale is None:
        return np.ascontiguousarray(found)
    low, high = _limits(dtype, scale)
    values = found.astype("f8")
    is_finite = np.isfinite(values)
    _say(said, int(values.size - is_finite.sum()), int(((values < low) | (values > high))[is_finite].sum()))
    with np.errstate(all="ignore"):
        shown = np.floor((values - low) * (255.0 / (high - low)) + 0.5)
    return np.where(is_finite, np.clip(shown, 0, 255), 0).astype("u1")


def _filtered(np: Any, pixels: Any) -> bytes:
    """Return the lines of a PNG, each as the difference from the one above (filter 2): that compresses better."""
    height = pixels.shape[0]
    lines = pixels.reshape(height, -1)
    made = np.empty((height, lines.shape[1] + 1), "u1")
    made[:, 0] = 2
    made[0, 1:] = lines[0]
    np.subtract(lines[1:], lines[:-1], out=made[1:, 1:])
    return bytes(made.tobytes())


def _rows(
    payload: bytes,
    dtype: str,
    channels: int,
    area: int,
    layout: str,
    scale: tuple[float, float] | None,
    said: dict[str, Any],
) -> bytes:
    found = payload
    if dtype != "u1" or scale is not None:
        low, high = _limits(dtype, scale)
        factor, odd, outside, made = 255.0 / (high - low), 0, 0, bytearray()
        for value in numbers(payload, dtype):
            if not math.isfinite(value):
                odd += 1
                made.append(0)
                continue
            outside += not low <= value <= high
            made.append(int(min(255.0, max(0.0, math.floor((value - low) * factor + 0.5)))))
        _say(said, odd, outside)
        found = bytes(made)
    if layout != "CHW" or channels == 1:
        return found
    mixed = bytearray(len(found))
    for channel in range(channels):
        mixed[channel::channels] = found[channel * area : (channel + 1) * area]
    return bytes(mixed)


def _say(said: dict[str, Any], nonfinite: int, clipped: int) -> None:
    if nonfinite:
        said["nonfinite"] = nonfinite
    if clipped:
        said["clipped"] = clipped


def wav(payload: bytes, dtype: str, channels: Any, rate: Any) -> bytes:
    """Return samples as a WAV file of 16 bits: floats of -1 to 1, or ints of 16 bits as they are. Raises BadValue."""
    if type(channels) is not int or type(rate) is not int or not (1 <= channels <= 64 and 0 < rate < 1 << 31):
        raise BadValue(f"{channels} channels with {rate} samples a second")
    values = numbers(payload, dtype)
    if len(values) % channels or 2 * len(values) > 1 << 31:
        raise BadValue(f"{len(values):,} samples of {channels} channels")
    if dtype == "i2":
        data = payload
    else:
        scale = 32767.0 if dtype[0] == "f" else 1.0
        whole = (each * scale if math.isfinite(each) else 0.0 for each in values)
        data = array("h", (int(min(32767.0, max(-32768.0, each))) for each in whole)).tobytes()
    form = struct.pack("<HHIIHH", 1, channels, rate, 2 * channels * rate % (1 << 32), 2 * channels, 16)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def histogram(payload: bytes, dtype: str, bins: int) -> dict[str, Any]:
    """Return the counts of some raw values: low, high, counts, values, nonfinite. Raises BadValue."""
    np = numpy() if len(payload) > 8 * _FEW else None
    if np is None:
        return _counted(numbers(payload, dtype), bins)
    if dtype not in _FORMATS or len(payload) % int(dtype[1:]):
        raise BadValue(f"{len(payload):,} bytes of type {dtype}")
    values = np.frombuffer(payload, dtype="?" if dtype == "b1" else f"<{dtype}").astype("f8")
    finite = values[np.isfinite(values)] if dtype[0] == "f" else values
    if not finite.size:
        return _counted([], bins) | {"values": int(values.size), "nonfinite": int(values.size)}
    low, high = _widened(float(finite.min()), float(finite.max()))
    with np.errstate(all="ignore"):
        places = np.clip((finite - low) / (high - low) * bins, 0, bins - 1).astype("i8")
    counts = np.bincount(places, minlength=bins).tolist()
    odd = int(values.size - finite.size)
    return {"low": low, "high": high, "counts": counts, "values": int(values.size), "nonfinite": odd}


def _counted(values: Sequence[Any] | memoryview[Any], bins: int) -> dict[str, Any]:
    finite = [float(each) for each in values if math.isfinite(each)]
    counts = [0] * bins
    low, high = _widened(min(finite), max(finite)) if finite else (0.0, 1.0)
    width = high - low
    for each in finite:
        counts[int(min(bins - 1.0, max(0.0, (each - low) / width * bins)))] += 1
    odd = len(values) - len(finite)
    return {"low": low, "high": high, "counts": counts, "values": len(values), "nonfinite": odd}


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return limits that lie apart, and whose distance is a number."""
    if high - low > 0 and math.isfinite(high - low):
        return low, high
    if low == high:
        apart = max(0.5, abs(low) * 1e-9)
        return low - apart, high + apart
    return max(low, -8e307), min(high, 8e307)
