"""`logclient sync`: every run of a folder arrives once, and what does not is named."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logclient.shm.shm_dir import folder_name
from logclient_backend.cli.sync_workers import Patience, Pulse
from logclient_backend.ship import progress as states
from logclient_backend.ship.progress import Progress
from logclient_backend.wal.documents import HEAD, DocumentFile
from logclient_backend.wire.address import Address
from logclient_backend.wire.messages import UNREACHABLE, NotTaken, Parcel
from tests.backend.runs.build import SECOND, NodeMaker, rec, simple_run
from tests.backend.ship import samples
from tests.collectors import MemoryCollector
from tests.process.disturbed import ROOT, wait_until

from .conftest import Command

WAIT_S = 60


@pytest.fixture
def collector() -> Iterator[MemoryCollector]:
    with MemoryCollector() as made:
        yield made


@pytest.fixture
def sync(logclient: Command, collector: MemoryCollector, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line, with the collector in the environment."""
    monkeypatch.setenv("LOGCLIENT_SERVER", str(collector.address))
    monkeypatch.setenv("LOGCLIENT_TOKEN", "secret")
    collector.token = "secret"
    return logclient


def outcomes(told: dict[str, Any]) -> dict[str, str]:
    return {upload["run"]: upload["outcome"] for upload in told["uploads"]}


def test_a_folder_of_runs_arrives_once(sync: Command, collector: MemoryCollector, run_dir: Path) -> None:
    """The second time almost nothing is sent, and that is said."""
    for number in range(1, 6):
        simple_run(run_dir, f"run-{number}", 10 * number)
    told = sync.json("sync")
    assert outcomes(told) == {f"run-{number}": "sent" for number in range(1, 6)}
    assert {key[0]: node.records for key, node in collector.nodes.items()} == {
        f"run-{number}": 10 * number for number in range(1, 6)
    }
    assert all(hello.is_sync for hello in collector.hellos)
    parcels = collector.parcels
    assert set(outcomes(sync.json("sync")).values()) == {"already there"}
    assert "nothing to send: all 150 records were already there" in sync("sync").output
    assert collector.parcels == parcels
    assert sum(node.repeated for node in collector.nodes.values()) == 0


def test_old_copy_of_which_all_is_there_is_told_so(
    sync: Command, collector: MemoryCollector, run_dir: Path, tmp_path: Path
) -> None:
    """Its documents are others than those there, so they are sent; of its records none is."""
    made = simple_run(run_dir, "run-1", 20)
    shutil.copytree(run_dir, tmp_path / "old")
    made.heard_ns += 60 * SECOND
    made.save()
    assert outcomes(sync.json("sync")) == {"run-1": "sent"}
    output = sync("sync", tmp_path / "old").output
    assert "nothing to send: all 20 records were already there" in output
    assert "what these folders contain of their runs was sent" in output
    (upload,) = sync.json("sync", tmp_path / "old")["uploads"]
    assert (upload["outcome"], upload["records"], upload["sent"]) == ("already there", 20, 0)
    assert collector.records == 20


def test_what_is_said_of_what_was_sent(sync: Command, run_dir: Path) -> None:
    """A row a run, and a sum; no token anywhere."""
    simple_run(run_dir, "run-1", 20)
    output = sync("sync").output
    assert "run-1" in output
    assert "1 of 1 node complete" in output
    assert "20 records sent" in output
    assert "secret" not in output


def test_a_run_or_a_copy_under_another_name_is_the_same_run(
    sync: Command, collector: MemoryCollector, run_dir: Path, tmp_path: Path
) -> None:
    """Its documents tell whose it is: one run's folder, a node's, copies of both."""
    made = simple_run(run_dir, "run-1", 20)
    run = run_dir / folder_name("run-1")
    copies = [tmp_path / "copied run", tmp_path / "copied node", tmp_path / "runs" / "renamed"]
    shutil.copytree(run, copies[0])
    shutil.copytree(made.path, copies[1])
    shutil.copytree(run, copies[2])
    assert outcomes(sync.json("sync", copies[1])) == {"run-1": "sent"}
    for path in (run, made.path, copies[0], copies[2].parent):
        assert outcomes(sync.json("sync", path)) == {"run-1": "already there"}
    assert list(collector.nodes) == [("run-1", made.node)]
    told = sync.json("sync", run, *copies)  # one upload, whose folders are read together
    assert len(told["uploads"]) == 1
    assert collector.records == 20


