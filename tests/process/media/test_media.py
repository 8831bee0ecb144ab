"""Media values of real programs: stored once and whole, whoever is killed, and never at the cost of a scalar."""

from __future__ import annotations

import json
import os
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
from logclient.shm.media_ring import RAW_HEADER
from logclient.shm.ring import read_counts
from logclient.shm.side_stream import MEDIA
from logclient_backend.agent.host.status import StatusPage
from logclient_backend.agent.media.media_process import LOST_KEY
from logclient_backend.runs import folder
from logclient_backend.runs.contents import read
from logclient_backend.runs.view import view
from logclient_backend.wal.reader import WalReader
from tools.faults import processes

from ..agents import kill, nothing_left
from ..disturbed import ROOT, wait_until

# Logs so many images, each with its own pixels, beside a scalar, at a rate; then says how it went.
PROGRAM = """
import json, os, sys, time
import logclient

plan = json.loads(sys.argv[1])
run = logclient.init(project="media", id="job", quiet=True, **plan.get("init", {}))
begun = time.monotonic()
size = plan.get("bytes", 3000)
for step in range(plan["values"]):
    data = b"\\x89PNG\\r\\n\\x1a\\n" + step.to_bytes(4, "big") + bytes(size - 12)
    run.log(step, {"loss": float(step), "image": logclient.Image(data, f"step {step}")})
    if plan.get("rate"):
        time.sleep(max(0.0, begun + (step + 1) / plan["rate"] - time.monotonic()))
open("logged", "w").close()
if plan.get("hold"):
    time.sleep(600)
is_done = run.finish(plan.get("finish_s", 60.0))
print(json.dumps({"done": is_done, **run.status()}))
"""


class Job:
    """The program, and what the agent that serves it shows of itself."""

    def __init__(self, where: Path, env: dict[str, str], **plan: Any) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self.where = where
        (where / "train.py").write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, "train.py", json.dumps(plan)],
            cwd=where,
            env={**os.environ, "PYTHONPATH": str(ROOT), "LOGCLIENT_LANES_BYTES": str(16 << 20), **env},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._page: StatusPage | None = None

    @property
    def shm(self) -> Path | None:
        return next(Path(os.environ["LOGCLIENT_SHM_DIR"]).glob("logclient-*/*/"), None)

    def page(self) -> memoryview:
        """Words of the status page, mapped once."""
        if self._page is None:
            path = wait_until(
                lambda: (
                    self.shm is not None and (self.shm / "run.json").exists() and self.shm / "agent.status"
                ),
                30,
                "the run is there",
            )
            self._page = StatusPage(str(path))
        return self._page.words

    def media_pid(self, other_than: int = 0) -> int:
        """PID of the media process."""
        words = self.page()

        def found() -> int:
            pid = int(words[layout.AGENT_MEDIA])
            return (
                pid
                if pid != other_than and words[layout.AGENT_MEDIA_TICKS] and processes.is_alive(pid)
                else 0
            )

        return int(wait_until(found, 30, "a media process works"))

    def words(self) -> memoryview:
        """Words of the media file, as it is now."""
        assert self.shm is not None
        (path,) = self.shm.glob("*.media")
        return memoryview(path.read_bytes()[: layout.KEYS_OFFSET]).cast("Q")

    def referred(self) -> int:
        """Values that have a reference by now."""
        return int(self.words()[layout.lane_header(0) + layout.SEQ])

    def logged(self) -> None:
        """Wait until the program has logged all its values."""
        wait_until(lambda: (self.where / "logged").exists(), 60, "all is logged")

    def end(self, timeout_s: float = 120) -> dict[str, Any]:
        """Wait for it; its last status."""
        out, _ = self.process.communicate(timeout=timeout_s)
        assert self.process.returncode == 0
        found = json.loads(out)
        assert isinstance(found, dict)
        return found


