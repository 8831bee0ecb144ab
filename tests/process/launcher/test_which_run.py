"""Part 2 of "where it runs": which run an `init` gives, for every way in which processes of a training come about.

Launchers are stood in for by small programs that set their variables; the real ones are in the files beside this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.runs.view import RunView

from .. import scripts

# a rank: logs its word once, and waits for its standard input to end before it does
RANK = """
import json, sys
import logclient
word, given = sys.argv[1], json.loads(sys.argv[2])
run = logclient.init("case", quiet=True, **given)
run.log(0, {word: 1.0})
sys.stdin.read()
run.finish()
"""

# a launcher: starts ranks with its variables, all at once (or each when the one before has ended), waits for all of
# them; `shell` puts a shell in between
LAUNCHER = """
import json, os, subprocess, sys
word, sets = sys.argv[1], json.loads(sys.argv[2])
words = [sys.executable, "rank.py", word, sys.argv[3] if len(sys.argv) > 3 else "{}"]
if os.environ.pop("SHELL_BETWEEN", ""):
    words = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *words]
one_by_one = os.environ.pop("ONE_BY_ONE", "")
ranks = []
for change in sets:
    ranks.append(subprocess.Popen(words, env={**os.environ, **change}, stdin=subprocess.PIPE))
    if one_by_one:
        ranks[-1].communicate()
for rank in ranks:
    rank.stdin.close()
sys.exit(max(rank.wait() for rank in ranks))
"""


def torchrun(world_size: int = 2, restarts: int = 0, **more: str) -> list[dict[str, str]]:
    shared = {
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        **more,
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]


def srun(job: int, step: int, restarts: int = 0, tasks: int = 2) -> list[dict[str, str]]:
    shared = {
        "SLURM_CLUSTER_NAME": "c",
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": str(step),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
    }
    return [{**shared, "SLURM_PROCID": str(rank)} for rank in range(tasks)]


def start(
    where: Path, word: str, sets: list[dict[str, str]], given: str = "{}", **env: str
) -> subprocess.Popen[str]:
    scripts.write(where, RANK, "rank.py")
    return scripts.start(
        where, LAUNCHER, word, json.dumps(sets), given, name="launcher.py", env=scripts.environment(**env)
    )


def launch(where: Path, word: str, sets: list[dict[str, str]], given: str = "{}", **env: str) -> None:
    ended = scripts.end(start(where, word, sets, given, **env), 60)
    assert (ended.code, ended.err) == (0, ""), ended


def words_of(run: RunView) -> dict[str, int]:
    """How many points each word has."""
    return {word: len(found) for word, found in scripts.points(run).items()}


def all_words(run_dir: Path) -> list[dict[str, int]]:
    scripts.wait_gone(60)
    return [words_of(run) for run in sorted(scripts.runs(run_dir), key=lambda run: run.created_ns)]


# what is launched one after the other: (word, variables of the ranks, environment of the launcher)
Step = tuple[str, list[dict[str, str]], dict[str, str]]
TABLE: dict[str, tuple[list[Step], list[dict[str, int]], list[int]]] = {
    # name: what is launched, the words of each run, how many attempts each run has
    "two steps in one job": (
        [("a", srun(5, 0), {}), ("b", srun(5, 1), {})],
        [{"a": 2}, {"b": 2}],
        [1, 1],
    ),
    "two torchruns in a row": (
        [("a", torchrun(), {}), ("b", torchrun(), {})],
        [{"a": 2}, {"b": 2}],
        [1, 1],
    ),
    "torchrun with a shell between it and its ranks": (
        [("a", torchrun(), {"SHELL_BETWEEN": "1"})],
        [{"a": 2}],
        [1],
    ),
    "an array job": (
        [("a", srun(5, 0), {"SLURM_ARRAY_JOB_ID": "5"}), ("b", srun(6, 0), {"SLURM_ARRAY_JOB_ID": "5"})],
        [{"a": 2}, {"b": 2}],
        [1, 1],
    ),
    "a requeue": (
        [("a", srun(5, 0), {}), ("b", srun(5, 0, restarts=1), {})],
        [{"a": 2, "b": 2}],
        [2],
    ),
    "a requeue with another world size": (
        [("a", srun(5, 0), {}), ("b", srun(5, 0, restarts=1, tasks=3), {})],
        [{"a": 2, "b": 3}],
        [2],
    ),
    "a requeued job with torchrun in its batch script": (
        [
            ("a", torchrun(), {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0"}),
            ("a", torchrun(3), {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"}),
        ],
        [{"a": 5}],
        [2],
    ),
    "ranks of a job's torchrun that are over before the next comes": (
        [("a", torchrun(), {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "ONE_BY_ONE": "1"})],
        [{"a": 2}],
        [1],
    ),
    "single processes of a batch script": (
        [
            ("a", [{}], {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}),
            ("b", [{}], {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}),
        ],
        [{"a": 1}, {"b": 1}],
        [1, 1],
    ),
    "one id in the environment": (
        [("a", torchrun(), {"LOGCLIENT_RUN_ID": "mine"}), ("b", [{}], {"LOGCLIENT_RUN_ID": "mine"})],
        [{"a": 2, "b": 1}],
        [2],
    ),
}


@pytest.mark.first_is_quick
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", TABLE)
def test_launches_give_runs(tmp_path: Path, run_dir: Path, case: str) -> None:
    """Each launch one run, each restart another attempt of it, whatever was launched before."""
    steps, words, attempts = TABLE[case]
    for word, sets, env in steps:
        launch(tmp_path, word, sets, **env)
    scripts.wait_gone(60)
    assert all_words(run_dir) == words
    found = sorted(scripts.runs(run_dir), key=lambda run: run.created_ns)
    assert [len(run.attempts) for run in found] == attempts
    assert {run.state.name for run in found} == {"finished"}
    assert all(run.ranks == list(range(len(run.ranks))) for run in found)


@pytest.mark.timeout(120)
def test_two_torchruns_side_by_side_are_two_runs(tmp_path: Path, run_dir: Path) -> None:
    """Their variables are the same, down to address and port."""
    both = [start(tmp_path, word, torchrun()) for word in "ab"]
    assert [scripts.end(each, 60).code for each in both] == [0, 0]
    assert sorted(map(str, all_words(run_dir))) == ["{'a': 2}", "{'b': 2}"]


ELASTIC = """
import json, os, subprocess, sys
first, then = json.loads(sys.argv[1])
def ranks(sets, word):
    words = [sys.executable, "rank.py", word, "{}"]
    return [subprocess.Popen(words, env={**os.environ, **change}, stdin=subprocess.PIPE) for change in sets]
