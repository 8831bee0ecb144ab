"""The embedded engine's files: who may open them, which versions, and what damage does."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from logclient.errors import Corrupt, Unsupported
from logclient_backend.collector.store.embedded import EmbeddedStore, open_store, restore
from logclient_backend.collector.store.embedded.database import FILE
from logclient_backend.collector.store.embedded.schema import VERSION
from logclient_backend.collector.store.interface import RunQuery, StoreError

from .samples import described, parcel, ramp

ROOT = Path(__file__).parents[3]
NEXT = VERSION + 1


def fill(folder: Path) -> None:
    store = open_store(str(folder))
    try:
        store.writer.write([parcel(ramp(1, 50))])
        while store.compact(deadline_s=60, now=True):
            pass
        store.writer.write([parcel(ramp(51, 50))])
    finally:
        store.close()


def look(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and when it was changed."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.iterdir())
        if path.name != "lock"
    }


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = open_store(str(tmp_path / "store"))
        try:
            store.writer.write([parcel(ramp(1, 5))])
            assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
            found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").iterdir()}
            assert set(found) == {FILE, f"{FILE}-wal", f"{FILE}-shm", "lock"}
            assert set(found.values()) == {0o600}
            store.backup(str(tmp_path / "backup"))
            assert stat.S_IMODE((tmp_path / "backup" / FILE).stat().st_mode) == 0o600
        finally:
            store.close()
    finally:
        os.umask(old)


def test_two_collectors_never_share_a_folder(tmp_path: Path) -> None:
    """A second process and a second time in the same process are refused with a sentence; later it is free again."""
    folder = str(tmp_path / "store")
    code = (
        "import sys; from logclient_backend.collector.store.embedded import open_store\n"
        "try: open_store(sys.argv[1])\nexcept Exception as error: print(error)\nelse: print('opened')"
    )
    store = open_store(folder)
    try:
        with pytest.raises(StoreError, match="Another collector"):
            open_store(folder)
        assert "Another collector has the store" in run(code, folder)
    finally:
        store.close()
    assert run(code, folder) == "opened"
    open_store(folder).close()


def run(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_list_reads_no_description(tmp_path: Path) -> None:
    """What it shows is kept apart: a list of many runs costs the same whatever their configs hold."""
    folder = str(tmp_path / "store")
    store = open_store(folder)
    try:
        store.writer.write([described(name="first", config={"lr": 0.1})])
    finally:
        store.close()
    connection = sqlite3.connect(os.path.join(folder, FILE))
    connection.execute("UPDATE runs SET description=x'00'")
    connection.commit()
    connection.close()
    store = open_store(folder)
    try:
        (run,) = store.reader.runs(RunQuery()).runs
        assert json.loads(run.brief)["name"] == "first"
        with pytest.raises(Corrupt):
            store.reader.run("run")
    finally:
        store.close()


# ---- versions -----------------------------------------------------------------------------------------------


def add_column(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE runs ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'")


def newer(folder: Path, migration: Callable[[sqlite3.Connection], None] = add_column) -> EmbeddedStore:
    """The store as the next version would open it."""
    return EmbeddedStore(str(folder), version=NEXT, migrations={NEXT: migration})


def test_an_older_program_refuses_a_newer_store_and_does_not_touch_it(tmp_path: Path) -> None:
    """Not the file, nor those beside it, though the newer program was killed and left its log behind."""
    folder = tmp_path / "store"
    fill(folder)
    newer(folder).close()
    code = (
        "import os, sqlite3, sys; from logclient_backend.collector.store.embedded import EmbeddedStore\n"
        "from tests.backend.store.samples import parcel, ramp\n"
        f"store = EmbeddedStore(sys.argv[1], version={NEXT}, migrations={{}})\n"
        "store.writer.write([parcel(ramp(101, 10))]); os._exit(0)"
    )
    run(code, str(folder))
    before = look(folder)
    assert set(before) == {FILE, f"{FILE}-wal", f"{FILE}-shm"}
    for _ in range(2):
        with pytest.raises(Unsupported, match=f"version {NEXT}"):
            open_store(str(folder))
    assert look(folder) == before
    store = newer(folder)
    try:
        assert store.reader.points("run", "loss").step.tolist() == list(range(1, 111))
    finally:
        store.close()


def test_a_migration_is_all_or_nothing(tmp_path: Path) -> None:
    """One that fails leaves a store that the old version opens; what is there survives one that works."""
    folder = tmp_path / "store"
    fill(folder)

    def broken(connection: sqlite3.Connection) -> None:
        add_column(connection)
        connection.execute("DELETE FROM block")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        newer(folder, broken)
    store = open_store(str(folder))
    try:
        assert store.reader.points("run", "loss").step.tolist() == list(range(1, 101))
        assert store.statistics()["blocks"] == 1
    finally:
        store.close()
    store = newer(folder)
    try:
        assert store.reader.points("run", "loss").step.tolist() == list(range(1, 101))
        assert store.reader.runs(RunQuery()).total == 1
    finally:
        store.close()


KILLED = """
import os, signal, sys
from logclient_backend.collector.store.embedded import EmbeddedStore
from tests.backend.store.test_files import NEXT, add_column
def killed(connection):
    if sys.argv[2] == "begin": os.kill(os.getpid(), signal.SIGKILL)
    add_column(connection)
    connection.execute("PRAGMA cache_size=1")  # what is changed goes to the file before the commit
    connection.execute("PRAGMA cache_spill=1")
    for number in range(200):
        connection.execute("INSERT INTO part VALUES(?, NULL, zeroblob(20000))", (number,))
        if sys.argv[2] == "middle" and number == 150: os.kill(os.getpid(), signal.SIGKILL)
    connection.execute("DELETE FROM part WHERE length(data)=20000")
    if sys.argv[2] == "end": os.kill(os.getpid(), signal.SIGKILL)