@contextmanager
def job(where: Path, env: dict[str, str] | None = None, **plan: Any) -> Iterator[Job]:
    """Start the program; it ends with the `with`."""
    made = Job(where, env or {}, **plan)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def accounted(run_dir: Path, values: int, *, lost: int = 0) -> list[int]:
    """Check that all scalars are stored, and each value once or counted; returns the steps of those with bytes."""
    (run,) = logclient.read(run_dir)
    assert list(run.series("loss").value) == [float(step) for step in range(values)], "a scalar was lost"
    spans = [
        span
        for path in run_dir.glob("*/*")
        for span in WalReader(str(path)).spans().values()
        if span.stream.startswith(b"lcmedia_")
    ]
    gone = sum(len(span.forgotten) + len(span.missing()) + len(span.damaged) for span in spans)
    found = list(run.media)
    assert len(found) + gone == values, f"{len(found)} references, {gone} gone, of {values}"
    whole = [each for each in found if not each.lost]
    assert len(found) - len(whole) == lost, [each.lost for each in found if each.lost]
    steps = [each.step for each in whole]
    assert len(set(steps)) == len(steps), "a value is stored twice"
    for each in whole:
        data = each.bytes()
        assert int.from_bytes(data[8:12], "big") == each.step and each.caption == f"step {each.step}"
    return steps


def test_what_was_logged_is_durable_with_finish_and_in_no_count_of_the_run(
    run_dir: Path, tmp_path: Path, patient: None
) -> None:
    """Blobs, references and scalars are on disk, and counts, keys and exports are those of the scalars."""
    with job(tmp_path, values=50) as mine:
        status = mine.end()
    assert status["done"] and (status["accepted"], status["left_out"]) == (50, 0)
    nothing_left()
    assert accounted(run_dir, 50) == list(range(50))
    found = folder.resolve(folder.find(str(run_dir)), "job", str(run_dir))
    run = view(found)
    assert run.counts()["accepted"] == run.counts()["stored"] == 50 and set(read(run).keys) == {"loss"}
    assert run.of_side(MEDIA).counts()["stored"] == 50
    show = [sys.executable, "-m", "logclient_backend", "show", "job", "--media", "--json"]
    listed = json.loads(subprocess.check_output(show, cwd=ROOT, env={**os.environ}))
    assert [each["step"] for each in listed["media"]] == list(range(50))
    out = tmp_path / "out"
    export = [sys.executable, "-m", "logclient_backend", "export", "job", "--media", "--out", str(out)]
    subprocess.run(export, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "media.jsonl").read_text().splitlines()]
    assert (
        all((out / line["file"]).stat().st_size == line["bytes"] == 3000 for line in lines)
        and len(lines) == 50
    )
    assert len((out / "points.jsonl").read_text().splitlines()) == 50


def test_values_outlive_a_killed_trainer(run_dir: Path, tmp_path: Path, patient: None) -> None:
    """What was in shared memory when SIGKILL came is stored by the agent, and the agent leaves."""
    with job(tmp_path, values=100, hold=True) as mine:
        mine.logged()
        mine.process.kill()
    nothing_left(60)
    assert accounted(run_dir, 100) == list(range(100))


def test_a_media_process_that_is_killed_loses_and_doubles_nothing(
    run_dir: Path, tmp_path: Path, patient: None
) -> None:
    """Killed again and again while it works, it is replaced, and each value is stored once."""
    with job(tmp_path, values=450, rate=150) as mine:
        pid, kills = 0, 0
        while mine.process.poll() is None and kills < 6:
            pid = mine.media_pid(pid)
            before = mine.referred()

            def gets_on(before: int = before) -> bool:
                return mine.process.poll() is not None or mine.shm is None or mine.referred() > before

            wait_until(gets_on, 30, "it gets on")
            kill(pid)
            kills += 1
        assert kills >= 3
        assert mine.end()["done"]
    assert accounted(run_dir, 450) == list(range(450))


@pytest.mark.parametrize(
    "point", ["media.encode=kill:3!", "media.written=kill:2", "media.settled=kill:2", "media.referred=kill:9"]
)
def test_a_kill_at_any_step_of_a_value_loses_and_doubles_nothing(
    run_dir: Path, tmp_path: Path, patient: None, point: str
) -> None:
    """Between blob, reference and release each process dies once more, and the next one goes on."""
    with job(tmp_path, {"LOGCLIENT_FAILPOINTS": point}, values=40, rate=100) as mine:
        assert mine.end()["done"]
    nothing_left()
    found = accounted(run_dir, 40, lost=0)
    assert found == list(range(40))


