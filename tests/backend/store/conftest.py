"""A store of each engine, in each state in which answers are the same. A new engine joins by a line in ENGINES."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logclient_backend.collector.store.embedded import open_store
from logclient_backend.collector.store.interface import Store

ENGINES: dict[str, Callable[[str], Store]] = {"embedded": open_store}


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the store, once more where it is open already."""
    stores: list[Store] = []

    def open_it() -> Store:
        for store in stores:
            store.close()
        stores.append(ENGINES[request.param](str(tmp_path / "store")))
        return stores[-1]

    try:
        yield open_it
    finally:
        for store in stores:
            store.close()


@pytest.fixture
def store(opened: Callable[[], Store]) -> Store:
    return opened()


@pytest.fixture(params=["as it came", "after upkeep", "opened again"])
def settle(request: pytest.FixtureRequest, opened: Callable[[], Store]) -> Callable[[Store], Store]:
    """The same answers are expected in each of these."""

    def settled(store: Store) -> Store:
        if request.param == "after upkeep":
            all_upkeep(store)
        return opened() if request.param == "opened again" else store

    return settled


def all_upkeep(store: Store) -> None:
    while store.compact(deadline_s=60, now=True):  # type: ignore[call-arg]
        pass
