"""What is handed to `import` may be anything: taken as a whole, or refused with the place and nothing left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from logclient.errors import BadArgument, LogclientError, NoRun, Unsupported
from logclient.shm.shm_dir import folder_name
from logclient_backend.runs.export import Export
from logclient_backend.runs.folder import find
from logclient_backend.runs.importer import Import
from logclient_backend.runs.view import view

from .build import NOW_NS, NodeMaker, Rec, simple_run, stream_id

STREAM = stream_id(1)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """An export of one small run, to be spoiled."""
    maker = NodeMaker(tmp_path / "source", "run-1")
    maker.process(1)
    values = (("loss", "d", 0.5), ("n", "q", 3), ("ok", "b", 1), ("note", "s", "hi"))
    records = [Rec(seq, seq, seq, NOW_NS + seq, values, 0) for seq in (1, 2, 3)] + [
        Rec(4, 4, 9, NOW_NS + 9, ())
    ]
    maker.segment({(1, 1, 0): records})
    maker.save()
    (run,) = find(str(tmp_path / "source"), live_dirs=[], home="/nonexistent")
    Export(view(run)).write(str(tmp_path / "out"), "jsonl")
    return tmp_path / "out"


def spoil(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "run.json").read_text())
    change(content)
    (folder / "run.json").write_text(json.dumps(content))


def take_in(folder: Path, base: Path) -> str:
    return Import(str(folder)).run(str(base))


def records(with_points: int, last: int) -> dict[str, Any]:
    """Boundaries of another number of records, the last of them empty."""
    empty = [[last, 1, 1, None]]
    return {"seqs": [1, last], "orders": [0, last], "shapes": [0, with_points, 1, 1], "empty": empty}


def line(number: int, key: str, value: str, step: int = 1) -> tuple[int, str]:
    """Another line of the first record, with a value as JSON."""
    return number, (
        f'{{"step":{step},"key":"{key}","value":{value},"time":{NOW_NS + 1},"stream":"{STREAM}","rank":0}}'
    )


def bare(
    step: str = "1", key: str = '"loss"', value: str = "1", time: str = "1", rank: str = "0"
) -> tuple[int, str]:
    """A first line of fields as JSON."""
    return 1, f'{{"step":{step},"key":{key},"value":{value},"time":{time},"stream":"s","rank":{rank}}}'


def name_it(run_id: str, content: dict[str, Any]) -> None:
    content["run"]["id"] = run_id


def stream(content: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = content["streams"][STREAM]
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("format"), "is not what `logclient export` writes"),
        (lambda c: c["run"].pop("id"), "run.id: expected a text"),
        (lambda c: c["run"].update(id=7), "run.id: expected a text"),
        (lambda c: c["points"].update(format="../../etc/passwd"), "points.format: '../../etc/passwd' is none of"),
        (lambda c: c.pop("shapes"), "shapes: expected a list"),
        (lambda c: c["shapes"][0].update(codes="dqbz"), r"shapes\[0\]: expected keys, and a code"),
        (lambda c: c["shapes"][0].update(keys=["x" * 70_000, "a", "b", "c"]), "key 'xxx.* is no text of at most"),
        (lambda c: c["shapes"][0].update(keys=["\ud800", "a", "b", "c"]), "is no valid Unicode"),
        (lambda c: c["nodes"].update({"../../evil": {}}), "nodes: '../../evil' is no id of a node"),
        (lambda c: c["nodes"].update({"UP": {}}), "nodes: 'UP' is no id of a node"),
        (lambda c: c["nodes"].update({"aa": 5}), "nodes.aa: expected an object"),
        (lambda c: c["nodes"].update({"aa": {"x": {"$float": "1"}}}), "nan, inf or -inf"),
        (lambda c: c["streams"].update({"zz": {}}), "streams: 'zz' is no id of 32 hex digits"),
        (lambda c: c["streams"].update({STREAM: 3}), "expected an object"),
        (lambda c: stream(c).update(node="bb"), "'bb' is not among the nodes"),
        (lambda c: stream(c).update(process="x"), "process: 'x' is no id"),
        (lambda c: stream(c).update(lane=-1), "lane: -1 is no integer"),
        (lambda c: stream(c).update(seqs=[1]), "seqs: expected pairs of integers"),
        (lambda c: stream(c).update(seqs=[1, 2, 2, 3]), "seqs: 2, 3 after 2 is no range"),
        (lambda c: stream(c).update(seqs=[0, 3]), "seqs: 0, 3 after 0 is no range"),
        (lambda c: stream(c).update(seqs=[1, 10**18]), "orders: 4 records, but .*seqs has 1000000000000000000"),
        (lambda c: stream(c).update(shapes=[0, 3, 9, 1]), "shapes: 9 is no integer from 0 to 1"),
        (lambda c: stream(c).update(shapes=[0, 4, 1, 0]), "shapes: 0 is no integer from 1"),
        (lambda c: stream(c).update(orders=[-5, 4]), "number -4 of record 1 is none"),
        (lambda c: stream(c).update(empty=[]), "record 4 has no points and is not in empty"),
        (lambda c: stream(c).update(empty=[[4, 1]]), r"empty: expected \[seq, step, time, rank\]"),
        (lambda c: stream(c).update(empty=[[4, 2**63, 0, None]]), "is no integer from -9223372036854775808"),
        (lambda c: stream(c).update(gaps={"eaten": [1, 2]}), "gaps: 'eaten' is none of"),
        (lambda c: stream(c).update(gaps={"damaged": [5, 1]}), "5, 1 is no range"),
        (lambda c: stream(c).update(records(4, 5)), "ends, but run.json names 2 more"),
        (lambda c: stream(c).update(records(2, 3)), "line 9: stream .* has more points"),
        (lambda c: c["streams"].clear(), "line 1: stream .* is not in run.json"),
    ],
)  # fmt: skip
def test_run_file_that_makes_no_sense_is_refused(
    exported: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """With the place in it; the target folder is as it was."""
    base = tmp_path / "runs"
    simple_run(base, "other")
    spoil(exported, change)
    with pytest.raises(BadArgument, match=message):
        take_in(exported, base)
    assert os.listdir(base) == ["other"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((3, "nonsense"), "line 3: no JSON"),
        ((2, '{"step":1}'), "line 2: expected an object with exactly the fields"),
        ((2, "[]"), "line 2: expected an object"),
        (bare(step="1.5"), "line 1: step 1.5 is no integer"),
        (bare(step="true"), "line 1: step True is no integer"),
        (bare(key="7"), "line 1: key 7 is no text"),
        (bare(time=str(2**63)), "line 1: time"),
        (bare(rank="-1"), "line 1: rank -1 is none"),
        (bare(value="NaN"), "line 1: no JSON: NaN"),
        (line(1, "x", "1"), "line 1: key 'x', where run.json has 'loss'"),
        (line(1, "loss", '"big"'), "line 1: value 'big' is no float"),
        (line(2, "n", "2.0"), "line 2: value 2.0 is no int"),
        (line(2, "n", str(2**64)), "line 2: value .* is no integer of 64 bits"),
        (line(3, "ok", "1"), "line 3: value 1 is no bool"),
        (line(4, "note", '"\\ud800"'), "line 4: .*surrogates"),
        (line(2, "n", "2", step=5), "line 2: step, time or rank differ"),
        ((2, '{"a":' * 100_000), "line 2: no JSON"),
        ((2, '{"step":' + "9" * 5000 + "}"), "line 2: no JSON"),
    ],
)
def test_bad_line_is_told_by_its_number(
    exported: Path, tmp_path: Path, bad: tuple[int, str], message: str
) -> None:
    """The first line that is none of ours stops it, and nothing is left behind."""
    lines = (exported / "points.jsonl").read_text().splitlines()
    lines[bad[0] - 1] = bad[1]
    (exported / "points.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(BadArgument, match=f"points.jsonl {message}"):
        take_in(exported, tmp_path / "runs")
    assert os.listdir(tmp_path / "runs") == []


def test_bad_csv_and_parquet_are_told_too(exported: Path, tmp_path: Path) -> None:
    """Other formats, the same care."""
    spoil(exported, lambda content: content["points"].update(format="csv"))
    for text, message in (
        ("a,b\n", "line 1: expected the header"),
        ("step,key,value,time,stream,rank\n1,2\n", "line 2: 2 fields, expected 6"),
        ("step,key,value,time,stream,rank\n1,loss,x,1," + STREAM + ",\n", "line 2: value 'x' is no float"),
        ('step,key,value,time,stream,rank\n1,"loss\n', "line 2: unexpected end of data"),
    ):
        (exported / "points.csv").write_text(text)
        with pytest.raises(BadArgument, match=message):
            take_in(exported, tmp_path / "runs")
    (exported / "points.csv").write_bytes(b"step,key,value,time,stream,rank\n\xff\xfe")
    with pytest.raises(BadArgument, match="no UTF-8"):
        take_in(exported, tmp_path / "runs")
    spoil(exported, lambda content: content["points"].update(format="parquet"))
    (exported / "points.parquet").write_bytes(b"PAR1 rubbish PAR1")
    with pytest.raises(BadArgument, match="no parquet file of ours"):
        take_in(exported, tmp_path / "runs")


def test_hostile_id_stays_in_the_folder(exported: Path, tmp_path: Path) -> None:
    """R2-26: any id becomes a harmless folder name, and is shown as it was given."""
    for run_id in ("../../up", "/etc/passwd", "a\0b", "..", "CON", "x" * 5000):
        spoil(exported, partial(name_it, run_id))
        path = Path(take_in(exported, tmp_path / "runs"))
        assert path.parent == tmp_path / "runs"
        assert path.name == folder_name(run_id)
    assert sorted(os.listdir(tmp_path)) == ["out", "runs", "source"]


def test_link_in_the_export_is_not_followed(exported: Path, tmp_path: Path) -> None:
    """R2-26: a link to a file outside reads nothing outside."""
    (exported / "points.jsonl").unlink()
    (exported / "points.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(BadArgument, match="a symbolic link"):
        take_in(exported, tmp_path / "runs")
    assert os.listdir(tmp_path / "runs") == []


def test_run_that_is_there_is_refused(exported: Path, tmp_path: Path) -> None:
    """Until it is to be replaced; a live one never is."""
    base = tmp_path / "runs"
    simple_run(base, "run-1")
    before = sorted(path.name for path in base.rglob("*"))
    with pytest.raises(BadArgument, match=r"run run-1 is in .* already; --replace"):
        take_in(exported, base)
    with pytest.raises(BadArgument, match=r"run-1 in .* is live"):
        Import(str(exported)).run(str(base), replace=True, busy={os.path.realpath(base / "run-1")})
    assert sorted(path.name for path in base.rglob("*")) == before
    Import(str(exported)).run(str(base), replace=True)
    assert os.listdir(base) == ["run-1"]
    (run,) = find(str(base), live_dirs=[], home="/nonexistent")
    assert view(run).config == {}
    assert sum(1 for _ in (base / "run-1").rglob("*.seg")) == 1


def test_interrupted_import_leaves_nothing(exported: Path, tmp_path: Path) -> None:
    """Ctrl-C in the middle: the folder is as it was."""

    def press(done: int) -> None:
        raise KeyboardInterrupt

    made = Import(str(exported))
    made.points = -12  # the progress is told every 4096 points
    with pytest.raises(KeyboardInterrupt):
        made.run(str(tmp_path / "runs"), progress=press)
    assert os.listdir(tmp_path / "runs") == []


def test_what_is_no_export_is_said(tmp_path: Path) -> None:
    """No such folder, no run.json, a newer version."""
    with pytest.raises(NoRun, match="give the folder that `logclient export --out` made"):
        Import(str(tmp_path))
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(BadArgument, match="no JSON of ours"):
        Import(str(tmp_path))
    (tmp_path / "run.json").write_text('{"format": "logclient-export", "version": 2}')
    with pytest.raises(Unsupported, match="version 2"):
        Import(str(tmp_path))
    (tmp_path / "run.json").write_text('{"format": "logclient-export"}')
    with pytest.raises(LogclientError):
        Import(str(tmp_path))


def test_large_runs_become_several_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: what was read is written as it comes."""
    maker = NodeMaker(tmp_path / "source", "run-1")
    maker.process(1)
    maker.segment(
        {(1, 1, 0): [Rec(seq, seq, seq, NOW_NS + seq, (("a", "d", 1.0),)) for seq in range(1, 2001)]}
    )
    maker.save()
    (run,) = find(str(tmp_path / "source"), live_dirs=[], home="/nonexistent")
    Export(view(run)).write(str(tmp_path / "out"), "jsonl")
    monkeypatch.setattr("logclient_backend.runs.importer._SEGMENT_BYTES", 10_000)
    path = take_in(tmp_path / "out", tmp_path / "runs")
    assert sum(1 for _ in Path(path).rglob("*.seg")) == 8
    (run,) = find(str(tmp_path / "runs"), live_dirs=[], home="/nonexistent")
    Export(view(run)).write(str(tmp_path / "again"), "jsonl")
    assert (tmp_path / "again" / "points.jsonl").read_bytes() == (
        tmp_path / "out" / "points.jsonl"
    ).read_bytes()