def test_a_value_that_kills_two_processes_is_given_up_with_the_reason(
    run_dir: Path, tmp_path: Path, patient: None
) -> None:
    """It has a reference without a blob, and those after it come through."""
    with job(tmp_path, {"LOGCLIENT_FAILPOINTS": "media.encode=kill:1+"}, values=2) as mine:
        assert mine.end()["done"]
    accounted(run_dir, 2, lost=2)
    lost = {each.lost for each in logclient.read(run_dir)[-1].media}
    assert len(lost) == 1 and "processes died" in lost.pop()


def test_a_ring_that_nobody_empties_forgets_its_oldest_exactly(
    run_dir: Path, tmp_path: Path, patient: None
) -> None:
    """With the media process stopped, values beyond the ring are counted, and no scalar is lost."""
    with job(tmp_path, values=400, rate=400, bytes=20_000, init={"media_bytes": 2 << 20}) as mine:
        pid = mine.media_pid()
        os.kill(pid, signal.SIGSTOP)
        mine.logged()
        words = mine.words()
        raw = layout.lane_header(RAW_HEADER)
        assert words[raw + layout.SEQ] == 400 and words[raw + layout.FORGOT] > words[raw + layout.RELEASED]
        os.kill(pid, signal.SIGCONT)
        shown = subprocess.check_output(
            [sys.executable, "-m", "logclient_backend", "status"], cwd=ROOT, text=True
        )
        assert " of 400 values stored" in shown
        status = mine.end()
    steps = accounted(run_dir, 400)
    media = status["media"]
    assert status["done"] and media["accepted"] == 400 and media["stored"] == len(steps)
    assert media["forgotten"] == 400 - len(steps) and media["lost"] == media["over_budget"] == 0
    assert steps[-1] == 399 and 50 < len(steps) < 400
    command = [sys.executable, "-m", "logclient_backend", "show", logclient.read(run_dir)[-1].id]
    printed = subprocess.check_output([*command, "--dir", str(run_dir)], cwd=ROOT, text=True)
    assert f"{len(steps)} stored, {400 - len(steps)} forgotten" in printed
    newest = [step for step in steps if step > 300]
    assert newest == list(range(newest[0], 400)), "what was there when it went on is stored without a gap"


def test_a_damaged_ring_costs_what_was_in_it_and_no_more(
    run_dir: Path, tmp_path: Path, patient: None
) -> None:
    """What does not check is reported and counted; the program's scalars and the end of the run are not touched."""
    with job(tmp_path, values=30, hold=True, init={"media_bytes": 2 << 20}) as mine:
        pid = mine.media_pid()
        os.kill(pid, signal.SIGSTOP)
        mine.logged()
        assert mine.shm is not None
        (path,) = mine.shm.glob("*.media")
        with open(path, "r+b") as file:
            words = mine.words()
            raw = layout.lane_header(RAW_HEADER)
            at = words[raw + layout.LANE_OFFSET] + max(
                words[raw + layout.RELEASED], words[raw + layout.FORGOT]
            )
            os.pwrite(file.fileno(), b"\xff" * 16, at)
        os.kill(pid, signal.SIGCONT)
        wait_until(
            lambda: read_counts(mine.words()[layout.lane_header(0) :])[0] == 30, 30, "all is accounted for"
        )
        mine.process.kill()
    nothing_left(60)
    (run,) = logclient.read(run_dir)
    assert len(run.series("loss")) == 30
    found = [each for each in run.media if each.key == LOST_KEY]
    assert len(found) == 1 and "check" in found[0].lost


