"""Which launch the variables of a process tell of: equal for its ranks and restarts, different for any other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from logclient.launching import ancestry
from logclient.launching import launcher_variables as launchers
from logclient.launching.launcher_variables import find, rank_of, rank_of_child

SRUN = {
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
}
BATCH = {name: value for name, value in SRUN.items() if not name.startswith("SLURM_STEP")}
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_NAMESPACE": "123@1",
    "PMIX_RANK": "0",
}
PMI = {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_JOBID": "kvs_1"}
HAND = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
OURS = {"LOGCLIENT_LAUNCH": "abc", "RANK": "0", "WORLD_SIZE": "4"}

SAME = {
    "srun, another rank": (SRUN, {"SLURM_PROCID": "3"}),
    "srun, requeued": (SRUN, {"SLURM_RESTART_COUNT": "1"}),
    "srun, requeued with another world size": (
        SRUN,
        {"SLURM_RESTART_COUNT": "1", "SLURM_STEP_NUM_TASKS": "8"},
    ),
    "torchrun, rank of another node": (TORCHRUN, {"RANK": "3", "LOCAL_RANK": "1"}),
    "torchrun, restarted": (TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "2"}),
    "torchrun, restarted with another world size": (
        TORCHRUN,
        {"TORCHELASTIC_RESTART_COUNT": "2", "WORLD_SIZE": "6"},
    ),
    "torchrun in a requeued job": (
        TORCHRUN | BATCH,
        {"SLURM_RESTART_COUNT": "1", "RANK": "2"},
    ),
    "mpirun, another rank": (MPIRUN, {"OMPI_COMM_WORLD_RANK": "2", "PMIX_RANK": "2"}),
    "PMI, another rank": (PMI, {"PMI_RANK": "2"}),
    "by hand, another rank": (HAND, {"RANK": "3"}),
    "logclient.launch, another rank": (OURS, {"RANK": "3"}),
}
OTHER = {
    "srun, another step": (SRUN, {"SLURM_STEP_ID": "1"}),
    "srun, another job, as of an array": (SRUN, {"SLURM_JOB_ID": "8"}),
    "srun, another cluster": (SRUN, {"SLURM_CLUSTER_NAME": "d"}),
    "torchrun, another rendezvous": (TORCHRUN, {"TORCHELASTIC_RUN_ID": "x"}),
    "torchrun, another endpoint": (TORCHRUN, {"MASTER_PORT": "29501"}),
    "torchrun in another job": (TORCHRUN | BATCH, {"SLURM_JOB_ID": "8"}),
    "mpirun, another launch": (MPIRUN, {"PMIX_NAMESPACE": "124@1"}),
    "by hand, another address": (HAND, {"MASTER_ADDR": "job2-master-0"}),
    "logclient.launch, another launch": (OURS, {"LOGCLIENT_LAUNCH": "abd"}),
    "torchrun and srun": (SRUN, TORCHRUN),
}


@pytest.mark.parametrize("case", SAME)
def test_ranks_and_restarts_of_a_launch_are_told_alike(case: str) -> None:
    """What is one launch has one name, so one run."""
    env, change = SAME[case]
    one, other = find(env), find(env | change)
    assert one is not None and other is not None
    assert one.run_id("p", "", 1) == other.run_id("p", "", 1)


@pytest.mark.parametrize("case", OTHER)
def test_other_launches_are_told_apart(case: str) -> None:
    """What is another launch has another name."""
    env, change = OTHER[case]
    one, other = find(env), find(env | change)
    assert one is not None and other is not None
    assert one.digest != other.digest


def test_project_name_and_ordinal_make_other_runs() -> None:
    """Several runs of one launch."""
    launch = find(SRUN)
    assert launch is not None
    ids = {launch.run_id(*given) for given in (("p", "", 1), ("q", "", 1), ("p", "n", 1), ("p", "", 2))}
    assert len(ids) == 4


@pytest.mark.parametrize(
    "env",
    [
        {},
        BATCH,
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "4"},
        {"RANK": "x", "WORLD_SIZE": "4"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1"},
        TORCHRUN | {"WORLD_SIZE": "1"},
        MPIRUN | {"OMPI_COMM_WORLD_SIZE": "1"},
        PMI | {"PMI_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "9" * 30},
    ],
    ids=str,
)
def test_no_launch_is_told_where_nobody_says_how_many(env: dict[str, str]) -> None:
    """A batch script is no launcher, nor is one rank of one."""
    assert find(env) is None


def test_restarts_are_counted() -> None:
    """A requeue counts for more than any number of restarts before it."""
    attempts = [
        TORCHRUN | BATCH | change
        for change in (
            {},
            {"TORCHELASTIC_RESTART_COUNT": "3"},
            {"SLURM_RESTART_COUNT": "1"},
            {"SLURM_RESTART_COUNT": "1", "TORCHELASTIC_RESTART_COUNT": "1"},
        )
    ]
    found = [launch.attempt for env in attempts if (launch := find(env)) is not None]
    assert found == sorted(set(found)) and len(found) == 4


def test_rank_is_the_launchers() -> None:
    """A batch job's variables, which mpirun inherits, say nothing of its ranks; what a user sets says most."""
    mpi = BATCH | MPIRUN | {"OMPI_COMM_WORLD_RANK": "3"}
    assert rank_of(mpi, find(mpi)) == 3
    hand = SRUN | {"SLURM_PROCID": "1", "RANK": "5", "WORLD_SIZE": "8"}
    assert rank_of(hand, find(hand)) == 5
    assert rank_of(hand | {"LOGCLIENT_RANK": "7"}, find(hand)) == 7
    assert rank_of({"RANK": "2"}, None) == 2
    assert rank_of({}, None) is None


