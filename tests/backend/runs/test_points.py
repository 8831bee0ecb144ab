"""The canonical order of a run's records, against a list that is sorted."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logclient_backend.runs.points import RunReader
from logclient_backend.wal.codec import Codec
from logclient_backend.wal.files import REAL
from logclient_backend.wal.reader import SEALED, list_stems
from logclient_backend.wal.seal import seal

from .build import NOW_NS, NodeMaker, Rec, process_id, rec, stream_id

SHAPES = ((("loss", "d"),), (("loss", "d"), ("acc", "d")), (("note", "s"),), ())


def taken(reader: RunReader) -> list[tuple[str, int]]:
    """(stream, seq) in the order in which they come."""
    found = []
    for part in reader.parts():
        for at in range(part.start, part.stop):
            found.append((part.stream.hex(), part.columns.seq[at]))
    return found


def in_order(streams: dict[tuple[int, int, int], list[Rec]]) -> list[tuple[str, int]]:
    """The same by sorting everything."""
    by_process: dict[int, list[tuple[int, str, Rec]]] = {}
    for (stream, process, _), records in streams.items():
        for record in records:
            by_process.setdefault(process, []).append((record.order, stream_id(stream), record))
    keyed: list[tuple[int, str, int, str, int]] = []
    for process, entries in by_process.items():
        entries.sort(key=lambda entry: entry[:2])
        times = itertools.accumulate((record.time for _, _, record in entries), max)
        for index, ((_, name, record), time) in enumerate(zip(entries, times, strict=True)):
            keyed.append((time, process_id(process), index, name, record.seq))
    return [(name, seq) for _, _, _, name, seq in sorted(keyed)]


@st.composite
def runs(draw: st.DrawFn) -> tuple[dict[tuple[int, int, int], list[Rec]], list[int]]:
    """Streams of some processes, and how many records of each go into each segment."""
    streams: dict[tuple[int, int, int], list[Rec]] = {}
    number = 0
    for process in range(1, draw(st.integers(1, 3)) + 1):
        lanes = draw(st.lists(st.integers(0, 2), min_size=1, max_size=25))  # which lane each record takes
        time = NOW_NS + draw(st.integers(0, 5))
        seqs: dict[int, int] = {}
        names = {lane: number + lane for lane in range(3)}
        number += 3
        order = 0
        for lane in lanes:
            time += draw(st.integers(-2, 4))
            logged = draw(st.sampled_from((1, 1, 1, 3)))  # and all but the last of them forgotten
            seqs[lane] = seqs.get(lane, 0) + logged
            order += logged
            shape = draw(st.sampled_from(SHAPES))
            values = tuple((key, code, "text" if code == "s" else order / 3) for key, code in shape)
            entry = Rec(seqs[lane], order, order * 5 % 7, time, values, draw(st.sampled_from((None, 0, 5))))
            streams.setdefault((names[lane], process, lane), []).append(entry)
    return streams, draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))


def lay_down(maker: NodeMaker, streams: dict[tuple[int, int, int], list[Rec]], sizes: list[int]) -> None:
    """Segments of a few records of each stream, the last one open, some records in two."""
    left = {key: list(records) for key, records in streams.items()}
    for turn, size in enumerate(itertools.cycle(sizes)):
        now = {key: records[:size] for key, records in left.items() if records}
        if not now:
            return
        again = {key: records[: size - 1] for key, records in left.items() if records} if turn % 2 else now
        is_last = all(len(records) <= size for records in left.values())
        maker.segment(now, is_open=is_last)
        if turn % 3 == 1:  # another writer wrote part of it too
            maker.segment({key: records for key, records in again.items() if records}, writer=b"writer-2")
        left = {key: records[size:] for key, records in left.items()}


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(made=runs())
def test_order_is_that_of_a_sorted_list(made: Any) -> None:
    """Every record once, by time over processes, by number within one, however they lie in segments."""
    streams, sizes = made
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # every segment is fsynced
        maker = NodeMaker(Path(name), "run")
        lay_down(maker, streams, sizes)
        assert taken(RunReader([str(maker.path)])) == in_order(streams)


def test_values_come_with_their_codes(tmp_path: Path) -> None:
    """A rounded float, a big int, a bool and a text are what they were."""
    values = (
        ("a", "r", 0.1),
        ("b", "i", 2**70),
        ("c", "b", 1),
        ("d", "s", "nan"),
        ("e", "q", -5),
        ("f", "d", float("nan")),
    )
    maker = NodeMaker(tmp_path, "run")
    maker.segment({(1, 1, 0): [Rec(1, 1, -7, NOW_NS, values, 3)]})
    points = list(RunReader([str(maker.path)]).points())
    assert [(point.key, point.code, repr(point.value)) for point in points] == [
        ("a", "r", "0.1"),
        ("b", "i", str(2**70)),
        ("c", "b", "True"),
        ("d", "s", "'nan'"),
        ("e", "q", "-5"),
        ("f", "d", "nan"),
    ]
    assert {(point.step, point.rank, point.time) for point in points} == {(-7, 3, NOW_NS)}
    assert [point.key for point in RunReader([str(maker.path)]).points({"e", "a"})] == ["a", "e"]


def test_copied_node_gives_each_record_once(tmp_path: Path) -> None:
    """The same segments in two node folders are the same records."""
    first, second = NodeMaker(tmp_path, "run", "aa"), NodeMaker(tmp_path / "copy", "run", "bb")
    for maker in (first, second):
        maker.segment({(1, 1, 0): [rec(seq) for seq in range(1, 8)]})
    assert len(taken(RunReader([str(first.path), str(second.path)]))) == 7


def test_what_comes_later_is_not_read(tmp_path: Path) -> None:
    """A reader shows the run as it was when it looked, though the open segment grows."""
    maker = NodeMaker(tmp_path, "run")
    path = maker.segment({(1, 1, 0): [rec(1), rec(2)]}, is_open=True)
    reader = RunReader([str(maker.path)])
    maker.number = 0
    path.unlink()
    maker.segment({(1, 1, 0): [rec(1), rec(2), rec(3)], (2, 2, 0): [rec(1)]}, is_open=True)
    assert taken(reader) == [(stream_id(1), 1), (stream_id(1), 2)]


def test_segment_that_is_sealed_meanwhile_is_read(tmp_path: Path) -> None:
    """The open form is gone when its turn comes, the sealed one is there."""
    maker = NodeMaker(tmp_path, "run")
    path = maker.segment({(1, 1, 0): [rec(1), rec(2)]}, is_open=True)
    reader = RunReader([str(maker.path)])
    seal(REAL, path.read_bytes(), path.name, str(maker.path))
    assert not path.exists()
    assert len(taken(reader)) == 2


def test_memory_holds_a_few_segments(tmp_path: Path) -> None:
    """Streams that start late do not hold all segments before them in memory, and each is decoded once."""
    maker = NodeMaker(tmp_path, "run")
    for part in range(40):
        streams = {
            (process, process, 0): [
                rec(seq, time=NOW_NS + 1000 * seq + process) for seq in range(part * 10 + 1, part * 10 + 11)
            ]
            for process in (1, 2)
        }
        if part == 39:
            streams[9, 9, 0] = [rec(1, time=NOW_NS + 1000 * 400)]
        maker.segment(streams)
    reader = RunReader([str(maker.path)])
    decoded: list[int] = []
    decode, kept = reader._decode, reader._decoded
    reader._decode = lambda segment: decoded.append(len(kept)) or decode(segment)  # type: ignore[method-assign, func-returns-value]
    assert len(taken(reader)) == 801
    assert len(decoded) == 40
    assert max(decoded) <= 2


def test_damaged_segment_costs_its_records_alone(tmp_path: Path) -> None:
    """R2-52: a flipped byte is told, with the steps that are lost; everything else is read."""
    maker = NodeMaker(tmp_path, "run")
    maker.segment({(1, 1, 0): [rec(seq) for seq in range(1, 6)]})
    hurt = maker.segment(
        {(1, 1, 0): [rec(seq) for seq in range(6, 11)], (2, 1, 1): [rec(1, order=20, acc=1.0)]}
    )
    data = bytearray(hurt.read_bytes())
    at = data.find(b"\xb7\x03") + 40
    data[at] ^= 0xFF
    hurt.write_bytes(data)
    reader = RunReader([str(maker.path)])
    found = taken(reader)
    assert [seq for stream, seq in found if stream == stream_id(1)] == [1, 2, 3, 4, 5]
    assert [seq for stream, seq in found if stream == stream_id(2)] == [1]
    assert [(damage.first_step, damage.last_step) for damage in reader.damage] == [(60, 100)]


def test_newer_segment_is_named_and_passed_over(tmp_path: Path) -> None:
    """A segment of a newer version hides no other."""
    maker = NodeMaker(tmp_path, "run")
    maker.segment({(1, 1, 0): [rec(1)]})
    from logclient_backend.wal import segment as form

    newer = bytearray(form.pack_header(b"writer-3", 1, NOW_NS, sealed=True))
    newer[8] = form.VERSION + 1
    import zlib

    newer[form.HEADER.size :] = zlib.crc32(newer[: form.HEADER.size]).to_bytes(4, "little")
    (maker.path / form.segment_name(b"writer-3", 1, sealed=True)).write_bytes(newer)
    reader = RunReader([str(maker.path)])
    assert len(taken(reader)) == 1
    assert "version" in "".join(reader.unsupported.values())


def test_link_out_of_the_folder_and_unreadable_file_cost_themselves_alone(tmp_path: Path) -> None:
    """R2-26: what is not readable, or leads outside, is named; everything else is read."""
    outside = NodeMaker(tmp_path / "outside", "other")
    path = outside.segment({(5, 5, 0): [rec(1)]})
    maker = NodeMaker(tmp_path / "inside", "run")
    maker.segment({(1, 1, 0): [rec(1)]})
    (maker.path / path.name.replace("000001", "000009")).symlink_to(path)
    (maker.path / "0123456789abcdef-000001.seg").mkdir()
    reader = RunReader([str(maker.path)])
    assert taken(reader) == [(stream_id(1), 1)]
    assert sorted(reader.unsupported.values()) == [
        "not readable: it is a folder, no regular file",
        "not readable: it is a symbolic link, no regular file",
    ]


def test_stems_are_sealed_or_open(tmp_path: Path) -> None:
    """What the maker lays down is what the agent would: a check of the helper."""
    maker = NodeMaker(tmp_path, "run")
    maker.segment({(1, 1, 0): [rec(1)]})
    maker.segment({(1, 1, 0): [rec(2)]}, is_open=True)
    stems = list_stems(REAL, str(maker.path))
    assert [(stem.is_sealed, stem.is_open) for stem in stems] == [(True, False), (False, True)]
    assert SEALED == ".seg" and Codec().dense is False
