"""Training under SLURM, a real one of one node: which run is whose, requeue, preemption, and how a step ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient_backend.runs.points import RunReader
from logclient_backend.runs.view import RunView
from tools.faults import slurm as slurms
from tools.faults.slurm import Slurm

from . import scripts
from .disturbed import wait_until
from .recipes import recipe

WHY_NOT = slurms.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

STEPS = list(range(100))
HUNDRED = {0: STEPS, 1: STEPS}

# logs ten records per attempt and waits for what comes, or ends where it is asked to
STAYS = """
import os, time
import logclient
run = logclient.init(project="slurm", quiet=True)
attempt = int(os.environ.get("SLURM_RESTART_COUNT", 0))
for number in range(10):
    run.log(10 * attempt + number, {"loss": 1.0})
assert run.flush(30)
open(f"flushed-{os.environ['SLURM_PROCID']}-{attempt}", "w").close()
deadline = time.monotonic() + 60
while not os.path.exists("end") and time.monotonic() < deadline:
    time.sleep(0.02)
run.finish()
"""


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """One for all tests of this module, with the process tracking that runs here."""
    with Slurm() as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def _python_of_ours(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python` in scripts and recipes is this one, and nothing of a SLURM that we may be in reaches them."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")


def submit(slurm: Slurm, where: Path, *words: str) -> int:
    return slurm.submit("-o", "out-%j", *words, cwd=where)


def said(where: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(where.glob("out-*")))


def wait_well(slurm: Slurm, where: Path, job: int | str) -> None:
    """Until the job has ended as it should."""
    facts = slurm.wait(job)
    assert facts["JobState"] == "COMPLETED", (facts, said(where))
    assert "Traceback" not in said(where), said(where)


def settle(slurm: Slurm) -> None:
    """Until nothing of a run is left; where SLURM killed its agent, by the command that the page names."""
    if slurm.tracked_by == "cgroup":
        wait_until(lambda: not scripts.agents(), 20, f"agents end with their steps: {scripts.agents()}")
        scripts.run_words(Path("/"), [sys.executable, "-m", "logclient_backend", "recover"])
    scripts.wait_gone()


def steps_of_ranks(found: RunView) -> dict[int | None, list[int]]:
    """The steps that each rank logged, in order."""
    by_rank: dict[int | None, list[int]] = {}
    for point in RunReader(node.path for node in found.nodes).points():
        by_rank.setdefault(point.rank, []).append(point.step)
    return by_rank


def runs(run_dir: Path) -> list[RunView]:
    return sorted(scripts.runs(run_dir), key=lambda run: run.created_ns)


def test_srun_is_one_run_of_all_its_tasks(slurm: Slurm, tmp_path: Path, run_dir: Path) -> None:
    """Two tasks of a step are two ranks of one run; srun does not wait for the agent."""
    given = recipe("srun")
    given.write(tmp_path)
    (command,) = given.commands
    begun = time.monotonic()
    slurm.call("sh", "-c", command, cwd=tmp_path)
    assert time.monotonic() - begun < 20
    settle(slurm)
    found = scripts.the_run(run_dir)
    assert steps_of_ranks(found) == HUNDRED
    assert found.state.name == "finished"
    assert len(found.processes) == 2


def test_batch_script_has_a_run_per_step_and_per_plain_start(
    slurm: Slurm, tmp_path: Path, run_dir: Path
) -> None:
    """The script of a job with two tasks: two sruns are two runs of two ranks, two plain starts two runs of one."""
    recipe("srun").write(tmp_path)
    lines = ["srun python train.py", "srun --overcommit python train.py", *2 * ["python train.py"]]
    batch = scripts.write(tmp_path, "#!/bin/bash\n" + " && ".join(lines), "job.sbatch")
    wait_well(slurm, tmp_path, submit(slurm, tmp_path, "--ntasks=2", str(batch)))
    settle(slurm)
    found = runs(run_dir)
    assert [steps_of_ranks(run) for run in found[:2]] == [HUNDRED, HUNDRED]
    assert [list(steps_of_ranks(run).values()) for run in found[2:]] == [[STEPS], [STEPS]]
    assert {run.state.name for run in found} == {"finished"}


def test_array_job_has_a_run_per_task(slurm: Slurm, tmp_path: Path, run_dir: Path) -> None:
    """Each task of an array is a job, and its step a run of all its ranks."""
    recipe("srun").write(tmp_path)
    recipe("sbatch").write(tmp_path)
    (command,) = recipe("Array jobs").commands
    job = submit(slurm, tmp_path, *command.split()[1:])
    for task in (1, 2):
        wait_well(slurm, tmp_path, f"{job}_{task}")
    settle(slurm)
    found = runs(run_dir)
    assert [steps_of_ranks(run) for run in found] == [HUNDRED, HUNDRED]
    assert len({run.id for run in found}) == 2


def flushed(where: Path, attempt: int) -> None:
    for rank in (0, 1):
        wait_until((where / f"flushed-{rank}-{attempt}").exists, 60, f"attempt {attempt} logs: {said(where)}")


def test_requeued_job_is_another_attempt(slurm: Slurm, tmp_path: Path, run_dir: Path) -> None:
    """A job that is queued again goes on in its run, and what the first attempt logged stays."""
    scripts.write(tmp_path, STAYS)
    recipe("sbatch").write(tmp_path)
    (command,) = recipe("sbatch").commands
    job = submit(slurm, tmp_path, *command.split()[1:])
    flushed(tmp_path, 0)
    slurm.call("scontrol", "requeue", str(job))
    slurm.start_now(job)
    flushed(tmp_path, 1)
    assert scripts.the_run(run_dir).state.name == "running"
    (tmp_path / "end").touch()
    facts = slurm.wait(job)
    assert facts["JobState"] == "COMPLETED", facts
    settle(slurm)
    found = scripts.the_run(run_dir)
    assert steps_of_ranks(found) == {0: list(range(20)), 1: list(range(20))}
    assert len(found.attempts) == 2
    assert found.state.name == "finished"
