"""Waits of torch for a CUDA device, made visible."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_waits() -> Iterator[None]:
    """torch itself raises where something synchronises with the device."""
    torch: Any = sys.modules["torch"]
    with warnings.catch_warnings(action="ignore"):  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
