"""A full disk: writing is refused with a sentence and changes nothing, reading goes on, and later it works again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from logclient_backend.collector.store.embedded import EmbeddedStore, open_store
from logclient_backend.collector.store.interface import StoreError, StoreFull
from tools.faults import tmpfs

from .samples import noise, parcel, ramp

ROOT = Path(__file__).parents[3]
WIDE = [f"key{number}" for number in range(50)]


def write_until_full(store: EmbeddedStore, first: int) -> int:
    """Seqs that were acknowledged."""
    for number in range(first, first + 1_000_000, 200):
        try:
            store.writer.write([parcel(noise(number, 200, WIDE))])
        except StoreFull as full:
            assert "full" in str(full) and "Make room" in str(full)
            return number - 1
    raise AssertionError("the disk took everything")


def check(store: EmbeddedStore, last: int) -> None:
    for key in (WIDE[0], WIDE[-1]):
        assert store.reader.points("run", key, most=10_000_000).step.tolist() == list(range(1, last + 1))
        assert store.reader.buckets("run", key).points == last
    assert {key.points for key in store.reader.keys("run").keys} == {last}
    found = store.reader.run("run")
    assert found is not None and found.records == last


@pytest.mark.root
@pytest.mark.timeout(120)
def test_a_full_disk_refuses_writes_and_goes_on_later() -> None:
    """Full while writing, then to the last block; the upkeep fails as softly; room, and all goes on."""
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    with tmpfs.SmallTmpfs(12) as disk:
        store = open_store(os.path.join(disk.path, "store"))
        try:
            disk.fill(leave_bytes=3 << 20)
            last = write_until_full(store, 1)
            assert last > 0
            check(store, last)
            disk.fill()
            for _ in range(3):
                with pytest.raises(StoreFull):
                    store.writer.write([parcel(noise(last + 1, 3000, WIDE))])
                with pytest.raises(StoreError):
                    store.backup(os.path.join(disk.path, "backup"))
                try:
                    store.compact(deadline_s=10, now=True)
                except StoreFull:
                    pass  # or there was room enough in the file itself
                check(store, last)
            disk.free()
            assert store.writer.write([parcel(noise(last + 1, 200, WIDE))]).records == 200
            while store.compact(deadline_s=10, now=True):
                pass
            check(store, last + 200)
        finally:
            store.close()
        store = open_store(os.path.join(disk.path, "store"))
        try:
            check(store, last + 200)
        finally:
            store.close()


@pytest.mark.root
@pytest.mark.timeout(120)
def test_a_store_made_on_a_full_disk_is_made_later() -> None:
    """Opened on a full disk: a sentence, or a store that answers; never a broken file."""
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    with tmpfs.SmallTmpfs(8) as disk:
        folder = os.path.join(disk.path, "store")
        disk.fill()
        with pytest.raises((StoreFull, StoreError), match="full|" + os.strerror(errno.ENOSPC)):
            open_store(folder)
        disk.free()
        store = open_store(folder)
        try:
            store.writer.write([parcel(ramp(1, 100))])
            assert store.reader.points("run", "loss").step.tolist() == list(range(1, 101))
        finally:
            store.close()


FAILING = """
import os, resource, sys
from logclient_backend.collector.store.embedded import open_store
from logclient_backend.collector.store.interface import StoreFull
from tests.backend.store.samples import noise, parcel
from tests.backend.store.test_full_disk import WIDE, check
store = open_store(sys.argv[1])
last = 500
store.writer.write([parcel(noise(1, last, WIDE))])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for _ in range(3):
    size = max(os.stat(os.path.join(sys.argv[1], name)).st_size for name in ("store.db", "store.db-wal"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, hard))  # a write beyond fails like one to a bad sector
    failed = 0
    for number in range(last + 1, last + 40_000, 500):
        try:
            store.writer.write([parcel(noise(number, 500, WIDE))])
        except StoreFull as error:
            assert "failing" in str(error), error
            failed += 1
            break
        last += 500
    assert failed
    try:
        store.compact(deadline_s=20, now=True)
    except StoreFull:
        failed += 1
    check(store, last)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    store.writer.write([parcel(noise(last + 1, 500, WIDE))])
    last += 500
    check(store, last)
while store.compact(deadline_s=20, now=True):
    pass
check(store, last)
store.close()
"""


@pytest.mark.slow
def test_a_failing_disk_refuses_writes_and_goes_on_later(tmp_path: Path) -> None:
    """Also in the middle of a checkpoint and of the upkeep: what was there is there, and later all goes on."""
    folder = str(tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", FAILING, folder], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    store = open_store(folder)
    store.close()
