"""A container's processes end with its PID 1: what is promised there is there, and its zombies do not pile up."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from logclient.shm import layout, proc
from logclient_backend.agent.host.status import StatusPage
from tools.faults import processes

from .. import agents, containers, scripts
from ..containers import COUNTED, Truth
from ..disturbed import wait_until
from ..recipes import recipe

pytestmark = [pytest.mark.root]

HALF_S = 0.5
BUSY_S = 8.0  # how much later a loaded machine may be
ENDS = {  # what the program does at its end; its exit code, and what is known of the run
    "return": ("", 0, "finished", "its exit code was not seen"),
    "finish": ("run.finish()", 0, "finished", ""),
    "exception": ("raise ValueError('told')", 1, "failed", "ValueError: told"),
    "sys.exit": ("sys.exit(3)", 3, "finished", "its exit code was not seen"),
    "sys.exit in with": ("with run:\n    sys.exit(3)", 3, "failed", "exit code 3"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ENDS)
def test_all_is_durable_when_the_exit_hook_of_pid_1_is_done(run_dir: Path, tmp_path: Path, how: str) -> None:
    """PID 1 returns, raises or exits: every record and how it ended are in the run folder, shared memory aside."""
    end, code, state, cause = ENDS[how]
    ended = containers.run(tmp_path, COUNTED + end, "truth", "0.5", timeout_s=150)
    assert ended.code == code, ended
    assert len(containers.times(run_dir)) == Truth(tmp_path / "truth").logged > 10
    found = scripts.the_run(run_dir).state
    assert (found.name, found.cause) == (state, cause)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["os._exit", "SIGKILL"])
def test_all_but_half_a_second_is_durable_when_pid_1_just_ends(
    run_dir: Path, tmp_path: Path, how: str, pace
) -> None:
    """Nobody is left to write: what is older than 0.5 s is in the run folder, the rest where the mount outlived it."""
    late = []
    for number in range(pace.count(60, least=3)):
        where, runs = tmp_path / str(number), run_dir / str(number)
        seconds = 1.5 + 0.13 * number % 1.0
        env = scripts.environment(LOGCLIENT_DIR=str(runs))
        code = COUNTED + "print(time.time(), flush=True)\nos._exit(3)\n"
        process = containers.start(where, code, "truth", str(seconds if how == "os._exit" else 60), env=env)
        truth = Truth(where / "truth")
        if how == "SIGKILL":
            wait_until(lambda: truth.logged > 300 * seconds, 60, "some are logged")  # noqa: B023
            when = containers.kill_namespace(process)
            scripts.end(process, 150)
        else:
            ended = scripts.end(process, 150)
            assert ended.code == 3, ended
            when = float(ended.out)
        stored = containers.times(runs)
        late.append(when - stored[-1])
        assert 0 < len(stored) <= truth.logged + 1
        assert scripts.the_run(runs).state.name == "lost", "its lock is free, and nobody saw how it ended"
        containers.recover()
        assert truth.logged <= len(containers.times(runs)) <= truth.logged + 1, "the mount is the host's here"
    print(f"{how}: {len(late)} times, the newest stored {sorted(late)[len(late) // 2]:.2f} s (median) old")
    print(f"at most {max(late):.2f} s; above {HALF_S} s: {sum(1 for age in late if age > HALF_S)}")
    assert max(late) < HALF_S + BUSY_S
    scripts.wait_gone(120)


@pytest.mark.timeout(300)
def test_recipe_of_a_trainer_that_is_pid_1(run_dir: Path, tmp_path: Path) -> None:
    """The page's recipe, its command too."""
    found = recipe("The trainer is PID 1")
    found.write(tmp_path)
    (command,) = found.commands
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    ended = scripts.run_words(tmp_path, ["sh", "-c", command], 150, env=scripts.environment(PATH=path))
    assert ended.code == 0, ended
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(100))


