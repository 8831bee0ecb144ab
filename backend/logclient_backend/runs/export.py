"""A run out of its segments: points in one of three formats, and `run.json` with all that points alone do not tell.

Runs in a command. ::

    FOLDER/points.<format>    see formats.py
    FOLDER/run.json           strict JSON, ASCII
        format, version       "logclient-export", 1
        points                format, number of points
        run, config, summary, counts, ranks, gaps          for people; made from what follows
        shapes                keys and type codes of records, numbered
        streams               by id: node, process, lane, and for its records in seq order
                                  seqs    first, last, first, last, ... of the records that are there
                                  orders  number in the process less seq, how many records, ...
                                  shapes  number of a shape, how many records, ...
                                  empty   seq, step, time, rank of records without points
                                  gaps    by cause: first, last, ...
        nodes                 the documents as the agents stored them, NaN as {"$float": "nan"}

Invariant: the bytes depend on nothing but what is stored, so that export, import, export gives the same.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from itertools import groupby
from operator import sub
from typing import IO, Any

from logclient.shm.record import Shape

from ..wal.coverage import StreamSpan
from ..wal.whole import made_whole
from . import formats, strict
from .contents import Hole, as_dict, find_edges, holes_of
from .node import whole
from .order import Part
from .view import COUNTS, RunView

FORMAT, VERSION = "logclient-export", 1
RUN_FILE = "run.json"


def points_file(format: str) -> str:
    return f"points.{format}"


class Boundaries:
    """The records of a run, run-length coded: what the points of a stream do not tell by themselves."""

    def __init__(self) -> None:
        self.seqs = array("Q")
        self.orders: list[int] = []
        self.shapes = array("Q")
        self.empty: list[list[int | None]] = []

    def add(self, part: Part, shape: int) -> None:
        columns = part.columns
        cut = slice(part.start, part.stop)
        seqs = columns.seq[cut]
        count = len(seqs)
        if seqs[-1] - seqs[0] == count - 1:
            self._add_range(seqs[0], seqs[-1])
        else:
            for seq in seqs:
                self._add_range(seq, seq)
        for offset, same in groupby(map(sub, columns.order[cut], seqs)):
            _add_count(self.orders, offset, sum(1 for _ in same))
        _add_count(self.shapes, shape, count)
        if not columns.shape.names:
            for at in range(part.start, part.stop):
                self.empty.append([columns.seq[at], columns.step[at], columns.time[at], columns.rank])

    def _add_range(self, first: int, last: int) -> None:
        if self.seqs and self.seqs[-1] + 1 == first:
            self.seqs[-1] = last
        else:
            self.seqs.extend((first, last))


def _add_count(runs: Any, value: int, count: int) -> None:
    if runs and runs[-2] == value:
        runs[-1] += count
    else:
        runs.extend((value, count))


class Export:
    """One export of one run; `damage` and `unsupported` say what could not be taken out."""

    def __init__(self, run: RunView) -> None:
        self.run = run
        self.reader = run.found.records()
        self.points = 0
        self._boundaries: dict[bytes, Boundaries] = {}
        self._shapes: dict[Shape, int] = {}
        self._ranks: set[int] = set()
        self._there: dict[bytes, StreamSpan] = {}  # what was taken out

    def write_points(
        self,
        format: str,
        out: IO[bytes],
        progress: Callable[[int], None] | None = None,
        *,
        guards_cells: bool = False,
    ) -> None:
        """All points in the canonical order. `BadArgument` where the format cannot be written here."""
        writer = formats.writer(format, out, guards_cells=guards_cells)
        for part in self.reader.parts():
            shape = self._shapes.setdefault(part.columns.shape, len(self._shapes))
            boundaries = self._boundaries.get(part.stream)
            if boundaries is None:
                boundaries = self._boundaries[part.stream] = Boundaries()
            boundaries.add(part, shape)
            if part.columns.rank is not None:
                self._ranks.add(part.columns.rank)
            self.points += writer.write(part)
            if progress is not None:
                progress(part.stop - part.start)
        writer.close()

    def write(self, folder: str, format: str, progress: Callable[[int], None] | None = None) -> None:
        """Make `folder` with both files, each whole or not there."""
        os.makedirs(folder, exist_ok=True)
        target = os.path.join(folder, points_file(format))
        with made_whole(target) as out:
            self.write_points(format, out, progress)
        with made_whole(os.path.join(folder, RUN_FILE)) as out:
            out.write(strict.dumps(self.describe(format), levels=3).encode("ascii") + b"\n")

    def describe(self, format: str) -> dict[str, Any]:
        """The content of `run.json`; after `write_points`."""
        run = self.run
        streams = self._streams()
        counts = dict.fromkeys(COUNTS, 0)
        for stream in streams.values():
            for name, number in stream.pop("counts").items():
                counts[name] += number
        for process in run.processes.values():
            counts["refused"] += process.refused
            counts["left_out"] += process.left_out
        nodes = sorted(run.nodes, key=lambda node: node.id)
        return {
            "format": FORMAT,
            "version": VERSION,
            "points": {"format": format, "count": self.points},
            "run": {
                "id": run.id,
                "name": run.name,
                "project": run.project,
                "group": run.group,
                "tags": run.tags,
                "notes": run.notes,
                "created_ns": run.found.created_ns,
            },
            "config": strict.plain(run.config),
            "summary": strict.plain(run.summary),
            "counts": counts,
            "ranks": sorted(self._ranks.union(run.ranks)),
            "gaps": self._gaps(streams),
            "shapes": [{"codes": shape.codes, "keys": list(shape.names)} for shape in self._shapes],
            "streams": dict(sorted(streams.items())),
            "nodes": {node.id: strict.wrap(node.own_raw()) for node in nodes},
        }

    def _streams(self) -> dict[str, dict[str, Any]]:
        nodes = {node.path: node.id for node in self.run.nodes}
        found: dict[str, dict[str, Any]] = {}
        told = {
            id: (node.id, told)
            for node in self.run.nodes
            for id, told in node.streams.items()
            if told.accepted
        }
        for id in {*(span.stream.hex() for span in self.reader.spans.values()), *told}:
            stream = bytes.fromhex(id)
            span = self.reader.spans.get(stream)
            where = self.reader.streams.get(stream)
            boundaries = self._boundaries.get(stream) or Boundaries()
            there = StreamSpan(stream, b"", 0, gaps=dict(span.gaps) if span is not None else {})
            for first, last in _pairs(boundaries.seqs):
                there.stored.add(first, last)
            self._there[stream] = there
            known = [seqs.last for seqs in (there.stored, *there.gaps.values()) if seqs]
            if span is not None and span.last is not None:
                known.append(span.last)
            accepted = max(known, default=0)
            if id in told:
                accepted = max(accepted, told[id][1].accepted)
            gaps: dict[str, Any] = {cause: ranges for cause, ranges in holes_of(there, accepted) if ranges}
            if "missing" in gaps:  # after an import nobody can tell it from damage
                gaps["damaged"] = sorted(gaps.pop("missing") + gaps.get("damaged", []))
            process = span.process.hex() if span is not None else told[id][1].process
            node = nodes.get(where.node) if where is not None else None
            if node is None:
                node = told[id][0] if id in told else min(nodes.values())
            size = {cause: sum(last - first + 1 for first, last in ranges) for cause, ranges in gaps.items()}
            found[id] = {
                "node": node,
                "process": process,
                "lane": span.lane if span is not None else whole(told[id][1].lane),
                "seqs": list(boundaries.seqs),
                "orders": boundaries.orders,
                "shapes": list(boundaries.shapes),
                "empty": boundaries.empty,
                "gaps": {
                    cause: [edge for pair in _joined(ranges) for edge in pair]
                    for cause, ranges in gaps.items()
                },
                "counts": {
                    "accepted": accepted,
                    "stored": there.records,
                    "forgotten": size.get("forgotten", 0) + size.get("trimmed", 0),
                    "damaged": size.get("damaged", 0),
                },
            }
        return found

    def _gaps(self, streams: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """For people: each gap between the steps and times of the records around it."""
        holes = [
            (id, stream["process"], cause, first, last)
            for id, stream in streams.items()
            for cause, flat in stream["gaps"].items()
            for first, last in _pairs(flat)
        ]
        wanted: dict[bytes, set[int]] = {}
        for id, _, _, first, last in holes:
            around = [seq for seq in (first - 1, last + 1) if seq in self._there[bytes.fromhex(id)].stored]
            if around:
                wanted.setdefault(bytes.fromhex(id), set()).update(around)
        edges = find_edges(self.reader, wanted)
        made = [
            Hole(
                id,
                process,
                first,
                last,
                cause,
                edges.get((bytes.fromhex(id), first - 1)),
                edges.get((bytes.fromhex(id), last + 1)),
            )
            for id, process, cause, first, last in holes
        ]
        return [as_dict(hole) for hole in sorted(made, key=lambda hole: (hole.stream, hole.first))]


def _pairs(flat: Any) -> list[tuple[int, int]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _joined(ranges: list[tuple[int, int]]) -> list[list[int]]:
    """Ranges that touch made one, as a set of seqs has them."""
    joined: list[list[int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] + 1 == first:
            joined[-1][1] = last
        else:
            joined.append([first, last])
    return joined
