"""Little shared memory and many processes: each gets lanes as long as that is possible, and all is counted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.faults import tmpfs

from .. import scripts

MIB = 1 << 20

# children that are all there at the same time; argv: how many, rows of each
CHILDREN = """
import json, os, resource, sys
import logclient
count, rows = int(sys.argv[1]), int(sys.argv[2])
if len(sys.argv) > 3:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
run = logclient.init(project="case", quiet=True)
run.log(0, {"parent": 1.0})
told, tell = os.pipe()
waits, go = os.pipe()
children = []
for number in range(count):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        for step in range(rows):
            run.log(step, {"child": step + number / 1000})
        status = run.status()
        os.write(tell, json.dumps([status["accepted"], status["refused"]]).encode() + b"\\n")
        os.read(waits, 1)
        os._exit(0)
    children.append(pid)
os.close(tell)
lines = []
with os.fdopen(told) as file:
    while len(lines) < count:
        lines.append(json.loads(file.readline()))
mount = os.statvfs(os.path.dirname(run._session.shm_dir.path))
taken = (mount.f_blocks - mount.f_bfree) * mount.f_frsize
names = [name for name in os.listdir(run._session.shm_dir.path) if name.endswith(".lanes")]
lanes = sum(512 * os.stat(os.path.join(run._session.shm_dir.path, name)).st_blocks for name in names)
os.close(go)
for pid in children:
    os.waitpid(pid, 0)
done = run.finish(120)
print(json.dumps({"done": done, "accepted": [a for a, _ in lines], "refused": [r for _, r in lines], "taken": taken,
    "lanes": lanes}))
"""


@pytest.fixture
def small(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tmpfs.SmallTmpfs]:
    """64 MiB of shared memory, a container's default."""
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    with tmpfs.SmallTmpfs(64) as shm:
        monkeypatch.setenv("LOGCLIENT_SHM_DIR", str(shm.path))
        yield shm


@pytest.mark.root
@pytest.mark.timeout(120)
@pytest.mark.parametrize("files", ["1024", "24"])
def test_forty_children_on_64_mib_are_all_stored(
    files: str, small: tmpfs.SmallTmpfs, run_dir: Path, tmp_path: Path
) -> None:
    """Every child gets lanes, everything is stored, and most of the mount stays free; with few open files, too."""
    ended = scripts.run_well(tmp_path, CHILDREN, "40", "300", files, timeout_s=110)
    told = json.loads(ended.out)
    assert told["done"] and told["accepted"] == [300] * 40 and told["refused"] == [0] * 40
    assert told["taken"] <= 16 * MIB
    counts = scripts.the_run(run_dir).counts()
    assert counts["stored"] == counts["accepted"] == 40 * 300 + 1 and counts["refused"] == 0
    scripts.wait_gone()


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_takes_half_of_a_small_mount_and_counts_what_it_refuses(
    small: tmpfs.SmallTmpfs, run_dir: Path, tmp_path: Path
) -> None:
    """More children than half of the mount has lanes for: the others refuse, and readers see how many records."""
    taken = small.path / "of-others"
    with open(taken, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 48 * MIB)
    ended = scripts.run_well(tmp_path, CHILDREN, "120", "100", timeout_s=220)
    told = json.loads(ended.out)
    assert told["done"] and 0 < told["lanes"] <= 8 * MIB
    assert told["taken"] <= 48 * MIB + 14 * MIB, "an eighth stays free"
    assert all(pair in ((100, 0), (0, 100)) for pair in zip(told["accepted"], told["refused"], strict=True))
    assert sum(told["refused"]) > 0 and sum(told["accepted"]) >= 20 * 100
    counts = scripts.the_run(run_dir).counts()
    assert counts["refused"] == sum(told["refused"])
    assert counts["accepted"] == sum(told["accepted"]) + 1 == counts["stored"] + counts["forgotten"]
    program = [sys.executable, "-m", "logclient_backend", "show", "--json"]
    shown = json.loads(scripts.run_words(tmp_path, program, 60).out)
    assert shown["counts"]["refused"] == sum(told["refused"])
    taken.unlink()
    scripts.wait_gone()


FILE_LIMIT = """
import json, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
import logclient
run = logclient.init(project="case", config={"large": "x" * 60_000}, quiet=True)
for step in range(1_000):
    run.log(step, {"loss": step / 2})
status = run.status()
print(json.dumps([run.finish(60), status["accepted"], status["refused"], status["notices"]]))
"""


@pytest.mark.parametrize("kib", [1024, 512, 96])
def test_a_limit_of_file_sizes_makes_lanes_smaller(kib: int, run_dir: Path, tmp_path: Path) -> None:
    """`ulimit -f`, with a signal that ends the program: it is never raised, and what fits below the limit is stored."""
    ended = scripts.run_well(tmp_path, FILE_LIMIT, str(kib << 10))
    done, accepted, refused, notices = json.loads(ended.out)
    assert (done, accepted, refused) == (True, 1_000, 0)
    assert any("ulimit -f" in line and f"{kib << 10:,}" in line for line in notices)
    counts = scripts.the_run(run_dir).counts()
    assert counts["accepted"] == 1_000 == counts["stored"] + counts["forgotten"]
    assert counts["forgotten"] == 0 or kib < 256
    assert all(path.stat().st_size <= kib << 10 for path in run_dir.rglob("*"))
    scripts.wait_gone()


