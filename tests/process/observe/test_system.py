"""Host and device metrics: a stream of the agent's own beside what real processes log, and outside of their counts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import logclient
from logclient.shm import layout
from logclient.shm.side_stream import side_of
from logclient_backend.runs import folder
from logclient_backend.runs.contents import read
from logclient_backend.runs.view import RunView, view
from tests import nvml
from tests.listing import listed
from tools.collector import Collector
from tools.faults import processes

from ..agents import both_killed, kill, nothing_left
from ..disturbed import ROOT, Trainer, stored, wait_until

PATIENCE_S = 60.0
DOCS = ROOT / "docs" / "system-metrics.md"
# Logs until the file `end` is there. A rank that is told so burns the CPU in a child, as a data loader's worker does.
PROGRAM = """
import os, subprocess, sys, time
import logclient

rank = int(os.environ.get("RANK", 0))
run = logclient.init(project="system", name="job", config={"rank": rank}, quiet=True)
child = None
if len(sys.argv) > 1 and rank == int(sys.argv[1]):
    child = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"])
step = 0
while not os.path.exists("end"):
    run.log(step, {"loss": 1 / (step + 1), "system/cpu_percent": -1.0})
    step += 1
    time.sleep(0.02)
if child is not None:
    child.kill()
    child.wait()
assert run.finish(60.0)
print(step)
"""


@contextmanager
def job(where: Path, *words: str, ranks: int = 1, **env: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start ranks of the program; they end once `end` has been made."""
    where.mkdir(parents=True, exist_ok=True)
    (where / "train.py").write_text(PROGRAM)
    begun = []
    try:
        for rank in range(ranks):
            more = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
            settings = {**os.environ, "LOGCLIENT_SYSTEM": "1", "LOGCLIENT_RUN_ID": "job", **more, **env}
            command = [sys.executable, "train.py", *words]
            begun.append(
                subprocess.Popen(command, cwd=where, env=settings, stdout=subprocess.PIPE, text=True)
            )
        yield begun
    finally:
        for process in begun:
            process.kill()
            process.communicate()


def ended(where: Path, begun: list[subprocess.Popen[str]]) -> int:
    """Let the job end; returns how many records it has logged."""
    (where / "end").touch()
    outs = [process.communicate(timeout=PATIENCE_S)[0] for process in begun]
    assert [process.returncode for process in begun] == [0] * len(begun)
    nothing_left(PATIENCE_S)
    return sum(map(int, outs))


def words_of(path: Path) -> memoryview:
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # the agent has stored what was in it
        data = b""
    return memoryview(data.ljust(layout.KEYS_OFFSET, b"\0")[: layout.KEYS_OFFSET]).cast("Q")


def lane_files() -> list[Path]:
    return listed(Path(os.environ["LOGCLIENT_SHM_DIR"]), "*/*/*.system")


def written() -> int:
    """How many records the agent has written of its own, in the files that are there."""
    return sum(words_of(path)[layout.lane_header(0) + layout.SEQ] for path in lane_files())


def measured(records: int) -> None:
    wait_until(lambda: written() >= records, PATIENCE_S, f"{records} records of the agent's own")


def word(index: int) -> int:
    """One word of the status page of the only run that there is."""
    pages = listed(Path(os.environ["LOGCLIENT_SHM_DIR"]), "*/*/agent.status")
    return int(memoryview(pages[0].read_bytes()).cast("Q")[index]) if pages else 0


def the_run(run_dir: Path) -> RunView:
    (only,) = folder.find(str(run_dir), live_dirs=[])
    return view(only)


def command(*words: str, env: dict[str, str] | None = None, codes: tuple[int, ...] = (0,)) -> str:
    words = (sys.executable, "-m", "logclient_backend", *words)
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, env={**os.environ, **(env or {})}
    )
    assert done.returncode in codes, done.stderr
    return done.stdout


def test_cpu_of_a_ranks_child_is_that_ranks_alone(run_dir: Path, tmp_path: Path) -> None:
    """Rank 1 has a child that burns the CPU; rank 0 and the agent do next to nothing."""
    with job(tmp_path / "job", "1", ranks=2) as begun:
        measured(16)
        ended(tmp_path / "job", begun)
    run = logclient.read(run_dir)["job"].system
    busy, idle = (run.series(f"system/rank/{rank}/cpu_percent").value for rank in (1, 0))
    assert len(busy) >= 4
    assert busy.max() > 3 and busy.mean() > 3 * idle.mean(), (busy, idle)
    assert max(run.series("system/rank/1/processes").value) == 2
    assert max(run.series("system/rank/0/processes").value) == 1
    assert (run.series("system/rank/1/memory_bytes").value > 1 << 20).all()
    assert (run.series("system/agent/memory_bytes").value > 1 << 20).all()
    node = run.series("system/cpu_percent")
    assert (node.value >= 0).all() and (node.value <= 100).all()
    assert set(node.rank.tolist()) == {0}, "records of a node have its lowest rank"
    steps = node.step.tolist()
    assert steps == sorted(steps) and abs(steps[-1] - time.time()) < 600


