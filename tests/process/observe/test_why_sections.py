"""`logclient why` and sections, on real ranks that meet in each step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..disturbed import ROOT, wait_until
from .plant import PATIENCE_S, program

STEPS = """
import logclient, threading
run = logclient.init(project="why", name={name!r}, dir={dir!r}, quiet=True)

def meet(step):
    open(f"step{{RANK}}.new", "w").write(str(step))
    os.replace(f"step{{RANK}}.new", f"step{{RANK}}")
    def is_there(rank):
        try: return int(open(f"step{{rank}}").read()) >= step
        except (OSError, ValueError): return False
    while not all(map(is_there, range(RANKS))): time.sleep(0.001)

step = 0
while True:
    step += 1
    with {enter}("data"): time.sleep(0.01)
    with {enter}("forward"): time.sleep({slow} if RANK == 2 else 0.02)
    with {enter}("barrier"): meet(step)
    run.log(step, {{"loss": 1.0}})
    if step == 5: ready()
"""


def launch(name: str) -> Any:
    """As torchrun sets it."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": name,
        "LOCAL_WORLD_SIZE": "4",
    }


def why(name: str) -> Any:
    words = [
        sys.executable,
        "-m",
        "logclient_backend",
        "why",
        name,
        "--late-after",
        "60",
        "--apart",
        "2",
        "--json",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("slow", "verdict"), [("0.2", "straggler"), ("0.02", "not stuck")])
def test_rank_that_works_longer_is_a_straggler(
    slow: str, verdict: str, tmp_path: Path, run_dir: Path
) -> None:
    """All ranks make the same steps: only the time outside collectives tells."""
    name = f"sections-{os.getpid()}-{slow}"
    source = STEPS.format(name=name, dir=str(run_dir), slow=slow, enter="run.section")
    with program(tmp_path, source, count=4, **launch(name)):
        found: dict[str, Any] = {}

        def is_so() -> bool:
            found.update(why(name))
            return bool(found["verdict"] == verdict)

        wait_until(is_so, PATIENCE_S, f"the verdict is {verdict}")
        ranks = {each["rank"]: each for each in found["processes"]}
        assert all(set(each["sections"]) == {"data", "forward", "barrier"} for each in ranks.values())
        if verdict == "straggler":
            assert [each["rank"] for each in found["blamed"]] == [2] and "rank 2 works longer" in found[
                "text"
            ]
            assert ranks[2]["work_s"] > 1.25 * ranks[0]["work_s"]
        else:
            assert "no straggler verdict" not in found["text"]


def test_without_sections_there_is_no_verdict_by_time(tmp_path: Path, run_dir: Path) -> None:
    """And the answer says so."""
    name = f"no-sections-{os.getpid()}"
    enter = "(lambda name: threading.Lock())"
    source = STEPS.format(name=name, dir=str(run_dir), slow="0.2", enter=enter)
    with program(tmp_path, source, count=4, **launch(name)):
        found = why(name)
        assert found["verdict"] == "not stuck"
        assert "there is no straggler verdict by time" in found["text"]
        assert all(each["section"] is None for each in found["processes"])
