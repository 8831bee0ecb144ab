"""What one pass over the segments finds: exact counts, gaps with their edges, last values, curves."""

from __future__ import annotations

from pathlib import Path

from logclient_backend.runs import contents
from logclient_backend.runs.contents import Contents, Edge
from logclient_backend.runs.folder import find
from logclient_backend.runs.view import RunView, view

from .build import NOW_NS, SECOND, NodeMaker, Rec, rec, stream_id


def read(folder: Path, **how: object) -> tuple[RunView, Contents]:
    (run,) = find(str(folder), live_dirs=[], home="/nonexistent")
    seen = view(run)
    return seen, contents.read(seen, **how)  # type: ignore[arg-type]


def test_every_seq_is_stored_or_in_one_gap(tmp_path: Path) -> None:
    """P5: accepted = stored + forgotten + damaged, per stream; trimmed and missing are told within them."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1, refused=2, left_out=3)
    key = (1, 1, 0)
    maker.segment(
        {key: [rec(seq) for seq in (21, 22, 23, 24, 25, 31, 32)]},
        gaps=[(key, 1, 10, "trimmed"), (key, 11, 20, "forgotten"), (key, 24, 28, "damaged")],
    )
    maker.told(1, 1, accepted=40, stored=7)
    maker.save()
    run, found = read(tmp_path)
    counts = found.counts(run)
    assert counts == {
        "accepted": 40,
        "stored": 7,
        "forgotten": 20,
        "damaged": 13,
        "trimmed": 10,
        "missing": 10,
        "refused": 2,
        "left_out": 3,
        "waiting": 0,
    }
    assert counts["accepted"] == counts["stored"] + counts["forgotten"] + counts["damaged"]
    assert {(gap.first, gap.last, gap.cause) for gap in found.gaps} == {
        (1, 10, "trimmed"),
        (11, 20, "forgotten"),
        (26, 28, "damaged"),
        (29, 30, "missing"),
        (33, 40, "missing"),
    }


def test_gap_lies_between_steps_and_times(tmp_path: Path) -> None:
    """The records around a gap are found, though records of two shapes lie in different blocks."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1)
    records = [
        rec(seq, loss=1.0) if seq % 2 else rec(seq, val=2.0) for seq in range(1, 41) if not 11 <= seq <= 20
    ]
    maker.segment({(1, 1, 0): records[:12]})
    maker.segment({(1, 1, 0): records[12:]}, gaps=[((1, 1, 0), 11, 20, "forgotten")])
    maker.save()
    _, found = read(tmp_path)
    (gap,) = found.gaps
    assert gap.records == 10
    assert gap.after == Edge(10, 100, NOW_NS + 10 * SECOND)
    assert gap.before == Edge(21, 210, NOW_NS + 21 * SECOND)
    assert contents.gap_steps(found.gaps) == [(100, 210)]
    assert contents.as_dict(gap)["after"] == {"step": 100, "time": NOW_NS + 10 * SECOND}


def test_gap_at_the_start_has_one_edge(tmp_path: Path) -> None:
    """Nothing lies before it."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1)
    maker.segment({(1, 1, 0): [rec(9)]}, gaps=[((1, 1, 0), 1, 8, "forgotten")])
    maker.save()
    (gap,) = read(tmp_path)[1].gaps
    assert (gap.after, gap.before) == (None, Edge(9, 90, NOW_NS + 9 * SECOND))


def test_stream_that_lost_everything_is_counted(tmp_path: Path) -> None:
    """No segment knows of it, only the agent."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1)
    maker.told(1, 1, accepted=50, stored=0)
    maker.save()
    run, found = read(tmp_path)
    assert found.counts(run)["damaged"] == 50
    assert [(gap.stream, gap.records) for gap in found.gaps] == [(stream_id(1), 50)]


def test_damage_is_counted_and_named(tmp_path: Path) -> None:
    """R2-52: a flipped byte loses the records of one block, and says which steps."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1)
    maker.segment({(1, 1, 0): [rec(seq) for seq in range(1, 5)]})
    path = maker.segment({(1, 1, 0): [rec(seq) for seq in range(5, 9)]})
    data = bytearray(path.read_bytes())
    data[data.find(b"\xb7\x03") + 40] ^= 1
    path.write_bytes(data)
    maker.told(1, 1, accepted=8, stored=8)
    maker.save()
    run, found = read(tmp_path)
    assert found.counts(run)["stored"] == 4
    assert found.counts(run)["damaged"] == 4
    assert [(damage.first_step, damage.last_step) for damage in found.damage] == [(50, 80)]


def test_last_value_is_that_of_the_newest_time(tmp_path: Path) -> None:
    """C8-2: steps may come in any order; the point that was logged last is the last one."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1)
    steps = (10_000_000, 4, 3, 2)
    maker.segment({(1, 1, 0): [rec(seq, step=step, loss=float(step)) for seq, step in enumerate(steps, 1)]})
    maker.segment({(2, 1, 1): [rec(1, order=2, time=NOW_NS, loss=77.0, other=1.0)]})
    maker.save()
    _, found = read(tmp_path, curves=9)
    last = found.keys["loss"].last
    assert last is not None
    assert (last.step, last.value) == (2, 2.0)
    assert found.keys["loss"].points == 5
    assert found.keys["loss"].curve().points == 5


