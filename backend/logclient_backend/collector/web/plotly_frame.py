"""A figure of plotly as a page for a frame without rights: plotly's own script, and the figure's JSON as data.

The script is the one in the Python package `plotly`, where that is installed beside the collector; the package itself
is not imported. Read and compressed once per web process, some 5 MB.

Invariants:

- the policy of the page names the two scripts by their hashes, so nothing of the JSON runs; it reaches no network, and
  has no origin;
- the JSON is never decoded here. Its `<` are escaped, so it ends no element: JSON has that character in texts alone.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import zlib
from dataclasses import dataclass
from functools import cache

MAX_BYTES = 16 << 20  # of a figure that is shown
_FILE = ("package_data", "plotly.min.js")
_DRAW = """
const place = document.getElementById("figure");
const failed = (error) => (place.textContent = `This figure cannot be drawn here: ${error?.message ?? error}`);
try {
  const { data = [], layout = {}, frames = [] } = JSON.parse(document.getElementById("json").textContent);
  const config = { responsive: true, displaylogo: false, plotlyServerURL: "", topojsonURL: "" };
  Plotly.newPlot(place, { data, layout, frames, config }).catch(failed);
} catch (error) {
  failed(error);
}
"""
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Figure</title>'
    "<style>html,body,#figure{height:100%;margin:0;background:#fff}</style>"
    '<div id="figure"></div><script>'
)
_DATA = '</script><script type="application/json" id="json">'
_END = f"</script><script>{_DRAW}</script></html>".encode()
_GZIP = b"\x1f\x8b\x08" + bytes(6) + b"\xff"


@dataclass(frozen=True, slots=True)
class Frame:
    """Everything in front of the figure's JSON, as it is and compressed, and the policy of the page."""

    start: bytes
    packed: bytes
    policy: str

    def page(self, figure: bytes) -> bytes:
        """Return the page of a figure."""
        return self.start + _embedded(figure)

    def packed_page(self, figure: bytes) -> bytes:
        """Return the same as gzip: the start is not compressed again."""
        rest = _embedded(figure)
        squeezer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        ends = zlib.crc32(rest, zlib.crc32(self.start)), (len(self.start) + len(rest)) & 0xFFFFFFFF
        return b"".join(
            (
                _GZIP,
                self.packed,
                squeezer.compress(rest),
                squeezer.flush(),
                *(n.to_bytes(4, "little") for n in ends),
            )
        )


def _embedded(figure: bytes) -> bytes:
    return figure.replace(b"<", b"\\u003c") + _END


@cache
def frame() -> Frame | None:
    """Return the page around a figure; None where plotly is not installed."""
    script = _script()
    if script is None:
        return None
    start = f"{_HEAD}{script}{_DATA}".encode()
    squeezer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = squeezer.compress(start) + squeezer.flush(
        zlib.Z_FULL_FLUSH
    )  # ends at a byte; what follows begins anew
    # `eval`: plotly makes functions for WebGL. It gives them nothing that the frame has not.
    policy = (
        f"sandbox allow-scripts; default-src 'none'; script-src {_hash(script)} {_hash(_DRAW)} 'unsafe-eval'; "
        "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'self'; base-uri 'none'; "
        "form-action 'none'"
    )
    return Frame(start, packed, policy)


def _script() -> str | None:
    """Return plotly's script, as an element of a page may hold it."""
    try:
        found = importlib.util.find_spec("plotly")
        places = (found.submodule_search_locations or []) if found is not None else []
        path = next((path for each in places if os.path.isfile(path := os.path.join(each, *_FILE))), "")
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError, ImportError):
        return None
    return None if "</script" in text.lower() or "<!--" in text else text


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
