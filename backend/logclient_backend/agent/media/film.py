"""Frames as a film, by PyAV where the program's environment has it.

Runs in the media process, in one thread; touches no disk but that of the library. Frames are copied plane by plane, so
NumPy is not needed, and planes of colours that come one after the other need no interleaving.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from .pixels import BadValue

# codec, container, type of the file, options; the first that the library has. All browsers play the first one.
_WAYS = (
    ("libx264", "mp4", "video/mp4", {"preset": "veryfast", "crf": "20", "threads": "1"}),
    ("libvpx-vp9", "webm", "video/webm", {"deadline": "realtime", "cpu-used": "8", "threads": "1"}),
    ("libvpx", "webm", "video/webm", {"deadline": "realtime", "cpu-used": "8", "threads": "1"}),
)
_MIXED = {1: "gray", 3: "rgb24", 4: "rgba"}  # channels -> format with all channels of a pixel together
# channels -> format with a plane for each channel, and which channel each plane holds
_PLANES = {1: ("gray", (0,)), 3: ("gbrp", (1, 2, 0)), 4: ("gbrap", (1, 2, 0, 3))}
_MAX_SIDE = 16384
_MAX_FPS = 1000
MISSING = "frames are encoded by PyAV, which is not installed: pip install av, or log Video(path) of a file"


def encode(payload: bytes, shape: Sequence[int], layout: str, fps: Any) -> tuple[bytes, str, dict[str, Any]]:
    """Return a film of these frames, its type, and what is to be said of it. Raises BadValue."""
    count, height, width, channels = _size(shape, layout)
    if max(height, width) > _MAX_SIDE:
        raise BadValue(f"frames of {width:,} x {height:,} pixels: at most {_MAX_SIDE:,} a side are encoded")
    if channels not in _MIXED or not min(height, width) or math.prod(shape) != len(payload):
        raise BadValue(f"{len(payload):,} bytes are no frames of shape {tuple(shape)}")
    if type(fps) not in (int, float) or not 0 < fps <= _MAX_FPS or not count:
        raise BadValue(f"{count:,} frames with {fps} a second")
    try:
        av: Any = importlib.import_module("av")
    except Exception:  # noqa: BLE001 - an installation may be broken in any way, and it is optional
        raise BadValue(MISSING) from None
    way = next((each for each in _WAYS if each[0] in av.codecs_available), None)
    if way is None:
        raise BadValue("this PyAV has no encoder for films that browsers play")
    codec, container, mime, options = way
    file = io.BytesIO()
    try:
        with av.open(file, "w", format=container) as out:
            stream = out.add_stream(codec, rate=Fraction(fps).limit_denominator(1000), options=options)
            stream.width, stream.height, stream.pix_fmt = width + width % 2, height + height % 2, "yuv420p"
            for number, frame in enumerate(_frames(av, payload, (count, height, width, channels), layout)):
                frame.pts = number
                out.mux(stream.encode(frame))
            out.mux(stream.encode())
    except Exception as error:  # noqa: BLE001 - PyAV raises many kinds, also OSError, which would mean our disk
        raise BadValue(
            f"its frames could not be encoded ({type(error).__name__}: {str(error)[:80]})"
        ) from None
    return file.getvalue(), mime, {"width": width, "height": height, "frames": count, "fps": fps}


def _size(shape: Sequence[int], layout: str) -> tuple[int, int, int, int]:
    if layout == "THW" and len(shape) == 3:
        return shape[0], shape[1], shape[2], 1
    if layout == "THWC" and len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    if layout == "TCHW" and len(shape) == 4:
        return shape[0], shape[2], shape[3], shape[1]
    raise BadValue(f"frames of shape {tuple(shape)} and layout {layout}")


def _frames(av: Any, payload: bytes, size: tuple[int, int, int, int], layout: str) -> Iterator[Any]:
    """Yield frames of the library, with sides of even length: the last row and column once more."""
    count, height, width, channels = size
    form, order = _PLANES[channels] if layout == "TCHW" else (_MIXED[channels], (0,))
    depth = 1 if layout == "TCHW" else channels  # bytes of a pixel in a plane
    area = height * width * depth
    for number in range(count):
        made = av.VideoFrame(width + width % 2, height + height % 2, form)
        for plane, channel in zip(made.planes, order, strict=True):
            start = (number * len(order) + channel) * area
            plane.update(_lines(payload[start : start + area], height, width, depth, plane.line_size))
        yield made.reformat(format="yuv420p")


def _lines(pixels: bytes, height: int, width: int, depth: int, line_bytes: int) -> bytes:
    row = width * depth
    lines = [pixels[at : at + row] for at in range(0, height * row, row)]
    if width % 2:
        lines = [line + line[-depth:] for line in lines]
    if height % 2:
        lines.append(lines[-1])
    return b"".join([line.ljust(line_bytes, b"\0") for line in lines])
