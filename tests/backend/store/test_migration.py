"""Stores that earlier versions wrote: what they hold is there, nothing of it is lost, and it is told before."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from logclient_backend.cli import cli
from logclient_backend.collector.store.embedded import open_store, schema
from logclient_backend.collector.store.embedded.database import FILE
from logclient_backend.collector.store.interface import RunQuery
from tests.backend.store.samples import parcel
from tests.golden import make_store as golden

DAY_NS = 24 * golden.HOUR_NS
VERSIONS = sorted(golden.FOLDER.glob("store-*"))


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data folder with the golden store of that version."""
    folder = tmp_path / "data"
    (folder / "store").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "store" / FILE).write_bytes(gzip.decompress((request.param / "store.db.gz").read_bytes()))
    return folder


def test_all_that_an_earlier_version_stored_is_there(data: Path) -> None:
    """Every value, infinities counted, the newest value by seq, and the run in the bin; after upkeep, too."""
    is_first = schema_version(data) == 1
    store = open_store(str(data / "store"))
    try:
        for _ in range(2):
            points = store.reader.points("run", "loss")
            by_stream = [
                {
                    seq: value
                    for seq, value, index in zip(
                        points.seq.tolist(), points.values, points.stream, strict=True
                    )
                    if points.streams[index].stream == stream
                }
                for stream in (golden.FIRST, golden.SECOND)
            ]
            assert [len(found) for found in by_stream] == [50, 20]
            for seq, value in by_stream[0].items():
                expected = golden.ODD.get(seq, float(seq))
                assert value == expected or (math.isnan(expected) and value != value)
            found = store.reader.buckets("run", "loss", most=1, all_attempts=True)
            assert (found.nans.tolist(), found.infs.tolist(), found.neg_infs.tolist()) == ([1], [1], [1])
            assert (found.min.tolist(), found.max.tolist()) == ([1.0], [50.0])
            # of the second attempt's stream version 1 kept no newest value: it was older by the clock
            newest = store.reader.last_values(["run"], ["loss"])["run", "loss"]
            assert newest.value == (50.0 if is_first else 20.0)
            assert [key.points for key in store.reader.keys("run").keys] == [70, 70]
            while store.compact(deadline_s=60, now=True):
                pass
        assert [run.id for run in store.reader.runs(RunQuery(deleted=True)).runs] == ["binned"]
        for edits in (None, b"edits"):  # there are none, and there may be some
            edited = parcel()
            edited.edits = edits
            store.writer.write([edited])
            run = store.reader.run("run")
            assert run is not None and run.edits == edits
        assert store.writer.purge(DAY_NS) == 0, "the time in the bin counts from the migration on"
        assert store.writer.undelete("binned")
        assert store.reader.points("binned", "loss").seq.tolist() == [1, 2, 3, 4, 5]
    finally:
        store.close()


def test_tables_are_those_of_a_new_store(data: Path, tmp_path: Path) -> None:
    """By name, each with the same columns."""
    open_store(str(data / "store")).close()
    open_store(str(tmp_path / "new")).close()
    assert _tables(data / "store") == _tables(tmp_path / "new")


def _tables(folder: Path) -> dict[str, set[str]]:
    connection = sqlite3.connect(folder / FILE)
    try:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {name: {row[1] for row in connection.execute(f"PRAGMA table_info({name})")} for name in names}
    finally:
        connection.close()


def test_a_dry_run_tells_what_it_takes_and_changes_nothing(data: Path) -> None:
    """Versions, rows, bytes, room; then the same without --dry-run does it, once."""
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    told = json.loads(_run("migrate", "--dry-run", "--json", "--data", str(data)))
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    version = schema_version(data)
    assert (told["version"], told["newest"], told["seconds"]) == (version, schema.VERSION, None)
    has_rows = any(step in schema.WRITTEN_ANEW for step in range(version + 1, schema.VERSION + 1))
    assert (told["rows"] > 0) == (told["bytes"] > 0) == has_rows
    assert told["bytes"] < told["file_bytes"] and told["free_bytes"] > 0
    text = _run("migrate", "--dry-run", "--data", str(data))
    assert f"from version {version} to {schema.VERSION}" in text and "Nothing was changed" in text
    assert f"from version {version} to {schema.VERSION}, in" in _run("migrate", "--data", str(data))
    assert schema_version(data) == schema.VERSION
    assert f"has version {schema.VERSION}, that of this program" in _run("migrate", "--data", str(data))


def schema_version(data: Path) -> int:
    return int.from_bytes((data / "store" / FILE).read_bytes()[60:64], "big")


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["server", *arguments])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())
