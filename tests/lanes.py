"""Runs whose lanes the test itself reads: what an agent would see, without one.

`opened` is a run in this process, `Script` one in a process of its own; `LaneFile` reads the lanes of either, live or
of a process that is gone. Decodes by `record.py` alone, so that agent and client cannot agree on a common mistake.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import logclient
from logclient.run import Run
from logclient.shm import layout
from logclient.shm.columns import read_column
from logclient.shm.documents import read_document
from logclient.shm.record import PREFIX, Shape, variable_cells
from logclient.shm.ring import RingReader, read_block, write_counts
from logclient.shm.shm_dir import ShmDir
from logclient.spawn import agent as spawn
from tests.listing import listed

ROOT = Path(__file__).resolve().parents[1]
NAMES = tuple("abcdefghij")
# a script's agent is never started, in none of its children either
PRELUDE = """
import json, os, signal, sys, threading, time
sys.path[:0] = [{root!r}, {backend!r}]
from logclient.spawn import agent as spawn

def start_no_agent(shm_dir, *_, answer="", **__):
    for name in ("folder.json", answer):
        if name:
            with open(shm_dir.file(name), "w") as file:
                json.dump({{"state": "ok", "dir": shm_dir.dir}}, file)

spawn.start_agent = start_no_agent
import logclient
"""


class Record(NamedTuple):
    """One record as it lay in its lane."""

    lane: int
    seq: int
    order: int
    step: int
    time: int
    rank: int | None
    values: dict[str, Any]
    codes: dict[str, str]


class LaneFile:
    """Reads one process's lane file as the agent does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            self.mem = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        finally:
            os.close(fd)
        self.path = Path(path)
        self.words = self.mem.cast("Q")
        self.pid = self.words[layout.FILE_PID]
        self.readers = [RingReader(self.mem, at) for at in self._headers()]
        self.taken = [0] * len(self.readers)
        self.forgotten = [0] * len(self.readers)
        self.damaged = [0] * len(self.readers)
        self._shapes: dict[int, Shape] = {}
        self._keys_read = 0

    def _headers(self) -> list[int]:
        return [
            layout.LANE_HEADERS + i * layout.LANE_HEADER_WORDS for i in range(self.words[layout.FILE_LANES])
        ]

    @property
    def accepted(self) -> int:
        return sum(reader.words[layout.SEQ] for reader in self.readers)

    @property
    def refused(self) -> int:
        return int(self.words[layout.REFUSED])

    @property
    def left_out(self) -> int:
        return int(self.words[layout.LEFT_OUT])

    def read(self, *, release: bool = True) -> list[Record]:
        """All that is new, in the process's order; what is missing is counted in `forgotten` and `damaged`."""
        found: list[Record] = []
        for lane, reader in enumerate(self.readers):
            looks = 0
            while reader.pending and looks < 8:
                taken = reader.take()
                if taken is None:
                    looks += 1
                    continue
                damaged = sum(last - first + 1 for first, last in taken.damaged)
                for at, size, _ in taken.frames:
                    found.append(self._decode(lane, taken.data[at : at + size]))
                self.taken[lane] += len(taken.frames)
                upto = max(taken.last_seq, reader.seq)
                self.damaged[lane] += damaged
                self.forgotten[lane] += upto - reader.seq - len(taken.frames) - damaged
                reader.seq = upto
                if release:
                    reader.words[layout.STAGED_SEQ] = upto
                    reader.words[layout.RELEASED] = reader.position
        return sorted(found, key=lambda record: record.order)

    def _decode(self, lane: int, frame: bytes) -> Record:
        _, seq, order, step, ns, head = PREFIX.unpack_from(frame)
        payload = frame[layout.FRAME_PREFIX :]
        number, rank = head & layout.SHAPE_MASK, (head >> layout.RANK_SHIFT) - 1
        if number == layout.BLOCK_SHAPE:
            block = read_block(self.mem, payload)
            assert block is not None, f"seq {seq} of lane {lane}: its block holds something else"
            number, payload = int.from_bytes(block[:8], "little") & layout.SHAPE_MASK, block[8:]
        if number == layout.INLINE_SHAPE:
            size = int.from_bytes(payload[:8], "little")
            shape, payload = Shape.from_definition(payload[8 : 8 + size]), payload[8 + size :]
        else:
            shape = self.shape(number)
        cells = variable_cells(shape, payload)
        values = [_value(code, cell) for code, cell in zip(shape.codes, cells, strict=True)]
        assert len(set(shape.names)) == len(shape.names), f"names repeat: {shape.names}"
        return Record(
            lane,
            seq,
            order,
            step,
            ns,
            rank if rank >= 0 else None,
            dict(zip(shape.names, values, strict=True)),
            dict(zip(shape.names, shape.codes, strict=True)),
        )

    def shape(self, number: int) -> Shape:
        while number not in self._shapes:
            assert self._keys_read < self.words[layout.KEYS_USED], f"no definition of shape {number}"
            at = self.words[layout.FILE_KEYS] + self._keys_read
            size = self.words[at >> 3] & 0xFFFF_FFFF
            body = bytes(self.mem[at + 8 : at + 8 + size])
            self._keys_read += 8 + size
            self._shapes[int.from_bytes(body[:8], "little")] = Shape.from_definition(body[8:])
        return self._shapes[number]

    def document(self, kind: str) -> Any:
        """Newest version of a document; None where there is none."""
        found = read_document(self.mem, kind)
        if found is None:
            return None
        content = json.loads(found[1])
        if "file" in content:
            content = json.loads((self.path.parent / content["file"]).read_bytes())
        return content["data"]

    def make_durable(self) -> None:
        """Answer as an agent whose disk has everything."""
        for reader, taken, damaged in zip(self.readers, self.taken, self.damaged, strict=True):
            write_counts(reader.words, reader.words[layout.SEQ], taken, damaged)
        self.words[layout.DOCUMENTS_DURABLE] = self.words[layout.DOCUMENTS_WRITTEN]