old = ranks(first, "a")
import time
time.sleep(0.1)
while not os.path.exists("logged"):
    time.sleep(0.01)
for rank in old:
    rank.kill()
    rank.wait()
new = ranks(then, "b")
for rank in new:
    rank.stdin.close()
sys.exit(max(rank.wait() for rank in new))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_restart_of_a_worker_group_is_another_attempt(tmp_path: Path, run_dir: Path) -> None:
    """Ranks are killed and started again, with another world size: one run, nothing of the first is lost."""
    rank = RANK.replace(
        "sys.stdin.read()", "assert run.flush(60); open(word + run.id[-1], 'w'); sys.stdin.read()"
    )
    scripts.write(tmp_path, rank, "rank.py")
    sets = json.dumps([torchrun(2), torchrun(3, restarts=1)])
    code = ELASTIC.replace('os.path.exists("logged")', "any(n.startswith('a') for n in os.listdir())")
    ended = scripts.run(tmp_path, code, sets, name="launcher.py", timeout_s=60)
    assert ended.code == 0, ended
    (words,) = all_words(run_dir)
    run = scripts.the_run(run_dir)
    assert words["b"] == 3 and 1 <= words["a"] <= 2
    assert [attempt.number for attempt in run.attempts] == [1, 2]
    assert run.state.name == "finished"


@pytest.mark.slow
def test_hundred_inits_in_a_row_are_hundred_runs(tmp_path: Path, run_dir: Path, pace: Any) -> None:
    """S-7, and under a launcher too: each init of a process is a run of its own, the same one in each rank."""
    count = pace.count(100, least=8)
    code = f"""
    import logclient
    for number in range({count}):
        run = logclient.init("case", quiet=True)
        run.log(number, {{"loss": 1.0}})
        assert run.finish(60)
    """
    scripts.write(tmp_path, code, "rank.py")
    ended = scripts.run(tmp_path, LAUNCHER, "-", json.dumps(torchrun()), name="launcher.py", timeout_s=100)
    assert ended.code == 0, ended
    scripts.wait_gone(60)
    found = scripts.runs(run_dir)
    assert sorted(scripts.steps(run) for run in found) == [[number] * 2 for number in range(count)]


