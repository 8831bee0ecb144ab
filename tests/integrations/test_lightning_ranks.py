"""The Lightning logger where a strategy starts several processes: two, on the CPU, with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logclient
from tests.lanes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(960)]

# ddp runs the script again for rank 1, ddp_spawn pickles the logger, ddp_fork takes it along
SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
import logclient
import torch
from logclient.integrations.lightning import LogclientLogger
from tests.integrations.lit import Digits, checkpoint, trainer
from pathlib import Path

class OfRank(Digits):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.log("rank", float(self.global_rank))
        return loss

    def on_train_end(self):
        logclient.log(50, {"by_hand": 1.0})
        assert self.logger.version == Path("id").read_text(), self.logger.version

if __name__ == "__main__":
    strategy, who = sys.argv[1:3]
    torch.set_num_threads(1)
    settings = {"project": "ranks", "name": "one", "finish_timeout_s": 60}
    if who == "disabled":
        settings["mode"] = "disabled"
    if who == "user":
        logclient.init(**settings)
        settings = {}
    logger = LogclientLogger(all_ranks=who != "zero", **settings)
    folder = Path.cwd()
    def made():
        return trainer(folder, logger, devices=2, strategy=strategy, max_epochs=1, callbacks=[checkpoint(folder)])
    if not Path("id").exists():
        Path("id").write_text(logger.version)
    made().fit(Digits() if who == "disabled" else OfRank(lr=0.3))
    made().test(Digits(lr=0.3), verbose=False)
    logclient.log(60, {"at_last": 1.0})
    assert logger.version == Path("id").read_text()
"""


def train(folder: Path, *arguments: str) -> None:
    """To its end, with not a word on standard error."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT), str(ROOT / "backend")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "LOGCLIENT_QUIET": "1"}
    words = [sys.executable, "-W", "ignore", str(script), *arguments]
    with (folder / "err").open("w") as err, (folder / "out").open("w") as out:
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=out, stderr=err)
        try:
            code = process.wait(900)
        finally:
            process.kill()
            process.wait()
    said = (folder / "err").read_text()
    assert code == 0, said
    assert "Traceback" not in said and "logclient" not in said, said


def ranks_of(series: Any) -> dict[int, list[int]]:
    """Rank -> its steps."""
    found: dict[int, list[int]] = {}
    for step, rank in zip(series.step.tolist(), series.rank.tolist(), strict=True):
        found.setdefault(rank, []).append(step)
    return found


@pytest.mark.parametrize(
    ("strategy", "who"),
    [
        ("ddp_fork", "logger"),
        pytest.param("ddp_spawn", "logger", marks=pytest.mark.long),
        ("ddp", "user"),
        pytest.param("ddp", "logger", marks=pytest.mark.long),
        pytest.param("ddp_spawn", "user", marks=pytest.mark.long),
    ],
)
def test_all_processes_log_to_one_run(run_dir: Path, tmp_path: Path, strategy: str, who: str) -> None:
    """Begun by the logger or before it: one run, of which each process's records carry its rank (R2-40, R2-34)."""
    train(tmp_path, strategy, who)
    runs = logclient.read(run_dir)
    assert len(runs) == 1
    run = runs["one"]
    assert run.project == "ranks" and run.state == "finished"
    each = {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert ranks_of(run.series("loss")) == each
    assert ranks_of(run.series("val_loss")) == {0: [3], 1: [3]}
    assert sorted(ranks_of(run.series("test_loss"))) == [0, 1]
    marked = run.series("rank")
    assert marked.rank.tolist() == marked.value.tolist()
    # Lightning ends the other processes of `ddp` when the first one ends
    assert run.series("by_hand").step.tolist() in ([50, 50], [50] if strategy == "ddp" else [50, 50])
    assert run.config["lr"] == 0.3
    assert Path(run.summary["checkpoint"]["best"]).exists()
    assert not [line for line in run.about["notices"] if "failed" in line or "refused" in line]


def test_rank_0_alone(run_dir: Path, tmp_path: Path) -> None:
    """`all_ranks=False`: the other's logger does nothing; what is logged past it is logged."""
    train(tmp_path, "ddp_fork", "zero")
    run = logclient.read(run_dir)["one"]
    assert ranks_of(run.series("loss")) == {0: [0, 1, 2, 3]}
    assert len(run.series("by_hand").step) == 2


@pytest.mark.parametrize("strategy", ["ddp_fork", pytest.param("ddp_spawn", marks=pytest.mark.long)])
def test_switched_off(run_dir: Path, tmp_path: Path, strategy: str) -> None:
    """No process logs, and none complains; the copy that is inherited or pickled neither."""
    train(tmp_path, strategy, "disabled")
    assert not list(run_dir.glob("*"))
