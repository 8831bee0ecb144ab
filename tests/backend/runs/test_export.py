"""A run out and in again: nothing is lost, and the bytes are the same."""

from __future__ import annotations

import csv
import io
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logclient.shm.columns import read_column
from logclient_backend.runs import formats, strict
from logclient_backend.runs.export import RUN_FILE, Export, points_file
from logclient_backend.runs.folder import find
from logclient_backend.runs.formats import FIELDS, FORMATS
from logclient_backend.runs.importer import Import
from logclient_backend.runs.order import Part
from logclient_backend.runs.points import RunReader
from logclient_backend.runs.view import RunView, view

from .build import NOW_NS, SECOND, NodeMaker, Rec, columns_of, rec, simple_run, stream_id

ODD_KEYS = [
    "timing(s)/gen", "val/AR@100", "a//b", "/a", "a/", "a", "a/b", "Loss", "loss", "损失", "🔥", "  blanks  ",
    "caf\u00e9", "cafe\u0301", "..", "key\nwith newline", 'quote"d', "comma,d", "~escaped~0123456789abcdef", "3",
    "\u2028line", "\u202eright", "tab\there", "k" * 512, "'", "\\", "{}", "=1+1",
]  # fmt: skip
FLOATS = [
    0.1, 1.0, -0.0, 1e300, 5e-324, 1 / 3, math.nan, math.inf, -math.inf, 1.7976931348623157e308, 123456789.123456789
]  # fmt: skip


def seen(folder: Path) -> RunView:
    (run,) = find(str(folder), live_dirs=[], home="/nonexistent")
    return view(run)


def there_and_back(folder: Path, work: Path, format: str) -> tuple[Path, Path, Path]:
    """The export, the imported folder, and the export of that."""
    first, runs, second = work / "first", work / "runs", work / "second"
    Export(seen(folder)).write(str(first), format)
    Import(str(first)).run(str(runs))
    Export(seen(runs)).write(str(second), format)
    return first, runs, second


def assert_same_bytes(first: Path, second: Path, format: str) -> None:
    for name in (points_file(format), RUN_FILE):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def all_records(folder: Path) -> list[Any]:
    """Everything that a record holds, of all records; one NaN is like another."""
    found: list[Any] = []
    run = seen(folder)
    for part in RunReader([node.path for node in run.nodes]).parts():
        columns = part.columns
        cells = [
            read_column(code, column) for code, column in zip(columns.shape.codes, columns.cells, strict=True)
        ]
        for at in range(part.start, part.stop):
            numbers = [columns.seq[at], columns.order[at], columns.step[at], columns.time[at]]
            found.append((part[:3], numbers, columns.rank, columns.shape, [column[at] for column in cells]))
    return found


@pytest.fixture
def odd_run(tmp_path: Path) -> Path:
    """R2-04, R2-57: every odd key and value, empty records, gaps, several processes, nodes, lanes and attempts."""
    folder = tmp_path / "odd"
    maker = NodeMaker(folder, "Awkward/../id", "00000000000000aa")
    maker.name = "näme"
    config = {
        "a": {"b": 1},
        "a.b": 2,
        "a/b": 3,
        "enc": ["x", {"y": 4}],
        "5": 6,
        "nan": math.nan,
        "$float": "nan",
        "$": {"$x": -math.inf},
    }
    maker.process(
        1,
        documents={"config": config, "about": {"name": "näme", "tags": ["t"]}},
        end={"time": NOW_NS, "alive": False, "signal": 9},
    )
    maker.process(2, role="member", rank=3, refused=1, left_out=2)
    keys = tuple((key, "d", number / 3) for number, key in enumerate(ODD_KEYS))
    codes = (
        ("f", "d", 2.0),
        ("r", "r", 0.1),
        ("q", "q", -(2**63)),
        ("q2", "q", 2**53 + 1),
        ("i", "i", -(2**70)),
        ("i2", "i", 10**400),
        ("b", "b", 1),
        ("b0", "b", 0),
    )
    texts = tuple(
        (f"t{number}", "s", text)
        for number, text in enumerate(
            ("nan", "", "1.5", "true", 'a"b,c\nd\r\ne\0', "损失\u2028", "inf", "\r")
        )
    )
    records = [Rec(seq, seq, seq, NOW_NS + seq, (("x", "d", value),)) for seq, value in enumerate(FLOATS, 1)]
    at = len(records)
    records += [
        Rec(at + 1, at + 1, -5, NOW_NS, keys),
        Rec(at + 2, at + 2, 2**63 - 1, NOW_NS + 99, codes, 7),
        Rec(at + 3, at + 3, -(2**63), NOW_NS + 98, texts),
        Rec(at + 4, at + 4, 17, NOW_NS + 97, (), 5),
        Rec(at + 5, at + 5, 18, NOW_NS + 97, ()),
    ]
    maker.segment({(1, 1, 0): records}, gaps=[((1, 1, 0), at + 6, at + 9, "forgotten")])
    maker.segment(
        {
            (1, 1, 0): [rec(at + 10, order=at + 20)],
            (2, 2, 1): [rec(seq, order=2 * seq, time=NOW_NS + 3 * seq, rank=3) for seq in (1, 2, 5)],
        },
        gaps=[((3, 2, 0), 1, 50, "trimmed"), ((2, 2, 1), 3, 4, "damaged")],
        is_open=True,
    )
    maker.told(1, 1, at + 12, at + 6)
    maker.told(4, 2, 8, 0)
    maker.save()
    other = NodeMaker(folder, "Awkward/../id", "00000000000000bb")
    other.created_ns = NOW_NS + 7200 * SECOND
    other.process(5)
    other.segment({(7, 5, 0): [rec(seq, time=NOW_NS + 7200 * SECOND + seq) for seq in range(1, 300)]})
    other.segment({(7, 5, 0): [Rec(300, 300, 1, NOW_NS + 7300 * SECOND, ())]})
    other.save()
    lost = NodeMaker(folder, "Awkward/../id", "00000000000000cc")  # its documents are gone
    lost.segment({(9, 9, 0): [rec(1)]})
    return folder


