"""`logclient show --media` and `export --media`: the media values of a run, as lines and as files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from logclient.shm.side_stream import MEDIA

from ..runs.media import MediaItem, NoBlob, media_items
from ..runs.media_reference import Reference, images_in
from ..runs.source import StoredRun
from ..wal.whole import write_whole
from . import screen
from .text import plural, safe

_MOST = 40  # lines
FOLDER, LIST = "media", "media.jsonl"
_ENDS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
    "text/plain": "txt",
    "text/markdown": "md",
    "text/html": "html",
    "application/json": "json",
    "audio/wav": "wav",
    "video/mp4": "mp4",
    "video/webm": "webm",
}


def show(stored: StoredRun, is_meant: Callable[[str], bool], *, everything: bool, as_json: bool) -> None:
    """Show the values of a run; `is_meant`: of keys for which it is true."""
    side = stored.of_side(MEDIA)
    items = media_items(side.columns(list(filter(is_meant, side.keys()))))
    if as_json:
        screen.print_json({"id": stored.row.id, "media": [as_dict(item) for item in items]})
        return
    for thing in pages(items, everything=everything):
        screen.show(thing)


def as_dict(item: MediaItem) -> dict[str, Any]:
    """One value for programs."""
    return {
        "step": item.step,
        "key": item.key,
        "time": item.time,
        "rank": item.rank,
        "stream": item.stream,
        "seq": item.seq,
        **item.reference.table(),
    }


def pages(items: Sequence[MediaItem], *, everything: bool) -> Iterator[Any]:
    """Yield what a screen shows."""
    if not items:
        yield screen.line("\nno media values")
        return
    keys = {item.key for item in items}
    yield screen.line("\n" + plural(len(items), "media value"), (f" of {plural(len(keys), 'key')}", "dim"))
    left = 0 if everything else max(0, len(items) - _MOST)
    if left:
        yield screen.line((f"  {plural(left, 'older value')} not shown (--all)", "dim"))
    for item in items[left:]:
        rank = "" if item.rank is None else f" rank {item.rank}"
        what = safe(_what(item))
        yield screen.line((f"  step {item.step}{rank}  ", "dim"), safe(item.key), (f"  {what}", "dim"))


def _what(item: MediaItem) -> str:
    reference, fields = item.reference, item.reference.fields
    if reference.lost:
        return f"{reference.kind}, not stored: {reference.lost}"
    parts = [reference.kind]
    if "width" in fields:
        parts.append(f"{fields['width']} x {fields.get('height')}")
    if "rows" in fields:
        parts.append(f"{fields['rows']} x {fields.get('columns')} cells")
    if "images" in fields:
        parts.append(plural(int(fields["images"]), "image"))
    if "omitted" in fields:
        parts.append(f"{fields['omitted']} left out")
    if "values" in fields:
        parts.append(f"{fields['values']:,} values from {fields.get('low')} to {fields.get('high')}")
    if reference.sha256:
        parts.append(f"{reference.size:,} bytes, {reference.sha256[:12]}")
    for name in ("name", "caption", "preview"):
        if fields.get(name):
            parts.append(repr(str(fields[name])[:60]))
    return ", ".join(parts)


def write(stored: StoredRun, items: Sequence[MediaItem], out: str) -> tuple[int, list[str]]:
    """Write each blob once, and a list of all values; returns the number of files, and what could not be read.

    Images in the cells of a table are files, too: their hashes are in the table's JSON.
    Files are named by their hashes: a key of the user's is never part of a path.
    """
    folder = os.path.join(out, FOLDER)
    os.makedirs(folder, exist_ok=True)
    lines: list[str] = []
    troubles: list[str] = []
    done: set[str] = set()

    def put(item: MediaItem, reference: Reference) -> str:
        """Write a blob, unless it is there; returns its file, empty where it cannot be read."""
        name = f"{reference.sha256}.{_ENDS.get(reference.mime, 'bin')}"
        if name not in done:
            try:
                data = stored.blob(reference.sha256)
            except NoBlob as error:
                troubles.append(f"{item.key} at step {item.step}: {error}")
                return ""
            write_whole(os.path.join(folder, name), data)
            done.add(name)
            if reference.kind == "table":
                for image in images_in(data):
                    put(item, image)
        return f"{FOLDER}/{name}"

    for item in items:
        table = as_dict(item)
        if item.reference.sha256 and (file := put(item, item.reference)):
            table["file"] = file
        lines.append(json.dumps(table, ensure_ascii=False))
    write_whole(os.path.join(out, LIST), "".join(f"{line}\n" for line in lines).encode())
    return len(done), troubles