def test_forked_child_has_the_rank_that_it_was_given() -> None:
    """It may set its own before it logs; else it has its parent's."""
    assert rank_of_child({}, -1, 4) == 4
    assert rank_of_child({"RANK": "6"}, -1, 4) == 6
    assert rank_of_child({"RANK": "6"}, 4, 4) == 4
    assert rank_of_child({"LOGCLIENT_RANK": "6"}, 4, 4) == 6


def test_launcher_is_seen_through_wrappers() -> None:
    """Who set the variables, not the shell in between; and not a launcher that is a rank of another one."""
    code = (
        "import os; from logclient.launching import ancestry;"
        "print(ancestry.launcher(dict(os.environ), 'RANK', 'WORLD_SIZE'))"
    )
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2"}
    plain = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    words = ["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, code]
    wrapped = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    nested_env = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "CODE": code}
    nested_code = (
        "import os, subprocess, sys; print(os.getpid());"
        "subprocess.run([sys.executable, '-c', os.environ['CODE']], env={**os.environ, 'WORLD_SIZE': '3'})"
    )
    nested = subprocess.run(
        [sys.executable, "-uc", nested_code], env=nested_env, capture_output=True, text=True, check=True
    )
    me = f"{ancestry.boot()}-{os.getpid()}-"
    assert plain.stdout == wrapped.stdout
    assert plain.stdout.startswith(me)
    inner, said = nested.stdout.split()
    assert said.startswith(f"{ancestry.boot()}-{inner}-")


def test_ancestors_end_where_nothing_can_be_read() -> None:
    """The chain leads from the parent to the first process."""
    chain = list(ancestry.ancestors())
    assert chain[0][0] == os.getppid()
    assert len(chain) == len(set(chain))
    assert ancestry.has_ancestor(*chain[-1])
    assert not ancestry.has_ancestor(os.getpid(), 1)


def test_half_imported_torch_gives_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group is asked only where there is one, and its failure is none of ours."""

    class Broken:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "torch.distributed", Broken())
    assert launchers.rank_of({}, None) is None