@pytest.mark.parametrize("format", FORMATS)
def test_export_import_export_gives_the_same_bytes(odd_run: Path, tmp_path: Path, format: str) -> None:
    """Every odd key, value, gap and document, in each format; original times to the nanosecond."""
    first, runs, second = there_and_back(odd_run, tmp_path, format)
    assert_same_bytes(first, second, format)
    assert repr(all_records(runs)) == repr(all_records(odd_run))
    before, after = seen(odd_run), seen(runs)
    assert after.id == "Awkward/../id"
    assert repr(after.config) == repr(before.config)
    assert (after.state, after.attempts, after.name) == (before.state, before.attempts, "näme")


@pytest.mark.parametrize("format", FORMATS)
def test_import_can_change_the_format(odd_run: Path, tmp_path: Path, format: str) -> None:
    """What came in as one format goes out as any other, the same."""
    first, runs, _ = there_and_back(odd_run, tmp_path, format)
    for other in FORMATS:
        Export(seen(odd_run)).write(str(tmp_path / "direct"), other)
        Export(seen(runs)).write(str(tmp_path / "around"), other)
        assert_same_bytes(tmp_path / "direct", tmp_path / "around", other)
    assert first.is_dir()


def test_jsonl_is_one_point_a_line_with_six_fields(odd_run: Path, tmp_path: Path) -> None:
    """Strict JSON, ASCII; NaN and infinities as strings, times in whole nanoseconds."""
    out = io.BytesIO()
    Export(seen(odd_run)).write_points("jsonl", out)
    lines = out.getvalue().decode("ascii").splitlines()
    points = [strict.loads(line) for line in lines]
    assert all(tuple(point) == FIELDS for point in points)
    by_key = {point["key"]: point for point in points if point["key"] != "x"}
    assert set(ODD_KEYS) <= set(by_key)
    assert [point["value"] for point in points if point["key"] == "x"][6:9] == ["nan", "inf", "-inf"]
    assert [str(point["value"]) for point in points if point["key"] == "x"][2] == "-0.0"
    assert by_key["q"]["value"] == -(2**63) and by_key["i"]["value"] == -(2**70)
    assert by_key["b"]["value"] is True and by_key["b0"]["value"] is False
    assert (by_key["q"]["rank"], by_key["f"]["step"], by_key["f"]["time"]) == (7, 2**63 - 1, NOW_NS + 99)
    assert by_key["f"]["stream"] == stream_id(1) and by_key["t0"]["rank"] is None
    assert type(by_key["f"]["value"]) is float


def test_csv_can_be_read_by_anybody(odd_run: Path) -> None:
    """A header, six columns, quotes only where needed."""
    out = io.BytesIO()
    Export(seen(odd_run)).write_points("csv", out)
    found = list(csv.DictReader(io.StringIO(out.getvalue().decode(), newline="")))
    assert list(found[0]) == list(FIELDS)
    assert {row["key"] for row in found} >= set(ODD_KEYS)
    assert [row["value"] for row in found if row["key"] == "t4"] == ['a"b,c\nd\r\ne\0']


def test_parquet_is_what_others_make_of_it(odd_run: Path, tmp_path: Path) -> None:
    """Numbers are float64, texts and digits that a float64 cannot hold stand beside, times are timestamps."""
    parquet = pytest.importorskip("pyarrow.parquet")
    Export(seen(odd_run)).write(str(tmp_path / "out"), "parquet")
    table = parquet.read_table(tmp_path / "out" / "points.parquet")
    assert table.column_names == [*FIELDS, "text"]
    rows = {row["key"]: row for row in table.drop_columns(["time"]).to_pylist()}
    assert rows["i"] | {"stream": ""} == {
        "step": 2**63 - 1, "key": "i", "value": -float(2**70), "stream": "", "rank": 7, "text": str(-(2**70)),
    }  # fmt: skip
    assert (rows["i2"]["value"], rows["i2"]["text"]) == (math.inf, str(10**400))
    assert (rows["t0"]["value"], rows["t0"]["text"]) == (None, "nan")
    assert (rows["q2"]["text"], rows["b"]["value"], rows["b"]["text"]) == (str(2**53 + 1), 1.0, None)
    assert str(table.schema.field("time").type) == "timestamp[ns, tz=UTC]"


