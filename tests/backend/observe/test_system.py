"""Host and device metrics by parts: files of the kernel's, groups of processes, questions that hang, the stream."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logclient.shm import lane_file, layout
from logclient.shm.record import PREFIX
from logclient.shm.ring import RingReader
from logclient.shm.shm_dir import ShmDir
from logclient.shm.side_stream import side_of
from logclient.shm.system_stream import Full, SystemLane
from logclient_backend.observe.system.host import Cgroup, Host, Rates, free_bytes
from logclient_backend.observe.system.metrics import SystemMetrics
from logclient_backend.observe.system.programs import Programs
from logclient_backend.observe.system.repeated_question import RepeatedQuestion
from tools.faults import processes

PATIENCE_S = 60.0
STAT = "cpu  {busy} 0 0 {idle} {iowait} 0 0 0 0 0\ncpu0 1 1 1 1\n"
MEMINFO = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"
DISKS = """\
   8       0 sda 10 0 {read} 0 20 0 {written} 0 0 {busy} 0
   8       1 sda1 10 0 9999 0 20 0 9999 0 0 9999 0
   7       0 loop0 10 0 9999 0 20 0 9999 0 0 9999 0
 259       0 nvme0n1 10 0 100 0 20 0 100 0 0 100 0
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0
  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0
 veth1:9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0
