"""Blobs in a run folder: once by their hash, whole, the oldest removed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from logclient_backend.agent.media import blobs
from logclient_backend.agent.media.blobs import BlobFolder, trimmed
from logclient_backend.agent.media.pixels import BadValue
from logclient_backend.runs.media import NoBlob, read_blob


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("media/*/*")}


def test_a_blob_is_stored_once_under_its_hash(tmp_path: Path) -> None:
    """One file is made of equal values, in one settling or in two, by one process or another."""
    folder = BlobFolder(str(tmp_path), 1 << 30)
    data = b"x" * 5000
    assert folder.add(data).sha256 == folder.add(data).sha256 == hashlib.sha256(data).hexdigest()
    assert folder.waiting == 1
    folder.settle()
    BlobFolder(str(tmp_path), 1 << 30).add(data)
    assert names(tmp_path) == {hashlib.sha256(data).hexdigest()}
    assert read_blob([str(tmp_path / "none"), str(tmp_path / "media")], folder.add(data).sha256) == data
    assert not list(tmp_path.glob("media/*.new"))


def test_what_was_begun_and_not_settled_leaves_nothing(tmp_path: Path) -> None:
    """Neither after an error nor after a process that was killed."""
    folder = BlobFolder(str(tmp_path), 1 << 30)
    folder.add(b"a")
    folder.drop()
    assert not names(tmp_path) and not list(tmp_path.glob("media/*.new"))
    folder.add(b"a")
    assert list(tmp_path.glob("media/*.new"))
    BlobFolder(str(tmp_path), 1 << 30)
    assert not list(tmp_path.glob("media/*.new"))


def test_the_oldest_go_beyond_the_budget_and_are_counted(tmp_path: Path) -> None:
    """One that came again is as young as its last value; the newest stays, whatever the budget."""
    folder = BlobFolder(str(tmp_path), 10_000)
    made = [folder.add(bytes([number]) * 3000).sha256 for number in range(3)]
    folder.settle()
    for age, sha256 in enumerate(made):
        os.utime(tmp_path / "media" / sha256[:2] / sha256, ns=(age, age))
    folder.add(bytes([0]) * 3000)  # the first one, again
    newest = folder.add(b"new" * 1000).sha256
    folder.settle()
    assert names(tmp_path) == {made[0], made[2], newest}
    assert trimmed(str(tmp_path / "media")) == (1, 3000)
    huge = folder.add(b"h" * 20_000).sha256
    folder.settle()
    assert names(tmp_path) == {huge}
    assert trimmed(str(tmp_path / "media")) == (4, 12_000)
    with pytest.raises(NoBlob, match="budget"):
        read_blob([str(tmp_path / "media")], made[0])


def test_a_damaged_blob_is_never_given_out(tmp_path: Path) -> None:
    """Its bytes are checked against its name."""
    folder = BlobFolder(str(tmp_path), 1 << 30)
    sha256 = folder.add(b"data").sha256
    folder.settle()
    (tmp_path / "media" / sha256[:2] / sha256).write_bytes(b"DATA")
    with pytest.raises(NoBlob, match="damaged"):
        read_blob([str(tmp_path / "media")], sha256)


def test_a_users_file_is_copied_and_what_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links to files are followed; a folder, a FIFO and a file that is too large are not waited for."""
    folder = BlobFolder(str(tmp_path), 1 << 30)
    file = tmp_path / "file"
    file.write_bytes(b"12345" * 1_000_000)
    (tmp_path / "link").symlink_to(file)
    blob = folder.add_file(str(tmp_path / "link"))
    assert blob.size == 5_000_000 and blob.start == file.read_bytes()[:4096]
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(blobs, "MAX_FILE", 1000)
    for odd in ("none", "fifo", "media", "file", "nul\0"):
        with pytest.raises(BadValue):
            folder.add_file(str(tmp_path / odd))
    assert folder.waiting == 1
