"""The engine of a folder's store: the one place that knows engines by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import embedded

if TYPE_CHECKING:
    from .interface import FedStore, Outlook, Store


def open_store(folder: str, *, is_durable: bool = True) -> Store:
    """The store in that folder, made if there is none; one process at a time.

    `is_durable`: what `write` has committed survives a power cut, not only the death of this process. `StoreError`
    where the folder cannot be used or another process has it, `Unsupported` where a newer version wrote it.
    """
    return embedded.open_store(folder, synchronous="FULL" if is_durable else "NORMAL")


def read_store(folder: str) -> FedStore:
    """The store in that folder, which another process has open and writes; `StoreError` where there is none."""
    return embedded.ReadOnlyStore(folder)


def outlook(folder: str) -> Outlook:
    """Return what `open_store` will have to do to a store of an older version; changes nothing."""
    return embedded.outlook(folder)


def restore_store(copy: str, folder: str) -> None:
    """Make of what `Store.backup` wrote a store in a new or empty folder. It gets an id of its own."""
    embedded.restore(copy, folder)
