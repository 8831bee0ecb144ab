"""Media values of a run in its page: pictures and sounds as `data:` addresses, tables (`table.py`) and texts as text.

Reads blobs by the function it is given. Nothing of a value becomes markup: pictures, SVG among them, stand in `<img>`,
where no script runs and nothing loads; Markdown is shown as it was written; HTML, JSON of plots and other files are
left out with a sentence.

Invariants:

- a key has at most MAX_VALUES values in the page, spread over its steps, the newest among them;
- markup of all values together has at most `budget` bytes. The newest value of each key comes first, so a key with
  many pictures leaves room for the others. Images in cells of a table take half of what is left at most;
- what is left out is counted, key by key and in all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Any

from ..media import MediaItem, NoBlob
from .elements import as_text, count, data_address
from .histogram import histogram
from .table import IMAGES, Table

MAX_VALUES = 24  # of a key
MAX_TEXT = 100_000  # characters of a text
_SOUNDS = ("audio/wav", "audio/ogg", "audio/flac", "audio/mpeg")
_FILMS = ("video/mp4", "video/webm")
_TEXTS = ("text", "markdown")
_MAX_READ = 64 << 20  # bytes of a table or text, of which the page shows the first part
_OVERHEAD = 600  # bytes of a figure beside its content

Blob = Callable[[str], bytes]


class MediaSection:
    """The section. `yield from` it, then `troubles` has a sentence for each value that could not be read."""

    def __init__(self, items: Iterable[MediaItem], blob: Blob, budget: int, lost: int = 0) -> None:
        """`items` by step. `budget`: bytes of markup. `lost`: values of which no reference was stored."""
        self._keys: dict[str, list[MediaItem]] = {}
        for item in items:
            self._keys.setdefault(item.key, []).append(item)
        self._blob = blob
        self._left = self._budget = budget
        self._lost = lost
        self.troubles: list[str] = []

    def __iter__(self) -> Iterator[str]:
        if not self._keys:
            return
        made = self._made()
        total = sum(map(len, self._keys.values()))
        missing = total - sum(map(len, made.values()))
        yield f"<details open><summary>Media ({count(total, 'value')} of {count(len(self._keys), 'key')})</summary>"
        if missing:
            yield (
                f'<p class="dim">{count(missing, "value")} of {total:,} left out: a key has at most {MAX_VALUES} here, '
                f"all of them {self._budget:,} bytes. <code>logclient export --media --out FOLDER</code> has all.</p>"
            )
        if self._lost:
            yield f'<p class="bad">{count(self._lost, "further value")} lost on the way to the disk.</p>'
        for key, items in self._keys.items():
            shown = made[key]
            left = len(items) - len(shown)
            note = (
                f' <span class="dim">{count(left, "value")} of {len(items):,} left out</span>' if left else ""
            )
            yield f'<section class="key"><h3>{escape(key)}{note}</h3><div class="media">'
            for at in sorted(shown):
                yield shown[at]
            yield "</div></section>"
        yield "</details>"

    def _made(self) -> dict[str, dict[int, str]]:
        """Return the figures of each key by the place of their values: the newest of all keys, then the ones before."""
        made: dict[str, dict[int, str]] = {key: {} for key in self._keys}
        chosen = {key: _spread(len(items)) for key, items in self._keys.items()}
        for turn in range(MAX_VALUES):
            for key, places in chosen.items():
                if turn < len(places):
                    figure = self._figure(self._keys[key][places[turn]])
                    size = len(figure.encode("utf-8", "replace"))
                    if figure and size <= self._left:
                        self._left -= size
                        made[key][places[turn]] = figure
        return made

    def _figure(self, item: MediaItem) -> str:
        """Return a value as a figure; empty where there is no room for it."""
        reference = item.reference
        is_whole = reference.mime in IMAGES + _SOUNDS + _FILMS  # the page holds all bytes of it
        if reference.size > (self._left * 3 // 4 - _OVERHEAD if is_whole else _MAX_READ):
            return ""
        caption = as_text(reference.fields.get("caption", ""))
        where = f"step {item.step:,}" + ("" if item.rank is None else f", rank {item.rank}")
        try:
            body = self._content(item, caption or f"{reference.kind} {item.key} at {where}")
        except NoBlob as error:
            self.troubles.append(f"{item.key} at step {item.step}: {error}")
            body = _sentence(str(error), "bad")
        caption = f"<br>{escape(caption)}" if caption else ""
        wide = ' class="wide"' if reference.kind in ("table", *_TEXTS) else ""
        return (
            f'<figure{wide}>{body}<figcaption><span class="dim">{where}</span>{caption}</figcaption></figure>'
        )

    def _content(self, item: MediaItem, name: str) -> str:
        reference = item.reference
        kind, mime, fields = reference.kind, reference.mime, reference.fields
        if reference.lost:
            return _sentence(f"Not stored: {reference.lost}", "bad")
        if kind == "histogram":
            found = (
                fields if "counts" in fields or not reference.sha256 else _json(self._blob(reference.sha256))
            )
            drawn = histogram(found) if isinstance(found, dict) else ""
            return drawn or _sentence("A histogram without counts.")
        if not reference.sha256:
            return _sentence("Nothing is stored of this value.")
        if mime in IMAGES:
            return f'<img src="{self._address(item)}" alt="{escape(name)}">'
        if mime in _SOUNDS + _FILMS:
            address = self._address(item)
            tag = "audio" if mime in _SOUNDS else "video"
            return f'<{tag} controls preload="metadata" aria-label="{escape(name)}" src="{address}"></{tag}>'
        if kind in _TEXTS:
            return _of_text(self._blob(reference.sha256).decode("utf-8", "replace"), kind)
        if kind == "table":
            return self._table(item, _json(self._blob(reference.sha256)))
        what = as_text(
            fields.get("name") or {"html": "HTML", "figure": "A plot"}.get(kind, f"A value of kind {kind}")
        )
        return _sentence(f"{what} ({mime}, {reference.size:,} bytes) is not part of this page.")

    def _table(self, item: MediaItem, found: Any) -> str:
        columns, rows = (found.get("columns"), found.get("rows")) if isinstance(found, dict) else (None, None)
        if not isinstance(columns, list) or not isinstance(rows, list):
            return _sentence("A table that cannot be read.")
        table = Table(columns, rows, self._blob)
        made = table.markup(self._left // 2)  # its images leave room for other values
        if table.troubles:
            lost = count(len(table.troubles), "image")
            self.troubles.append(f"{lost} in {item.key} at step {item.step}: {table.troubles[0]}")
        return made

    def _address(self, item: MediaItem) -> str:
        return data_address(item.reference.mime, self._blob(item.reference.sha256))


def _spread(total: int) -> list[int]:
    """Return places of at most MAX_VALUES values: the newest first, then the others, spread over all of them."""
    if total <= MAX_VALUES:
        return list(range(total - 1, -1, -1))
    return [(total - 1) * at // (MAX_VALUES - 1) for at in range(MAX_VALUES - 1, -1, -1)]


def _sentence(sentence: str, kind: str = "dim") -> str:
    return f'<p class="{kind}">{escape(sentence)}</p>'


def _of_text(found: str, kind: str) -> str:
    head = '<p class="dim">Markdown, as it was written</p>' if kind == "markdown" else ""
    left = len(found) - MAX_TEXT
    more = f'<p class="dim">and {count(left, "character")} more</p>' if left > 0 else ""
    return f"{head}<pre>{escape(found[:MAX_TEXT])}</pre>{more}"


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
