"""New records of a process, read from its lanes beside the worker, for rules over values.

Runs in the observer. Takes nothing out of a lane: the worker stages the same records, and releases them whether or not
they were read here. The lane file stays mapped after it was removed, so the last records of a process are read, too.

What was overwritten before a look is passed over. So are values of a device whose cell was used again meanwhile: each
is there for some 100 records with such values.
"""

from __future__ import annotations

from collections.abc import Iterator

from logclient.shm import lane_file, layout
from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient.shm.ring import RingReader

from ...runs.live import LiveLanes
from ..drain.device_records import Cells
from ..drain.drain import harvest
from ..drain.producer import Lane
from ..host.shm_dir_handle import LANES, ShmDirHandle

_PIECE = 1 << 20
_MAX_PIECES = 8  # of a lane, in one look


class LaneRecords:
    """The lanes of one process."""

    def __init__(self, handle: ShmDirHandle, lanes: LiveLanes) -> None:
        self.mem = lanes.mem
        self.name = lanes.id + LANES
        self.cells = Cells(handle, f"{lanes.id}.device")
        self._schemas = lane_file.Schemas(lanes.mem, lanes.words)
        first = lanes.words[layout.FILE_LANES] - lanes.words[layout.FILE_DEVICE_LANES]
        self._lanes = [
            _lane(lanes, index, header, is_of_device=index >= first)
            for index, header in enumerate(lane_file.headers(lanes.words))
        ]

    def shape(self, number: int) -> Shape | None:
        """Return the shape with that id."""
        return self._schemas.get(number)

    def streams(self) -> Iterator[str]:
        """Yield the streams of all lanes."""
        for lane in self._lanes:
            yield lane.stream.hex()

    def new(self, *, is_over: bool) -> Iterator[tuple[str, Columns]]:
        """Yield what came since the last call, with its stream. `is_over`: no device completes a record any more."""
        for lane in self._lanes:
            for _ in range(_MAX_PIECES):
                found = harvest(self, lane, _PIECE, is_dead=is_over) if lane.reader.pending else None
                if found is None:
                    break
                lane.staged_seq = lane.reader.seq = found.last_seq
                for columns in found.parts:
                    yield lane.stream.hex(), columns


def _lane(lanes: LiveLanes, index: int, header: memoryview, *, is_of_device: bool) -> Lane:
    reader = RingReader(lanes.mem, layout.lane_header(index))
    made = Lane(reader, index, lane_file.stream_id(header), is_of_device=is_of_device)
    made.staged_seq = reader.seq = 0
    reader.position = header[layout.FORGOT]  # the oldest that is there
    return made
