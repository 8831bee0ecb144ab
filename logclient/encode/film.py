"""Frames of a film: their order and how many of them fit.

Runs in the training process: `has_encoder` in the constructor of a value, `frames` inside `log()`.
"""

from __future__ import annotations

from _frozen_importlib_external import PathFinder  # `importlib` itself may be the user's

from ..guest import foreign
from .arrays import array_of
from .values import LeftOut, NoRoom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .arrays import Array

_FOUND: list[bool] = []
_CHANNELS = (1, 3, 4)
_MAX_FPS = 1000


def has_encoder() -> bool:
    """Is PyAV installed? The agent has the same environment. Nothing is imported, and the disk is asked once."""
    if not _FOUND:
        try:
            found = foreign.call(PathFinder.find_spec, "av")
            _FOUND.append(found is not None and found.origin is not None)  # a folder of that name has none
        except foreign.Failed:  # a broken installation
            _FOUND.append(False)
    return _FOUND[0]


def frames(content: Any, layout: str | None, fps: Any, most_bytes: int) -> tuple[Array, str, int, float]:
    """Return frames that fit, their layout, how many were left out, and how many are a second. Raises LeftOut."""
    if type(fps) not in (int, float) or not 0 < fps <= _MAX_FPS:
        raise LeftOut(
            f"frames need their number a second, above 0 and at most {_MAX_FPS:,}: Video(frames, fps=8)"
        )
    shape = tuple(map(int, getattr(content, "shape", ())))
    if len(shape) not in (3, 4) or 0 in shape:
        raise LeftOut(
            f"frames of shape {shape}: expected an array of T x H x W, T x H x W x C or T x C x H x W"
        )
    if layout not in (None, "THWC", "TCHW"):
        raise LeftOut('frames with a layout that is neither "THWC" nor "TCHW"')
    size = 1
    for side in shape[1:]:
        size *= side
    if size > most_bytes:
        raise NoRoom(f"frames of {size:,} bytes; at most {most_bytes:,} fit (LOGCLIENT_MEDIA_BYTES)")
    every = -(-shape[0] // (most_bytes // size))
    array = array_of(content[::every] if every > 1 else content, most_bytes)
    if array.dtype != "u1":
        raise LeftOut(f"frames of type {array.dtype}: expected uint8, 0 to 255")
    found = _layout(shape, layout or ("TCHW" if array.is_tensor else "THWC"), is_given=layout is not None)
    return array, found, shape[0] - array.shape[0], fps / every


def _layout(shape: tuple[int, ...], first: str, *, is_given: bool) -> str:
    if len(shape) == 3:
        return "THW"
    for layout in (first, "TCHW" if first == "THWC" else "THWC")[: 1 if is_given else 2]:
        if shape[3 if layout == "THWC" else 1] in _CHANNELS:
            return layout
    raise LeftOut(f"frames of shape {shape}: they have not 1, 3 or 4 channels")