def test_what_is_no_run_is_listed_and_the_rest_goes(
    sync: Command, collector: MemoryCollector, run_dir: Path
) -> None:
    """One not readable, one empty, one of a newer version, one that is not there; the exit code tells."""
    for number in range(1, 8):
        simple_run(run_dir, f"good-{number}", 10)
    (run_dir / "empty").mkdir()
    newer = simple_run(run_dir, "newer", 10)
    DocumentFile(str(newer.path)).save(json.dumps({"version": 99}).encode())
    for path in newer.path.glob("documents.*"):
        data = path.read_bytes()
        if b'"version": 99' not in data[HEAD.size :]:
            path.unlink()
    unreadable = simple_run(run_dir, "unreadable", 10)
    for path in unreadable.path.glob("*.seg"):
        path.unlink()
        path.symlink_to("/dev/null")
    told = sync.json("sync", run_dir, run_dir / "nowhere", code=4)
    found = outcomes(told)
    assert found.pop("unreadable") == "partial"
    assert found == {f"good-{number}": "sent" for number in range(1, 8)}
    reasons = {os.path.relpath(each["path"], run_dir): each["reason"] for each in told["skipped"]}
    assert reasons["empty"] == "empty"
    assert "newer" in reasons["newer"]
    assert "there is no folder" in reasons["nowhere"]
    assert collector.records == 70
    output = sync("sync", code=4).output
    assert "not sent (2)" in output
    assert "unreadable" in output


def test_a_run_without_documents_is_sent_as_far_as_it_can_be(
    sync: Command, collector: MemoryCollector, run_dir: Path
) -> None:
    """Its records arrive under the folder's name; that its documents are gone is said."""
    made = simple_run(run_dir, "run-1", 10)
    for path in made.path.glob("documents*"):
        path.unlink()
    (upload,) = sync.json("sync", code=4)["uploads"]
    assert (upload["run"], upload["outcome"]) == ("run-1", "partial")
    assert "documents" in upload["reasons"][0]
    assert collector.records == 10


def test_records_that_are_gone_are_told_as_damaged(
    sync: Command, collector: MemoryCollector, run_dir: Path
) -> None:
    """Where a segment was deleted by hand, the collector knows what is missing, and the user hears it each time."""
    made = simple_run(run_dir, "run-1", 10)
    made.segment({(1, 1, 0): [rec(seq) for seq in range(15, 21)]})
    made.told(1, 1, 20, 20)
    made.save()
    for _ in range(2):
        (upload,) = sync.json("sync", code=4)["uploads"]
        assert "4 records were durable once and cannot be read any more" in upload["reasons"][0]
    ((gaps,),) = [[node.gaps for node in collector.nodes.values()]]
    ((causes,),) = [list(gaps.values())]
    assert {cause: seqs.ranges() for cause, seqs in causes.items()} == {"damaged": [(11, 14)]}


def test_a_deleted_run_is_not_tried_again(sync: Command, collector: MemoryCollector, run_dir: Path) -> None:
    """A clear answer, once; with --revive it comes back."""
    simple_run(run_dir, "run-1", 10)
    simple_run(run_dir, "run-2", 10)
    collector.deleted.add("run-1")
    told = sync.json("sync", code=4)
    assert outcomes(told) == {"run-1": "failed", "run-2": "sent"}
    assert "was deleted" in told["uploads"][0]["reasons"][0]
    assert [hello.run for hello in collector.hellos].count("run-1") == 1
    would = sync("sync", "--revive", "--dry-run").output
    assert "would be brought back, 10 records" in would and "run-1" in collector.deleted
    assert outcomes(sync.json("sync", "--revive")) == {"run-1": "sent", "run-2": "already there"}


def test_a_dry_run_sends_nothing(sync: Command, collector: MemoryCollector, run_dir: Path) -> None:
    """It asks what is missing there."""
    made = simple_run(run_dir, "run-1", 10)
    (upload,) = sync.json("sync", "--dry-run")["uploads"]
    assert (upload["records"], upload["missing"]) == (10, 10)
    assert collector.parcels == 0
    sync("sync")
    made.segment({(1, 1, 0): [rec(seq) for seq in range(11, 14)]})
    assert "3 of 13 records would be sent" in sync("sync", "--dry-run").output
    assert collector.records == 10