@pytest.mark.timeout(300)
def test_it_is_said_that_the_agent_ends_with_the_trainer(run_dir: Path, tmp_path: Path) -> None:
    """`status` and `doctor` tell the place as `init` found it; on the host they say nothing of the kind."""
    code = """
    import logclient, os, subprocess, sys
    run = logclient.init(project="case", quiet=True)
    print(run.id)
    for verb in ("status", "doctor"):
        words = [sys.executable, "-m", "logclient_backend", verb, "--json"]
        print(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.replace("\\n", " "))
    """

    def told(ended: scripts.Ended) -> tuple[str, str]:
        assert ended.code == 0, ended
        id, status, doctor = ended.out.splitlines()
        (entry,) = (run for run in json.loads(status)["runs"] if run["id"] == id)
        (finding,) = (item for item in json.loads(doctor)["findings"] if item["subject"] == "agent's life")
        return entry["confined"], finding["text"]

    inside = told(containers.run(tmp_path, code))
    assert inside == ("a PID namespace in which it is PID 1", "this is a PID namespace with python as PID 1")
    job = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}
    in_step = told(scripts.run(tmp_path, code, timeout_s=150, env=scripts.environment(**job)))
    assert in_step == ("SLURM job 17, step 0", "this is SLURM job 17, step 0")
    outside = told(scripts.run(tmp_path, code, timeout_s=150))
    assert outside[0] not in (inside[0], in_step[0])


CYCLES = """
import ctypes, os, subprocess, sys, time
import logclient
if sys.argv[2] == "subreaper":
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
def zombies():
    found = 0
    for thread in os.listdir("/proc/self/task"):
        for pid in open(f"/proc/self/task/{thread}/children").read().split():
            found += open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    return found
most = 0
theirs = []
for cycle in range(int(sys.argv[1])):
    theirs.append(os.posix_spawn("/bin/true", ["true"], {}))
    run = logclient.init(project="case", quiet=True)
    run.log(0, {"loss": 1.0})
    assert run.finish(120), run.status()
    most = max(most, zombies() - len(theirs))
    if len(theirs) == 3:
        for pid in theirs:
            assert os.waitpid(pid, 0) == (pid, 0)
        theirs = []
for pid in theirs:
    assert os.waitpid(pid, 0) == (pid, 0)
print(most)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("who", ["PID 1", "subreaper"])
def test_what_is_ours_is_reaped_and_never_a_child_of_the_users(
    run_dir: Path, tmp_path: Path, who: str, pace
) -> None:
    """S-4: 500 cycles (paced): a few zombies of ours at most; the user's own wait until they are asked for."""
    start = containers.run if who == "PID 1" else scripts.run
    cycles = pace.count(500 if who == "PID 1" else 250, least=12)
    ended = start(tmp_path, CYCLES, str(cycles), who, timeout_s=100 + 2 * cycles)
    assert ended.code == 0, ended
    assert 0 <= int(ended.out) <= 6, "zombies of the last runs, not of all"


@pytest.mark.timeout(300)
def test_trainer_is_known_to_live_where_proc_shows_other_pids(run_dir: Path, tmp_path: Path) -> None:
    """A PID namespace without a /proc of its own: under our PIDs there are strangers in it, and they decide nothing."""
    code = """
    import time, logclient
    run = logclient.init(project="case", quiet=True)
    for step in range(4):
        run.log(step, {"loss": step / 2})
        time.sleep(1)
    assert run.finish(120), run.status()
    """
    ended = containers.run(tmp_path, code, proc=False)
    assert ended.code == 0, ended
    assert scripts.steps(scripts.the_run(run_dir)) == [0, 1, 2, 3]
    assert agents.log_of(run_dir) == "", "no worker was taken for dead"


