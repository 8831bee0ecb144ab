"""Cells: who may use one when, what counts as a value, and what damage is told apart."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from logclient.shm import cells, layout
from logclient.shm.cells import ABSENT, Cells, Claim, describe, free_cell, read_cell
from logclient.shm.ring import Forked, RingWriter
from tests.lanes import opened

FLOAT, DOUBLE, INT = 1, 2, 3
MARK = b"\1"


@pytest.fixture
def area(tmp_path: Path) -> Cells:
    return Cells(str(tmp_path / "x.device"), cells.FULL_BYTES, MARK)


@pytest.fixture
def lane(run_dir: Path):
    with opened() as (run, _):
        yield run._session.lanes.device[0]


def begun(area: Cells, lane: RingWriter, places: list[tuple[int, int]]) -> tuple[int, int, int]:
    content, first = describe(places)
    found = area.claim(len(content) + 16, Claim())
    assert found is not None
    cell, taken = found
    area.begin(cell, content, lane)
    del area.claims[cell]
    return cell, taken, cell + first


def test_values_are_there_word_by_word(area: Cells, lane: RingWriter) -> None:
    """Of each type; half of a value of 64 bits is none."""
    cell, taken, at = begun(area, lane, [(2, DOUBLE), (0, INT), (1, FLOAT)])
    assert read_cell(area.mem, cell, taken) == ([], [2, 0, 1], [])
    area.mem[at + 16 : at + 20] = struct.pack("<f", 0.5)
    area.mem[at : at + 4] = struct.pack("<d", 1.25)[:4]
    assert read_cell(area.mem, cell, taken) == ([(1, "f", 0.5)], [2, 0], [])
    area.mem[at : at + 8] = struct.pack("<d", 1.25)
    area.mem[at + 8 : at + 16] = struct.pack("<q", -7)
    assert read_cell(area.mem, cell, taken) == ([(2, "d", 1.25), (0, "q", -7), (1, "f", 0.5)], [], [])


def test_nan_of_arithmetic_is_a_value_and_absent_is_none(area: Cells, lane: RingWriter) -> None:
    cell, taken, at = begun(area, lane, [(0, FLOAT)])
    for nan in (b"\0\0\xc0\x7f", b"\xff\xff\xff\x7f", b"\0\0\xc0\xff"):
        area.mem[at : at + 4] = nan
        assert not read_cell(area.mem, cell, taken)[1]
    area.mem[at : at + 4] = ABSENT
    assert read_cell(area.mem, cell, taken)[1] == [0]


def test_cell_is_taken_again_only_when_its_values_came_and_its_record_is_gone(
    area: Cells, lane: RingWriter
) -> None:
    """Forgotten by its lane, it may still be written to; with its value there and stored, it is free."""
    cell, taken, at = begun(area, lane, [(0, FLOAT)])
    area.name(cell, lane)
    assert not area._is_free(cell)
    words, tail, _ = lane.tail_position()
    words[layout.FORGOT] = tail + 8
    assert not area._is_free(cell)  # the device may still write
    area.mem[at : at + 4] = struct.pack("<f", 1.0)
    assert area._is_free(cell)
    words[layout.FORGOT] = 0
    area.uses[cell] = words, tail + 8
    assert not area._is_free(cell)
    free_cell(area.mem, cell, taken)
    assert area._is_free(cell)


def test_cell_of_an_interrupted_call_is_not_taken_before_its_values_came(
    area: Cells, lane: RingWriter
) -> None:
    """The copy was asked for, the record never committed: after a lap of its lane and with its values it is free."""
    cell, _, at = begun(area, lane, [(0, FLOAT)])
    assert not area._is_free(cell)
    words, tail, size = lane.tail_position()
    words[layout.FORGOT] = tail + 2 * size
    assert not area._is_free(cell)
    area.mem[at : at + 4] = struct.pack("<f", 1.0)
    assert area._is_free(cell)


def test_all_in_use_claims_nothing(area: Cells, lane: RingWriter) -> None:
    """Every cell of a class once, no other class instead, and none twice by two callers."""
    taken = [area.claim(100, Claim()) for _ in range(2048)]
    assert len({found[0] for found in taken if found is not None}) == 2048
    assert area.claim(100, Claim()) is None
    assert area.claim(1000, Claim()) is not None
    assert area.claim(40_000, Claim()) is None


def test_few_cells_are_used_again_and_again_while_their_records_are_stored(
    area: Cells, lane: RingWriter
) -> None:
    """As many as wait at once; each as soon as it is free, so that memory of the others stays cold."""
    seen = set()
    for _ in range(10):
        for cell, taken, _ in [begun(area, lane, [(0, FLOAT)]) for _ in range(100)]:
            seen.add(cell)
            free_cell(area.mem, cell, taken)
    assert len(seen) <= 128


def test_cell_that_somebody_wrote_into_is_not_awaited(area: Cells, lane: RingWriter) -> None:
    cell, _, _ = begun(area, lane, [(0, FLOAT)])
    assert area.in_flight() == 1
    area.mem[cell + 16 : cell + 24] = struct.pack("<II", 1 << 20, 40)
    assert area.in_flight() == 0


def test_reference_to_another_use_or_nowhere_is_told(area: Cells, lane: RingWriter) -> None:
    cell, taken, _ = begun(area, lane, [(0, FLOAT)])
    for bad, use in (
        (cell, taken + 1),
        (cell + 4, taken),
        (0, taken),
        (1 << 40, taken),
        (len(area.mem) - 8, taken),
    ):
        with pytest.raises(LookupError):
            read_cell(area.mem, bad, use)
    area.mem[cell + 16 : cell + 24] = struct.pack("<II", 1 << 20, 40)
    with pytest.raises(LookupError):
        read_cell(area.mem, cell, taken)


@pytest.mark.parametrize("word", [0, layout.CELLS_BYTES, layout.CELLS_CLASSES, layout.CELLS_CLASSES + 2])
def test_file_that_contradicts_itself_is_none_of_cells(area: Cells, word: int) -> None:
    cells.check(area.mem)
    area.words[word] = 1 << 50
    with pytest.raises(cells.BadCells):
        cells.check(area.mem)


def test_fewer_cells_where_memory_is_short_and_none_where_there_is_no_room(tmp_path: Path) -> None:
    small = cells.reserve(str(tmp_path / "small.device"), lambda: cells.FULL_BYTES // 4, MARK)
    assert len(small.mem) <= cells.FULL_BYTES // 4 + 8192
    with pytest.raises(OSError, match="share of shared memory") as error:
        cells.reserve(str(tmp_path / "none.device"), lambda: 0, MARK)
    assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.glob("none*"))


def test_forked_process_takes_no_cell_of_its_parent(tmp_path: Path) -> None:
    mark = bytearray(MARK)
    area = Cells(str(tmp_path / "x.device"), cells.FULL_BYTES, mark)  # type: ignore[arg-type]
    mark[0] = 0
    with pytest.raises(Forked):
        area.claim(100, Claim())
