"""Sides of a run, told apart by ids."""

from __future__ import annotations

import os

import pytest

from logclient.shm.side_stream import MARKS, SIDES, side_of


@pytest.mark.parametrize("side", SIDES)
def test_side_is_known_by_an_id_as_bytes_and_as_hex(side: str) -> None:
    """Marks have 8 bytes, and the rest of an id says nothing."""
    id = MARKS[side] + os.urandom(8)
    assert len(id) == 16 and side_of(id) == side_of(id.hex()) == side


def test_other_ids_are_of_no_side() -> None:
    """Neither a random one nor one that is too short."""
    assert side_of(b"lcsyste" + bytes(9)) == side_of("6c63") == side_of(b"") == side_of("0" * 32) == ""