PAIR = """
import os, sys, time
import logclient
run = logclient.init(project="case", quiet=True, id=sys.argv[1])
other = "b" if sys.argv[2] == "a" else "a"
open(sys.argv[2], "w").close()
while not os.path.exists(other):
    time.sleep(0.01)
for step in range(int(sys.argv[3])):
    run.log(step, {sys.argv[2]: float(step)})
    time.sleep(0.002)
while run.status()["agent"]["state"] != "running":
    time.sleep(0.01)
print(run._session.shm_dir.path, flush=True)
if sys.argv[2] == "b":
    assert run.finish(120), run.status()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_proc", [True, False], ids=["own proc", "outer proc"])
@pytest.mark.parametrize("ids", [("same", "same"), ("one", "two")], ids=["one run", "two runs"])
def test_two_containers_share_one_mount(
    run_dir: Path, tmp_path: Path, ids: tuple[str, str], has_proc: bool
) -> None:
    """Two PID namespaces, both as root, one tmpfs: an agent each; when one ends the other's records still come."""
    first = containers.start(tmp_path, PAIR, ids[0], "a", "100", proc=has_proc)
    second = containers.start(tmp_path, PAIR, ids[1], "b", "1500", proc=has_proc)
    ended = [scripts.end(process, 150) for process in (first, second)]
    assert [one.code for one in ended] == [0, 0], ended
    where = [one.out.strip() for one in ended]
    assert where[0] != where[1]
    found = scripts.runs(run_dir)
    assert sorted(one.id for one in found) == sorted(set(ids))
    rows = {key: [step for step, _ in series] for one in found for key, series in scripts.points(one).items()}
    assert rows == {"a": list(range(100)), "b": list(range(1500))}
    assert {one.state.name for one in found} == {"finished"}


SERVED = """
import os, time, logclient
run = logclient.init(project="case", quiet=True)
step = 0
while not os.path.exists("enough"):
    run.log(step, {"loss": step / 2})
    step += 1
    time.sleep(0.002)
assert run.finish(120), run.status()
status = run.status()
print(status["accepted"], status["durable"], status["forgotten"] + status["damaged"])
"""


@pytest.mark.timeout(300)
def test_agent_of_another_namespace_takes_over_from_one_that_is_stopped(
    run_dir: Path, tmp_path: Path
) -> None:
    """`recover` outside, for a container whose supervisor is dead and whose worker does not work: the worker ends when
    it wakes, and nothing is lost or stored twice."""
    process = containers.start(tmp_path, SERVED)
    try:
        wait_until(lambda: len(scripts.shm_dirs()) == 1, 60, "its shm directory is there")
        page = StatusPage(str(scripts.shm_dirs()[0] / "agent.status"))
        wait_until(
            lambda: page.words[layout.AGENT_WRITTEN] and page.words[layout.AGENT_WORKER_TICKS], 60, "some is"
        )
        inside = page.words[layout.AGENT_PID_NAMESPACE]
        supervisor, worker = (
            _seen_outside(inside, page.words[word]) for word in (layout.AGENT_SUPERVISOR, layout.AGENT_WORKER)
        )
        with processes.stopped(worker, 60):
            os.kill(supervisor, signal.SIGKILL)
            words = [sys.executable, "-m", "logclient_backend", "recover", "--timeout", "1"]
            told = scripts.run_words(Path("/"), words, 120)
            here = proc.pid_namespace()
            wait_until(
                lambda: (
                    page.words[layout.AGENT_PID_NAMESPACE] == here and page.words[layout.AGENT_WORKER_TICKS]
                ),
                60,
                f"another agent has it: {told}",
            )
            written = page.words[layout.AGENT_WRITTEN]
            wait_until(lambda: page.words[layout.AGENT_WRITTEN] > written, 60, "it works")
        wait_until(lambda: not processes.is_alive(worker), 60, "the one that was stopped ends")
    finally:
        (tmp_path / "enough").touch()
        ended = scripts.end(process, 150)
    assert ended.code == 0, ended
    accepted, durable, lost = map(int, ended.out.split())
    assert accepted == durable and lost == 0
    assert scripts.steps(scripts.the_run(run_dir)) == list(range(accepted))