@pytest.mark.slow
def test_no_server_a_wrong_one_and_a_wrong_token(
    logclient: Command, collector: MemoryCollector, run_dir: Path
) -> None:
    """Each is a sentence and an exit code, and none of them takes long."""
    simple_run(run_dir, "run-1", 10)
    assert "no server is named" in logclient("sync", code=2).output
    assert "http" in logclient("sync", "--server", "http://host:1", code=2).output
    collector.token = "secret"
    output = logclient("sync", "--server", str(collector.address), code=1).output
    assert "opens nothing here" in output
    collector.stop()
    output = logclient("sync", "--server", str(collector.address), "--timeout", "3", code=1).output
    assert "cannot be reached" in output


def test_nothing_to_sync_is_fine(sync: Command, run_dir: Path) -> None:
    """An empty folder holds no runs; one that is not there is named."""
    run_dir.mkdir()
    assert "no runs" in sync("sync").output
    assert "there is no folder" in sync("sync", run_dir / "none", code=3).output


def test_what_is_refused_makes_it_partial(sync: Command, collector: MemoryCollector, run_dir: Path) -> None:
    """With the number of records and the collector's sentence."""
    simple_run(run_dir, "run-1", 10)

    def refuse(parcel: Parcel) -> None:
        if parcel.batches:
            raise NotTaken("too odd for me", "invalid", is_final=True)

    collector.on_parcel = refuse
    (upload,) = sync.json("sync", code=4)["uploads"]
    assert (upload["outcome"], upload["refused"], upload["sent"]) == ("partial", 10, 0)
    assert "too odd for me" in upload["reasons"][0]


def test_a_folder_that_does_not_answer_is_given_up() -> None:
    """Reading may take as long as it likes; silence may not, on either side."""
    progress = Progress()
    source = SimpleNamespace(silent_s=0.0, folders=["/slow"])
    patience = Patience(progress, source, 0.1, Pulse())  # type: ignore[arg-type]
    progress.enter(states.IDLE)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        assert patience.lasts()
    source.silent_s = 7.0
    wait_until(lambda: not patience.lasts(), WAIT_S, "it is given up")
    assert patience.reason == "/slow has not answered for 7 s"
    source.silent_s = 0.0
    assert patience.lasts()
    progress.enter(states.WAITING, NotTaken("nobody there"))
    wait_until(lambda: not patience.lasts(), WAIT_S, "it is given up")
    assert patience.reason == "nobody there"


def test_a_collector_that_is_gone_is_waited_for_once() -> None:
    """The next job gives up with its first trouble, until something moves again."""
    pulse, source = Pulse(), SimpleNamespace(silent_s=0.0, folders=["/there"])
    first, second = Progress(), Progress()
    waiting = Patience(first, source, 0.1, pulse)  # type: ignore[arg-type]
    first.enter(states.WAITING, NotTaken("nobody there", UNREACHABLE))
    wait_until(lambda: not waiting.lasts(), WAIT_S, "the first is given up")
    patient = Patience(second, source, 3600.0, pulse)  # type: ignore[arg-type]
    assert patient.lasts()  # it has not tried yet
    second.enter(states.WAITING, NotTaken("nobody there", UNREACHABLE))
    assert not patient.lasts() and patient.reason == "nobody there"
    second.enter(states.WAITING, NotTaken("later", "busy"))
    assert patient.lasts()  # somebody is there
    second.records = 1
    assert patient.lasts()
    second.enter(states.WAITING, NotTaken("nobody there", UNREACHABLE))
    assert patient.lasts()


@pytest.mark.slow
def test_what_went_wrong_is_said_once(logclient: Command, collector: MemoryCollector, run_dir: Path) -> None:
    """However many runs it kept from being sent."""
    for number in range(6):
        simple_run(run_dir, f"run-{number}", 10)
    address = str(collector.address)
    collector.stop()
    output = logclient("sync", "--server", address, "--timeout", "3", code=1).output
    assert output.count("cannot be reached") == 1 and "6 nodes: " in output