def test_keys_come_as_they_were_logged(tmp_path: Path) -> None:
    """In the order of their first points, though segments are sorted by shape."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1)
    records = [rec(1, z=1.0, a=2.0), rec(2, m=1.0), rec(3, z=3.0, a=1.0)]
    maker.segment({(1, 1, 0): [records[1]], (2, 1, 1): [records[0], records[2]]})
    maker.save()
    _, found = read(tmp_path, curves=2)
    assert list(found.keys) == ["z", "a", "m"]
    assert [name for name, key in found.keys.items() if key.curves] == ["z", "a"]


def test_texts_have_no_curve(tmp_path: Path) -> None:
    """A text is a last value and nothing to draw; ints beyond 64 bits are drawn."""
    maker = NodeMaker(tmp_path, "run")
    maker.process(1)
    values = (("note", "s", "hello"), ("big", "i", 2**80), ("flag", "b", 1))
    maker.segment({(1, 1, 0): [Rec(1, 1, 1, NOW_NS, values)]})
    maker.save()
    _, found = read(tmp_path, curves=5)
    assert found.keys["note"].is_text and not found.keys["note"].curves
    assert found.keys["big"].curve().draw(40, 4).high == float(2**80)
    assert found.keys["flag"].curve().points == 1


def test_newest_attempt_wins_where_steps_overlap(tmp_path: Path) -> None:
    """R2-36: resumed from 200, the first attempt's points from there on are superseded, those before stay."""
    first = NodeMaker(tmp_path, "run", "aa")
    first.process(1, end={"time": NOW_NS + 500 * SECOND, "alive": False, "signal": 9})
    first.segment({(1, 1, 0): [rec(seq, step=seq, loss=1.0) for seq in range(1, 301)]})
    first.save()
    second = NodeMaker(tmp_path, "run", "bb")
    second.created_ns = NOW_NS + 900 * SECOND
    second.process(2)
    second.segment(
        {
            (2, 2, 0): [
                rec(seq, step=200 + seq, time=NOW_NS + (900 + seq) * SECOND, loss=2.0)
                for seq in range(1, 201)
            ]
        }
    )
    second.save()
    run, found = read(tmp_path, curves=1)
    assert len(run.attempts) == 2
    key = found.keys["loss"]
    assert key.superseded(1) == [(201, 400)]
    curve = key.curve()
    assert curve.points == 400
    cells = {index << curve.shift: cell for index, cell in curve.cells.items()}
    assert {
        step: (cell.low, cell.high) for step, cell in cells.items() if step in (100, 200, 201, 300, 400)
    } == {
        100: (1.0, 1.0),
        200: (1.0, 1.0),
        201: (2.0, 2.0),
        300: (2.0, 2.0),
        400: (2.0, 2.0),
    }
    assert found.keys["loss"].points == 500


def test_copied_node_counts_once(tmp_path: Path) -> None:
    """The same records in two node folders are the same records."""
    for node in ("aa", "bb"):
        maker = NodeMaker(tmp_path, "run", node)
        maker.process(1)
        maker.segment({(1, 1, 0): [rec(1), rec(2)]})
        maker.save()
    run, found = read(tmp_path, curves=1)
    assert found.counts(run)["stored"] == 2
    assert found.keys["loss"].curve().points == 2


def test_the_newest_value_is_the_last_one_that_was_logged(tmp_path: Path) -> None:
    """Though the clock was set back by an hour between the two, and a segment lies before the other by name."""
    maker = NodeMaker(tmp_path, "run")
    maker.segment({(1, 1, 0): [rec(1, loss=1.0), rec(2, loss=2.0)]})
    maker.segment({(1, 1, 0): [rec(3, loss=3.0, time=NOW_NS - 3600 * SECOND)]})
    maker.process()
    maker.told(1, 1, 3, 3)
    maker.save()
    (found,) = find(str(tmp_path), live_dirs=[], home="/nonexistent")
    last = contents.read(view(found)).keys["loss"].last
    assert last is not None
    assert last.value == 3.0
