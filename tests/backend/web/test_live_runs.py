"""Changes of the list of runs: none is lost between two looks at all runs, nor where a look fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.collector.store.interface import Store, StoreError
from logclient_backend.collector.web import live_runs
from logclient_backend.collector.web.live_runs import RunChanges
from tests.backend.store.samples import NOW_NS, described
from tests.served import backing, made_store


class Looks:
    """A page's rows, as the looks have changed them."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.rows: dict[str, dict[str, Any]] = {}
        self.gone: list[str] = []
        self.changes = RunChanges(backing(store))
        self._patch = monkeypatch
        self.look()

    def write(self, **about: Any) -> None:
        self.store.writer.write([described(**about)])

    def look(self, *, at_all: bool = False) -> None:
        """Take one look; runs that are over are looked at with `at_all` only."""
        self.changes.has_changed = True
        self._patch.setattr(live_runs, "SCAN_S", -1.0 if at_all else 1e9)
        rows, gone = self.changes.look(lambda: 0)
        for row in rows:
            self.rows[row["id"]] = {**self.rows.get(row["id"], {}), **row}
        for id in gone:
            self.rows.pop(id, None)
        self.gone += gone


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    with made_store(tmp_path / "data") as store:
        yield Looks(store, monkeypatch)


def test_an_edit_right_after_the_end_is_seen(looks: Looks) -> None:
    """Between two looks at all runs a run ends, which is seen, and gets a group then."""
    looks.write(state="running")
    looks.look(at_all=True)
    looks.write(state="finished")
    looks.look()
    assert looks.rows["run"]["state"] == "finished"
    looks.write(state="finished", group="mine")
    looks.look(at_all=True)
    assert looks.rows["run"]["group"] == "mine"


def test_a_live_run_that_is_deleted_before_any_look_at_all_is_gone(looks: Looks) -> None:
    """A page that has got its row is not left with it; and it comes back when the run does."""
    looks.write(state="running")
    looks.look()
    assert looks.rows
    looks.store.writer.delete("run", NOW_NS)
    looks.look()
    assert (looks.rows, looks.gone) == ({}, ["run"])
    looks.look(at_all=True)
    assert looks.gone == ["run"]
    looks.store.writer.undelete("run")
    looks.look()
    assert looks.rows["run"]["state"]


def test_a_run_that_was_live_within_a_look_only_is_seen_at_its_end(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins after the look at live runs and before that at all, and is over by the next one."""
    whole = looks.changes._look_at_all

    def begins_before_it() -> None:
        looks.write(state="running")
        whole()

    monkeypatch.setattr(looks.changes, "_look_at_all", begins_before_it)
    looks.look(at_all=True)
    monkeypatch.undo()
    looks.write(state="finished")
    looks.look(at_all=True)
    assert looks.rows["run"]["state"] == "finished"


def test_a_look_that_fails_half_way_loses_nothing(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Live runs were read, and then the store did not answer: the next look has their changes."""
    looks.write(state="running")
    looks.look(at_all=True)
    looks.write(state="running", group="mine")

    def fails() -> None:
        raise StoreError("locked")

    monkeypatch.setattr(looks.changes, "_look_at_all", fails)
    with pytest.raises(StoreError):
        looks.look(at_all=True)
    monkeypatch.undo()
    looks.look()
    assert looks.rows["run"]["group"] == "mine"
