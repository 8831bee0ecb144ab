"""A full disk: writing is refused with a sentence and changes nothing, reading goes on, and later it works again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from logclient_backend.collector.store.embedded import EmbeddedStore, open_store
from logclient_backend.collector.store.interface import StoreError, StoreFull
from tools.faults import tmpfs

from .samples import parcel, ramp

WIDE = [f"key{number}" for number in range(50)]


def write_until_full(store: EmbeddedStore, first: int) -> int:
    """Seqs that were acknowledged."""
    for number in range(first, first + 1_000_000, 500):
        try:
            store.writer.write([parcel(ramp(number, 500, names=WIDE))])
        except StoreFull as full:
            assert "full" in str(full) and "Make room" in str(full)
            return number - 1
    raise AssertionError("the disk took everything")


def check(store: EmbeddedStore, last: int) -> None:
    for key in (WIDE[0], WIDE[-1]):
        assert store.reader.points("run", key, most=10_000_000).step.tolist() == list(range(1, last + 1))
        assert store.reader.buckets("run", key).points == last
    assert {key.points for key in store.reader.keys("run")} == {last}
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
                    store.writer.write([parcel(ramp(last + 1, 5000, names=WIDE))])
                with pytest.raises(StoreError):
                    store.backup(os.path.join(disk.path, "backup"))
                try:
                    store.compact(deadline_s=10, now=True)
                except StoreFull:
                    pass  # or there was room enough in the file itself
                check(store, last)
            disk.free()
            assert store.writer.write([parcel(ramp(last + 1, 500, names=WIDE))]).records == 500
            while store.compact(deadline_s=10, now=True):
                pass
            check(store, last + 500)
        finally:
            store.close()
        store = open_store(os.path.join(disk.path, "store"))
        try:
            check(store, last + 500)
        finally:
            store.close()


@pytest.mark.root
@pytest.mark.timeout(120)
def test_a_killed_upkeep_on_a_full_disk_costs_nothing(tmp_path: Path) -> None:
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
