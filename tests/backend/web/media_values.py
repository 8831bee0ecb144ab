"""References to media values, written into a store as a live run's come there, one after the other."""

from __future__ import annotations

import hashlib
import time
from array import array

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient.shm.side_stream import MARKS, MEDIA
from logclient_backend.collector.blobs import Blobs
from logclient_backend.collector.store.interface import Description, Parcel, Store
from logclient_backend.runs.media_reference import Reference
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wire.blobs import Piece

SECOND = 10**9


class LiveRun:
    """A run whose media values come one by one; their bytes come when `arrive` is called."""

    def __init__(self, store: Store, blobs: Blobs | None = None, run: str = "live") -> None:
        self.store = store
        self.blobs = blobs
        self.run = run
        self.state = "running"
        self._created_ns = time.time_ns() - 100 * SECOND
        self._seqs: dict[int, int] = {}

    def log(self, step: int, key: str, data: bytes = b"", kind: str = "image", lane: int = 1) -> None:
        """Write the reference to a value. Values of a lane come in the order of their steps, as those of a rank."""
        seq = self._seqs[lane] = self._seqs.get(lane, 0) + 1
        mime = {"image": "image/png", "table": "application/json", "file": "application/octet-stream"}[kind]
        fields = {"caption": f"{key} {step}"} if kind == "image" else {"name": f"{key}-{step}"}
        reference = Reference(kind, hashlib.sha256(data).hexdigest(), len(data), mime, fields=fields)
        id = MARKS[MEDIA] + lane.to_bytes(8, "big")
        made = Columns(
            Shape((key,), "s"),
            None,
            array("Q", [seq]),
            array("Q", [seq]),
            array("q", [step]),
            array("q", [self._created_ns + step * SECOND]),
            [[reference.text().encode()]],
        )
        self._write([StreamColumns(id, id, 0, made)])

    def arrive(self, data: bytes) -> None:
        """Store the bytes of a value."""
        assert self.blobs is not None
        piece = Piece(hashlib.sha256(data).hexdigest(), len(data), 0, data)
        assert self.blobs.take(self.run, "n", piece)[1]

    def end(self, before_s: int = 0) -> None:
        """Write that the run is finished, since so long."""
        self.state = "finished"
        self._write([], before_s)

    def _write(self, batches: list[StreamColumns], before_s: int = 0) -> None:
        now = time.time_ns()
        ended_ns = 0 if self.state == "running" else now - before_s * SECOND
        told = Description(name=self.run, state=self.state, created_ns=self._created_ns, ended_ns=ended_ns)
        self.store.writer.write([Parcel(self.run, "node", now, batches, [], b"{}", told)])
