"""Shared memory that is full, removed, or holds what does not belong there."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from logclient.shm import layout
from tools.faults import processes, tmpfs

from ..agents import SUPERVISOR, WORKER, checked, is_gone, kill, log_of, nothing_left, successor
from ..disturbed import ROOMY, Trainer, documents, wait_until

ALL_OF_IT = {"LOGCLIENT_LANES_BYTES": str(16 << 20)}  # a small mount gives less


@pytest.mark.root
@pytest.mark.timeout(120)
@pytest.mark.parametrize("is_killed", [False, True], ids=["alone", "and the worker killed"])
def test_mount_filled_after_init_costs_no_record(run_dir: Path, tmp_path: Path, is_killed: bool) -> None:
    """C6-2 (b): 64 MB of shared memory that somebody else fills after init: segments are used again, all is stored."""
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    with tmpfs.SmallTmpfs(64) as shm:
        trainer = Trainer(
            tmp_path, {"LOGCLIENT_SHM_DIR": str(shm.path)} | ALL_OF_IT, records=60_000, rate=5_000
        )
        wait_until(lambda: trainer.word(layout.AGENT_WRITTEN), 20, "the agent has started to store")
        shm.fill()
        if is_killed:
            worker = trainer.agent_pid(WORKER)
            kill(worker)
            successor(trainer, WORKER, worker)
            shm.fill()
        status = trainer.end()
        trainer.wait_gone()
        wait_until(lambda: not list(shm.path.glob("logclient-*/*")), 20, "nothing of it is left there")
    assert status["agent"]["spill_bytes"] < 8 << 20
    found = checked(run_dir, status["accepted"])
    assert found.records == 60_000
    assert len(list(run_dir.glob("*/*/*.seg"))) >= 3, "several segments went through the same memory"


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_full_mount_that_leaves_one_segment_stops_no_storing(run_dir: Path, tmp_path: Path) -> None:
    """The only segment is full, and all in it is copied: it is sealed and used again, though nobody flushes."""
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    with tmpfs.SmallTmpfs(64) as shm:
        env = {
            "LOGCLIENT_SHM_DIR": str(shm.path),
            "LOGCLIENT_SEGMENT_BYTES": str(256 << 10),
            "LOGCLIENT_LANES_BYTES": str(
                256 << 10
            ),  # six bursts: the copier was woken by documents after ten
            "LOGCLIENT_FAILPOINTS": "copy.seal=stop:1!",
        }
        # the copier is idle when the look comes that finds the segment full
        trainer = Trainer(tmp_path, env, until_told=True, values=100, burst=50, rest_s=1.0)
        wait_until(lambda: trainer.word(layout.AGENT_WRITTEN), 20, "the agent has started to store")
        shm.fill()
        worker = trainer.agent_pid(WORKER)
        kill(worker)
        worker = successor(trainer, WORKER, worker)
        wait_until(
            lambda: processes.state_of(worker) == "T", 30, "it seals what it took over, and gave back room"
        )
        shm.fill()
        kill(worker, signal.SIGCONT)
        stored = trainer.word(layout.AGENT_WRITTEN)
        wait_until(lambda: trainer.word(layout.AGENT_WRITTEN) > stored + (400 << 10), 90, "a third segment")
        status = trainer.tell_to_end()
        trainer.wait_gone()
    checked(run_dir, status["accepted"])


@pytest.mark.root
@pytest.mark.timeout(120)
def test_mount_full_from_the_start_of_the_agent_is_harmless(run_dir: Path, tmp_path: Path) -> None:
    """C6-2 (b): not a byte is left when the agent starts: lanes keep the newest, counted, until there is room again."""
    if reason := tmpfs.why_not():
        pytest.skip(reason)
    with tmpfs.SmallTmpfs(16) as shm:
        env = {"LOGCLIENT_SHM_DIR": str(shm.path), "LOGCLIENT_FAILPOINTS": "worker.loop=stop:1!"}
        trainer = Trainer(tmp_path, env, records=20_000, rate=10_000)
        worker = trainer.agent_pid(WORKER)
        wait_until(lambda: processes.state_of(worker) == "T", 30, "it has stopped itself")
        shm.fill()
        kill(worker, signal.SIGCONT)
        wait_until(lambda: trainer.logged == 20_000, 30, "training goes on")
        shm.free()
        status = trainer.end()
        trainer.wait_gone()
    checked(run_dir, status["accepted"], lost=status["forgotten"])


@pytest.mark.slow
def remove(folder: str) -> None:
    """Remove a folder in which the agent may make a file at the same moment."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not os.path.exists(folder)

    wait_until(is_gone, 20, "the folder is removed")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("victims", ["nobody", "worker", "supervisor, then worker"])
