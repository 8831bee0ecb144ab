"""Runs made by hand: records, segments, documents and folders as the agent leaves them, with everything chosen."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from logclient.shm.columns import Columns
from logclient.shm.record import Shape
from logclient.shm.shm_dir import folder_name
from logclient.shm.side_stream import MARKS
from logclient_backend.wal.documents import DocumentFile
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import REAL
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seal import sealed_pieces, write_sealed
from logclient_backend.wal.writer import OpenSegment

NOW_NS = 1_700_000_000_000_000_000
SECOND = 10**9


class Rec(NamedTuple):
    """One record of one stream."""

    seq: int
    order: int
    step: int
    time: int
    values: tuple[tuple[str, str, Any], ...]  # key, code, value
    rank: int | None = None


def rec(
    seq: int,
    *,
    order: int = 0,
    step: int | None = None,
    time: int | None = None,
    rank: int | None = None,
    **values: Any,
) -> Rec:
    """A record whose other numbers follow from its seq; its values are floats."""
    named = tuple((name, "d", value) for name, value in values.items()) or (("loss", "d", seq / 7),)
    when = NOW_NS + seq * SECOND if time is None else time
    return Rec(seq, order or seq, 10 * seq if step is None else step, when, named, rank)


def cell(code: str, value: Any) -> Any:
    if code == "s":
        return str(value).encode()
    if code == "i":
        return int(value).to_bytes(int(value).bit_length() // 8 + 1, "little", signed=True)
    return array("Q", array("d" if code in "dr" else "q", [value]).tobytes())[0]


def columns_of(records: Iterable[Rec]) -> list[Columns]:
    """As few columns as hold these records, like the agent's: one for each shape and rank."""
    made: dict[tuple[Shape, int | None], Columns] = {}
    for record in records:
        shape = Shape(
            tuple(key for key, _, _ in record.values), "".join(code for _, code, _ in record.values)
        )
        columns = made.get((shape, record.rank))
        if columns is None:
            cells: list[Any] = [[] if code in "is" else array("Q") for code in shape.codes]
            columns = Columns(shape, record.rank, array("Q"), array("Q"), array("q"), array("q"), cells)
            made[shape, record.rank] = columns
        columns.seq.append(record.seq)
        columns.order.append(record.order)
        columns.step.append(record.step)
        columns.time.append(record.time)
        for column, (_, code, value) in zip(columns.cells, record.values, strict=True):
            column.append(cell(code, value))
    return list(made.values())


def process_id(number: int) -> str:
    return f"{number:032x}"


def stream_id(number: int) -> str:
    return f"{0xABC00000 + number:032x}"


def side_number(side: str) -> int:
    """A number whose ids of stream and process are those of a side."""
    return int.from_bytes(MARKS[side] + bytes(8), "big")


def raw(key: tuple[int, int, int]) -> tuple[bytes, bytes, int]:
    """Ids of stream and process, and the lane, as the log has them."""
    return bytes.fromhex(stream_id(key[0])), bytes.fromhex(process_id(key[1])), key[2]


class NodeMaker:
    """One node's folder in the making."""

    def __init__(self, run_dir: Path, run_id: str, node: str = "00000000000000aa") -> None:
        self.run_id = run_id
        self.node = node
        self.path = run_dir / folder_name(run_id) / node
        self.path.mkdir(parents=True)
        self.number = 0
        self.processes: dict[str, dict[str, Any]] = {}
        self.streams: dict[str, dict[str, Any]] = {}
        self.created_ns = NOW_NS
        self.heard_ns = NOW_NS + 3600 * SECOND
        self.name = ""

    def process(
        self,
        number: int = 1,
        *,
        created_ns: int | None = None,
        role: str = "owner",
        end: dict[str, Any] | None = None,
        documents: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """`documents`: kind to data, or to (time, data)."""
        created = self.created_ns if created_ns is None else created_ns
        given = {"start": {"role": role, "pid": 100 + number}, **(documents or {})}
        self.processes[process_id(number)] = {
            "pid": 100 + number,
            "rank": None,
            "created_ns": created,
            "documents": {
                kind: {"time": data[0], "data": data[1]}
                if isinstance(data, tuple)
                else {"time": created + SECOND, "data": data}
                for kind, data in given.items()
            },
            "refused": 0,
            "left_out": 0,
            "end": end,
            **more,
        }
        return process_id(number)

    def segment(
        self,
        streams: Mapping[tuple[int, int, int], Sequence[Rec]],
        *,
        gaps: Sequence[tuple[tuple[int, int, int], int, int, str]] = (),
        is_open: bool = False,
        writer: bytes = b"writer-1",
    ) -> Path:
        """A segment; streams by (stream, process, lane) numbers."""
        self.number += 1
        items: list[StreamColumns | Gap] = []
        for key, first, last, cause in gaps:
            items.append(Gap(*raw(key), first, last, cause))
        for key, records in streams.items():
            items += [StreamColumns(*raw(key), columns) for columns in columns_of(records)]
        times = [item.columns.time[0] for item in items if isinstance(item, StreamColumns)]
        created = min(times, default=NOW_NS)
        if is_open:
            segment = OpenSegment.create(REAL, str(self.path), writer, self.number, created, 1 << 16)
            for item in items:
                if isinstance(item, Gap):
                    segment.append_gap(*item)
                else:
                    segment.append(item.stream, item.process, item.lane, item.columns)
            segment.close()
            return Path(segment.path)
        pieces = sealed_pieces(items, writer, self.number, created)
        return Path(write_sealed(REAL, str(self.path), writer, self.number, pieces))

    def told(
        self, stream: int, process: int, accepted: int, stored: int, damaged: int = 0, lane: int = 0
    ) -> None:
        """What the agent tells of a stream."""
        self.streams[stream_id(stream)] = {
            "process": process_id(process),
            "lane": lane,
            "accepted": accepted,
            "stored": stored,
            "damaged": damaged,
        }

    def content(self) -> dict[str, Any]:
        run = {
            "run_id": self.run_id,
            "project": "digits",
            "name": self.name or self.run_id,
            "created_ns": self.created_ns,
            "server": "",
        }
        return {
            "version": 1,
            "run": run,
            "node": self.node,
            "host": "here",
            "heard_ns": self.heard_ns,
            "closed": True,
            "processes": self.processes,
            "streams": self.streams,
        }

    def save(self, content: dict[str, Any] | None = None) -> NodeMaker:
        DocumentFile(str(self.path)).save(json.dumps(content or self.content()).encode())
        return self


def simple_run(
    run_dir: Path, run_id: str = "run-1", records: int = 5, *, name: str = "", created_ns: int = NOW_NS
) -> NodeMaker:
    """One process, one stream, finished."""
    maker = NodeMaker(run_dir, run_id)
    maker.name, maker.created_ns = name, created_ns
    finished = {"state": (created_ns + 100 * SECOND, {"state": "finished", "by": "finish"})}
    maker.process(
        1, documents=finished, end={"time": created_ns + 100 * SECOND, "alive": False, "exit_code": 0}
    )
    maker.segment({(1, 1, 0): [rec(seq, time=created_ns + seq * SECOND) for seq in range(1, records + 1)]})
    maker.told(1, 1, records, records)
    return maker.save()
