"""Counts and sizes that benches measure: the same on a slow machine as on a fast one, so `make test` asserts them.

The times that the same benches print are judged by `make bench` alone (`test_bars.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.reports import ROOT, report_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNTS = {"added", "bytes/point", "bytes per point", "made", "MiB", "rows"}  # units; a time has none of these
FRAMEWORKS = ["accelerate", "fastai", "keras", "lightning", "transformers"]


def check(script: str, *words: str, options: tuple[str, ...] = ()) -> None:
    """Every count or size of the bench whose name has these words is within its bar, and there is one."""
    figures = report_of(script, *options)["figures"]
    found = [figure for figure in figures if all(word in figure["what"] for word in words)]
    for figure in found:
        print(json.dumps(figure))
    judged = [figure for figure in found if "bar" in figure and figure["unit"] in COUNTS]
    assert judged, f"{script} has no count or size with a bar for {words}"
    assert all(figure["reached"] for figure in judged), judged


ONCE = ("--pairs", "1", "--processes", "2")


@pytest.mark.parametrize("what", ["threads", "sockets", "modules of others", "memory beside the lanes"])
def test_the_process_gets_little_of_ours(what: str) -> None:
    """The training process gets no thread, no socket, no foreign module, and at most 4 MiB beside its lanes."""
    check("process_cost", what, options=ONCE)


@pytest.mark.parametrize("kind", ["float32-valued", "float64-valued"])
def test_segments_are_small(kind: str) -> None:
    """Bytes per point, open and sealed, at 2, 50 and 5,000 records a second."""
    check("bytes_per_point", "sealed segment", kind)
    check("bytes_per_point", "open segment", kind)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_callback_logs_no_empty_row_and_opens_no_socket(name: str) -> None:
    """One pair of trainings, with a collector 20 ms away (C2-4)."""
    options = ("--pairs", "1", "--imports", "0", "--only", name)
    check("callbacks", "rows on steps with nothing to log", name, options=options)
    check("callbacks", "sockets in the training process", name, options=options)


def test_benches_read_no_settings_from_outside(tmp_path: Path) -> None:
    """A developer's LOGCLIENT_ variables change no figure: a bench clears them."""
    code = "import os; from tools.bench import harness; print(sorted(harness.clean_environment()))"
    env = {**os.environ, "LOGCLIENT_LANES_BYTES": "1", "LOGCLIENT_MODE": "disabled"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, check=True)
    assert b"LOGCLIENT_" not in done.stdout
