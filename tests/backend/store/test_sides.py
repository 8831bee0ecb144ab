"""Sides of a run in a store (host and device metrics, console, media): beside what was logged, and apart from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient.shm.side_stream import MARKS, SIDES
from logclient_backend.collector.store.embedded import EmbeddedStore, open_store
from logclient_backend.collector.store.interface import Description, RunDeleted, RunQuery, Store, side_id
from logclient_backend.wal.scan import Gap

from .samples import NODE, NOW_NS, STREAM, parcel, ramp


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    made = open_store(str(tmp_path / "store"))
    try:
        yield made
    finally:
        made.close()


def steps(store: Store) -> list[int]:
    found: list[int] = store.reader.points("run", "loss").step.tolist()
    return found


def ids(side: str) -> tuple[bytes, bytes]:
    """Return ids of a stream and a process of a side."""
    return MARKS[side] + b"stream.0", MARKS[side] + b"process0"


SYSTEM_STREAM, SYSTEM_PROCESS = ids("system")


@pytest.mark.parametrize("is_compact", [False, True])
@pytest.mark.parametrize("side", SIDES)
def test_sides_are_kept_apart_from_what_was_logged(store: EmbeddedStore, side: str, is_compact: bool) -> None:
    """Under the same key, too; they are in no count and no list, and are asked for by an id of their own."""
    stream, process = ids(side)
    ours = ramp(1, 5, names=("loss", "system/x"), stream=stream, process=process, step=100)
    hole = Gap(stream, process, 0, 6, 7, "forgotten")
    logged = ramp(1, 10)
    store.writer.write(
        [parcel(logged, ours, holes=[hole], documents=b"{}", description=Description(name="mine"))]
    )
    assert store.writer.write([parcel(ours)]).repeated == 5
    while is_compact and store.compact(deadline_s=1.0, now=True):
        pass
    reader, id = store.reader, side_id("run", side)
    run = reader.run("run")
    assert run is not None and (run.records, run.points) == (10, 20)
    assert [each.id for each in reader.runs(RunQuery()).runs] == ["run"] and store.statistics()["runs"] == 1
    assert sorted(reader.key_names("run")) == ["loss", "lr"]
    assert steps(store) == list(range(1, 11))
    assert set(reader.contents("run")) == {STREAM}
    assert sorted(reader.key_names(id)) == ["loss", "system/x"]
    assert reader.points(id, "loss").step.tolist() == list(range(101, 106))
    assert reader.buckets(id, "loss", most=1).points == 5
    assert [key.points for key in reader.keys(id).keys] == [5, 5]
    assert reader.last_values([id, "run"], ["loss"])[id, "loss"].step == 105
    assert reader.contents(id)[stream].gaps["forgotten"].ranges() == [(6, 7)]
    found, _ = reader.records(id, stream, 1)
    assert sum(len(each.columns) for each in found) == 5
    held = reader.held("run", NODE)
    assert set(held.stored) == {STREAM, stream}, "an agent is told of all that is there"
    assert reader.run(id) is None and not store.writer.delete(id, NOW_NS)


def test_sides_go_with_their_run(store: Store) -> None:
    """Into the bin and out of it, and for good; another run's stay."""
    ours = ramp(1, 5, names=("system/x",), stream=SYSTEM_STREAM, process=SYSTEM_PROCESS)
    id = side_id("run", "system")
    for run in ("run", "other"):
        store.writer.write([parcel(ramp(1, 10), ours, run=run)])
    store.writer.delete("run", NOW_NS)
    store.writer.undelete("run")
    assert reader_points(store, id) == 5
    store.writer.delete("run", NOW_NS)
    assert store.writer.purge(0) == 1
    assert (reader_points(store, id), reader_points(store, side_id("other", "system"))) == (0, 5)
    assert store.reader.key_names(id) == [] and not store.reader.contents(id)
    with pytest.raises(RunDeleted):
        store.writer.write([parcel(ours)])
    assert store.writer.undelete("run") and store.writer.write([parcel(ours)]).records == 5
    assert reader_points(store, id) == 5


def test_sides_of_a_run_that_an_older_version_purged_go_with_the_next_purge(store: EmbeddedStore) -> None:
    """That version removes host and device metrics with their run, and knows no other side."""
    console, process = ids("console")
    for run in ("run", "other"):
        store.writer.write([parcel(ramp(1, 10), ramp(1, 5, stream=console, process=process), run=run)])
    session = store._database.session()
    with store._database.changing(session) as connection:
        connection.execute("UPDATE runs SET id=NULL, deleted_ns=-1 WHERE id='run'")
    session.connection.close()
    assert len(store.reader.points(side_id("run", "console"), "loss").step) == 5
    store.writer.purge(0)
    assert not store.reader.contents(side_id("run", "console"))
    assert len(store.reader.contents(side_id("other", "console"))) == 1


def reader_points(store: Store, run: str) -> int:
    return len(store.reader.points(run, "system/x").step)