"""


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# ---- the node -------------------------------------------------------------------------------------------------


def test_host_is_read_as_the_kernel_shows_it(tmp_path: Path) -> None:
    """Disks and interfaces that have a device, once each; shares and rates from the second look on."""
    put(
        tmp_path,
        {
            "proc/stat": STAT.format(busy=100, idle=100, iowait=0),
            "proc/meminfo": MEMINFO,
            "proc/loadavg": "1.25 1 1 1/1 1\n",
            "proc/pressure/io": "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\n",
            "proc/diskstats": DISKS.format(read=100, written=200, busy=1000),
            "proc/net/dev": NET.format(received=1000, sent=2000),
        },
    )
    for device in ("block/sda", "block/nvme0n1", "class/net/eth0"):
        (tmp_path / "sys" / device / "device").mkdir(parents=True)
    host = Host(str(tmp_path / "proc"), str(tmp_path / "sys"))
    still = {
        "memory_bytes": 600 * 1024,
        "memory_total_bytes": 1000 * 1024,
        "swap_bytes": 30 * 1024,
        "load_1m": 1.25,
        "pressure_io_percent": 12.5,
    }
    assert host.read(10.0) == still
    put(
        tmp_path,
        {
            "proc/stat": STAT.format(busy=130, idle=160, iowait=10),
            "proc/diskstats": DISKS.format(read=300, written=200, busy=3000),
            "proc/net/dev": NET.format(received=5000, sent=2000),
        },
    )
    assert host.read(14.0) == {
        **still,
        "cpu_percent": pytest.approx(30.0),
        "cpu_iowait_percent": pytest.approx(10.0),
        "disk_read_bytes_per_s": 200 * 512 / 4,
        "disk_written_bytes_per_s": 0.0,
        "disk_busy_percent": 50.0,
        "net_received_bytes_per_s": 1000.0,
        "net_sent_bytes_per_s": 0.0,
    }


def test_interfaces_without_a_device_count_where_there_are_no_others(tmp_path: Path) -> None:
    """As in a container, but for the loopback."""
    host = Host(str(tmp_path / "proc"), str(tmp_path / "sys"))
    put(tmp_path, {"proc/net/dev": NET.format(received=0, sent=0)})
    assert host.read(0.0) == {}
    put(tmp_path, {"proc/net/dev": NET.format(received=100, sent=300).replace("9999", "10009")})
    assert host.read(1.0) == {"net_received_bytes_per_s": 110.0, "net_sent_bytes_per_s": 310.0}


def test_what_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    assert host.read(1.0) == {}
    put(
        tmp_path,
        {
            "stat": "cpu\n",
            "meminfo": "MemTotal:\n",
            "diskstats": "8 0 sda\n",
            "pressure/cpu": "x",
            "net/dev": "a:b\n",
        },
    )
    assert host.read(2.0) == {}
    put(tmp_path, {"meminfo": MEMINFO})
    assert set(host.read(3.0)) == {"memory_bytes", "memory_total_bytes", "swap_bytes"}


def test_counter_that_went_back_gives_no_rate() -> None:
    rates = Rates()
    assert rates.of({"a": 5, "b": 1}, 1.0) == {}
    assert rates.of({"a": 3, "b": 2, "c": 1}, 2.0) == {"b": 1.0}
    assert rates.of({"a": 4, "b": 2, "c": 1}, 2.0) == {}, "no time has passed"
    assert rates.of({"a": 6, "b": 2, "c": 5}, 4.0) == {"a": 1.0, "b": 0.0, "c": 2.0}


def test_tightest_limit_of_the_cgroups_counts(tmp_path: Path) -> None:
    """Memory is limited by the job, CPU by the step in it; a folder that shows no limit is passed over."""
    root = "sys/fs/cgroup"
    put(
        tmp_path,
        {
            "proc/7/cgroup": "1:cpu:/old\n0::/job/step/task\n",
            f"{root}/job/memory.max": "1000\n",
            f"{root}/job/memory.current": "600\n",
            f"{root}/job/memory.events": "low 0\noom_kill 2\n",
            f"{root}/job/step/memory.max": "max\n",
            f"{root}/job/cpu.max": "800000 100000\n",
            f"{root}/job/step/cpu.max": "200000 100000\n",
            f"{root}/job/step/cpu.stat": "usage_usec 1000000\nthrottled_usec 0\n",
            f"{root}/job/step/task/cpu.max": "max 100000\n",
        },
    )
    cgroup = Cgroup(7, str(tmp_path / "proc"), str(tmp_path / "sys"))
    memory = {"cgroup/memory_bytes": 600, "cgroup/memory_limit_bytes": 1000, "cgroup/oom_kills": 2}
    assert cgroup.read(1.0) == memory
    put(tmp_path, {f"{root}/job/step/cpu.stat": "usage_usec 3000000\nthrottled_usec 500000\n"})
    assert cgroup.read(3.0) == {
        **memory,
        "cgroup/cpu_percent": 50.0,
        "cgroup/cpu_limit": 2.0,
        "cgroup/cpu_throttled_percent": 25.0,
    }


def test_container_sees_its_own_cgroup_as_the_root(tmp_path: Path) -> None:
    root = "sys/fs/cgroup"
    put(
        tmp_path,
        {"proc/7/cgroup": "0::/../other\n", f"{root}/memory.max": "1000\n", f"{root}/memory.current": "1\n"},
    )
    cgroup = Cgroup(7, str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert cgroup.read(1.0) == {"cgroup/memory_bytes": 1, "cgroup/memory_limit_bytes": 1000}
    assert Cgroup(8, str(tmp_path / "proc"), str(tmp_path / "sys")).read(1.0) == {}


def test_free_space_is_what_df_says(tmp_path: Path) -> None:
    found, there = free_bytes(str(tmp_path)), os.statvfs(tmp_path)
    assert abs(found["free_bytes"] - there.f_bavail * there.f_frsize) < 1 << 30
    assert 0 <= found["used_percent"] <= 100


# ---- processes --------------------------------------------------------------------------------------------------

BURNS = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
PARENT = f"""
import subprocess, sys
sys.stdin.readline()
subprocess.Popen([sys.executable, "-c", {BURNS!r}]).wait()
print("ended", flush=True)
sys.stdin.readline()
"""
MIDDLE = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
time.sleep(1000)
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    made = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield made
    finally:
        made.kill()
        made.communicate()


def test_cpu_of_a_child_that_came_and_went_between_two_looks_counts(parent: subprocess.Popen[str]) -> None:
    """Its parent has waited for it. Ours is in no group, though it is the parent of that one."""
    programs = Programs()
    loggers = {parent.pid: "rank/3"}
    ours = {os.getpid(), *processes.children_of(os.getpid())} - {parent.pid}  # other tests may have left some
    first, members = programs.read(loggers, [os.getpid()], 100.0)
    assert "rank/3/cpu_percent" not in first and first["rank/3/processes"] == 1
    assert members["rank/3"] == {parent.pid} and members["agent"] == ours
    assert parent.stdin is not None and parent.stdout is not None
    print("go", file=parent.stdin, flush=True)
    assert parent.stdout.readline() == "ended\n"
    second, _ = programs.read(loggers, [os.getpid()], 110.0)
    assert 2.5 < second["rank/3/cpu_percent"] < 60, "0.3 s of 10, and what an interpreter takes to start"
    assert second["rank/3/memory_bytes"] > 1 << 20
    third, _ = programs.read(loggers, [os.getpid()], 120.0)
    assert third["rank/3/cpu_percent"] < second["rank/3/cpu_percent"]


def test_child_belongs_to_the_rank_that_is_its_nearest_ancestor_also_after_that_has_ended(
    parent: subprocess.Popen[str],
) -> None:
    """A rank may start another one: each has its own children. One whose parent has ended stays where it was."""
    middle = subprocess.Popen([sys.executable, "-c", MIDDLE])
    leaf = 0
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := processes.children_of(middle.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (leaf,) = found
        programs = Programs()
        loggers = {os.getpid(): "rank/0", middle.pid: "rank/1"}
        _, members = programs.read(loggers, [], 1.0)
        assert members["rank/1"] == {middle.pid, leaf}
        assert {os.getpid(), parent.pid} <= members["rank/0"] and leaf not in members["rank/0"]
        middle.kill()
        middle.wait()
        metrics, members = programs.read(loggers, [], 2.0)
        assert members["rank/1"] == {leaf} and metrics["rank/1/processes"] == 1
        _, members = programs.read({**loggers, parent.pid: "rank/2"}, [], 3.0)
        assert members["rank/1"] == {leaf} and members["rank/2"] == {parent.pid}, "another one begins to log"
    finally:
        middle.kill()
        middle.wait()
        if leaf:
            os.kill(leaf, signal.SIGKILL)


def test_children_of_the_agent_are_its_own(parent: subprocess.Popen[str]) -> None:
    """Those that ask drivers, or sample stacks; also where the agent is a descendant of a process that logs."""
    assert parent.stdin is not None
    print("go", file=parent.stdin, flush=True)
    deadline = time.monotonic() + PATIENCE_S
    while not (found := processes.children_of(parent.pid)):
        assert time.monotonic() < deadline
    _, members = Programs().read({os.getpid(): "rank/0"}, [parent.pid], 1.0)
    assert members["agent"] == {parent.pid, *found} and parent.pid not in members["rank/0"]


# ---- questions that may hang --------------------------------------------------------------------------------------


def settled(question: RepeatedQuestion, now: float) -> None:
    """Look until it is."""
    deadline = time.monotonic() + PATIENCE_S
    while not question.is_settled:
        question.look(now)
        assert time.monotonic() < deadline, "no answer"
        time.sleep(0.005)


def test_child_opens_once_and_answers_again_and_again() -> None:
    def begin():
        opened = [0]

        def ask() -> dict[str, int]:
            opened[0] += 1
            return {"pid": os.getpid(), "asked": opened[0]}

        return ask

    question = RepeatedQuestion(begin, 2.0)
    for number in (1, 2, 3):
        question.ask(float(number))
        settled(question, float(number))
        assert question.answer == {"pid": question.pid, "asked": number}
    pid = question.pid
    question.close()
    wait_ended(pid)
    question.ask(4.0)
    settled(question, 4.0)
    assert question.answer["asked"] == 1 and question.answer["pid"] != pid
    question.close()


def test_child_that_hangs_is_killed_and_asked_again_later() -> None:
    """Nobody waits for it, and how long it has been silent is known; while it is there no other is started."""
    question = RepeatedQuestion(lambda: lambda: time.sleep(1000), 2.0)
    question.ask(10.0)
    pid = question.pid
    question.look(11.9)
    assert not question.is_settled and question.silent_s(11.5) == 1.5
    question.look(12.1)
    assert question.is_settled and question.answer is None and question.silent_s(20.0) == 10.0
    wait_ended(pid)
    question.ask(30.0)
    assert question.is_settled, "too soon"
    question.ask(80.0)
    assert not question.is_settled and question.pid not in (0, pid)
    question.close()


def test_opening_may_take_longer_than_an_answer() -> None:
    def begin():
        time.sleep(0.3)
        return lambda: 1

    question = RepeatedQuestion(begin, 0.0, 60.0)
    question.ask(time.monotonic())
    deadline = time.monotonic() + PATIENCE_S
    while not question.is_settled:
        question.look(time.monotonic())
        assert time.monotonic() < deadline
    assert question.answer == 1
    question.close()


def test_child_that_dies_is_no_answer() -> None:
    question = RepeatedQuestion(lambda: lambda: os._exit(3), 1000.0)
    question.ask(1.0)
    settled(question, 1.5)
    assert question.answer is None and question.silent_s(3.0) == 2.0
    question.close()


def test_child_ends_with_the_process_that_asks() -> None:
    """Also where that is killed."""
    script = (
        "import os, sys, time; from logclient_backend.observe.system.repeated_question import RepeatedQuestion\n"
        "question = RepeatedQuestion(lambda: os.getpid, 1000.0); question.ask(1.0)\n"
        "while not question.is_settled: question.look(1.5)\n"
        "print(question.answer, flush=True); time.sleep(1000)\n"
    )
    asking = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        assert processes.is_alive(pid)
    finally:
        asking.kill()
        asking.communicate()
    processes.wait_until(lambda: not processes.is_alive(pid), PATIENCE_S)


def wait_ended(pid: int) -> None:
    """Wait until this child can be reaped, if it was not yet: one that had threads is a zombie before that."""
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            assert time.monotonic() < deadline, f"process {pid} is still there"
            time.sleep(0.01)


# ---- the stream ---------------------------------------------------------------------------------------------------


def test_stream_is_written_as_a_lane_that_readers_know(tmp_path: Path) -> None:
    """Ids are marked; the file is no lane file by its name; each record comes out as it went in."""
    lane = SystemLane(str(tmp_path), 4, {"kind": "system"})
    try:
        (path,) = tmp_path.glob("*.system")
        assert (
            side_of(path.stem) and not list(tmp_path.glob("*.lanes")) and path.stat().st_mode & 0o777 == 0o600
        )
        lane.write(7, {"a": 1.5, "b": 2.0})
        lane.write(8, {"a": 2.5, "b": 3.0})
        lane.write(8, {"c": 1.0})
        mem = memoryview(path.read_bytes())
        words = mem.cast("Q")
        (header,) = lane_file.headers(words)
        assert side_of(lane_file.stream_id(header)) and header[layout.SEQ] == 3
        taken = RingReader(mem, layout.lane_header(0)).take()
        assert taken is not None
        schemas = lane_file.Schemas(mem, words)
        seen = []
        for at, size, head in taken.frames:
            _, seq, order, step, _, _ = PREFIX.unpack_from(taken.data, at)
            shape = schemas.get(head & layout.SHAPE_MASK)
            assert shape is not None and head >> layout.RANK_SHIFT == 5
            values = memoryview(taken.data)[at + layout.FRAME_PREFIX : at + size].cast("d").tolist()
            seen.append((seq, order, step, dict(zip(shape.names, values, strict=True))))
        assert seen == [
            (1, 1, 7, {"a": 1.5, "b": 2.0}),
            (2, 2, 8, {"a": 2.5, "b": 3.0}),
            (3, 3, 8, {"c": 1.0}),
        ]
        assert not lane.is_swept
    finally:
        lane.close()
    assert memoryview(path.read_bytes()).cast("Q")[layout.STATE] == layout.STATE_FINISHED


def test_file_that_takes_no_further_set_of_keys_says_so(tmp_path: Path) -> None:
    """And writes on what it knows."""
    lane = SystemLane(str(tmp_path), None, {})
    try:
        with pytest.raises(Full):
            for number in range(1000):
                lane.write(number, {f"system/key/{number}/{at}": 1.0 for at in range(100)})
        assert number > 3
        lane.write(5, {f"system/key/0/{at}": 1.0 for at in range(100)})
    finally:
        lane.close()


def test_node_with_hundreds_of_ranks_is_measured(tmp_path: Path) -> None:
    """Its keys do not fit into the first file: the next is larger, and stays."""
    metrics = SystemMetrics(ShmDir(str(tmp_path), {}), 1.0, list)
    ranks = []
    try:
        for _ in range(300):
            ranks.append(subprocess.Popen(["sleep", "1000"]))
        found = {process.pid: rank for rank, process in enumerate(ranks)}
        for at in range(5):
            begun = time.monotonic() + 10.0 * at
            metrics.look(begun, found)
            metrics.look(begun + 3.0, found)  # what no driver and no disk has answered is not waited for
        path = max(tmp_path.glob("*.system"), key=lambda path: path.stat().st_size)
        words = memoryview(path.read_bytes()).cast("Q")
        assert words[layout.STATE] != layout.STATE_FINISHED
        (header,) = lane_file.headers(words)
        assert header[layout.SEQ] >= 2 * 3
        assert b"system/rank/299/memory_bytes" in path.read_bytes()
        assert len(list(tmp_path.glob("*.system"))) <= 2
    finally:
        metrics.close()
        for process in ranks:
            process.kill()
        for process in ranks:
            process.wait()


def test_sample_that_fails_is_counted_and_nothing_else(tmp_path: Path) -> None:
    """The folder is gone: no file can be made. The observer that asks has more to do than that."""
    folder = tmp_path / "gone"
    metrics = SystemMetrics(ShmDir(str(folder), {}), 1.0, list)
    ranks = {os.getpid(): 0}
    try:
        begun = time.monotonic()
        for at in (0.0, 10.0, 13.0, 20.0, 23.0):
            metrics.look(begun + at, ranks)
        folder.mkdir()
        for at in (100.0, 103.0):
            metrics.look(begun + at, ranks)
        (path,) = folder.glob("*.system")
        mem = memoryview(path.read_bytes())
        taken = RingReader(mem, layout.lane_header(0)).take()
        assert taken is not None
        schemas = lane_file.Schemas(mem, mem.cast("Q"))
        found: dict[str, float] = {}
        for at, size, head in taken.frames:
            shape = schemas.get(head & layout.SHAPE_MASK)
            values = memoryview(taken.data)[at + layout.FRAME_PREFIX : at + size].cast("d").tolist()
            found |= dict(zip(shape.names, values, strict=True)) if shape is not None else {}
        assert found["system/agent/missed_samples"] >= 2
    finally:
        metrics.close()


def test_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SystemLane(str(tmp_path / "gone"), None, {})