class Process:
    """The command in a process of its own."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "logclient_backend", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, output.decode()


def big_run(run_dir: Path, records: int) -> Path:
    """More than goes into a few parcels."""
    folder = run_dir / "run" / "node"
    for number, first in enumerate(range(1, records + 1, 1000)):
        samples.write(folder, number + 1, samples.item(min(1000, records + 1 - first), first))
    DocumentFile(str(folder)).save(samples.documents(records))
    return folder


class Brake:
    """Lets so many parcels with records through, and holds the next one."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.held = 0

    def __call__(self, parcel: Parcel) -> None:
        if not parcel.batches:
            return  # documents alone: as many as there are
        while self.after <= 0:
            self.held += 1
            time.sleep(0.02)
        self.after -= 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_what_was_interrupted_goes_on(
    sync: Command, collector: MemoryCollector, run_dir: Path, number: int
) -> None:
    """With what is not there yet; Ctrl-C says so, without a traceback."""
    big_run(run_dir, 100_000)
    brake = Brake(after=1)
    collector.on_parcel = brake
    with Process("sync", run_dir) as process:
        wait_until(lambda: brake.held, WAIT_S, "some parcels are there")
        process.process.send_signal(number)
        code, output = process.end()
    assert code == (130 if number == signal.SIGINT else -9)
    assert "Traceback" not in output
    before = collector.records
    assert 0 < before < 100_000
    brake.after = 1 << 30
    (upload,) = sync.json("sync")["uploads"]
    assert upload["sent"] <= 100_000 - before
    wait_until(lambda: collector.node().steps() == list(range(1, 100_001)), WAIT_S, "all is there")


@pytest.mark.slow
def test_a_run_that_is_written_is_synced_again_and_again(
    sync: Command, collector: MemoryCollector, run_dir: Path
) -> None:
    """Each sync, also two at once, sends what there is; no record twice, and none is taken for damaged."""
    folder = run_dir / "run" / "node"
    segment = samples.write_open(folder, 1)
    heard = {"heard_ns": time.time_ns()}
    for rounds in range(1, 5):
        samples.append(segment, samples.item(10, 1 + 10 * (rounds - 1)))
        DocumentFile(str(folder)).save(samples.documents(10 * rounds, closed=False, **heard))
        with Process("sync", run_dir) as other:
            sync("sync")
            assert other.end()[0] == 0
        assert collector.node().steps() == list(range(1, 10 * rounds + 1))
    segment.close()
    assert collector.node().gaps == {}


def test_watch_sends_what_comes(sync: Command, collector: MemoryCollector, run_dir: Path) -> None:
    """Until Ctrl-C; new runs too, through an outage of the collector."""
    big_run(run_dir, 1000)
    with Process("sync", "--watch", "--every", 0.2, "--json", "--timeout", 0.5, run_dir) as process:
        wait_until(lambda: collector.records == 1000, WAIT_S, "the first run is there")
        collector.stop()
        simple_run(run_dir, "late", 20)
        assert process.process.stdout is not None
        while b"cannot be reached" not in (line := process.process.stdout.readline()):
            assert line, "it ended"
        again = MemoryCollector(token="secret").start(collector.address.port)
        try:
            wait_until(lambda: again.records >= 20, WAIT_S, "the late run is there")
        finally:
            again.stop()
        process.process.send_signal(signal.SIGINT)
        code, output = process.end()
    assert code == 130
    assert "Traceback" not in output


def test_several_nodes_of_a_run_and_a_live_collector_address(
    sync: Command, collector: MemoryCollector, run_dir: Path
) -> None:
    """Each node is shipped by itself, side by side."""
    for number in range(6):
        maker = NodeMaker(run_dir, "run", f"node{number}")
        maker.process(number + 1)
        maker.segment({(number + 1, number + 1, 0): [rec(seq) for seq in range(1, 101)]})
        maker.told(number + 1, number + 1, 100, 100)
        maker.save()
    told = sync.json("sync", "--jobs", "3", "--server", str(Address("localhost", collector.address.port)))
    assert len(told["uploads"]) == 6
    assert collector.records == 600
    assert len(collector.nodes) == 6
