"""MPI: whoever sets the variables of Open MPI, of PMI or those of torch, starts one run with all its ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from .. import scripts
from ..launched import by_rank, ranks, the_runs, writers
from ..recipes import recipe

# starts its ranks as mpirun does, all at once, and waits for them
MPIRUN = """
import os, subprocess, sys
rank, size, *more = sys.argv[1:]
shared = dict(word.split("=") for word in more)
ranks = [
    subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, rank: str(number), size: "3", **shared})
    for number in range(3)
]
sys.exit(max(each.wait(60) for each in ranks))
"""
LAUNCHERS = {
    "open mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "pmi": ("PMI_RANK", "PMI_SIZE"),
    "by hand": ("RANK", "WORLD_SIZE", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500"),
}


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_mpi(tmp_path: Path, run_dir: Path, launcher: str) -> None:
    """Two launches side by side and one after them, each of three ranks as on the page: three runs, each with its
    ranks."""
    words = LAUNCHERS[launcher]
    scripts.write(tmp_path, recipe("MPI").files["train.py"], "rank.py")
    both = [scripts.start(tmp_path, MPIRUN, *words, name="mpirun.py") for _ in range(2)]
    for process in both:
        assert (ended := scripts.end(process, 60)).code == 0, ended
    assert (ended := scripts.run(tmp_path, MPIRUN, *words, name="mpirun.py", timeout_s=60)).code == 0, ended
    for found in the_runs(run_dir, 3):
        assert by_rank(found) == ranks(3, range(100))
        assert (writers(found), len(found.attempts)) == (3, 1)


ZERO = """
import os
import logclient
for step in range(10):
    logclient.log(step, {"loss": 1.0})
if "OMPI_COMM_WORLD_RANK" in os.environ and os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    logclient.init(project="mpi", name="zero")
for step in range(10):
    logclient.log(step, {"loss": 1.0})
print(logclient.status()["refused"])
"""


@pytest.mark.timeout(60)
def test_run_in_rank_zero_alone(tmp_path: Path, run_dir: Path) -> None:
    """The other ranks, and rank 0 before its `init`, count and go on."""
    scripts.write(tmp_path, ZERO, "rank.py")
    ended = scripts.run(tmp_path, MPIRUN, *LAUNCHERS["open mpi"], name="mpirun.py", timeout_s=60)
    assert ended.code == 0, ended
    assert sorted(ended.out.splitlines()) == ["0", "20", "20"]
    (found,) = the_runs(run_dir, 1)
    assert by_rank(found) == {0: list(range(10))}
