"""Training under SLURM, a real one of one node: which run is whose, requeue, preemption, and how a step ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from logclient_backend.runs.points import RunReader
from logclient_backend.runs.view import RunView
from tools.faults import slurm as slurms
from tools.faults.slurm import Slurm

from .. import scripts
from ..disturbed import wait_until
from ..recipes import recipe

WHY_NOT = slurms.why_not()
pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or ""),
]

TRACKERS = sorted({"linuxproc", slurms.tracker()})
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
assert run.flush(60)
open(f"flushed-{os.environ['SLURM_PROCID']}-{attempt}", "w").close()
deadline = time.monotonic() + 60
while not os.path.exists("end") and time.monotonic() < deadline:
    time.sleep(0.02)
run.finish()
"""

# is named after its partition, and does with SIGTERM what it is told to
PREEMPTED = """
import os, signal, sys, time
import logclient
run = logclient.init(project="slurm", name=os.environ["SLURM_JOB_PARTITION"], quiet=True)
step = 0
def leave(number, frame):
    run.log(1_000_000, {"left": float(step)})
    time.sleep(0.5)
    sys.exit(143)
signal.signal(signal.SIGTERM, {"default": signal.SIG_DFL, "ignore": signal.SIG_IGN, "leave": leave}[sys.argv[1]])
deadline = time.monotonic() + 90
while time.monotonic() < deadline:
    run.log(step, {"loss": 1.0})
    step += 1
    if step == 10:
        assert run.flush(60)
        open(f"flushed-{os.environ['SLURM_JOB_PARTITION']}-{os.environ['SLURM_PROCID']}", "w").close()
    time.sleep(0.01)
"""


# rank 1 hangs, rank 0 goes on
HANGS = """
import os, time
import logclient
run = logclient.init(project="slurm", name="hangs", id="hangs", quiet=True)
def stay():
    while not os.path.exists("end"):
        time.sleep(0.6)
step = 0
while not os.path.exists("end"):
    run.log(step, {"loss": 1.0})
    step += 1
    if step == 50:
        open(f"begun-{os.environ['SLURM_PROCID']}", "w").close()
        if os.environ["SLURM_PROCID"] == "1":
            stay()
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, Slurm]]:
    """By how they track processes. Made before any test's settings are in the environment, and kept for the module."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Slurm(name)) for name in TRACKERS}


@pytest.fixture
def slurm(clusters: dict[str, Slurm]) -> Slurm:
    """One with the process tracking that runs here: `cgroup`, as on most clusters, wherever that can be had."""
    return clusters[slurms.tracker()]


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
        scripts.run_words(Path("/"), [sys.executable, "-m", "logclient_backend", "recover"], env=slurm.env)
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
    assert time.monotonic() - begun < 60
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


def wait_for_files(slurm: Slurm, where: Path, *names: str) -> None:
    try:
        wait_until(lambda: all((where / name).exists() for name in names), 60, f"{names} are there")
    except AssertionError as error:
        error.add_note(f"{said(where)}\n{slurm.call('scontrol', 'show', 'job', '-o')}")
        raise


def test_overlapping_step_asks_why(slurm: Slurm, tmp_path: Path, run_dir: Path) -> None:
    """The commands of the page, beside a job whose rank 1 hangs."""
    scripts.write(tmp_path, HANGS)
    batch = scripts.write(tmp_path, "#!/bin/bash\nsrun --overcommit -n2 python train.py\n", "hangs.sbatch")
    job = submit(slurm, tmp_path, "-n2", str(batch))
    try:
        wait_for_files(slurm, tmp_path, "begun-0", "begun-1")
        time.sleep(2.0)
        ask = "logclient why hangs --local --json --late-after 1"
        step = f"srun --jobid={job} --overlap --ntasks-per-node=1 -N1 -o 'why.%N.json' {ask}"
        slurm.call("sh", "-c", f"{step}; test $? = 3", cwd=tmp_path)
        slurm.call("sh", "-c", "logclient why --merge why.*.json --json > merged; test $? = 3", cwd=tmp_path)
    finally:
        (tmp_path / "end").touch()
        wait_well(slurm, tmp_path, job)
    settle(slurm)
    found = json.loads((tmp_path / "merged").read_text())
    assert found["verdict"] == "user code" and found["text"].startswith("rank 1 "), found["text"]
    assert " at stay (" in found["text"], found["text"]


def test_preflight_finds_the_ranks_of_a_step(slurm: Slurm, tmp_path: Path) -> None:
    """Ranks and address come from the variables of a real `srun`."""
    pytest.importorskip("torch")
    said = slurm.call(
        "sh", "-c", "srun --overcommit -n2 logclient preflight --json", cwd=tmp_path, timeout_s=200
    )
    found = json.loads(said[said.index("{") :])
    assert found["findings"] == [] and found["ranks"] == 2 and found["launcher"] == "srun", said


