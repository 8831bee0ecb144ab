"""A document is kept whole: the newest version that was saved, or the one before."""

from __future__ import annotations

import errno
import os

import pytest

from logclient.errors import Unsupported
from logclient_backend.wal import documents
from logclient_backend.wal.documents import DocumentFile, pack_slot
from tests.fakes import Crash, FaultyFiles


def load(folder) -> bytes | None:
    return DocumentFile(str(folder)).load()


def test_the_newest_version_is_loaded(tmp_path):
    """Each save replaces the one before, longer or shorter, in this process and the next."""
    assert load(tmp_path) is None
    for number, data in enumerate((b"one", b"", b"three" * 1000, b"4"), start=1):
        document = DocumentFile(str(tmp_path))
        assert document.save(data) == number
        assert document.load() == load(tmp_path) == data
    assert sorted(os.listdir(tmp_path)) == ["documents.0", "documents.1"]


@pytest.mark.parametrize("at", range(1, 6))
def test_crash_while_saving_keeps_the_version_before(tmp_path, at):
    """Wherever a save dies, the document is the old or the new one, whole."""
    DocumentFile(str(tmp_path)).save(b"old" * 100)
    try:
        DocumentFile(str(tmp_path), files=FaultyFiles(crash_at=at)).save(b"new" * 50)
    except Crash:
        pass
    assert load(tmp_path) in (b"old" * 100, b"new" * 50)
    DocumentFile(str(tmp_path)).save(b"newer")
    assert load(tmp_path) == b"newer"


@pytest.mark.parametrize("call", ["pwrite", "fsync", "truncate"])
def test_failed_save_is_made_again(tmp_path, call):
    """EIO raises, keeps the old version, and the next save succeeds."""
    document = DocumentFile(str(tmp_path), files=FaultyFiles(fail={call: (2, errno.EIO)}))
    document.save(b"first")
    with pytest.raises(OSError):
        document.save(b"second")
    assert load(tmp_path) in (b"first", b"second")
    document.save(b"third")
    assert load(tmp_path) == b"third"


def test_every_flipped_byte_falls_back_to_the_version_before(tmp_path):
    """Damage in the newest file gives the version before it; in the older one, nothing changes."""
    document = DocumentFile(str(tmp_path))
    document.save(b"first")
    document.save(b"second")
    for slot, expected in ((0, b"second"), (1, b"first")):
        path = tmp_path / f"documents.{slot}"
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert load(tmp_path) == expected
            path.write_bytes(whole[:at])
            assert load(tmp_path) == expected
        path.write_bytes(whole)


def test_newer_format_is_unsupported_and_not_overwritten(tmp_path, monkeypatch):
    """A document of a newer format is neither read nor replaced."""
    monkeypatch.setattr(documents, "FORMAT", 2)
    newer = pack_slot(1, b"from the future")
    monkeypatch.undo()
    (tmp_path / "documents.0").write_bytes(newer)
    with pytest.raises(Unsupported, match="format 2"):
        load(tmp_path)
    with pytest.raises(Unsupported):
        DocumentFile(str(tmp_path)).save(b"old")
    assert (tmp_path / "documents.0").read_bytes() == newer


def test_documents_have_names(tmp_path):
    """Several documents live in one folder."""
    DocumentFile(str(tmp_path), name="summary").save(b"s")
    DocumentFile(str(tmp_path), name="cursor").save(b"c")
    assert DocumentFile(str(tmp_path), name="summary").load() == b"s"
    assert load(tmp_path) is None