def _value(code: str, cell: bytes) -> Any:
    if code in "is":
        return read_column(code, [cell])[0]
    return read_column(code, memoryview(cell).cast("Q"))[0]  # type: ignore[arg-type]


def start_no_agent(shm_dir: ShmDir, *_: Any, answer: str = "", **__: Any) -> None:
    """Answers as an agent's launcher does, and leaves nobody behind."""
    for name in filter(None, ("folder.json", answer)):
        path = Path(shm_dir.file(name))
        path.touch(mode=0o600)
        path.write_text(json.dumps({"state": "ok", "dir": shm_dir.dir}))


@contextmanager
def opened(project: str = "test", **settings: Any) -> Iterator[tuple[Any, LaneFile]]:
    """A run of this process (`Any`: tests look inside) and its lanes, without an agent and lines on the terminal."""
    with mock.patch.object(spawn, "start_agent", start_no_agent):
        made = logclient.init(project, **{"quiet": True, "finish_timeout_s": 0.05, **settings})
        assert isinstance(made, Run), made.status()
        run: Any = made
        try:
            yield run, LaneFile(run._session.lanes.path)
        finally:
            run.finish(0)


def logged(row: dict[Any, Any]) -> tuple[Record, dict[str, Any]]:
    """The record that one call left, and the status after it."""
    with opened() as (run, file):
        run.log(1, row)
        (record,) = file.read()
        return record, run.status()


def lane_files(shm_root: str | os.PathLike[str] | None = None) -> list[LaneFile]:
    """All lane files under the shm directory of this test, those of dead processes too; oldest first."""
    root = Path(shm_root or os.environ["LOGCLIENT_SHM_DIR"])
    files = [LaneFile(path) for path in listed(root, "*/*/*.lanes")]
    return sorted(files, key=lambda file: file.words[layout.FILE_CREATED_NS])


def by_pid() -> dict[int, tuple[LaneFile, list[Record]]]:
    """What each process of this test logged."""
    return {file.pid: (file, file.read()) for file in lane_files()}


class Script:
    """Python source in a process of its own; prints one JSON value as its last line."""

    def __init__(
        self,
        folder: Path,
        source: str,
        *arguments: object,
        env: dict[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> None:
        """`before`: what runs the interpreter, a tracer say."""
        path = folder / f"script{len(list(folder.glob('script*.py')))}.py"
        backend = str(ROOT / "backend")
        path.write_text(PRELUDE.format(root=str(ROOT), backend=backend) + textwrap.dedent(source))
        self.process = subprocess.Popen(
            [*before, sys.executable, "-W", "ignore", str(path), *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "LOGCLIENT_QUIET": "1", "LOGCLIENT_FINISH_TIMEOUT_S": "0.05", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, timeout_s: float = 60, *, code: int = 0) -> Any:
        """What it printed; fails where it ended otherwise or said anything on standard error."""
        try:
            out, err = self.process.communicate(timeout=timeout_s)
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise
        assert self.process.returncode == code, f"ended with {self.process.returncode}: {err}\n{out}"
        assert not err, err
        return json.loads(out.splitlines()[-1]) if out else None


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = 20) -> Any:
    """The first true answer; fails at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.002)
    return answer


def bare_file(
    ring_bytes: int, cells: int = 0, cell_bytes: int = 0, mem: memoryview | None = None
) -> memoryview:
    """A lane file with one lane and nothing else in it but cells for large payloads."""
    start = layout.KEYS_OFFSET
    total = start + cells * cell_bytes + ring_bytes
    mem = memoryview(bytearray(total)) if mem is None else mem
    words = mem.cast("Q")
    words[layout.FILE_LANES] = 1
    words[layout.FILE_BLOCKS : layout.FILE_BLOCKS + 3] = memoryview(_words(start, cell_bytes, cells)).cast(
        "Q"
    )
    header = layout.LANE_HEADERS
    words[header + layout.LANE_OFFSET] = start + cells * cell_bytes
    words[header + layout.LANE_BYTES] = ring_bytes
    return mem


def _words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)