OPEN_TOGETHER = """
import logclient, subprocess, sys
a = logclient.init("case", name="a", quiet=True)
b = logclient.init("case", name="b", quiet=True)
for step in range(10):
    a.log(step, {"of a": 1.0})
    b.log(step, {"of b": 1.0})
child = "import logclient; logclient.log(0, {'of child': 1.0}); logclient.flush()"
subprocess.run([sys.executable, "-c", child], check=True)
assert a.finish()
b.log(10, {"of b": 1.0})
subprocess.run([sys.executable, "-c", child], check=True)
assert b.finish()
"""


def test_two_runs_open_at_once_stay_apart(tmp_path: Path, run_dir: Path) -> None:
    """S-7: rows in turn, each in its own run; a child finds the newest that is open."""
    scripts.run_well(tmp_path, OPEN_TOGETHER)
    scripts.wait_gone()
    found = {run.name: words_of(run) for run in scripts.runs(run_dir)}
    assert found == {"a": {"of a": 10}, "b": {"of b": 11, "of child": 2}}


PARENT_OF_CHILDREN = """
import json, logclient, os, subprocess, sys
run = logclient.init("case", name="train", quiet=True)
run.log(0, {"train": 1.0})
CHILD = "import json, logclient, sys; "
CHILD += "run = logclient.init(**json.loads(sys.argv[1])); logclient.log(0, {sys.argv[2]: 1.0}); run.finish()"
def child(word, **given):
    given = json.dumps({"quiet": True, **given})
    subprocess.run([sys.executable, "-c", CHILD, given, word], check=True)
child("same", project="case")
child("same name", name="train")
child("nothing said")
child("same id", id=run.id)
child("eval", project="case", name="eval")
child("other project", project="other")
child("other id", id="elsewhere")
if (pid := os.fork()) == 0:
    own = logclient.init("case", name="forked eval", quiet=True)
    own.log(0, {"forked eval": 1.0})
    os._exit(not own.finish())
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
run.log(1, {"train": 1.0})
run.finish()
child("afterwards", project="case")
"""


@pytest.mark.slow
def test_child_joins_its_parents_run_unless_it_names_another(tmp_path: Path, run_dir: Path) -> None:
    """An evaluation child with its own init has its own run, which names the other; the rest is part of that one."""
    scripts.run_well(tmp_path, PARENT_OF_CHILDREN, timeout_s=60)
    scripts.wait_gone()
    found = {run.name: run for run in scripts.runs(run_dir)}
    train = found.pop("train")
    joined = ("same", "same name", "nothing said", "same id")
    assert words_of(train) == {"train": 2, **dict.fromkeys(joined, 1)}
    assert train.state.name == "finished"
    assert sorted(word for run in found.values() for word in words_of(run)) == sorted(
        ["eval", "other project", "other id", "forked eval", "afterwards"]
    )
    for run in found.values():
        (owner,) = (process for process in run.processes.values() if process.is_owner)
        expected = None if "afterwards" in words_of(run) else train.id
        assert owner.data("start").get("parent_run") == expected


def test_child_of_a_rank_is_no_rank(tmp_path: Path, run_dir: Path) -> None:
    """It inherits the launcher's variables: what it starts when the training is over is no attempt of that."""
    code = (
        RANK
        + "\nimport subprocess\nif word == 'a':\n    subprocess.run([sys.executable, __file__, 'b', '{}'])\n"
    )
    scripts.write(tmp_path, code, "rank.py")
    ended = scripts.run(tmp_path, LAUNCHER, "a", json.dumps(torchrun()), name="launcher.py", timeout_s=60)
    assert ended.code == 0, ended
    assert sorted(map(str, all_words(run_dir))) == ["{'a': 2}", "{'b': 1}", "{'b': 1}"]


