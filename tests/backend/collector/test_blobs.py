"""Blobs at a collector: once by their hash, checked, for the runs that have them, and gone with the last of these."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from logclient_backend.collector.blobs import Blobs
from logclient_backend.wire.blobs import Piece
from logclient_backend.wire.messages import INVALID, NotTaken


def put(blobs: Blobs, run: str, data: bytes, piece: int = 1000, node: str = "n") -> str:
    """Send a blob in pieces, going on where the collector says."""
    sha256 = hashlib.sha256(data).hexdigest()
    have, is_complete = 0, False
    while not is_complete:
        before = have
        have, is_complete = blobs.take(run, node, Piece(sha256, len(data), have, data[have : have + piece]))
        assert is_complete or have > before
    return sha256


def read(blobs: Blobs, run: str, sha256: str) -> bytes | None:
    fd = blobs.open(run, sha256)
    if fd is None:
        return None
    with open(fd, "rb") as file:
        return file.read()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_blob_comes_in_pieces_and_is_kept_once(tmp_path: Path) -> None:
    """For two runs there is one file, whose mode lets nobody else read it; a third run has nothing of it."""
    blobs = Blobs(str(tmp_path))
    data = os.urandom(5500)
    sha256 = put(blobs, "one", data)
    assert blobs.lacking("one", "n", [sha256, "0" * 64]) == ["0" * 64]
    assert blobs.lacking("../two", "n", [sha256]) == [], "it is there, and linked"
    assert read(blobs, "one", sha256) == read(blobs, "../two", sha256) == data
    assert read(blobs, "three", sha256) is None
    assert read(blobs, "one", "../../id") is None
    found = files(tmp_path / "media")
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found)
    assert len({path.stat().st_ino for path in found if path.name == sha256}) == 1
    assert {path.parent.stat().st_mode & 0o777 for path in found} == {0o700}


def test_an_interrupted_upload_goes_on_where_it_was(tmp_path: Path) -> None:
    """Also at another collector process; a piece that came twice changes nothing."""
    data = os.urandom(3000)
    sha256 = hashlib.sha256(data).hexdigest()
    first = Blobs(str(tmp_path))
    assert first.take("run", "n", Piece(sha256, 3000, 0, data[:1000])) == (1000, False)
    second = Blobs(str(tmp_path))
    assert second.take("run", "n", Piece(sha256, 3000, 0, data[:1000])) == (1000, False)
    assert second.take("run", "n", Piece(sha256, 3000, 2000, data[2000:])) == (1000, False)
    assert put(second, "run", data) == sha256 and read(second, "run", sha256) == data


def test_bytes_that_are_not_what_the_hash_names_are_refused_for_good(tmp_path: Path) -> None:
    """Nothing of them can be read, and the right ones may still come."""
    blobs = Blobs(str(tmp_path))
    sha256 = hashlib.sha256(b"right").hexdigest()
    with pytest.raises(NotTaken) as caught:
        blobs.take("run", "n", Piece(sha256, 5, 0, b"wrong"))
    assert (caught.value.reason, caught.value.is_final) == (INVALID, True)
    assert read(blobs, "run", sha256) is None
    assert put(blobs, "run", b"right") == sha256 and read(blobs, "run", sha256) == b"right"


def test_a_blob_goes_with_its_last_run(tmp_path: Path) -> None:
    """Runs that are gone for good lose their links; what no run has is removed."""
    blobs = Blobs(str(tmp_path))
    shared, own = put(blobs, "one", b"shared"), put(blobs, "one", b"own")
    blobs.lacking("two", "n", [shared])
    assert blobs.sweep(lambda run: run == "two") == 1
    assert read(blobs, "two", shared) == b"shared" and read(blobs, "one", own) is None
    assert blobs.sweep(lambda run: False) == 1
    assert files(tmp_path / "media") == []


def test_a_run_that_is_not_there_takes_none(tmp_path: Path) -> None:
    """Its records come first; of a deleted one nothing is taken."""
    blobs = Blobs(str(tmp_path), knows=lambda run: run == "known")
    with pytest.raises(NotTaken) as caught:
        blobs.lacking("gone", "n", ["0" * 64])
    assert not caught.value.is_final and caught.value.retry_after_s
    assert put(blobs, "known", b"x")


def test_the_oldest_go_beyond_the_budget(tmp_path: Path) -> None:
    """In all runs that have them."""
    blobs = Blobs(str(tmp_path), 10_000)
    made = [put(blobs, "one", bytes([number]) * 3000) for number in range(3)]
    blobs.lacking("two", "n", made)
    for age, sha256 in enumerate(made):
        os.utime(tmp_path / "media" / "blobs" / sha256[:2] / sha256, ns=(age, age))
    newest = put(blobs, "one", b"n" * 3000)
    kept = [read(blobs, "one", sha256) is not None for sha256 in (*made, newest)]
    assert kept == [False, True, True, True] and read(blobs, "two", made[0]) is None
