"""What is no regular file of a usable size is opened by nobody and hides nothing, under whatever name of ours it lies.

A FIFO once made every reader of its folder wait for ever; a sparse file of terabytes ended them with a MemoryError.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from logclient.shm.regular import OddFile, read_regular
from logclient_backend.agent.output.disk_budget import DiskBudget
from logclient_backend.wal import repair
from logclient_backend.wal.documents import DocumentFile
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import CREATE, READ, REAL, WRITE
from logclient_backend.wal.reader import Follower, WalReader
from logclient_backend.wal.trim import trim

from .samples import stream
from .test_trim import fill

HUGE = 1 << 42


def sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(HUGE)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:  # a socket's own path may be too long
            one.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "fifo": (os.mkfifo, "a FIFO"),
    "sparse": (sparse, "larger than any file of ours"),
    "folder": (Path.mkdir, "a folder"),
    "link": (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
    "socket": (bound, "a socket"),
}
SEGMENTS = ("00000000000000aa-000001.wal", "00000000000000aa-000002.seg")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[Callable[[Path], None], str]:
    return KINDS[request.param]


def test_only_regular_files_are_opened(tmp_path: Path, kind: tuple[Callable[[Path], None], str]) -> None:
    """Whatever it is opened for; the error says what lies there."""
    make, words = kind
    make(tmp_path / "it")
    for flags in (READ, WRITE, CREATE):
        with pytest.raises(OddFile, match=words):
            REAL.open(str(tmp_path / "it"), flags)
    with pytest.raises(OddFile, match=words):
        read_regular(str(tmp_path / "it"))


def test_odd_segments_hide_no_others(tmp_path: Path, kind: tuple[Callable[[Path], None], str]) -> None:
    """Readers, a follower, verify and repair give what is there and name what is odd."""
    make, words = kind
    fill(tmp_path, range(1, 4))
    expected = WalReader(str(tmp_path)).spans()[stream(1)].records
    for name in SEGMENTS:
        make(tmp_path / name)
    reader = WalReader(str(tmp_path))
    assert reader.spans()[stream(1)].records == expected
    assert all(words in why for why in reader.unsupported.values())
    assert len(reader.unsupported) == 2
    again = WalReader(str(tmp_path))
    assert sum(len(item.columns) for item in again.items() if isinstance(item, StreamColumns)) == expected
    assert len(again.unsupported) == 2
    follower = Follower(str(tmp_path))
    assert follower.poll()
    assert len(follower.unreadable) == 2
    told = {segment.name: segment.problem for segment in repair.verify(str(tmp_path)).segments}
    assert all(words in told[name] for name in SEGMENTS)
    left = {each.name: each.detail for each in repair.repair(str(tmp_path)) if each.action == "left"}
    assert {name.split(".")[0] for name in SEGMENTS} == set(left)
    assert all(os.path.lexists(tmp_path / name) for name in SEGMENTS)


def test_odd_segments_cost_no_budget(tmp_path: Path, kind: tuple[Callable[[Path], None], str]) -> None:
    """A sparse file of 4 TiB counted as 4 TiB, and the real segments went to make room for it."""
    make, _ = kind
    fill(tmp_path, range(1, 4))
    before = WalReader(str(tmp_path)).spans()[stream(1)].records
    for name in SEGMENTS:
        make(tmp_path / name)
    assert trim(str(tmp_path), 1 << 30).removed == []
    budget = DiskBudget(1 << 30, 1 << 30)
    budget._is_kept = False
    budget.keep(str(tmp_path), 0, is_last=True)
    assert WalReader(str(tmp_path)).spans()[stream(1)].records == before


def test_odd_documents_hide_no_others(tmp_path: Path, kind: tuple[Callable[[Path], None], str]) -> None:
    """They are named, and the documents go on being written beside them."""
    make, words = kind
    DocumentFile(str(tmp_path)).save(b"first")
    for name in ("documents.ff.0", "documents.ff.1"):
        make(tmp_path / name)
    document = DocumentFile(str(tmp_path), writer=b"\1")
    assert document.load() == b"first"
    assert len(document.odd) == 2
    assert all(words in why for why in document.odd.values())
    for content in (b"second", b"third", b"fourth"):
        document.save(content)
    assert DocumentFile(str(tmp_path)).load() == b"fourth"