def test_requeued_job_is_another_attempt(slurm: Slurm, tmp_path: Path, run_dir: Path) -> None:
    """A job that is queued again goes on in its run, and what the first attempt logged stays."""
    scripts.write(tmp_path, STAYS)
    recipe("sbatch").write(tmp_path)
    (command,) = recipe("sbatch").commands
    job = submit(slurm, tmp_path, *command.split()[1:])
    wait_for_files(slurm, tmp_path, "flushed-0-0", "flushed-1-0")
    slurm.call("scontrol", "requeue", str(job))
    slurm.start_now(job)
    wait_for_files(slurm, tmp_path, "flushed-0-1", "flushed-1-1")
    assert scripts.the_run(run_dir).state.name == "running"
    (tmp_path / "end").touch()
    facts = slurm.wait(job)
    assert facts["JobState"] == "COMPLETED", facts
    settle(slurm)
    found = scripts.the_run(run_dir)
    assert steps_of_ranks(found) == {0: list(range(20)), 1: list(range(20))}
    assert len(found.attempts) == 2
    assert found.state.name == "finished"
    assert {found.states[id].name for id in found.attempts[0].processes} == {"preempted"}


@pytest.mark.parametrize("tracked_by", TRACKERS)
def test_preempted_job_says_so(
    clusters: dict[str, Slurm], tracked_by: str, tmp_path: Path, run_dir: Path
) -> None:
    """Jobs that another one displaces are preempted, however they take SIGTERM; one that a user cancels is not."""
    slurm = clusters[tracked_by]
    scripts.write(tmp_path, PREEMPTED)
    ways = {
        "low": ("srun --overcommit -n2 python train.py default", ["--array=7"], {signal.SIGTERM}),
        "grace": ("exec python train.py leave", [], {None}),
        "cancel": ("exec python train.py ignore", [], {signal.SIGKILL}),
        "high": ("exec python train.py default", [], {signal.SIGTERM}),
    }
    jobs = {}
    for partition, (command, options, _) in ways.items():
        batch = scripts.write(tmp_path, f"#!/bin/bash\n{command}\n", f"{partition}.sbatch")
        jobs[partition] = submit(slurm, tmp_path, "-p", partition, "-n2", *options, str(batch))
    wait_for_files(slurm, tmp_path, *[f"flushed-{partition}-0" for partition in ways])
    slurm.call("scancel", str(jobs["high"]))
    slurm.wait(jobs["high"])
    other = slurm.submit("-p", "high", "--exclusive", "-o", "other", "--wrap", "true", cwd=tmp_path)
    slurm.wait(other)
    slurm.call("scancel", "--user=root", "--state=PENDING")
    settle(slurm)
    found = {run.name: run for run in runs(run_dir)}
    for partition in ("low", "grace", "cancel"):
        run = found[partition]
        assert run.state.name == "preempted", (partition, run.states, said(tmp_path))
        assert len(run.processes) == (2 if partition == "low" else 1)
        assert all(state.name == "preempted" for state in run.states.values()), run.states
        if tracked_by == "linuxproc":  # there the agent outlives the step, and sees how it ended
            assert {state.signal for state in run.states.values()} == ways[partition][2]
        assert all(steps[:10] == list(range(10)) for steps in steps_of_ranks(run).values())
    assert found["high"].state.name in ("terminated", "lost")
    assert "left" in scripts.points(found["grace"])


def test_agent_that_gets_no_answer_tells_what_it_saw(
    clusters: dict[str, Slurm], tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`scontrol` hangs: nothing else waits for it, and after some seconds the run is what was seen, and why is said."""
    slurm = clusters["linuxproc"]
    hangs = scripts.write(tmp_path / "bin", "#!/bin/sh\necho $$ > $0.pid\nexec sleep 60\n", "scontrol")
    hangs.chmod(0o755)
    monkeypatch.setenv("PATH", str(hangs.parent), prepend=":")
    scripts.write(tmp_path, PREEMPTED)
    job = submit(slurm, tmp_path, "--wrap", "exec python train.py default")
    wait_for_files(slurm, tmp_path, "flushed-low-0")
    slurm.call("scancel", str(job))
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert (found.state.name, found.state.signal) == ("terminated", signal.SIGTERM)
    log = (Path(found.nodes[0].path) / "agent.log").read_text()
    assert f"SLURM was not asked whether job {job} was preempted: scontrol did not answer within 5 s" in log
    child = int((tmp_path / "bin" / "scontrol.pid").read_text())
    wait_until(lambda: not os.path.exists(f"/proc/{child}"), 20, "nobody waits for scontrol any more")