def test_without_room_for_any_lane_a_limit_of_file_sizes_is_named(run_dir: Path, tmp_path: Path) -> None:
    """Below the least size nothing is logged, which is said and counted, and the program goes on."""
    ended = scripts.run_well(tmp_path, FILE_LIMIT, str(16 << 10))
    _, accepted, refused, notices = json.loads(ended.out)
    assert (accepted, refused) == (0, 1_000)
    assert any("ulimit -f" in line for line in notices)


FEW_FILES = """
import json, os, resource, signal, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
import logclient
run = logclient.init(project="case", quiet=True)
for step in range(1_000):
    run.log(step, {"loss": step / 2})
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps([run.finish(60), run.status()["accepted"], run.status()["notices"]]))
"""


@pytest.mark.parametrize("files", [20, 24, 48])
def test_few_open_files_cost_nothing(files: int, run_dir: Path, tmp_path: Path) -> None:
    """`ulimit -n`, soft and hard, which the agent inherits: all is stored, and the agent leaves."""
    ended = scripts.run_well(tmp_path, FEW_FILES, str(files), "finished")
    assert json.loads(ended.out) == [True, 1_000, []]
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(1_000))
    scripts.wait_gone()


@pytest.mark.slow
@pytest.mark.parametrize("files", [14, 8, 5])
def test_too_few_open_files_are_said_and_nobody_waits(files: int, run_dir: Path, tmp_path: Path) -> None:
    """Below what an agent needs none is started: `init` says so, `finish` does not wait, `recover` stores all."""
    process = scripts.start(tmp_path, FEW_FILES, str(files), "finished")
    ended = scripts.end(process, timeout_s=50)
    done, accepted, notices = json.loads(ended.out)
    assert ended.code == 0 and not done and accepted == 1_000 and ended.took_s < 50, ended
    # with 5 all are in use
    cause = "no file descriptor left (ulimit -n)" if files == 5 else "(ulimit -Hn), and it needs 20"
    assert any(cause in line for line in notices), notices
    assert not scripts.agents()
    program = [sys.executable, "-m", "logclient_backend", "recover"]
    assert scripts.run_words(tmp_path, program).code == 0
    scripts.wait_gone()
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(1_000))


def test_a_trainer_with_few_open_files_is_killed(run_dir: Path, tmp_path: Path) -> None:
    """Its agent stores what was accepted, sees the signal, and leaves."""
    ended = scripts.run(tmp_path, FEW_FILES, "24", "killed")
    assert ended.code == -9
    scripts.wait_gone()
    found = scripts.the_run(run_dir)
    assert found.state.name == "killed" and scripts.steps(found) == list(range(1_000))


def test_lane_files_beyond_the_limit_are_served_by_name(run_dir: Path, tmp_path: Path) -> None:
    """More children at once than there are descriptors: all of them are drained while they live."""
    ended = scripts.run_well(tmp_path, CHILDREN, "60", "50", "32", timeout_s=110)
    told = json.loads(ended.out)
    assert told["done"] and told["accepted"] == [50] * 60
    counts = scripts.the_run(run_dir).counts()
    assert counts["stored"] == counts["accepted"] == 60 * 50 + 1
    scripts.wait_gone()


SPENT = """
import json, os, resource, sys, time
import logclient
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = []
try:
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range(int(sys.argv[1])):
    os.close(kept.pop())
run = logclient.init(project="case", quiet=True)
for step in range(1_000):
    run.log(step, {"loss": step / 2})
flushed, done = run.flush(60), run.finish(60)
print(json.dumps([flushed, done, run.status()["accepted"], run.status()["notices"]]))
"""


@pytest.mark.parametrize("left", [3, 5])
def test_program_that_used_its_descriptors_has_enough_with_three(
    left: int, run_dir: Path, tmp_path: Path
) -> None:
    """The launcher's answer is read with the last of them: no sentence says that no agent was started."""
    ended = scripts.run_well(tmp_path, SPENT, str(left))
    assert json.loads(ended.out) == [True, True, 1_000, []]
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(1_000))
    scripts.wait_gone()


@pytest.mark.slow
def test_program_without_a_descriptor_for_an_agent_is_told_so(run_dir: Path, tmp_path: Path) -> None:
    """No agent can be started: `flush` and `finish` wait for nobody, the cause is named, `recover` stores it all."""
    ended = scripts.run_well(tmp_path, SPENT, "2")
    flushed, done, accepted, notices = json.loads(ended.out)
    assert (flushed, done, accepted) == (False, False, 1_000)
    assert any("no file descriptor left" in line for line in notices), notices
    assert not any("does not answer" in line for line in notices), notices
    scripts.run_words(tmp_path, [sys.executable, "-m", "logclient_backend", "recover"], 60)
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(1_000))
    scripts.wait_gone()
