"""What `logclient sync` finds in folders."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from logclient_backend.cli import sync_nodes as uploads
from tests.backend.runs.build import NOW_NS, NodeMaker, simple_run

CONFIG_BYTES = 1 << 20


def test_runs_are_found_without_their_configs_in_memory(tmp_path: Path) -> None:
    """One at a time at most: very many runs may lie there."""
    runs = tmp_path / "runs"
    for number in range(20):
        made = NodeMaker(runs, f"run-{number}")
        made.created_ns = NOW_NS + number
        made.process(1, documents={"config": {"text": "x" * CONFIG_BYTES}})
        made.save()
    simple_run(runs, "small", created_ns=NOW_NS + 20)
    uploads.find([str(runs / "small" / "00000000000000aa")])  # what is loaded once
    tracemalloc.start()
    try:
        found, skipped = uploads.find([str(runs)])
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [each.run for each in found] == [*(f"run-{number}" for number in range(20)), "small"]
    assert not skipped
    assert kept < CONFIG_BYTES and peak < 8 * CONFIG_BYTES
