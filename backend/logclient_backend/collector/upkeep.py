"""Maintenance of a collector: compaction, and deleted runs that go for good, their blobs too.

One thread. What fails is logged and tried again; the collector goes on without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .blobs import Blobs
from .eventlog import EventLog
from .metrics import Metrics
from .store.interface import Store, StoreError

STEP_S = 0.5  # of compaction, at a time
IDLE_S = 1.0
PURGE_EVERY_S = 600.0
_AFTER_ERROR_S = 10.0


class Upkeep:
    """Owns the thread."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        log: EventLog,
        *,
        keep_deleted_s: float,
        purge: Callable[[int], int],
        blobs: Blobs | None = None,
    ) -> None:
        """`purge`: of the store's writer, however that is reached."""
        self._store = store
        self._metrics = metrics
        self._log = log
        self._keep_ns = int(keep_deleted_s * 1e9)
        self._purge = purge
        self._blobs = blobs
        self._purge_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """False where a step takes longer."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while not self._stop.is_set():
            pause_s = 0.0
            try:
                if time.monotonic() >= self._purge_at:
                    self._purge_at = time.monotonic() + PURGE_EVERY_S
                    self._purge_deleted()
                if not self._store.compact(deadline_s=STEP_S):
                    pause_s = IDLE_S
            except StoreError as error:
                self._log.write("upkeep", f"upkeep waits: {error}")
                pause_s = _AFTER_ERROR_S
            except Exception as error:  # noqa: BLE001  # upkeep must not end: without it the store grows and slows
                self._metrics.count("faults_total")
                self._log.fault("upkeep", error)
                pause_s = _AFTER_ERROR_S
            self._stop.wait(pause_s)

    def _purge_deleted(self) -> None:
        gone = self._purge(self._keep_ns)
        if gone:
            self._log.event(f"{gone} runs that were deleted are gone for good")
        if self._blobs is not None:
            self._blobs.sweep(lambda run: self._store.reader.run(run) is not None)
