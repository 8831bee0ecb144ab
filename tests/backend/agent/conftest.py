"""What the tests of the agent's rooms share: an empty meeting place and its status page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient.shm.shm_dir import Meeting
from logclient_backend.agent.host.shm_dir_handle import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    folder = tmp_path / "place"
    folder.mkdir(0o700)
    made = Place(Meeting(str(folder), {"run_id": "a-run", "node": "0123"}))
    yield made
    for kept in made.kept():
        kept.close()
    os.close(made.fd)


@pytest.fixture
def status() -> memoryview:
    return memoryview(bytearray(layout.STATUS_BYTES)).cast("Q")
