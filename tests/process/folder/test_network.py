"""A run folder on a network file system: known by its mount, asked rarely, and slow or silent without harm.

A FUSE mount stands in for NFS: its calls are slow, hang, fail or are refused when told to. Field case
C6-4.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.agent.host.status import StatusPage
from tools.faults import fuse
from tools.faults.crash import account, training

from .. import recipes, scripts
from ..agents import WORKER, both_killed, kill, log_of, nothing_left, successor
from ..disturbed import Trainer, remove_at_once, stored, wait_until

pytestmark = [pytest.mark.root]

GONE_S = 60.0
EVERY_SECOND = {"LOGCLIENT_NETWORK_SYNC_S": "1"}
COMMAND = (sys.executable, "-m", "logclient_backend")


def all_stored(mount: fuse.Fuse, logged: int) -> None:
    """Every record, once."""
    found = account(mount.backing / "runs", logged)
    assert not found.problems
    assert (found.stored, found.forgotten, found.damaged) == (logged, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_slow_network_folder_is_asked_every_few_seconds_and_delays_nobody(mount, tmp_path, pace):
    """fsync takes 80 ms, write 20 ms: few fsyncs, a killed worker, a prompt finish, and every record."""
    mount.delay("fsync", 0.08)
    mount.delay("write", 0.02)
    every_s = max(1.0, pace.seconds(20))
    with training(
        tmp_path, {"LOGCLIENT_NETWORK_SYNC_S": str(every_s)}, rate=1_000, seconds=6 * every_s
    ) as trainer:
        answer = Path(trainer.shm_dir, "folder.json")
        wait_until(answer.exists, 30, "the folder answers")
        folder = json.loads(answer.read_text())
        assert folder["network"].startswith("fuse")
        page = trainer.status_page()
        wait_until(lambda: page.words[layout.AGENT_WRITTEN] > 0, 30, "something is durable")
        time.sleep(every_s / 2)
        before, begun = mount.counts()["fsync"], time.monotonic()
        time.sleep(3 * every_s)
        took_s = time.monotonic() - begun
        in_between = mount.counts()["fsync"] - before
        # a look: the open segment, and the documents, perhaps at two looks
        assert in_between <= 4 * (took_s / every_s + 1), f"{in_between} in {took_s:.1f} s"
        assert page.words[layout.AGENT_WRITTEN] > 0
        kill(page.words[layout.AGENT_WORKER])
        status = trainer.end()
        assert status["durable"] == status["accepted"] == trainer.logged
        trainer.wait_gone(GONE_S)
    assert trainer.longest_ms < 1_000
    all_stored(mount, trainer.logged)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "calls", [("write",), ("fsync",), ("open", "create"), ("getattr", "readdir")], ids="-".join
)
def test_network_folder_that_hangs_delays_nobody_and_loses_nothing(mount, tmp_path, pace, calls):
    """Hung in mid-run until after a killed worker and a finish that gives up in time: all is stored at the release."""
    records = pace.count(100_000, least=4_000)
    trainer = Trainer(tmp_path, EVERY_SECOND, records=records, rate=2_000, finish_timeout_s=0.5)
    wait_until(lambda: trainer.word(layout.AGENT_WRITTEN), 30, "something is durable")
    mount.hang(*calls)
    wait_until(lambda: any(mount.hanging().values()), 30, "the copier hangs")
    worker = trainer.agent_pid()
    kill(worker)
    successor(trainer, WORKER, worker)
    status = trainer.end()
    assert status["forgotten"] == status["refused"] == 0
    assert status["durable"] < records
    mount.release()
    nothing_left(GONE_S)
    assert trainer.longest_ms < 1_000
    all_stored(mount, records)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("call", "code"),
    [("write", errno.EDQUOT), ("fsync", errno.EDQUOT), ("create", errno.EACCES), ("mkdir", errno.ESTALE)],
)
def test_what_a_network_folder_refuses_for_a_while_is_late_not_lost(mount, tmp_path, call, code):
    """Quota at write and at fsync (where NFS tells it), a squashed user, a stale handle; and room comes back."""
    trainer = Trainer(tmp_path, {**EVERY_SECOND, "LOGCLIENT_SEAL_S": "1"}, records=3_000, rate=1_000)
    wait_until(lambda: trainer.word(layout.AGENT_WRITTEN), 30, "something is durable")
    mount.fail(call, code, times=-1)
    if call == "mkdir":  # somebody removed the folder as well
        remove_at_once(mount.backing / "runs")
    wait_until(lambda: trainer.word(layout.AGENT_WRITE_ERROR) == code, 30, f"{call} fails")
    mount.fail(call, 0, times=0)
    status = trainer.end()
    assert status["durable"] == status["accepted"] == 3_000
    nothing_left(GONE_S)
    if call == "mkdir":
        assert stored(mount.backing / "runs").seqs
    else:
        all_stored(mount, 3_000)
        assert os.strerror(code) in log_of(mount.backing / "runs")


@pytest.mark.timeout(60)
def test_where_all_ends_with_the_trainer_a_network_folder_has_all_but_the_last_half_second(mount, tmp_path):
    """In a job of a scheduler nothing waits for `network_sync_s`: everybody is killed, and little is missing."""
    env = {"LOGCLIENT_NETWORK_SYNC_S": "100", "PBS_JOBID": "1.here"}
    trainer = Trainer(tmp_path, env, rate=1_000, until_told=True, finish=False)
    assert "PBS job 1.here" in json.loads(Path(trainer.shm_dir, "run.json").read_text())["confined"]
    wait_until(lambda: trainer.word(layout.AGENT_WRITTEN), 30, "something is durable")
    runs = mount.backing / "runs"
    wait_until(lambda: stored(runs).records > 1_000, 60, "more is there long before 100 s are over")
    before = stored(runs).records
    both_killed(trainer)
    trainer.end_by()
    assert stored(runs).records >= before


PROGRAM = """
import sys
import logclient
run = logclient.init(project="case", dir=sys.argv[1])
run.log(0, {"loss": 0.0})
print("began", flush=True)
input()
for step in range(1, 10):
    run.log(step, {"loss": step / 2})
