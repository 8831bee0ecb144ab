"""A store that is being made is there as a whole, or not at all."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from logclient_backend.collector.store.embedded import open_store
from tests.conftest import Pace


@pytest.mark.slow
def test_kill_while_it_is_made_leaves_nothing_that_is_no_store(tmp_path: Path, pace: Pace) -> None:
    """At any byte: the next start makes it, or finds it made."""
    moments = random.Random(3)
    for number in range(pace.count(1000, least=50)):
        folder = tmp_path / str(number)
        child = os.fork()
        if child == 0:
            try:
                open_store(str(folder))
            finally:
                os._exit(0)
        time.sleep(moments.random() / 30)  # any moment will do
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        store = open_store(str(folder))
        try:
            assert store.id and store.reader.run("none") is None
        finally:
            store.close()
        assert not list(folder.glob("*.new*"))