def test_counts_keys_and_exports_are_the_users(run_dir: Path, tmp_path: Path) -> None:
    """With a key of the user's that is called as one of ours."""
    with job(tmp_path / "job") as begun:
        measured(6)
        live = json.loads(command("status", "--json", codes=(0, 1)))  # 1: of another run on this host
        logged = ended(tmp_path / "job", begun)
    assert b"lcsystem".hex() not in json.dumps(live)
    run = the_run(run_dir)
    assert run.counts() == {
        **dict.fromkeys(("forgotten", "damaged", "refused", "left_out", "waiting"), 0),
        "accepted": logged,
        "stored": logged,
    }
    assert len(run.processes) == 1
    found = read(run)
    assert list(found.keys) == ["loss", "system/cpu_percent"] and found.counts(run)["stored"] == logged
    assert not any(map(side_of, found.accepted)) and not found.gaps
    exported = command("export", "job").splitlines()
    assert len(exported) == 2 * logged
    assert {json.loads(line)["value"] for line in exported if "cpu" in line} == {-1.0}
    shown = json.loads(command("show", "job", "--json"))
    assert list(shown["keys"]) == ["loss", "system/cpu_percent"] and shown["counts"]["stored"] == logged
    assert len(shown["streams"]) == len(shown["processes"]) == 1
    assert b"lcsystem".hex() not in command("tail", "job", "--json", "-n", "1000000")
    # and where they are asked for
    system = run.of_side("system")
    counts = read(system).counts(system)
    assert counts["accepted"] == counts["stored"] >= 6 and counts["damaged"] == counts["forgotten"] == 0
    lines = [json.loads(line) for line in command("export", "job", "--system").splitlines()]
    assert all(side_of(line["stream"]) == "system" and line["key"].startswith("system/") for line in lines)
    assert all(line["value"] >= 0 for line in lines if line["key"] == "system/cpu_percent")
    page = json.loads(command("show", "job", "--system", "--json"))
    (node,) = page["nodes"]
    assert node["host"] == os.uname().nodename and node["values"]["memory_bytes"]["last"] > 0
    assert "memory_total_bytes" in command("show", "job", "--system")


def test_export_of_either_kind_comes_back(run_dir: Path, tmp_path: Path) -> None:
    """What was logged makes a run without the rest, and the rest is still of the agent's own after an import."""
    with job(tmp_path / "job") as begun:
        measured(4)
        logged = ended(tmp_path / "job", begun)
    for which, words in (("logged", ()), ("measured", ("--system",))):
        out, again = str(tmp_path / which), str(tmp_path / f"{which}-again")
        command("export", "job", *words, "--out", out)
        command("import", out, "--dir", again)
        run = the_run(Path(again))
        assert run.counts()["stored"] == (logged if which == "logged" else 0)
        counts = read(run.of_side("system")).counts(run.of_side("system"))
        assert (counts["stored"] > 0) == (which == "measured") and not counts["damaged"]
        command("export", "job", *words, "--out", f"{out}-2", "--dir", again)
        for name in ("points.jsonl", "run.json"):
            assert (tmp_path / f"{which}-2" / name).read_bytes() == (tmp_path / which / name).read_bytes()


def test_every_name_is_in_the_docs(run_dir: Path, tmp_path: Path) -> None:
    """Of a host with devices; a number stands for any."""
    library = nvml.library(tmp_path / "driver", nvml.ANSWERS)
    with job(tmp_path / "job", LD_LIBRARY_PATH=library) as begun:
        measured(9)
        ended(tmp_path / "job", begun)
    names = set(logclient.read(run_dir)["job"].system.keys())
    documented = set(re.findall(r"`(system/[^`]+)`", DOCS.read_text()))
    assert {re.sub(r"/\d+/", "/N/", name) for name in names} <= documented
    assert "system/gpu/7/power_w" in names


def test_off_measures_nothing(run_dir: Path, tmp_path: Path) -> None:
    """And a run that is shorter than two samples leaves nothing, either."""
    for name, interval in (("off", "off"), ("short", "3600")):
        with job(tmp_path / name, LOGCLIENT_SYSTEM=interval, LOGCLIENT_RUN_ID=name) as begun:
            wait_until(lambda: word(layout.AGENT_OBSERVER_BEAT), PATIENCE_S, "the observer is there")
            time.sleep(3)
            assert not lane_files()
            ended(tmp_path / name, begun)
        run = logclient.read(run_dir)[name]
        assert run.keys() == ["loss", "system/cpu_percent"] and run.system.keys() == []