EmbeddedStore(sys.argv[1], version=NEXT, migrations={NEXT: killed})
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["begin", "middle", "end"])
def test_a_killed_migration_begins_again(tmp_path: Path, where: str) -> None:
    """Also where half of it was in the file already; the old version still opens what it left."""
    folder = tmp_path / "store"
    fill(folder)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), where], cwd=ROOT, capture_output=True, timeout=100
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    for opening in (lambda: open_store(str(folder)), lambda: newer(folder)):
        store = opening()
        try:
            assert store.reader.points("run", "loss").step.tolist() == list(range(1, 101))
        finally:
            store.close()


@pytest.mark.parametrize("content", [b"not a database at all, but some notes\n" * 9, b"SQLite format 3\0"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    before = look(tmp_path)
    with pytest.raises(StoreError, match="no store of logclient"):
        open_store(str(tmp_path))
    assert look(tmp_path) == before


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("CREATE TABLE t(a)")
    connection.commit()
    connection.close()
    before = look(tmp_path)
    with pytest.raises(StoreError, match="no store of logclient"):
        open_store(str(tmp_path))
    assert look(tmp_path) == before


def test_a_folder_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        open_store(str(tmp_path / "file" / "store"))


# ---- damage -------------------------------------------------------------------------------------------------


def test_damaged_values_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    """A byte of a packed column flips: asking for it says so; other keys of the same records are as they were."""
    folder = tmp_path / "store"
    fill(folder)
    connection = sqlite3.connect(folder / FILE)
    (id, data) = connection.execute("SELECT id, data FROM part ORDER BY id DESC LIMIT 1").fetchone()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0x10
    connection.execute("UPDATE part SET data=? WHERE id=?", (bytes(flipped), id))
    connection.commit()
    connection.close()
    store = open_store(str(folder))
    try:
        with pytest.raises(Corrupt, match=r"store\.db"):
            store.reader.points("run", "lr")
        assert store.reader.points("run", "loss").step.tolist() == list(range(1, 101))
        assert store.writer.write([parcel(ramp(101, 5))]).records == 5
    finally:
        store.close()


def test_a_backup_becomes_a_store_in_a_new_folder_only(tmp_path: Path) -> None:
    """With an id of its own, so that agents send again what it lacks; a folder that holds anything is refused."""
    fill(tmp_path / "store")
    store = open_store(str(tmp_path / "store"))
    try:
        first = store.id
        store.backup(str(tmp_path / "backup"))
    finally:
        store.close()
    restore(str(tmp_path / "backup"), str(tmp_path / "new"))
    with pytest.raises(StoreError, match="not empty"):
        restore(str(tmp_path / "backup"), str(tmp_path / "new"))
    with pytest.raises(StoreError, match="no backup"):
        restore(str(tmp_path), str(tmp_path / "other"))
    again = open_store(str(tmp_path / "new"))
    try:
        assert again.id != first
        assert again.reader.points("run", "loss").step.tolist() == list(range(1, 101))
    finally:
        again.close()
