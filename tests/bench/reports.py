"""Runs a bench of `tools/bench` once and keeps its report for every test that asks."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@functools.cache
def report_of(script: str, *options: str) -> dict[str, Any]:
    """The report that the bench prints in its quick form with these options."""
    done = subprocess.run(
        [sys.executable, f"tools/bench/{script}.py", "--quick", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=880,
    )
    assert done.returncode in (0, 1), f"{script} ended with {done.returncode}"
    report: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 0) == report["reached"]
    print(f"load {report['load_before']} to {report['load_after']} on {report['machine']}")
    return report