def _seen_outside(namespace: int, pid: int) -> int:
    """The PID that a process of that PID namespace has here."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}/ns/pid").st_ino == namespace:
                status = Path(f"/proc/{name}/status").read_text()
                if int(status.split("NSpid:")[1].split("\n")[0].split()[-1]) == pid:
                    return int(name)
        except OSError:
            continue  # it ended meanwhile
    raise AssertionError(f"nobody is {pid} in {namespace}")


REUSE = """
import os, signal, sys, time
import logclient
from logclient.shm import layout, shm_dir as shm_dirs
from logclient.spawn import agent as spawn
def spawned(code, pid=0):
    if pid:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
    child = os.fork()
    if child == 0:
        try:
            code()
        finally:
            os._exit(0)
    return child
def train():
    run = logclient.init(project="case", quiet=True, id="reused")
    for step in range(200):
        run.log(step, {"loss": step / 2})
    open("shm_dir.new", "w").write(run._session.shm_dir.path)
    os.rename("shm_dir.new", "shm_dir")
    if sys.argv[1] != "agent":
        os.kill(os.getpid(), signal.SIGSTOP)
    for step in range(200, 400):
        run.log(step, {"loss": step / 2})
    assert run.flush(120) or sys.argv[1] == "agent"
    while not os.path.exists("go"):
        time.sleep(0.01)
    print(run.finish(120), flush=True)
def until(what):
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)
trainer = spawned(train)
until(lambda: os.path.exists("shm_dir"))
shm_dir = shm_dirs.read(open("shm_dir").read())
words = spawn.map_status(shm_dir)
until(lambda: words[layout.AGENT_WORKER])
agent = [words[layout.AGENT_SUPERVISOR], words[layout.AGENT_WORKER]]
def both(number):
    for pid in agent:
        os.kill(pid, number)
if sys.argv[1] == "agent":  # strangers take the PIDs of the dead agent
    both(signal.SIGSTOP)
    both(signal.SIGKILL)
    for pid in agent:
        until(lambda: os.waitpid(pid, 0)[0] == pid)
    time.sleep(0.05)
    strangers = [spawned(lambda: time.sleep(60), pid) for pid in agent]
    assert strangers == agent, (strangers, agent)
    assert not spawn.agent_lives(shm_dir)
    again = logclient.init(project="case", quiet=True, id="reused")
    again.log(1000, {"again": 1.0})
    open("go", "w").close()
    os.waitpid(trainer, 0)
    print(again.finish(30))
else:  # a stranger takes the PID of the dead trainer; its agent sees it die, or comes later
    until(lambda: open(f"/proc/{trainer}/stat").read().rsplit(")", 1)[1].split()[0] == "T")
    both(signal.SIGSTOP)
    if sys.argv[1] == "trainer and agent":
        both(signal.SIGKILL)
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    time.sleep(0.05)
    stranger = spawned(lambda: time.sleep(60), trainer)
    assert stranger == trainer, (stranger, trainer)
    if sys.argv[1] == "trainer":
        both(signal.SIGCONT)
    else:
        logclient.init(project="case", quiet=True, id="other").finish(30)
    until(lambda: not os.path.exists(shm_dir.path))
    os.kill(stranger, 0)
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("whose", ["trainer", "trainer and agent", "agent"])
def test_stranger_with_the_pid_of_the_dead(
    run_dir: Path, tmp_path: Path, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A PID comes again within a second: nobody takes the newcomer for the trainer or agent that had it."""
    monkeypatch.setenv(
        "LOGCLIENT_MODE", "offline"
    )  # who looks for a server keeps the session's PID from coming again, and so does an observer
    monkeypatch.setenv("LOGCLIENT_OBSERVE", "off")
    if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        pytest.skip("needs a kernel with /proc/sys/kernel/ns_last_pid")
    ended = containers.run(tmp_path, REUSE, whose)
    assert ended.code == 0, ended
    (found,) = (one for one in scripts.runs(run_dir) if one.id == "reused")
    if whose == "agent":
        assert ended.out.split() == ["True", "True"]
        assert scripts.steps(found) == list(range(400))
        assert scripts.points(found)["again"] == [(1000, 1.0)]
    else:
        assert scripts.steps(found) == list(range(200))
        assert found.state.name == ("killed" if whose == "trainer" else "lost")