def test_wrong_setting_is_named(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("on", "0", "-1", "nan", "1e9"):
        monkeypatch.setenv("LOGCLIENT_SYSTEM", text)
        with pytest.raises(logclient.BadArgument, match="expected off, or seconds from 1 to 86400"):
            logclient.init(project="p", quiet=True)


def test_killed_observer_costs_no_record_and_another_goes_on(run_dir: Path, tmp_path: Path) -> None:
    """What was in the file of the dead one is stored, too."""
    with job(tmp_path / "job") as begun:
        measured(4)
        before, (file,) = word(layout.AGENT_OBSERVER), lane_files()
        kill(before)
        wait_until(
            lambda: any(path != file and words_of(path)[layout.KEYS_USED] for path in lane_files()),
            PATIENCE_S,
            "another observer measures",
        )
        assert word(layout.AGENT_OBSERVER) != before
        measured(4)
        logged = ended(tmp_path / "job", begun)
    run = the_run(run_dir)
    assert run.counts()["accepted"] == run.counts()["stored"] == logged
    system = run.of_side("system")
    assert len(system.processes) == 2
    missed = logclient.read(run_dir)["job"].system.series("system/agent/missed_samples").value
    assert missed[0] == 0 and missed[-1] >= 1
    counts = read(system).counts(system)
    assert counts["accepted"] == counts["stored"] and not counts["damaged"]


def test_stopped_observer_keeps_no_run_alive(run_dir: Path, tmp_path: Path) -> None:
    """The run ends, the agent leaves, and what was measured is stored."""
    with job(tmp_path / "job") as begun:
        measured(4)
        observer = word(layout.AGENT_OBSERVER)
        kill(observer, signal.SIGSTOP)
        logged = ended(tmp_path / "job", begun)
    wait_until(lambda: not processes.is_alive(observer), PATIENCE_S, "the observer was ended")
    run = the_run(run_dir)
    assert run.state.name == "finished" and run.counts()["stored"] == logged
    system = run.of_side("system")
    assert read(system).counts(system)["stored"] >= 4


@pytest.mark.usefixtures("patient")
def test_measurements_outlive_all_processes_of_the_agent(run_dir: Path, tmp_path: Path) -> None:
    """Supervisor, worker and observer are killed, then the trainer; `recover` stores what both have written."""
    trainer = Trainer(tmp_path / "trainer", {"LOGCLIENT_SYSTEM": "1"}, rate=200)
    try:
        measured(4)
        kill(trainer.word(layout.AGENT_OBSERVER), signal.SIGSTOP)
        both_killed(trainer)
        kill(trainer.word(layout.AGENT_OBSERVER))
        trainer.kill()
        wait_until(lambda: trainer.process.poll() is not None, PATIENCE_S, "the trainer is dead")
        there = written()
        assert there >= 4
        command("recover")
    finally:
        trainer.process.kill()
        trainer.process.communicate()
    nothing_left(PATIENCE_S)
    run = the_run(run_dir)
    found = stored(run_dir)
    assert found.records + found.forgotten == run.counts()["accepted"] and not found.wrong
    system = run.of_side("system")
    counts = read(system).counts(system)
    assert counts["accepted"] == counts["stored"] + counts["forgotten"] >= there


@pytest.mark.parametrize("source", [nvml.HANGS, nvml.CRASHES, nvml.FAILS], ids=["hangs", "crashes", "fails"])
def test_driver_that_gives_no_answer_is_a_metric_and_costs_no_other(
    run_dir: Path, tmp_path: Path, source: str
) -> None:
    library = nvml.library(tmp_path / "driver", source)
    with job(tmp_path / "job", LD_LIBRARY_PATH=library) as begun:
        measured(14)
        ended(tmp_path / "job", begun)
    run = logclient.read(run_dir)["job"].system
    assert not [key for key in list(run.keys()) if key.startswith("system/gpu/")]
    silent = run.series("system/gpu_silent_s").value
    assert len(silent) >= 2 and silent[-1] > silent[0] > 0
    assert len(run.series("system/memory_bytes").value) >= len(silent)
    assert left_over() == []


def test_driver_that_is_absent_is_shown(run_dir: Path, tmp_path: Path) -> None:
    """As the reason, once; it is asked no more."""
    library = nvml.library(tmp_path / "driver", nvml.NOT_LOADED)
    with job(tmp_path / "job", LD_LIBRARY_PATH=library) as begun:
        measured(6)
        ended(tmp_path / "job", begun)
    keys = list(logclient.read(run_dir)["job"].system.keys())
    assert keys and not [key for key in keys if "gpu" in key]
    (node,) = json.loads(command("show", "job", "--system", "--json"))["nodes"]
    assert node["no_devices"] == "no NVIDIA driver"
    assert "no GPUs: no NVIDIA driver" in command("show", "job", "--system")


def test_devices_and_the_memory_that_a_rank_has_there(run_dir: Path, tmp_path: Path) -> None:
    """Of eight, the fourth is slow; the first has a process of ours."""
    library = nvml.library(tmp_path / "driver", nvml.ANSWERS)
    with job(tmp_path / "job", LD_LIBRARY_PATH=library) as begun:
        measured(9)
        ended(tmp_path / "job", begun)
    run = logclient.read(run_dir)["job"].system

    def last(name: str) -> float:
        return float(run.series(f"system/gpu/{name}").value[-1])

    assert [last(f"{index}/power_w") for index in (0, 3, 7)] == [500, 90.5, 500.007]
    assert (last("3/clock_mhz"), last("2/clock_mhz"), last("3/temperature_c")) == (345, 1980, 88)
    assert (last("3/ecc_uncorrected"), last("2/ecc_uncorrected"), last("3/throttled")) == (2, 0, 1)
    assert (last("0/memory_bytes"), last("0/memory_total_bytes")) == (40 << 30, 100 << 30)
    assert last("0/utilisation_percent") == 100
    page = command("show", "job", "--system")
    assert "90.5 W" in page and "40.0 GiB" in page
    assert left_over() == []


def left_over() -> list[int]:
    """Children that asked the driver and are still there."""
    root = os.environ["LOGCLIENT_SHM_DIR"].encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if b"LOGCLIENT_SHM_DIR=" + root in environ:
                found.append(int(entry))
    return found


def test_collector_keeps_them_apart(run_dir: Path, tmp_path: Path) -> None:
    """Keys, points, counts and exports are the user's; `system=1` asks for the rest; it is deleted with its run."""
    server = Collector(tmp_path / "data", roles=())
    server.start()
    try:
        env = {"LOGCLIENT_SERVER": server.facts["grpc"], "LOGCLIENT_TOKEN": server.token}
        with job(tmp_path / "job", **env) as begun:
            measured(6)
            logged = ended(tmp_path / "job", begun)
        (row,) = get(server, "/api/v1/runs")["runs"]
        assert (row["records"], row["points"], row["counts"]["accepted"]) == (logged, 2 * logged, logged)
        keys = get(server, "/api/v1/run/keys", run="job")
        assert [key["key"] for key in keys["keys"]] == ["loss", "system/cpu_percent"]
        assert keys["keys"][1]["last"]["value"] == -1
        ours = get(server, "/api/v1/run/keys", run="job", system=1)
        names = {key["key"]: key for key in ours["keys"]}
        assert "loss" not in names and names["system/cpu_percent"]["last"]["value"] >= 0
        one = get(server, "/api/v1/run/series", run="job", key="system/memory_bytes", system=1)
        assert len(one["value"]) == names["system/memory_bytes"]["points"] >= 3
        reduced = get(server, "/api/v1/run/buckets", run="job", key="system/memory_bytes", system=1, most=1)
        assert reduced["points"] == len(one["value"])
        assert (
            server.get("/api/v1/run/series", params={"run": "job", "key": "system/memory_bytes"}).status_code
            == 404
        )
        lines = server.get("/api/v1/run/export", params={"run": "job"}).text.splitlines()
        assert len(lines) == 2 * logged
        last = get(server, "/api/v1/run/last", run="job", key="system/cpu_percent", system=1)
        assert last["values"][0]["run"] == "job" and last["values"][0]["last"]["value"] >= 0
        # the same questions by the command line and by programs
        words = ("--server", server.facts["http"])
        token = {"LOGCLIENT_TOKEN": server.token}
        assert len(command("export", "job", *words, env=token).splitlines()) == 2 * logged
        assert b"system/cpu" in command("export", "job", "--system", *words, env=token).encode()
        page = json.loads(command("show", "job", "--system", "--json", *words, env=token))
        assert page["nodes"][0]["values"]["memory_bytes"]["last"] == one["value"][-1]
        run = logclient.read(server.facts["http"], token=server.token)["job"]
        assert run.keys() == ["loss", "system/cpu_percent"] and set(run.system.keys()) == set(names)
        assert run.system.series("system/memory_bytes").value.tolist() == one["value"]
        # sent again, it is there once
        command("sync", "--server", server.facts["grpc"], env=token)
        assert get(server, "/api/v1/run/keys", run="job", system=1)["keys"] == ours["keys"]
        assert server.ask("DELETE", "/api/v1/run", params={"run": "job"}).status_code == 200
        assert get(server, "/api/v1/runs")["total"] == 0
    finally:
        server.kill()


def get(server: Collector, path: str, **params: Any) -> Any:
    answer = server.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()