def test_run_file_tells_the_rest(odd_run: Path, tmp_path: Path) -> None:
    """Documents, streams, ranks, gaps and counts, as strict JSON."""
    Export(seen(odd_run)).write(str(tmp_path / "out"), "jsonl")
    content = strict.loads((tmp_path / "out" / RUN_FILE).read_bytes())
    assert content["run"]["id"] == "Awkward/../id"
    counts = content["counts"]
    assert (counts["stored"], counts["forgotten"]) == (17 + 3 + 300 + 1, 4 + 50)
    assert (
        counts["damaged"] == 2 + 2 + 8
    )  # noted, at the end of a stream, of a stream that nothing is left of
    assert counts["accepted"] == counts["stored"] + counts["forgotten"] + counts["damaged"]
    assert (counts["refused"], counts["left_out"]) == (1, 2)
    assert content["ranks"] == [3, 5, 7]
    assert content["config"]["nan"] == "nan" and content["config"]["a.b"] == 2
    forgotten = [gap for gap in content["gaps"] if gap["cause"] == "forgotten"]
    assert [(gap["records"], gap["after"]["step"]) for gap in forgotten] == [(4, 18)]
    assert content["streams"][stream_id(2)]["seqs"] == [1, 2, 5, 5]
    assert content["nodes"]["00000000000000cc"] is None
    assert json.loads(json.dumps(strict.unwrap(content["nodes"]["00000000000000aa"])))["version"] == 1


def test_damage_goes_out_as_a_gap(tmp_path: Path) -> None:
    """What cannot be read is left out, told, and stays a gap of known size."""
    maker = simple_run(tmp_path / "runs", records=4)
    path = maker.segment({(1, 1, 0): [rec(seq) for seq in range(5, 9)]})
    data = bytearray(path.read_bytes())
    data[data.find(b"\xb7\x03") + 40] ^= 1
    path.write_bytes(data)
    maker.told(1, 1, 8, 8)
    maker.save()
    made = Export(seen(tmp_path / "runs"))
    made.write(str(tmp_path / "out"), "jsonl")
    assert len(made.reader.damage) == 1
    content = strict.loads((tmp_path / "out" / RUN_FILE).read_bytes())
    assert content["counts"]["damaged"] == 4
    first, _, second = there_and_back(tmp_path / "runs", tmp_path / "work", "jsonl")
    assert_same_bytes(first, second, "jsonl")


VALUES = {
    "d": st.floats(allow_nan=True),
    "r": st.floats(allow_nan=False),
    "q": st.integers(-(2**63), 2**63 - 1),
    "b": st.integers(0, 1),
    "i": st.integers(2**63, 2**80) | st.integers(-(2**80), -(2**63) - 1),
    "s": st.text(max_size=8),
}
CELLS = st.sampled_from("drqbis").flatmap(
    lambda code: st.tuples(st.text(min_size=1, max_size=6), st.just(code), VALUES[code])
)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    records=st.lists(
        st.tuples(
            st.lists(CELLS, max_size=4).map(tuple),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(-(2**62), 2**62),
            st.none() | st.integers(0, 9),
            st.integers(1, 3),
        ),
        max_size=12,
    ),
    format=st.sampled_from(FORMATS),
)
def test_any_records_survive(records: list[Any], format: str) -> None:
    """Whatever was logged, in whatever order of steps and times, goes out and comes in the same."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:  # every file is fsynced, some ten an example
        work = Path(name)
        maker = NodeMaker(work / "in", "run")
        maker.process(1)
        made, seq = [], 0
        for values, step, time, rank, skip in records:
            seq += skip
            made.append(Rec(seq, seq, step, time, values, rank))
        if made:
            maker.segment({(1, 1, 0): made})
        maker.save()
        first, runs, second = there_and_back(work / "in", work, format)
        assert_same_bytes(first, second, format)
        assert repr(all_records(runs)) == repr(all_records(work / "in"))


def test_guarded_cells_are_no_formulas() -> None:
    """Keys and texts get an apostrophe; numbers, negative ones too, stay numbers."""
    values = (("=cmd", "s", "=1+1"), ("@x", "d", -1.5), ("plain", "s", "-2"), ("note", "s", "a=b"))
    (columns,) = columns_of([rec(1)._replace(values=values)])
    part = Part(b"s" * 16, b"p" * 16, 0, columns, 0, 1)
    guarded, bare = io.BytesIO(), io.BytesIO()
    formats.writer("csv", guarded, guards_cells=True).write(part)
    formats.writer("csv", bare).write(part)
    cells = [line.split(",")[1:3] for line in guarded.getvalue().decode().splitlines()[1:]]
    assert cells == [["'=cmd", "'=1+1"], ["'@x", "-1.5"], ["plain", "'-2"], ["note", "a=b"]]
    assert b"'" not in bare.getvalue()
