"""Media values in a backup: what its store refers to comes along, checked, also while more arrives."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logclient.shm.record import Shape
from logclient.shm.side_stream import MARKS, MEDIA
from logclient_backend.cli import cli
from logclient_backend.collector import backup as backups
from logclient_backend.collector import data_folder as folders
from logclient_backend.collector.blobs import Blobs
from logclient_backend.collector.media_records import media_columns
from logclient_backend.collector.store.interface import Description, Parcel, Store, StoreError
from logclient_backend.collector.store.open import open_store, read_store
from logclient_backend.runs.media import media_items
from logclient_backend.runs.media_reference import Reference, blob_path
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wire.blobs import Piece

from ..store.samples import NOW_NS, columns

_PROCESS = MARKS[MEDIA] + b"process0"


class Collecting:
    """A data folder and what arrives there: references, and their bytes before or never."""

    def __init__(self, folder: Path) -> None:
        self.data = folders.make(str(folder))
        self.store: Store = open_store(self.data.store, is_durable=False)
        self.blobs = Blobs(self.data.path)

    def image(self, run: str, seq: int, data: bytes, *, has_bytes: bool = True, kind: str = "image") -> str:
        """Take in a reference to `data`."""
        sha256 = hashlib.sha256(data).hexdigest()
        if has_bytes:
            self.blobs.take(run, "n", Piece(sha256, len(data), 0, data))
        text = Reference(kind, sha256, len(data), "image/png").text()
        made = columns(Shape(("image",), "s"), [seq], [[text]])
        stream = StreamColumns(MARKS[MEDIA] + b"stream.0", _PROCESS, 0, made)
        about = Description(name=run, created_ns=NOW_NS)
        self.store.writer.write([Parcel(run, "n", NOW_NS, [stream], [], b"{}", about)])
        return sha256

    def command(self, *words: str) -> Result:
        """Run `logclient server WORDS` on this folder, which no collector has."""
        return CliRunner().invoke(cli, ["server", *words, "--data", self.data.path])


@pytest.fixture
def collecting(tmp_path: Path) -> Iterator[Collecting]:
    made = Collecting(tmp_path / "data")
    try:
        yield made
    finally:
        made.store.close()


def referred(folder: str) -> list[tuple[str, bytes | None]]:
    """Return hash and bytes of all references of a data folder's runs; None where there are no bytes."""
    store, blobs = read_store(f"{folder}/store"), Blobs(folder)
    found: list[tuple[str, bytes | None]] = []
    try:
        for run in ("one", "two", "binned"):
            for item in media_items(media_columns(store.reader, run)):
                fd = blobs.open(run, item.reference.sha256)
                data = None
                if fd is not None:
                    with open(fd, "rb") as file:
                        data = file.read()
                found.append((item.reference.sha256, data))
    finally:
        store.close()
    return found


def test_each_reference_of_a_restored_store_has_its_bytes(collecting: Collecting, tmp_path: Path) -> None:
    """Though images arrive meanwhile; of two runs that share one and of one in the bin; for its user alone."""
    shared = collecting.image("one", 1, b"shared")
    assert collecting.image("two", 1, b"shared") == shared
    collecting.image("binned", 1, b"in the bin")
    collecting.store.writer.delete("binned", NOW_NS)
    lost = collecting.image("two", 2, b"never came", has_bytes=False)
    is_over, arrived = threading.Event(), threading.Semaphore(0)

    def arrive() -> None:
        seq = 2
        while not is_over.is_set():
            collecting.image("one", seq, os.urandom(5000))
            seq += 1
            arrived.release()

    arriving = threading.Thread(target=arrive)
    arriving.start()
    try:
        assert arrived.acquire(timeout=60)
        made = backups.backup(collecting.store, collecting.data, str(tmp_path / "copy"))
        assert arrived.acquire(timeout=60)
    finally:
        is_over.set()
        arriving.join(60)
    restored = folders.make(str(tmp_path / "restored"))
    back = backups.restore(str(tmp_path / "copy"), restored)
    found = referred(restored.path)
    assert made["media"] == back["media"] | {"missing": 1}  # type: ignore[operator]
    assert len({sha256 for sha256, _ in found}) == made["media"]["blobs"] + 1 >= 4  # type: ignore[index]
    assert [sha256 for sha256, data in found if data is None] == [lost]
    assert all(hashlib.sha256(data).hexdigest() == sha256 for sha256, data in found if data is not None)
    assert [sha256 for sha256, _ in found].count(shared) == 2
    for folder in (tmp_path / "copy", tmp_path / "restored" / "media"):
        for path in [folder, *folder.rglob("*")]:
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert Blobs(restored.path).sweep(lambda run: run != "two") == 0, "each run has its links"


