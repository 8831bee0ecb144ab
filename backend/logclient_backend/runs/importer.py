"""A run in again: what `export` wrote becomes a run's folder with sealed segments, documents and original times.

Runs in a command. Nothing of the input is believed: ids become folder names by `shm_dir.folder_name`, everything is
written below a new folder beside the others, which gets its name when it is whole; an error leaves nothing behind and
says the line.

Does not: guess. A point that `run.json` does not place in a record is an error.
"""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Callable, Collection, Iterator
from itertools import repeat
from typing import IO, TYPE_CHECKING, Any

from logclient.errors import BadArgument, Corrupt, NoRun, Unsupported
from logclient.shm.columns import Columns
from logclient.shm.record import CODES, FLOATS, VARIABLE, Shape
from logclient.shm.regular import MAX_STORE_BYTES, OddFile, open_regular
from logclient.shm.shm_dir import folder_name

from ..wal.documents import DocumentFile
from ..wal.encoded import StreamColumns
from ..wal.files import REAL
from ..wal.scan import Gap
from ..wal.seal import sealed_pieces, write_sealed
from ..wal.segment import CAUSES
from . import strict
from .export import FORMAT, RUN_FILE, VERSION, points_file
from .formats import FORMATS, BadPoints, Row, rows
from .node import is_id, table

if TYPE_CHECKING:
    from logclient.shm.record import Value

_MAX_NAME = (1 << 16) - 1  # bytes of a key in a shape's definition
_SEGMENT_BYTES = 8 << 20  # of columns in memory, from which they become a segment
_INT64 = 1 << 63
_NODE_LETTERS = frozenset("0123456789abcdefghijklmnopqrstuvwxyz-_")

Record = tuple[int, int, Shape]  # seq, number in the process, shape


class StreamPlan:
    """The records of one stream as `run.json` names them, and the one that is being read."""

    def __init__(self, id: str, where: str, entry: dict[str, Any], shapes: list[Shape]) -> None:
        self.id = bytes.fromhex(id)
        self.process = bytes.fromhex(_hex(f"{where}.process", entry.get("process")))
        self.node = _named(f"{where}.node", entry.get("node"))
        self.lane = _whole(f"{where}.lane", entry.get("lane"), 0, 1 << 32)
        seqs = _pairs(f"{where}.seqs", entry.get("seqs"))
        orders = _pairs(f"{where}.orders", entry.get("orders"))
        kinds = _pairs(f"{where}.shapes", entry.get("shapes"))
        before = 0
        for first, last in seqs:
            if not before < first <= last < _INT64:
                raise BadArgument(f"{RUN_FILE}: {where}.seqs: {first}, {last} after {before} is no range")
            before = last
        self.records = sum(last - first + 1 for first, last in seqs)
        for name, runs in (("orders", orders), ("shapes", kinds)):
            found = sum(_whole(f"{where}.{name}", count, 1, _INT64) for _, count in runs)
            if found != self.records:
                raise BadArgument(
                    f"{RUN_FILE}: {where}.{name}: {found} records, but {where}.seqs has {self.records}"
                )
        for number, _ in kinds:
            _whole(f"{where}.shapes", number, 0, len(shapes) - 1)
        self.gaps = list(_gaps(where, table(entry.get("gaps"))))
        self._empty = _empties(where, entry.get("empty"))
        self._seqs = (seq for first, last in seqs for seq in range(first, last + 1))
        self._offsets = (offset for offset, count in orders for offset in repeat(offset, count))
        self._kinds = (shapes[number] for number, count in kinds for _ in range(count))
        self.left = self.records
        self.record: Record | None = None  # of the points that come
        self.head: tuple[int, int, int | None] | None = None  # step, time, rank of its first point
        self.values: list[Value] = []

    def empties(self) -> Iterator[tuple[Record, tuple[int, int, int | None]]]:
        """Records without points that come next; afterwards `record` is the next one with points, if there is one."""
        while self.record is None and self.left:
            seq, offset, shape = next(self._seqs), next(self._offsets), next(self._kinds)
            self.left -= 1
            if not 0 <= seq + offset < 2 * _INT64:
                raise BadArgument(
                    f"{RUN_FILE}: stream {self.id.hex()}: number {seq + offset} of record {seq} is none"
                )
            record = (seq, seq + offset, shape)
            if shape.names:
                self.record, self.values = record, []
                return
            found = self._empty.get(seq)
            if found is None:
                raise BadArgument(
                    f"{RUN_FILE}: stream {self.id.hex()}: record {seq} has no points and is not in empty"
                )
            yield record, found


