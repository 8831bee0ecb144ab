"""A record whose log() returned outlives the trainer (P3)."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tools.faults import processes
from tools.faults.crash import account, training

from ..disturbed import ROOMY, documents, stored, wait_until
from ..scripts import agents

IN_WAL_S = 15.0  # 5 on a machine of its own
GONE_S = 60.0


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_what_a_killed_trainer_had_logged_is_stored_within_seconds(run_dir, tmp_path, pace, monkeypatch):
    """SIGKILLed at 20,000 records a second at a random moment, 100 trials; nothing of it is left behind."""
    rng = random.Random(2)
    memory = Path(os.environ["LOGCLIENT_SHM_DIR"])
    for trial in range(pace.count(100, least=5)):
        folder = run_dir / str(trial)
        monkeypatch.setenv("LOGCLIENT_DIR", str(folder))
        with training(tmp_path, ROOMY, rate=20_000) as trainer:
            time.sleep(rng.uniform(0, 1.5))
            trainer.kill()
            if trial % 2:
                trainer.process.wait(60)  # else it stays a zombie for a while: nobody has asked for its end
            logged = trainer.logged
            wait_until(lambda: stored(folder).records >= logged, IN_WAL_S, f"trial {trial}: {logged} stored")  # noqa: B023
            trainer.process.wait(60)
            trainer.wait_gone(GONE_S)
            found = account(folder, logged, trainer.begun)
            assert not found.problems
            assert found.forgotten == found.damaged == 0
            (process,) = documents(folder)[0]["processes"].values()
            assert process["end"]["signal"] == signal.SIGKILL
            wait_until(lambda: not any(memory.iterdir()), 10, "nothing is left in shared memory")
            wait_until(lambda: not any(map(processes.is_alive, agents())), 10, "no process is left")