def test_an_agent_that_dies_is_replaced_and_its_values_are_stored(
    run_dir: Path, tmp_path: Path, patient: None
) -> None:
    """Supervisor and worker are killed: the media process ends by itself, and `finish` starts an agent with another."""
    with job(tmp_path, values=300, rate=150) as mine:
        words = mine.page()
        pid = mine.media_pid()
        supervisor, worker = int(words[layout.AGENT_SUPERVISOR]), int(words[layout.AGENT_WORKER])
        os.kill(supervisor, signal.SIGSTOP)
        kill(worker)
        kill(supervisor)
        wait_until(lambda: not processes.is_alive(pid), 30, "the media process ends with its agent")
        assert mine.end()["done"]
    assert accounted(run_dir, 300) == list(range(300))


def held(trainer: Job) -> int:
    """Whether the media process hangs in the kernel."""
    pid = int(trainer.page()[layout.AGENT_MEDIA])
    return int("D" in processes.states_of_threads(pid).values())


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_frozen_disk_costs_images_beyond_the_budget_and_no_scalar(
    disk: Any, tmp_path: Path, patient: None, pace: Any
) -> None:
    """The media process hangs in state D; images are counted exactly, each scalar is stored."""
    run_dir = Path(os.environ["LOGCLIENT_DIR"])
    values, rate = 900, 150
    with job(tmp_path, values=values, rate=rate, bytes=20_000, init={"media_bytes": 4 << 20}) as mine:
        mine.media_pid()
        wait_until(lambda: mine.referred() > 20, 30, "something is stored")
        with disk.frozen():
            wait_until(lambda: held(mine), 30, "the media process waits in state D")
            raw = layout.lane_header(RAW_HEADER)

            def has_forgotten() -> bool:
                words = mine.words()
                forgotten = words[raw + layout.FORGOT] - words[raw + layout.RELEASED]
                # more than the one value that the process may have read before
                return bool(forgotten > (words[raw + layout.TAIL] - words[raw + layout.FORGOT]) // 2)

            wait_until(has_forgotten, 60, "the ring is full")
        assert mine.end()["done"]
    steps = accounted(run_dir, values)
    assert 100 < len(steps) < values


@pytest.mark.root
@pytest.mark.timeout(120)
def test_a_full_disk_delays_values_and_loses_none_within_the_ring(
    small_disk: Any, tmp_path: Path, patient: None
) -> None:
    """The error is on the status page, the blob is written once there is room."""
    run_dir = Path(os.environ["LOGCLIENT_DIR"])
    with job(tmp_path, values=40, hold=True, bytes=50_000) as mine:
        mine.logged()
        wait_until(lambda: mine.page()[layout.AGENT_MEDIA_ERROR], 60, "the disk is full")
        small_disk()
        wait_until(lambda: mine.referred() == 40, 60, "all is stored")
        mine.process.kill()
    nothing_left(60)
    assert accounted(run_dir, 40) == list(range(40))


@pytest.fixture
def small_disk(
    needs_root: None, tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A run folder on a file system of 2 MiB of which most is taken; to be called to make room."""
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(where)], check=True)
    ballast = where / "ballast"
    ballast.write_bytes(bytes(23 << 20))
    monkeypatch.setenv("LOGCLIENT_DIR", str(where / "runs"))
    monkeypatch.setenv("LOGCLIENT_SEGMENT_BYTES", str(128 << 10))
    try:
        yield ballast.unlink
    finally:
        deadline = time.monotonic() + 30
        while subprocess.run(["umount", str(where)], check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline, "the file system is still busy"
            time.sleep(0.2)


def test_a_name_that_is_no_text_stops_no_value(run_dir: Path, tmp_path: Path) -> None:
    """A file whose name is no UTF-8, and captions with lone surrogates: what no text may have becomes U+FFFD."""
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_text("bytes")
    run = logclient.init(id="odd", dir=str(run_dir), quiet=True)
    values = (
        logclient.File(str(path)),
        logclient.File(b"x", name="\ud800"),
        logclient.File("/nonexistent/a\udce9b"),
        logclient.Text("what follows"),
    )
    for step, value in enumerate(values):
        run.log(step, {"value": value})
    assert run.finish(60) and run.status()["media"]["stored"] == len(values)
    found = [item.fields.get("name") for item in logclient.read(run_dir)["odd"].media["value"]]
    assert found[:2] == ["caf\ufffd.txt", "\ufffd"]