class Buffer:
    """Records of one stream, shape and rank that wait to become columns."""

    __slots__ = ("cells", "order", "seq", "step", "time")

    def __init__(self, shape: Shape) -> None:
        self.seq, self.order = array("Q"), array("Q")
        self.step, self.time = array("q"), array("q")
        self.cells: list[Any] = [
            [] if code in VARIABLE else array("d" if code in FLOATS else "q") for code in shape.codes
        ]

    def add(self, record: Record, head: tuple[int, int, int | None], values: list[Value]) -> int:
        """Bytes that this takes."""
        seq, order, shape = record
        self.seq.append(seq)
        self.order.append(order)
        self.step.append(head[0])
        self.time.append(head[1])
        size = 32 + 8 * len(values)
        for code, column, value in zip(shape.codes, self.cells, values, strict=True):
            if code == "s":
                column.append(str(value).encode())
                size += 50 + len(column[-1])
            elif code == "i":
                number = int(value)
                column.append(number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True))
                size += 50 + len(column[-1])
            else:
                column.append(value)
        return size

    def columns(self, shape: Shape, rank: int | None) -> Columns:
        cells = [
            column if isinstance(column, list) else array("Q", column.tobytes()) for column in self.cells
        ]
        return Columns(shape, rank, self.seq, self.order, self.step, self.time, cells)


