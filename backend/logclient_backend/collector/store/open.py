"""Which engine keeps the data of a folder: the one place that names one.

Whoever else is above the store knows `interface.py` alone, so another engine is chosen here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import embedded

if TYPE_CHECKING:
    from .interface import Store


def open_store(folder: str, *, is_durable: bool = True) -> Store:
    """The store in that folder, made if there is none; `is_durable`: what is acknowledged survives a power cut.

    `StoreError` where it cannot be used or another process has it, `Unsupported` where a newer version made it.
    """
    return embedded.open_store(folder, synchronous="FULL" if is_durable else "NORMAL")


def restore_store(copy: str, folder: str) -> None:
    """Make a backup (`Store.backup`) the store of a folder that has none."""
    embedded.restore(copy, folder)