STALE = """
import os, subprocess, sys
import logclient
run = logclient.init("case", quiet=True)
run.log(0, {"live": 1.0})
run.flush()
print(os.environ["LOGCLIENT_PARENT"], flush=True)
sys.stdin.read()
"""


def test_stale_variable_makes_nobody_a_child(tmp_path: Path, run_dir: Path) -> None:
    """A shell that got the variable from elsewhere: a new run, whether the other one is live, over or never was."""
    live = scripts.start(tmp_path, STALE, stdin=subprocess.PIPE)
    assert live.stdout is not None
    handed_on = live.stdout.readline().strip()
    child = "import logclient; logclient.init('case', quiet=True).log(0, {'stranger': 1.0})"
    stray = "import logclient; logclient.log(0, {'stray': 1.0}); print(logclient.status()['refused'])"
    env = scripts.environment(LOGCLIENT_PARENT=handed_on)
    scripts.run_well(tmp_path, child, name="stranger.py", env=env)
    ended = scripts.run(tmp_path, stray, name="stray.py", env=env)
    assert (ended.code, ended.out) == (0, "1\n"), "it has no run to log to"
    scripts.end_with(live, "")
    scripts.wait_gone()
    scripts.run_well(tmp_path, child, name="stranger.py", env=env)
    scripts.wait_gone()
    assert sorted(map(str, map(words_of, scripts.runs(run_dir)))) == [
        "{'live': 1}",
        "{'stranger': 1}",
        "{'stranger': 1}",
    ]


def test_child_that_outlives_its_parent_stays_in_the_run(tmp_path: Path, run_dir: Path) -> None:
    """R2-34: the parent is gone and another child goes on: a third one that comes now is part of that run."""
    parent = f"""
    import logclient, os, subprocess, sys
    run = logclient.init("case", quiet=True)
    run.log(0, {{"parent": 1.0}})
    child = "import logclient, sys; logclient.log(0, {{'child': 1.0}}); print('on', flush=True); sys.stdin.read(); "
    child += "import subprocess; "
    child += "subprocess.run([sys.executable, '-c', 'import logclient; logclient.log(0, dict(late=1.0))'])"
    left = subprocess.Popen([{sys.executable!r}, "-c", child], stdin=subprocess.PIPE)
    sys.stdin.readline()
    os._exit(0)
    """
    process = scripts.start(tmp_path, parent, stdin=subprocess.PIPE)
    assert process.stdout and process.stdin and process.stderr
    assert process.stdout.readline() == "on\n"
    process.stdin.write("\n")
    process.stdin.flush()
    process.wait(60)
    for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
    scripts.wait_gone(60)
    assert words_of(scripts.the_run(run_dir)) == {"parent": 1, "child": 1, "late": 1}


EARLY_CHILD = """
import logclient, os, subprocess, sys, time
child = "import logclient, sys; logclient.log(0, {'early': 1.0}); print('refused', flush=True); "
child += "sys.stdin.readline(); "
child += "import time; time.sleep(0.6); [logclient.log(step, {'early': 1.0}) for step in (1, 2)]; "
child += "print(logclient.status()['accepted'], logclient.status()['refused'])"
early = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert early.stdout.readline() == "refused\\n"
run = logclient.init("case", quiet=True)
other = logclient.init("other", quiet=True)
print(early.communicate("\\n", 30)[0].strip())
other.finish()
init = "import logclient; logclient.init('case', quiet=True).log(0, {'without variable': 1.0})"
clean = {name: value for name, value in os.environ.items() if name != "LOGCLIENT_PARENT"}
subprocess.run([sys.executable, "-c", init], env=clean, check=True)
run.finish()
subprocess.run([sys.executable, "-c", init], env=clean, check=True)
"""


@pytest.mark.slow
def test_child_that_was_there_before_init_finds_the_run(tmp_path: Path, run_dir: Path) -> None:
    """No variable tells it: it looks whose run it descends from, the newest first; what came before is counted."""
    ended = scripts.run(tmp_path, EARLY_CHILD)
    assert (ended.code, ended.out) == (0, "2 1\n"), ended
    scripts.wait_gone()
    found = sorted((run.project, sorted(words_of(run).items())) for run in scripts.runs(run_dir))
    assert found == [
        ("case", [("without variable", 1)]),
        ("case", [("without variable", 1)]),
        ("other", [("early", 2)]),
    ]
