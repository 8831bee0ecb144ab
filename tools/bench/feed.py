"""`Feed`: a client that sends parcels to a collector as fast as they are taken."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from typing import Any

from tools.collector import Collector

A_PARCEL = 10_000  # points


class Feed:
    """A client that sends parcels as fast as they are taken; the values are noise, made once."""

    def __init__(self, to: Collector, *, run: str, values: int = 10) -> None:
        from logclient.shm.record import Shape

        self._to = to
        self._run = run
        self._shape = Shape(tuple(f"metric{at}" for at in range(values)), "d" * values)
        self._records = A_PARCEL // values
        self._stream = os.urandom(16)
        self._seq = 1
        # nobody logs at an even pace
        self._times = [at * 1_000_000 + at * at % 9973 for at in range(self._records)]
        self._cells: list[Any] = [array("Q", os.urandom(8 * self._records)) for _ in range(values)]

    def _parcel(self) -> Any:
        from logclient.shm.columns import Columns
        from logclient_backend.wal.encoded import StreamColumns
        from logclient_backend.wire.messages import Parcel

        seqs = range(self._seq, self._seq + self._records)
        self._seq += self._records
        seq, step = array("Q", seqs), array("q", seqs)
        now = time.time_ns()
        times = array("q", [now + at for at in self._times])
        columns = Columns(self._shape, None, seq, seq, step, times, self._cells)
        return Parcel(0, [StreamColumns(self._stream, self._stream, 0, columns)])

    def for_seconds(self, seconds: float) -> float:
        """Points per second that were acknowledged, until all that was sent is."""
        end = time.monotonic() + seconds
        parcels, took_s = self._send(lambda sent: time.monotonic() < end)
        return parcels * A_PARCEL / took_s

    def all_of(self, records: int) -> float:
        """Seconds until so many records (rounded up to parcels) are acknowledged."""
        parcels = -(-records // self._records)
        return self._send(lambda sent: sent < parcels)[1]

    def _send(self, has_more: Callable[[int], bool]) -> tuple[int, float]:
        """(parcels, seconds from the hello to the last ack); `has_more` is asked with how many were sent."""
        from logclient_backend.wire import address
        from logclient_backend.wire.client import Session
        from logclient_backend.wire.credentials import Access
        from logclient_backend.wire.messages import Ack, Hello

        access = Access(address.parse(self._to.address), self._to.token)
        session = Session(access, Hello(self._run, "bench"))
        begin = time.monotonic()
        session.open()
        sent = acked = 0
        try:
            while acked < sent or has_more(sent):
                while session.has_room and has_more(sent):
                    session.send(self._parcel())
                    sent += 1
                for answer in session.poll(0.1):
                    if not isinstance(answer, Ack):
                        raise RuntimeError(f"The collector refused a parcel: {answer}")
                    acked = answer.upto
            return sent, time.monotonic() - begin
        finally:
            session.close(5.0)
