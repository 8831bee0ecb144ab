"""The disk budget: what goes is accounted for to the last seq."""

from __future__ import annotations

import os

import pytest

from logclient_backend.wal.coverage import Spans
from logclient_backend.wal.files import REAL
from logclient_backend.wal.reader import WalReader
from logclient_backend.wal.repair import verify
from logclient_backend.wal.seal import seal
from logclient_backend.wal.seqs import SeqSet
from logclient_backend.wal.trim import trim
from logclient_backend.wal.writer import OpenSegment
from tests.fakes import Crash, FaultyFiles

from .samples import CAPACITY, NOW_NS, PROCESS, WRITER, read_all, records, stream


def fill(folder, numbers, *, with_gaps: bool = True) -> None:
    """Sealed segments: 40 records, 9 forgotten, 1 damaged each."""
    for number in numbers:
        segment = OpenSegment.create(REAL, str(folder), WRITER, number, NOW_NS + number, CAPACITY)
        first = 50 * number + 1
        segment.append(stream(1), PROCESS, 0, records(range(first, first + 40)))
        if with_gaps:
            segment.append_gap(stream(1), PROCESS, 0, first + 40, first + 48, "forgotten")
            segment.append_gap(stream(1), PROCESS, 0, first + 49, first + 49, "damaged")
        data = segment.bytes()
        segment.close()
        seal(REAL, data, segment.name, str(folder))


def counts(folder) -> list[int]:
    """stored, trimmed, forgotten, damaged, missing"""
    span = WalReader(str(folder)).spans()[stream(1)]
    return [len(seqs) for seqs in (span.stored, span.trimmed, span.forgotten, span.damaged, span.missing())]


def size(folder) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def test_a_clock_that_was_set_back_makes_no_segment_old(tmp_path):
    """Every segment says that it was made before the one before it; the newest by the node's own count are kept."""
    for count in range(1, 9):
        writer = count.to_bytes(4, "big") + WRITER[4:]
        segment = OpenSegment.create(REAL, str(tmp_path), writer, 1, NOW_NS - 3600 * 10**9 * count, CAPACITY)
        segment.append(stream(1), PROCESS, 0, records(range(50 * count, 50 * count + 40)))
        data = segment.bytes()
        segment.close()
        seal(REAL, data, segment.name, str(tmp_path))
    for share in (4, 2):  # the second call meets the note of the first
        trim(str(tmp_path), size(tmp_path) * share // 5)
        kept = WalReader(str(tmp_path)).spans()[stream(1)].stored
        assert kept.last == 50 * 8 + 39
        assert kept.first > 50
        assert len(kept.ranges()) == len([name for name in os.listdir(tmp_path) if "-000001" in name])


def test_within_the_budget_nothing_happens(tmp_path):
    """A folder that fits is left as it is."""
    fill(tmp_path, range(3))
    before = sorted(os.listdir(tmp_path))
    assert trim(str(tmp_path), size(tmp_path)).removed == []
    assert sorted(os.listdir(tmp_path)) == before


def test_the_oldest_go_and_every_seq_stays_accounted_for(tmp_path):
    """Stored, trimmed, forgotten and damaged add up to what was accepted, before and after any number of trims."""
    fill(tmp_path, range(8))
    assert counts(tmp_path) == [320, 0, 72, 8, 0]
    budget = size(tmp_path) * 3 // 4
    done = trim(str(tmp_path), budget)
    assert size(tmp_path) <= budget
    assert done.records == 40 * len(done.removed) > 0
    assert counts(tmp_path) == [320 - done.records, done.records, 72, 8, 0]
    assert read_all(tmp_path).seqs(stream(1))[0] == 50 * len(done.removed) + 1
    fill(tmp_path, range(8, 12))
    again = trim(str(tmp_path), budget)
    assert size(tmp_path) <= budget
    assert done.note in again.removed
    trimmed = done.records + again.records
    assert counts(tmp_path) == [480 - trimmed, trimmed, 108, 12, 0]
    assert verify(str(tmp_path)).is_sound


def test_open_segments_are_never_deleted(tmp_path):
    """Even with no budget at all the open segment stays, and a lone note is not written again and again."""
    fill(tmp_path, range(3))
    segment = OpenSegment.create(REAL, str(tmp_path), WRITER, 9, NOW_NS + 9, CAPACITY)
    segment.append(stream(1), PROCESS, 0, records(range(151, 161)))
    assert len(trim(str(tmp_path), 0).removed) == 3
    assert counts(tmp_path) == [10, 120, 27, 3, 0]
    assert trim(str(tmp_path), 0).removed == []
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("at", range(1, 14))
def test_crash_in_the_middle_of_trimming_counts_nothing_twice(tmp_path, at):
    """Wherever a trim dies, the sums are right: a note counts only where its record is gone."""
    fill(tmp_path, range(4))
    try:
        trim(str(tmp_path), 0, files=FaultyFiles(crash_at=at))
    except Crash:
        pass
    stored, trimmed, forgotten, damaged, missing = counts(tmp_path)
    assert (stored + trimmed, forgotten, damaged, missing) == (160, 36, 4, 0)
    trim(str(tmp_path), 0)
    assert counts(tmp_path) == [0, 160, 36, 4, 0]


def test_full_disk_does_not_delete_without_a_note(tmp_path):
    """Where there is no room for the note, nothing is deleted."""
    fill(tmp_path, range(3))
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OSError, match="No space"):
        trim(str(tmp_path), 0, files=FaultyFiles(room=10))
    assert sorted(os.listdir(tmp_path)) == before


def test_damaged_segments_are_trimmed_with_what_they_still_hold(tmp_path):
    """A segment without a footer is read block by block to be accounted for."""
    fill(tmp_path, range(2), with_gaps=False)
    oldest = min(tmp_path.iterdir())
    oldest.write_bytes(oldest.read_bytes()[:-20])
    trim(str(tmp_path), 0)
    assert counts(tmp_path)[:2] == [0, 80]


def test_only_what_may_go_is_counted_and_goes(tmp_path):
    """What a collector has too is kept up to a size of its own; what it has not stays, however old it is."""
    fill(tmp_path, range(8))
    acked = SeqSet([(51, 300)])  # segments 1 to 5, not the oldest and not the newest
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(tmp_path)}
    one = max(sizes.values())

    def may_go(spans: Spans) -> bool:
        return all(acked.includes(span.stored) for span in spans.values())

    assert trim(str(tmp_path), 5 * one, may_go=may_go).removed == []
    done = trim(str(tmp_path), 3 * one, may_go=may_go)
    assert 40 * len(done.removed) == done.records
    assert 2 <= len(done.removed) < 5
    assert done.removed == sorted(sizes)[1 : 1 + len(done.removed)]
    assert counts(tmp_path) == [320 - done.records, done.records, 72, 8, 0]
    trim(str(tmp_path), 0, may_go=may_go)
    assert counts(tmp_path) == [120, 200, 72, 8, 0]
    assert {name for name in sizes if (tmp_path / name).exists()} == {sorted(sizes)[at] for at in (0, 6, 7)}
