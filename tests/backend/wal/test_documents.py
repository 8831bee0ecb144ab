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


def test_writer_that_wakes_up_late_changes_nothing(tmp_path):
    """A hung save of an older incarnation lands in its own file, with a version that is no longer the newest."""
    old = DocumentFile(str(tmp_path), writer=b"1")
    hung = pack_slot(old.save(b"first") + 1, b"hung")  # slot, bytes and version are chosen: the write hangs
    new = DocumentFile(str(tmp_path), writer=b"2")
    for data in (b"second", b"third", b"fourth"):
        new.save(data)
        for slot in (0, 1):
            (tmp_path / f"documents.{b'1'.hex()}.{slot}").write_bytes(hung)
            assert load(tmp_path) == data


def test_files_of_older_writers_are_removed(tmp_path):
    """Restarts do not pile up files; while a writer has one file, the version before is another's."""
    for number in range(1, 6):
        document = DocumentFile(str(tmp_path), writer=bytes([number]))
        for _ in range(2):
            document.save(bytes([number]))
            assert load(tmp_path) == bytes([number])
    assert sorted(os.listdir(tmp_path)) == ["documents.05.0", "documents.05.1"]
    DocumentFile(str(tmp_path)).save(b"again")
    assert load(tmp_path) == b"again"


def test_documents_have_names(tmp_path):
    """Several documents live in one folder."""
    DocumentFile(str(tmp_path), name="summary").save(b"s")
    DocumentFile(str(tmp_path), name="cursor").save(b"c")
    assert DocumentFile(str(tmp_path), name="summary").load() == b"s"
    assert load(tmp_path) is None