run.finish()
print(run.dir)
"""


@pytest.mark.slow
@pytest.mark.timeout(90)
@pytest.mark.parametrize("answer", ["refused", "fine"])
def test_folder_that_was_silent_at_init_is_what_it_answers_later(mount, tmp_path, home, answer):
    """Silent at init, taken as it is; then it answers. With an error the run goes home, and readers find it there."""
    wanted = mount.path / "runs"
    mount.hang("getattr", "mkdir")
    process = scripts.start(tmp_path, PROGRAM, str(wanted), stdin=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    (shm_dir,) = scripts.shm_dirs()
    page = StatusPage(str(shm_dir / "agent.status"))
    wait_until(lambda: page.words[layout.AGENT_WRITE_STALLED_NS], 30, "the copier waits for it too")
    if answer == "refused":
        mount.fail("mkdir", errno.EROFS, times=-1)
    mount.release()
    wait_until((shm_dir / "folder.json").exists, 30, "the answer comes")
    ended = scripts.end_with(process, "\n")
    assert ended.code == 0, ended
    assert "does not answer" in ended.said[0]
    scripts.wait_gone()
    where = home / ".local/share/logclient-runs" if answer == "refused" else wanted
    assert ended.out.split()[-1] == str(where)
    assert str(where) in ended.said[1]
    assert scripts.steps(scripts.the_run(where)) == list(range(10))
    (listed,) = json.loads(scripts.run_words(tmp_path, [*COMMAND, "ls", "--dir", str(wanted), "--json"]).out)[
        "runs"
    ]
    assert listed["state"] == "finished"
    assert (answer == "refused") == (not (mount.backing / "runs").exists())


@pytest.mark.timeout(60)
def test_a_network_folder_is_called_one(mount, tmp_path):
    """The line at start, `status` and `doctor` name its type; links and blanks in its path are seen through."""
    (mount.path / "a blank").mkdir()
    link = tmp_path / "link"
    link.symlink_to(mount.path / "a blank")
    process = scripts.start(tmp_path, PROGRAM, str(link / "runs"), stdin=-1)
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"
    told = json.loads(scripts.run_words(tmp_path, [*COMMAND, "status", "--json"]).out)["runs"]
    (live,) = (run for run in told if run["meeting_place"].startswith(os.environ["LOGCLIENT_SHM_DIR"]))
    assert live["network"].startswith("fuse")
    assert "a network file system" in scripts.run_words(tmp_path, [*COMMAND, "status"]).out
    ended = scripts.end_with(process, "\n")
    assert f"goes to {link / 'runs'} ({live['network']}: a network file system)" in ended.said[0]
    told = scripts.run_words(tmp_path, [*COMMAND, "doctor", "--dir", str(mount.path / "a blank"), "--json"])
    (finding,) = (each for each in json.loads(told.out)["findings"] if "network" in each["text"])
    assert finding["level"] == "note"


@pytest.mark.timeout(60)
def test_recipe_run_folder_on_a_network_file_system(mount, tmp_path):
    """The page's recipe, with the mount in the place of /shared."""
    recipe = recipes.recipe("Run folder on a network file system")
    recipe.write(tmp_path)
    train = tmp_path / "train.py"
    train.write_text(train.read_text().replace("/shared/runs", str(mount.path / "runs")))
    (line,) = recipe.commands
    env = scripts.environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    ended = scripts.run_words(tmp_path, ["sh", "-c", line], 60, env=env)
    assert ended.code == 0, ended
    assert "a network file system" in ended.said[0]
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(mount.backing / "runs")) == list(range(100))
