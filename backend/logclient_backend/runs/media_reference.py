"""The reference to a media value: a small JSON object, which is the text of a record of the side "media".

Written by the agent's media process, parsed by readers. What holds the value itself is a *blob*: a file that is named
by the SHA-256 of its bytes, in the folder `media` of a run folder or in the data folder of a collector. ::

    {"kind": "image", "sha256": "...", "bytes": 1234, "mime": "image/png", "width": 224, "caption": "...", ...}
    {"kind": "histogram", "low": 0.0, "high": 1.0, "counts": [...], "values": 1000000, "nonfinite": 0}   no blob
    {"kind": "image", "lost": "why there is no blob"}

The blob of a table is JSON, ``{"columns": [...], "rows": [[...], ...]}``; an image in a cell is a reference there, too:
``{"image": {"kind": "image", "sha256": ...}}``.

Invariants:

- a reference is at most MAX_BYTES long, its fields are of known types, and texts in it are bounded: a reader believes
  nothing else of it;
- a value that could not be stored has a reference with the reason: it is not silently missing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 4096
_MAX_FIELD = 1200  # characters of a text
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MIME = re.compile(r"[a-z]+/[a-z0-9.+-]{1,60}")
_KIND = re.compile(r"[a-z]{1,20}")
FOLDER = "media"  # in a run folder


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference; `sha256` is empty where there is no blob."""

    kind: str
    sha256: str = ""
    size: int = 0
    mime: str = ""
    lost: str = ""
    fields: dict[str, Any] = field(default_factory=dict)  # what else is said: caption, width, counts, ...

    def table(self) -> dict[str, Any]:
        """Return the reference as the JSON object that it is."""
        found: dict[str, Any] = {"kind": self.kind}
        if self.sha256:
            found |= {"sha256": self.sha256, "bytes": self.size, "mime": self.mime}
        if self.lost:
            found["lost"] = self.lost
        return found | self.fields

    def text(self) -> str:
        """Return the text of the record. Where it would be too long, fields that explain least go first.

        A name of a file that is no UTF-8 has lone surrogates, which no stored text may have: they become U+FFFD.
        """
        fields = dict(self.fields)
        while True:
            table = Reference(self.kind, self.sha256, self.size, self.mime, self.lost, fields).table()
            text = json.dumps(table, separators=(",", ":"), ensure_ascii=False)
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            if len(text.encode()) <= MAX_BYTES or not fields:
                return text
            fields.pop(max(fields, key=lambda name: len(str(fields[name]))))


def parse(text: object) -> Reference | None:
    """Return what a record of the side "media" refers to; None where it is no reference that can be believed."""
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        return None
    try:
        return of_table(json.loads(text))
    except (ValueError, RecursionError):
        return None


def of_table(table: object) -> Reference | None:
    """Return the reference that a JSON object is; None where it is none that can be believed."""
    if not isinstance(table, dict) or not _is(table.get("kind"), _KIND):
        return None
    table = dict(table)
    sha256, size, mime = table.pop("sha256", ""), table.pop("bytes", 0), table.pop("mime", "")
    lost, kind = table.pop("lost", ""), table.pop("kind")
    if sha256 and not (
        _is(sha256, _SHA256) and _is(mime, _MIME) and type(size) is int and 0 <= size < 1 << 60
    ):
        return None
    if not isinstance(lost, str):
        return None
    fields = {name: value for name, value in table.items() if _is_plain(value)}
    return Reference(kind, sha256, size, mime, lost[:_MAX_FIELD], fields)


def image_of(cell: object) -> Reference | None:
    """Return the reference in a table's cell; None where the cell holds no image."""
    found = of_table(cell.get("image")) if isinstance(cell, dict) else None
    return found if found is not None and found.kind == "image" else None


def images_in(data: bytes) -> list[Reference]:
    """Return the references in the cells of a table that have bytes."""
    try:
        rows = json.loads(data)["rows"]
        found = [image_of(cell) for row in rows for cell in row]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
    return [each for each in found if each is not None and each.sha256]


def blob_path(folder: str, sha256: str) -> str:
    """Return the path of a blob below that folder. The hash is one that `parse` has passed."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256[:80]!r} is no SHA-256")
    return f"{folder}/{sha256[:2]}/{sha256}"


def _is(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(type(each) in (int, float) for each in value)
    if isinstance(value, str):
        return len(value) <= _MAX_FIELD
    return type(value) in (int, float, bool)
