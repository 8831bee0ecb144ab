"""The chaos run (tools/bench/chaos.py) at the pace of the tests; in full 10,000,000 points and 60 strikes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Pace
from tools.faults import network

ROOT = Path(__file__).parents[3]
WHY_NOT = network.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]


def test_chaos_costs_no_record(pace: Pace) -> None:
    """Collector and worker killed, network cut, again and again: in the end the collector has what was logged, once."""
    points, strikes = pace.count(10_000_000), pace.count(20, least=2)
    words = ["--points", str(points), "--strikes", str(strikes), "--rate", "1000"]
    done = subprocess.run(
        [sys.executable, "tools/bench/chaos.py", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = json.loads(done.stdout)
    assert report["strikes"] == dict.fromkeys(("collector killed", "worker killed", "network cut"), strikes)
    (logged,) = (each["value"] for each in report["figures"] if each["what"] == "records logged")
    assert logged == points // 80 * 8
