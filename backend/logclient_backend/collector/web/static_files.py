"""The dashboard's files, as they are in `static/`: no build step, no package of Node.

All files are read when the application is made, and a request only chooses one of them, so no path is built from what a
client sends. The digest of all files is part of their addresses: modules import each other by relative paths, so a new
version has new addresses throughout, and a browser keeps the files of one version for good.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from .responses import Refused, takes_gzip

if TYPE_CHECKING:
    from collections.abc import Iterator

# 'self' alone: no script, style or font of another host, none in markup, and nothing is sent elsewhere. Frames hold
# values that users logged as HTML; their own answers have a policy that reaches no network. Markup is made of Markdown
# alone, by `dompurify`.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; frame-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
_INDEX = "index.html"
_MARK = b"DIGEST"  # where the index names the folder of the version
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is sent."""

    kind: str
    body: bytes
    packed: bytes  # gzip


class StaticFiles:
    """All files of the page, in memory: some 300 KiB."""

    def __init__(self, folder: Traversable | None = None) -> None:
        """Read them. `folder`: default the package's own."""
        found = dict(_walk(folder or files(__package__) / "static", ""))
        whole = hashlib.sha256()
        for name in sorted(found):
            whole.update(name.encode() + b"\0" + hashlib.sha256(found[name]).digest())
        self.digest = whole.hexdigest()[:_DIGEST_CHARACTERS]
        index = found.pop(_INDEX).replace(_MARK, self.digest.encode())
        self.index = _file(_INDEX, index)
        self.files = {name: _file(name, body) for name, body in found.items()}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{prefix}{each.name}/")
        elif "." + each.name.rpartition(".")[2] in _TYPES:
            yield prefix + each.name, each.read_bytes()


def _file(name: str, body: bytes) -> File:
    return File(_TYPES["." + name.rpartition(".")[2]], body, gzip.compress(body, 9, mtime=0))


def make_router(page: StaticFiles) -> APIRouter:
    """The routes of the page. They need no login: the page holds no data, and asks for a token itself."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    def index(request: Request) -> Response:
        return _answer(request, page.index, {"content-security-policy": POLICY, "cache-control": "no-cache"})

    @router.get("/static/{digest}/{name:path}")
    def static(request: Request, digest: str, name: str) -> Response:
        found = page.files.get(name)
        if found is None:
            raise Refused(404, "no_path", "the page has no such file")
        is_current = digest == page.digest  # a tab that was open during an update asks for the last version
        kept = "public, max-age=31536000, immutable" if is_current else "no-store"
        return _answer(request, found, {"cache-control": kept})

    return router


def _answer(request: Request, file: File, headers: dict[str, str]) -> Response:
    headers["vary"] = "accept-encoding"
    body = file.body
    if takes_gzip(request):
        headers["content-encoding"], body = "gzip", file.packed
    return Response(body, 200, {**headers, "content-type": file.kind})
