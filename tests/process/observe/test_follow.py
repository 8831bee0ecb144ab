"""`why --follow`: a line for each change of the verdict, until the run ends or somebody presses Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ..disturbed import ROOT, wait_until
from .plant import PATIENCE_S, of, program

# Logs while there is a file `logs`; ends in order when there is one of the name `end`.
LOGS_AND_STOPS = """
import logclient
run = logclient.init(project="why", name="followed", dir={dir!r}, quiet=True)
open("logs", "w").close()
step = 0
def stands_still(): time.sleep(0.05)
while not os.path.exists("end"):
    if os.path.exists("logs"):
        run.log(step, {{"loss": 1.0}})
        step += 1
        if step == 20: ready()
    stands_still()
run.finish()
"""


class Followed:
    """The command and the lines that it has printed."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "logclient_backend", "why", *map(str, words), "--follow"]
        self.process = subprocess.Popen(
            [*command, "--every", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, what: str) -> str:
        """The first line with these words in it."""
        wait_until(lambda: any(what in line for line in self.lines), PATIENCE_S, f"a line with {what!r}")
        return next(line for line in self.lines if what in line)

    def ended(self) -> int:
        """Exit code, once it has ended."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


@contextmanager
def following(*words: object) -> Iterator[Followed]:
    made = Followed(*words)
    try:
        yield made
    finally:
        made.process.kill()
        made.ended()
        for pipe in (made.process.stdout, made.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.mark.slow
def test_line_for_each_change_until_the_run_ends(tmp_path: Path, run_dir: Path) -> None:
    """Not stuck, stuck, not stuck again, ended: a time stands before each, and nothing is said twice."""
    with program(tmp_path, LOGS_AND_STOPS.format(dir=str(run_dir))) as (process,):
        with following("followed", "--late-after", "2") as found:
            found.wait_for("not stuck: every rank logged")
            (tmp_path / "logs").unlink()
            line = found.wait_for("stands_still")
            (tmp_path / "logs").touch()
            wait_until(lambda: "not stuck" in found.lines[-1], PATIENCE_S, "it goes on")
            (tmp_path / "end").touch()
            assert process.wait(PATIENCE_S) == 0
            code = found.ended()
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line)
        assert "rank 0" in line and "last record" in line
        assert found.lines[-1].endswith("  the run has ended")
        verdicts = [each.split("  ", 1)[1].partition(":")[0] for each in found.lines]
        assert code == {"not stuck": 0, "quiet": 0, "cannot tell": 4}.get(verdicts[-2], 3), found.lines
        assert all(one != other for one, other in pairwise(verdicts)), found.lines


def test_json_lines_and_ctrl_c(tmp_path: Path, run_dir: Path) -> None:
    """One object per line; interrupted it leaves with 130 and no traceback."""
    source = LOGS_AND_STOPS.format(dir=str(run_dir))
    with program(tmp_path, source), following("followed", "--json") as found:
        line: dict[str, Any] = json.loads(found.wait_for("verdict"))
        assert (line["verdict"], line["stuck"], line["ended"], line["blamed"]) == (
            "not stuck",
            False,
            False,
            [],
        )
        assert line["time_ns"] > 0 and line["text"]
        found.process.send_signal(signal.SIGINT)
        assert found.ended() == 130
        assert found.process.stderr is not None and found.process.stderr.read() == ""


def test_process_that_is_killed_ends_it(tmp_path: Path) -> None:
    """With the verdict that it is gone, and its exit code."""
    with program(tmp_path, "def f(): time.sleep(1000)\nready()\nf()\n") as begun:
        with following(*of(begun), "--json") as found:
            found.wait_for("user code")
            os.kill(begun[0].pid, signal.SIGKILL)
            begun[0].wait(PATIENCE_S)
            assert found.ended() == 3
        gone, last = map(json.loads, found.lines[-2:])
        assert gone["verdict"] == "process gone" and [each["pid"] for each in gone["blamed"]] == [
            begun[0].pid
        ]
        assert last["ended"] and "verdict" not in last