class NodeWriter:
    """The folder of one node: sealed segments, made as records come."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder)
        self.bytes = 0
        self._writer = os.urandom(8)
        self._number = 0
        self._buffers: dict[tuple[bytes, bytes, int, Shape, int | None], Buffer] = {}

    def add(
        self, plan: StreamPlan, record: Record, head: tuple[int, int, int | None], values: list[Value]
    ) -> None:
        key = (plan.id, plan.process, plan.lane, record[2], head[2])
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = Buffer(record[2])
        self.bytes += buffer.add(record, head, values)
        if self.bytes >= _SEGMENT_BYTES:
            self.flush()

    def flush(self, gaps: list[Gap] | None = None) -> None:
        """Write what waits, and these gaps, as one segment."""
        items: list[StreamColumns | Gap] = [
            StreamColumns(stream, process, lane, buffer.columns(shape, rank))
            for (stream, process, lane, shape, rank), buffer in self._buffers.items()
        ]
        self._buffers.clear()
        self.bytes = 0
        items += gaps or []
        if not items:
            return
        self._number += 1
        created = min((item.columns.time[0] for item in items if isinstance(item, StreamColumns)), default=0)
        pieces = sealed_pieces(items, self._writer, self._number, created)
        write_sealed(REAL, self.folder, self._writer, self._number, pieces)


class Import:
    """One import; `run` makes the folder."""

    def __init__(self, source: str) -> None:
        """`NoRun` where there is no export in that folder, `BadArgument` for a `run.json` that makes no sense."""
        self.source = source
        content = _read_run_file(source)
        self.run_id = _text("run.id", table(content.get("run")).get("id"))
        self.name = table(content.get("run")).get("name")
        shapes = [
            _shape(number, entry) for number, entry in enumerate(_list("shapes", content.get("shapes")))
        ]
        self.documents = {
            _named("nodes", id): None if documents is None else _documents(id, documents)
            for id, documents in _table("nodes", content.get("nodes")).items()
        }
        self.streams: dict[str, StreamPlan] = {}
        for id, entry in _table("streams", content.get("streams")).items():
            plan = StreamPlan(_hex("streams", id), f"streams.{id}", _table(f"streams.{id}", entry), shapes)
            if plan.node not in self.documents:
                raise BadArgument(f"{RUN_FILE}: streams.{id}.node: {plan.node!r} is not among the nodes")
            self.streams[id] = plan
        format = table(content.get("points")).get("format")
        if format not in FORMATS:
            raise BadArgument(f"{RUN_FILE}: points.format: {format!r:.60} is none of {', '.join(FORMATS)}")
        self.format: str = format
        told = table(content.get("points")).get("count")
        self.points_declared = told if type(told) is int else 0
        self.points = 0

    @property
    def records(self) -> int:
        return sum(plan.records for plan in self.streams.values())

    def run(
        self,
        base: str,
        *,
        replace: bool = False,
        busy: Collection[str] = (),
        progress: Callable[[int], None] | None = None,
    ) -> str:
        """Make the run's folder in `base` and return its path. `BadArgument` where it is there and not to be replaced.

        `busy`: folders of live runs, which are never replaced.
        """
        base = os.path.abspath(base)
        target = os.path.join(base, folder_name(self.run_id))
        if os.path.realpath(target) in busy:
            raise BadArgument(f"run {self.run_id} in {base} is live: it cannot be replaced")
        if os.path.lexists(target) and not replace:
            raise BadArgument(f"run {self.run_id} is in {base} already; --replace puts this one in its place")
        os.makedirs(base, exist_ok=True)
        making = os.path.join(base, f".importing-{os.urandom(6).hex()}")
        os.mkdir(making)
        try:
            self._fill(making, progress)
            aside = f"{making}.old"
            if os.path.lexists(target):
                os.rename(target, aside)
            os.rename(making, target)
            REAL.fsync_folder(base)
            if os.path.islink(aside):
                os.unlink(aside)
            else:
                shutil.rmtree(aside, ignore_errors=True)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        return target

    def _fill(self, folder: str, progress: Callable[[int], None] | None) -> None:
        writers = {id: NodeWriter(os.path.join(folder, id)) for id in self.documents}
        path = os.path.join(self.source, points_file(self.format))
        with _open(path) as source:
            try:
                for row in rows(self.format, source):
                    self._take(writers, row)
                    if progress is not None and not self.points % 4096:
                        progress(4096)
            except BadPoints as error:
                raise BadArgument(f"{os.path.basename(path)} {error}") from None
        for plan in self.streams.values():
            self._take_empties(writers, plan)
            if plan.record is not None:
                left = plan.left + 1
                raise BadArgument(
                    f"{os.path.basename(path)} ends, but {RUN_FILE} names {left:,} more records "
                    f"of stream {plan.id.hex()}"
                )
        for id, writer in writers.items():
            mine = [plan for plan in self.streams.values() if plan.node == id]
            writer.flush([Gap(plan.id, plan.process, plan.lane, *gap) for plan in mine for gap in plan.gaps])
            documents = self.documents[id]
            if documents is not None:
                DocumentFile(writer.folder).save(documents)
            REAL.fsync_folder(writer.folder)

    def _take(self, writers: dict[str, NodeWriter], row: Row) -> None:
        plan = self.streams.get(row.stream)
        if plan is None:
            raise BadPoints(row.number, f"stream {row.stream!r:.60} is not in {RUN_FILE}")
        if plan.record is None:
            self._take_empties(writers, plan)
            if plan.record is None:
                raise BadPoints(
                    row.number, f"stream {row.stream} has more points than {RUN_FILE} names records for"
                )
        shape = plan.record[2]
        at = len(plan.values)
        if shape.names[at] != row.key:
            raise BadPoints(
                row.number, f"key {row.key!r:.60}, where {RUN_FILE} has {shape.names[at]!r:.60} next"
            )
        head = (row.step, row.time, row.rank)
        if at and head != plan.head:
            raise BadPoints(
                row.number, "step, time or rank differ from those of the same record's line before"
            )
        try:
            value = row.value(shape.codes[at])
            if shape.codes[at] == "q" and not -_INT64 <= int(value) < _INT64:
                raise ValueError(f"value {value} is no integer of 64 bits")
            if shape.codes[at] == "s":
                str(value).encode()
        except ValueError as error:
            raise BadPoints(row.number, str(error)) from None
        plan.head = head
        plan.values.append(value)
        self.points += 1
        if at + 1 == len(shape.names):
            writers[plan.node].add(plan, plan.record, head, plan.values)
            plan.record = None

    def _take_empties(self, writers: dict[str, NodeWriter], plan: StreamPlan) -> None:
        for record, head in plan.empties():
            writers[plan.node].add(plan, record, head, [])


def _open(path: str) -> IO[bytes]:
    try:
        return os.fdopen(open_regular(path, max_bytes=MAX_STORE_BYTES), "rb")
    except FileNotFoundError:
        raise NoRun(f"there is no {path}: give the folder that `logclient export --out` made") from None
    except OddFile as error:
        raise BadArgument(f"{path} cannot be imported: {error.reason}") from None


def _read_run_file(source: str) -> dict[str, Any]:
    with _open(os.path.join(source, RUN_FILE)) as file:
        try:
            content = strict.loads(file.read())
        except ValueError as error:
            raise BadArgument(f"{os.path.join(source, RUN_FILE)} is no JSON of ours: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadArgument(f"{os.path.join(source, RUN_FILE)} is not what `logclient export` writes")
    version = content.get("version")
    if type(version) is not int or version > VERSION:
        raise Unsupported(
            f"{source}: exported in version {version!r:.20}, this logclient reads up to {VERSION}"
        )
    return content


def _documents(id: str, documents: Any) -> bytes:
    try:
        whole = strict.unwrap(_table(f"nodes.{id}", documents))
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"{RUN_FILE}: nodes.{id}: {error}") from None
    return _agent_json(whole)


def _agent_json(whole: Any) -> bytes:
    import json

    return json.dumps(whole, separators=(",", ":")).encode("ascii")


def _shape(number: int, entry: Any) -> Shape:
    codes, keys = table(entry).get("codes"), table(entry).get("keys")
    where = f"{RUN_FILE}: shapes[{number}]"
    if type(codes) is not str or set(codes) - CODES or not isinstance(keys, list) or len(keys) != len(codes):
        raise BadArgument(f"{where}: expected keys, and a code of {''.join(sorted(CODES))} for each")
    for key in keys:
        try:
            if type(key) is not str or len(key.encode()) > _MAX_NAME:
                raise BadArgument(f"{where}: key {key!r:.60} is no text of at most {_MAX_NAME} bytes")
        except UnicodeEncodeError:
            raise BadArgument(f"{where}: key {key!r:.60} is no valid Unicode") from None
    try:
        return Shape(tuple(keys), codes)
    except (Corrupt, OverflowError, MemoryError) as error:
        raise BadArgument(f"{where}: {error}") from None


def _gaps(where: str, gaps: dict[str, Any]) -> Iterator[tuple[int, int, str]]:
    for cause, flat in gaps.items():
        if cause not in CAUSES:
            raise BadArgument(f"{RUN_FILE}: {where}.gaps: {cause!r:.60} is none of {', '.join(CAUSES)}")
        for first, last in _pairs(f"{where}.gaps.{cause}", flat):
            if not 0 < first <= last < _INT64:
                raise BadArgument(f"{RUN_FILE}: {where}.gaps.{cause}: {first}, {last} is no range")
            yield first, last, cause


def _empties(where: str, found: Any) -> dict[int, tuple[int, int, int | None]]:
    empty = {}
    for entry in _list(f"{where}.empty", found):
        if not isinstance(entry, list) or len(entry) != 4:
            raise BadArgument(f"{RUN_FILE}: {where}.empty: expected [seq, step, time, rank]")
        seq, step, time, rank = entry
        empty[_whole(f"{where}.empty", seq, 1, _INT64)] = (
            _whole(f"{where}.empty", step, -_INT64, _INT64 - 1),
            _whole(f"{where}.empty", time, -_INT64, _INT64 - 1),
            None if rank is None else _whole(f"{where}.empty", rank, 0, (1 << 32) - 2),
        )
    return empty


def _pairs(where: str, flat: Any) -> list[tuple[int, int]]:
    flat = _list(where, flat)
    if len(flat) % 2 or any(type(item) is not int for item in flat):
        raise BadArgument(f"{RUN_FILE}: {where}: expected pairs of integers")
    return list(zip(flat[::2], flat[1::2], strict=True))


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadArgument(f"{RUN_FILE}: {where}: expected a list")
    return value


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadArgument(f"{RUN_FILE}: {where}: expected an object")
    return value


def _text(where: str, value: Any) -> str:
    if type(value) is not str or not value:
        raise BadArgument(f"{RUN_FILE}: {where}: expected a text")
    return value


def _whole(where: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadArgument(f"{RUN_FILE}: {where}: {value!r:.60} is no integer from {least} to {most}")
    return value


def _hex(where: str, value: Any) -> str:
    if not is_id(value):
        raise BadArgument(f"{RUN_FILE}: {where}: {value!r:.60} is no id of 32 hex digits")
    return str(value)


def _named(where: str, value: Any) -> str:
    """A node's id, which is the name of its folder."""
    if type(value) is not str or not 0 < len(value) <= 64 or set(value) - _NODE_LETTERS:
        raise BadArgument(f"{RUN_FILE}: {where}: {value!r:.60} is no id of a node")
    return value
