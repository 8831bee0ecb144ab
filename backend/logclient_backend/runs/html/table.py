"""A table that was logged: its first cells as text, and the images in them as `data:` addresses.

Reads the bytes of images by the function it is given. Nothing of a cell becomes markup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from ..media import NoBlob
from ..media_reference import Reference, image_of
from .elements import as_text, count, data_address

MAX_ROWS, MAX_COLUMNS, MAX_CELL = 200, 40, 300
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp", "image/svg+xml")
_LEFT_OUT = '<span class="dim">image, left out</span>'


class Table:
    """The markup of a table."""

    def __init__(self, columns: Sequence[Any], rows: Sequence[Any], blob: Callable[[str], bytes]) -> None:
        """`blob` raises NoBlob."""
        self._columns = columns
        self._rows = rows
        self._blob = blob
        self._left = 0  # bytes of markup for images
        self._left_out = 0
        self.troubles: list[str] = []  # why images could not be read

    def markup(self, budget: int) -> str:
        """Return the first cells. Images take what the text leaves of `budget` bytes; text may take more."""
        self._left = 0
        size = len(self._made().encode("utf-8", "replace"))
        self._left = budget - size
        return self._made()

    def _made(self) -> str:
        self._left_out = 0
        names = self._columns[:MAX_COLUMNS]
        head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{self._cell(cell, at)}</td>' for at, cell in enumerate(line[:MAX_COLUMNS]))}</tr>"
            for line in self._rows[:MAX_ROWS]
            if isinstance(line, list)
        )
        left = [
            count(number, one)
            for number, one in (
                (len(self._rows) - MAX_ROWS, "row"),
                (len(self._columns) - MAX_COLUMNS, "column"),
            )
            if number > 0
        ]
        more = f'<p class="dim">and {" and ".join(left)} more</p>' if left else ""
        if self._left_out:
            more += f'<p class="dim">{count(self._left_out, "image")} left out</p>'
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'

    def _cell(self, cell: Any, column: int) -> str:
        reference = image_of(cell)
        return _text(cell) if reference is None else self._image(reference, column)

    def _image(self, image: Reference, column: int) -> str:
        if image.lost:
            return _text(f"Not stored: {image.lost}")
        if image.sha256 and image.mime in IMAGES and image.size * 4 // 3 < self._left:
            try:
                address = data_address(image.mime, self._blob(image.sha256))
            except NoBlob as error:
                self.troubles.append(str(error))
                return _text(str(error))
            name = as_text(self._columns[column]) if column < len(self._columns) else ""
            name = as_text(image.fields.get("caption", "")) or f"image of {name}"
            made = f'<img src="{address}" alt="{escape(name)}" title="{escape(name)}">'
            size = len(made.encode("utf-8", "replace"))
            if size <= self._left:
                self._left -= size
                return made
        self._left_out += 1
        return _LEFT_OUT


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        value = _json_text(value)
    found = as_text(value)
    return escape(found if len(found) <= MAX_CELL else f"{found[: MAX_CELL - 1]}…")


def _json_text(value: Sequence[Any] | dict[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "…"