def test_shm_dir_removed_costs_no_record(run_dir: Path, tmp_path: Path, victims: str) -> None:
    """A logout clears the user's shared memory in mid-run: what runs goes on, also over a dead worker."""
    trainer = Trainer(tmp_path, ROOMY, records=60_000, rate=10_000)
    trainer.status_page()  # mapped before it goes
    wait_until(lambda: trainer.word(layout.AGENT_WRITTEN), 20, "the agent has started to store")
    wait_until(lambda: trainer.word(layout.AGENT_OBSERVED), 60, "the observer has written its files")
    worker, supervisor = trainer.agent_pid(WORKER), trainer.agent_pid(SUPERVISOR)
    remove(os.path.dirname(trainer.shm_dir))
    if "supervisor" in victims:
        kill(supervisor)
        successor(trainer, SUPERVISOR, supervisor)
    if "worker" in victims:
        kill(worker)
        worker = successor(trainer, WORKER, worker)
        wait_until(lambda: trainer.logged > 30_000, 30, "half is logged")
        kill(worker)
        successor(trainer, WORKER, worker)
    status = trainer.end()
    assert status["durable"] == 60_000
    trainer.wait_agent_gone()
    checked(run_dir, 60_000)
    (node,) = documents(run_dir)
    assert node["closed"]
    assert len(node["processes"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_run_made_anew_in_the_removed_shm_dir_has_an_agent_of_its_own(run_dir: Path, tmp_path: Path) -> None:
    """After the removal the same id may come to the same path: each agent keeps to its own folder."""
    first = Trainer(tmp_path / "1", records=20_000, rate=4_000)
    wait_until(lambda: first.logged > 1_000, 20, "some are logged")
    first.status_page()  # mapped before it goes
    agent = first.agent_pid(SUPERVISOR)
    wait_until(lambda: first.word(layout.AGENT_DRAINED), 20, "its agent has seen it")
    remove(first.shm_dir)
    second = Trainer(tmp_path / "2", {"LOGCLIENT_RUN_ID": first.run_id}, records=8_000, rate=4_000)
    assert second.shm_dir == first.shm_dir
    assert second.agent_pid(SUPERVISOR) != agent
    statuses = [second.end(), first.end()]
    assert [status["durable"] for status in statuses] == [8_000, 20_000]
    first.wait_agent_gone()
    second.wait_gone()
    checked(run_dir, 28_000)
    nothing_left()


def _strangers(shm_dir: Path, rng: random.Random) -> None:
    """What may lie in a shm directory under the name of a lane file."""

    def name() -> Path:
        return shm_dir / f"{rng.randbytes(16).hex()}.lanes"

    name().symlink_to("/etc/passwd")
    name().symlink_to(name())
    name().mkdir()
    os.mkfifo(name())
    name().write_bytes(b"")
    name().write_bytes(b"short")
    name().write_bytes(rng.randbytes(300_000))
    name().write_bytes(bytes(300_000))
    (shm_dir / "0123456789abcdef-000001.wal").write_bytes(rng.randbytes(70_000))
    (shm_dir / "0123456789abcdef-000002.wal").write_bytes(b"")
    (shm_dir / "0123456789abcdef.spare").write_bytes(b"")
    (shm_dir / f"{rng.randbytes(16).hex()}.live").write_bytes(b"")
    (shm_dir / "other").write_bytes(b"not ours")


@pytest.mark.timeout(120)
def test_foreign_files_in_the_shm_dir_do_no_harm(run_dir: Path, tmp_path: Path) -> None:
    """Links, folders, pipes, garbage under the names of lane files and segments: set aside, and the run is whole."""
    trainer = Trainer(tmp_path, records=6_000, rate=4_000)
    _strangers(Path(trainer.shm_dir), random.Random(1))
    status = trainer.end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    assert status["agent"]["restarts"] == 0
    assert " is set aside: " in log_of(run_dir)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_lane_files_with_nonsense_in_them_do_not_stop_the_agent(run_dir: Path, tmp_path: Path, pace) -> None:
    """Any word of a lane file may be wrong: it is read, counted as damaged or set aside, and the others are stored."""
    trainer = Trainer(tmp_path, {"LOGCLIENT_RESTART_LIMIT": "40"}, rate=500, seconds=120, finish_timeout_s=20)
    trainer.status_page()  # mapped before it goes
    rng = random.Random(7)
    shm_dir = Path(trainer.shm_dir)
    (lanes,) = shm_dir.glob("*.lanes")
    wait_until(lambda: trainer.logged > 500, 20, "some are logged")
    sound = lanes.read_bytes()
    words = [*range(64), *range(64, 70), *range(96, 99)]
    words += [
        layout.LANE_HEADERS + lane * layout.LANE_HEADER_WORDS + word
        for lane in range(2)
        for word in range(28)
    ]
    for _ in range(pace.count(300, least=60)):
        made = bytearray(sound)
        process = rng.randbytes(16)
        made[8 * layout.FILE_PROCESS : 8 * layout.FILE_PROCESS + 16] = process
        made[8 * layout.FILE_PID : 8 * layout.FILE_PID + 8] = (1 << 22).to_bytes(
            8, "little"
        )  # a PID of nobody
        for lane in range(4):
            at = 8 * (layout.LANE_HEADERS + lane * layout.LANE_HEADER_WORDS + layout.LANE_STREAM)
            made[at : at + 16] = rng.randbytes(16)
        for word in rng.sample(words, rng.randint(1, 3)):
            if word not in (layout.FILE_PID, layout.FILE_START_TICKS, layout.FILE_PID_NAMESPACE):
                value = rng.choice(
                    [0, 1, 7, 1 << 20, 1 << 32, (1 << 63) + 8, (1 << 64) - 1, rng.getrandbits(64)]
                )
                made[8 * word : 8 * word + 8] = value.to_bytes(8, "little")
        for _ in range(rng.randint(0, 3)):  # key area, documents
            made[rng.randrange(4096, 400_000)] = rng.randrange(256)
        making = shm_dir / "making"
        making.write_bytes(made)
        making.rename(shm_dir / f"{process.hex()}.lanes")
    wait_until(lambda: len(list(shm_dir.glob("*.lanes"))) == 1, 120, "all of them are dealt with")
    assert trainer.end_by(signal.SIGTERM) == -signal.SIGTERM
    trainer.wait_gone(60)
    (node,) = documents(run_dir)
    assert node["processes"][lanes.stem]["end"]["signal"] == signal.SIGTERM
    mine = [counts for counts in node["streams"].values() if counts["process"] == lanes.stem]
    assert sum(counts["stored"] for counts in mine) == trainer.logged
    print(f"restarts: {trainer.word(layout.AGENT_RESTARTS)}, set aside: {len(node['set_aside'])}")


@pytest.mark.timeout(60)
def test_shrunk_lane_file_is_set_aside_and_others_are_served(run_dir: Path, tmp_path: Path) -> None:
    """Somebody truncates a lane file while it is mapped: SIGBUS kills a worker once, then the file is set aside."""
    trainer = Trainer(tmp_path, records=4_000, rate=2_000)
    victim = Trainer(tmp_path, {"LOGCLIENT_RUN_ID": trainer.run_id}, rate=2_000, seconds=60)
    assert victim.shm_dir == trainer.shm_dir
    worker = trainer.agent_pid(WORKER)
    logged = victim.logged
    wait_until(lambda: victim.logged > logged + 2_000, 20, "its file is known to the worker")
    kill(worker, signal.SIGSTOP)
    logged = victim.logged
    wait_until(lambda: victim.logged > logged + 200, 10, "there is something to drain")
    victim.kill(signal.SIGSTOP)
    wait_until(lambda: processes.state_of(victim.process.pid) == "T", 10, "the victim is stopped")
    for path in Path(victim.shm_dir).glob("*.lanes"):
        head = memoryview(path.read_bytes()[: 8 * 64]).cast("Q")
        if head[layout.FILE_PID] == victim.process.pid:
            os.truncate(path, 8192)
    kill(worker, signal.SIGCONT)
    status = trainer.end()
    assert status["durable"] == 4_000
    wait_until(lambda: "signal 7" in log_of(run_dir), 20, "the log is written too")
    victim.end_by()
    trainer.wait_gone()
    assert is_gone(worker)
    nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_shared_memory_is_for_its_user_only(run_dir: Path, tmp_path: Path) -> None:
    """Modes are 0700 and 0600 in the shm directory whatever the umask of the trainer, after a restart too."""
    before = os.umask(0)
    try:
        trainer = Trainer(tmp_path, {"LOGCLIENT_SEAL_S": "0.3"}, records=4_000, rate=2_000, hold=1)
    finally:
        os.umask(before)
    wait_until(lambda: trainer.logged == 4_000, 20, "all is logged")
    shm_dir = Path(trainer.shm_dir)
    found = [shm_dir, *shm_dir.iterdir()]
    worker = trainer.agent_pid(WORKER)
    kill(worker)
    successor(trainer, WORKER, worker)
    for path in (*found, *shm_dir.iterdir()):
        if path.exists():
            assert path.stat().st_mode & 0o077 == 0, f"{path} has mode {path.stat().st_mode:o}"
    trainer.end()
    trainer.wait_gone()
