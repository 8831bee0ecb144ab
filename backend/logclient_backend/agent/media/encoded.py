"""One value as it was logged, as what is stored of it: the bytes of a blob, or the path of a file, and a reference.

Runs in the media process; touches no disk. A description comes from shared memory and is believed as far as its types
are right.
"""

from __future__ import annotations

import json
import math
from struct import error as StructError
from typing import Any

from logclient.shm.media_ring import TABLE_SIZES, RawValue

from . import film, pixels
from .pixels import BadValue

_KINDS = ("image", "histogram", "text", "markdown", "html", "table", "file", "audio", "video", "figure")
_MAX_INLINE = 3000  # bytes of a histogram in its reference; of more it is a blob
_PREVIEW = 200  # characters of a text
_OCTETS = "application/octet-stream"
_MIMES = {"text": "text/plain", "markdown": "text/markdown", "html": "text/html", "table": "application/json"}
# first bytes -> type; an SVG is text, and is known by its beginning
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"<svg", "image/svg+xml"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\x1aE\xdf\xa3", "video/webm"),
)
_RIFF = {b"WAVE": "audio/wav", b"WEBP": "image/webp", b"AVI ": "video/x-msvideo"}
_FAMILIES = {"image": "image/", "audio": "audio/", "video": "video/", "figure": "image/"}


class Encoded:
    """The stored form of one value: `data`, or the file at `path`, or neither; and the fields of its reference."""

    __slots__ = ("data", "fields", "images", "key", "kind", "mime", "path")

    def __init__(self, kind: str, key: str, fields: dict[str, Any]) -> None:
        self.kind = kind
        self.key = key
        self.fields = fields  # of the reference
        self.mime = _OCTETS
        self.data: bytes | None = None
        self.path = ""
        self.images: list[
            Encoded | str
        ] = []  # of a table's cells, by their numbers; a text: why there is none


def described(value: RawValue) -> tuple[str, str, dict[str, Any]]:
    """Return kind, key and the rest of a value's description. Raises BadValue."""
    try:
        found = json.loads(value.description)
        kind, key = found.pop("kind"), found.pop("key")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise BadValue("its description cannot be read") from None
    if kind not in _KINDS or not isinstance(key, str):
        raise BadValue(f"a value of the unknown kind {str(kind)[:40]!r}")
    return kind, key, found


