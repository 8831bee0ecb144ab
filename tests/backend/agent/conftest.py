"""What the tests of the agent's rooms share: an empty shm directory and its status page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient.shm.shm_dir import ShmDir
from logclient_backend.agent.host.shm_dir_handle import ShmDirHandle


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[ShmDirHandle]:
    folder = tmp_path / "shm_dir"
    folder.mkdir(0o700)
    made = ShmDirHandle(ShmDir(str(folder), {"run_id": "a-run", "node": "0123"}))
    yield made
    for kept in made.kept():
        kept.close()
    os.close(made.fd)


@pytest.fixture
def status() -> memoryview:
    return memoryview(bytearray(layout.STATUS_BYTES)).cast("Q")