def test_images_in_cells_of_tables_are_copied_and_those_that_lack_counted(
    collecting: Collecting, tmp_path: Path
) -> None:
    """A table's references lie in its bytes."""
    cells = [hashlib.sha256(data).hexdigest() for data in (b"first", b"second", b"never came")]
    for data, name in zip((b"first", b"second"), cells, strict=False):
        collecting.blobs.take("one", "n", Piece(name, len(data), 0, data))
    images = [{"image": Reference("image", name, 5, "image/png").table()} for name in cells]
    collecting.image("one", 1, json.dumps({"rows": [images]}).encode(), kind="table")
    made = backups.backup(collecting.store, collecting.data, str(tmp_path / "copy"))
    assert made["media"]["blobs"] == 3 and made["media"]["missing"] == 1  # type: ignore[index]
    restored = folders.make(str(tmp_path / "restored"))
    backups.restore(str(tmp_path / "copy"), restored)
    assert [Blobs(restored.path).open("one", name) is None for name in cells] == [False, False, True]


def test_damaged_bytes_are_named_and_not_copied(collecting: Collecting, tmp_path: Path) -> None:
    """On the collector's disk, and in the backup; all else comes along, and the commands end with 1."""
    names = [collecting.image("one", seq, os.urandom(5000)) for seq in (1, 2, 3)]
    collecting.store.close()
    with open(blob_path(collecting.blobs.home, names[0]), "r+b") as file:
        file.write(b"damage")
    copy, second = tmp_path / "copy", tmp_path / "second"
    done = collecting.command("backup", str(copy), "--json")
    assert done.exit_code == 1 and f"damaged and were left out: {names[0]}" in done.stderr
    made = json.loads(done.stdout)["media"]
    assert made == {"blobs": 2, "bytes": 10000, "missing": 0, "damaged": 1, "damaged_names": [names[0]]}
    assert not os.path.lexists(blob_path(str(copy / "media"), names[0]))
    os.truncate(blob_path(str(copy / "media"), names[1]), 4999)
    done = CliRunner().invoke(cli, ["server", "restore", str(copy), "--data", str(second)])
    assert done.exit_code == 1 and names[1] in done.stderr
    assert [sha256 for sha256, data in referred(str(second)) if data] == [names[2]]


def test_backup_without_media_is_small_and_says_so(collecting: Collecting, tmp_path: Path) -> None:
    """The restored store has the references, and a later restore into a folder that has blobs is refused."""
    collecting.image("one", 1, os.urandom(5000))
    collecting.store.close()
    done = collecting.command("backup", str(tmp_path / "copy"), "--no-media")
    assert done.exit_code == 0 and "without media" in done.stdout
    assert sorted(os.listdir(tmp_path / "copy")) == ["backup.json", "store"]
    back = backups.restore(str(tmp_path / "copy"), folders.make(str(tmp_path / "restored")))
    assert back["media"] is None and [data for _, data in referred(str(tmp_path / "restored"))] == [None]
    third = Blobs(folders.make(str(tmp_path / "third")).path)
    third.take("one", "n", Piece(hashlib.sha256(b"x").hexdigest(), 1, 0, b"x"))
    with pytest.raises(StoreError, match="holds a store already, or media"):
        backups.restore(str(tmp_path / "copy"), folders.make(str(tmp_path / "third")))