def said_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return what a program said of its value, as fields of a reference."""
    names = ("caption", "name", "rows", "columns", "images", "omitted", "rate", "fps")
    return {name: given[name] for name in names if isinstance(given.get(name), str | int | float)}


def encode(value: RawValue, *, is_hurried: bool) -> Encoded:
    """Make what is stored of a value; `is_hurried`: others wait, so compress little. Raises BadValue."""
    kind, key, given = described(value)
    made = Encoded(kind, key, said_of(given))
    fields = made.fields
    form, payload = given.get("form"), value.payload
    if form == "pixels":
        _encode_pixels(made, payload, given, 1 if is_hurried else 6)
    elif form == "values":
        _encode_values(made, payload, given)
    elif form == "counts":
        _encode_counts(made, payload)
    elif form == "samples":
        made.data, made.mime = (
            pixels.wav(payload, str(given.get("dtype")), given.get("channels"), given.get("rate")),
            "audio/wav",
        )
    elif form == "frames":
        shape = given.get("shape")
        if not isinstance(shape, list) or not all(type(each) is int and each > 0 for each in shape):
            raise BadValue("frames without a shape")
        made.data, made.mime, said = film.encode(payload, shape, str(given.get("layout")), given.get("fps"))
        fields |= said
    elif form == "images":
        made.data, made.images = _encode_table(payload, is_hurried=is_hurried)
        made.mime = _MIMES[kind]
    elif form == "path":
        made.path = payload.decode("utf-8", "surrogateescape")
    elif form == "bytes":
        made.data, made.mime = payload, _MIMES.get(kind) or mime_of(payload, kind)
        if kind == "figure" and given.get("json") is True:
            made.mime = "application/json"
        if kind in ("text", "markdown"):
            fields["preview"] = payload[: 4 * _PREVIEW].decode("utf-8", "ignore")[:_PREVIEW]
    else:
        raise BadValue(f"a value in the unknown form {str(form)[:40]!r}")
    return made


def _encode_table(payload: bytes, *, is_hurried: bool) -> tuple[bytes, list[Encoded | str]]:
    """Return the JSON of a table, and the images of its cells (`logclient/encode/media_table.py`)."""
    try:
        sizes = TABLE_SIZES.unpack_from(payload)
        listed = json.loads(payload[TABLE_SIZES.size : TABLE_SIZES.size + sizes[0]])
        at = TABLE_SIZES.size + sum(sizes)
        images: list[Encoded | str] = []
        for about in listed:
            if "lost" in about:
                images.append(str(about["lost"]))
                continue
            part, at = RawValue(0, 0), at + about["bytes"]
            part.payload = payload[at - about["bytes"] : at]
            part.description = json.dumps({**about, "kind": "image", "key": ""}).encode()
            try:
                images.append(encode(part, is_hurried=is_hurried))
            except BadValue as why:
                images.append(str(why))
        if at != len(payload):
            raise ValueError
    except (ValueError, KeyError, TypeError, StructError, RecursionError):
        raise BadValue("a table whose images cannot be found") from None
    return payload[TABLE_SIZES.size + sizes[0] : TABLE_SIZES.size + sum(sizes)], images


def with_images(table: bytes, cells: list[dict[str, Any]]) -> bytes:
    """Return a table with what is known of its images, by their numbers, in their cells. Raises BadValue."""
    beyond = {"kind": "image", "lost": f"a table takes {len(cells):,} images"}
    try:
        found = json.loads(table)
        for row in found["rows"]:
            for at, cell in enumerate(row):
                if isinstance(cell, dict):
                    number = cell["image"]
                    row[at] = {"image": cells[number] if number < len(cells) else beyond}
    except (ValueError, LookupError, TypeError, RecursionError):
        raise BadValue("a table whose images cannot be found") from None
    return json.dumps(found, separators=(",", ":")).encode()


def _encode_pixels(made: Encoded, payload: bytes, given: dict[str, Any], level: int) -> None:
    shape, scale = given.get("shape"), given.get("range")
    if not isinstance(shape, list) or not all(type(each) is int and each > 0 for each in shape):
        raise BadValue("an image without a shape")
    if scale is not None and not (isinstance(scale, list) and [*map(type, scale)] == [float, float]):
        raise BadValue("an image whose range is not two numbers")
    limits = None if scale is None else (scale[0], scale[1])
    dtype, layout = str(given.get("dtype")), str(given.get("layout"))
    made.data, said = pixels.png(payload, dtype, shape, layout, limits, level)
    made.mime = "image/png"
    made.fields |= said


def _encode_values(made: Encoded, payload: bytes, given: dict[str, Any]) -> None:
    bins, every = given.get("bins"), given.get("every")
    if type(bins) is not int or not 1 <= bins <= 4096:
        raise BadValue("a histogram without a number of bins")
    found = pixels.histogram(payload, str(given.get("dtype")), bins)
    if type(every) is int and every > 1:
        found["every"] = every
    _put(made, found)


def _encode_counts(made: Encoded, payload: bytes) -> None:
    try:
        found = json.loads(payload)
        counts, edges = [float(each) for each in found["counts"]], [float(each) for each in found["edges"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadValue("a histogram whose counts cannot be read") from None
    if len(edges) != len(counts) + 1 or not all(map(math.isfinite, counts + edges)) or sorted(edges) != edges:
        raise BadValue("a histogram needs finite counts, and one rising edge more")
    whole = [int(each) if each == int(each) else each for each in counts]
    found = {"low": edges[0], "high": edges[-1], "counts": whole, "values": sum(whole), "nonfinite": 0}
    step = (edges[-1] - edges[0]) / len(counts)
    if any(abs(edges[0] + at * step - each) > 1e-6 * abs(step) for at, each in enumerate(edges)):
        found["edges"] = edges
    _put(made, found)


def _put(made: Encoded, found: dict[str, Any]) -> None:
    """Put a histogram into the reference, where it has room: then a chart over steps needs no blob."""
    text = json.dumps(found, separators=(",", ":")).encode()
    if len(text) <= _MAX_INLINE:
        made.fields |= found
    else:
        made.data, made.mime = text, "application/json"
        made.fields |= {name: found[name] for name in ("low", "high", "values", "nonfinite")}


def mime_of(start: bytes, kind: str) -> str:
    """Return the type of a file by its first bytes; one of the family that its kind says, else only octets."""
    found = _OCTETS
    if start[:4] == b"RIFF":
        found = _RIFF.get(start[8:12], _OCTETS)
    elif start[4:8] == b"ftyp":
        found = "video/mp4"
    elif start.lstrip()[:5] == b"<?xml" and b"<svg" in start[:1024]:
        found = "image/svg+xml"
    else:
        found = next((mime for magic, mime in _MAGIC if start.lstrip(b" \n\r\t").startswith(magic)), _OCTETS)
    family = _FAMILIES.get(kind, "")
    is_it = found.startswith(family) or (kind == "video" and found == "image/gif")
    return found if is_it else _OCTETS


def size_of(start: bytes) -> dict[str, int]:
    """Return width and height of a PNG or GIF by its first bytes; nothing of others."""
    if start[:8] == b"\x89PNG\r\n\x1a\n" and start[12:16] == b"IHDR" and len(start) >= 24:
        return {"width": int.from_bytes(start[16:20], "big"), "height": int.from_bytes(start[20:24], "big")}
    if start[:4] == b"GIF8" and len(start) >= 10:
        return {
            "width": int.from_bytes(start[6:8], "little"),
            "height": int.from_bytes(start[8:10], "little"),
        }
    return {}
