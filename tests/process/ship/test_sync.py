"""`logclient sync` of runs that are written, copied, interrupted, damaged, deleted or made by hand.

C7-2, C7-4, S-5, R2-26, R2-50, R2-52. The collector is a process on loopback; what it has is read from its store.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.backend.runs.build import NodeMaker, Rec, rec, simple_run
from tests.conftest import Pace
from tools.collector import Collector
from tools.faults import fuse
from tools.faults.proxy import Proxy

from .. import hosts as two_hosts
from .. import scripts
from ..disturbed import Trainer, node_folders, stored, wait_until
from ..hosts import PATIENCE_S, assert_whole, at_collector

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OK, NO, PARTIAL = 0, 1, 4
OFFLINE = {"LOGCLIENT_MODE": "offline", **two_hosts.PATIENT}


def words(collector: Collector, *more: object, server: str = "") -> list[str]:
    command = [sys.executable, "-m", "logclient_backend", "sync", *map(str, more)]
    return [*command, "--server", server or collector.address]


def environment(collector: Collector) -> dict[str, str]:
    return {**os.environ, "LOGCLIENT_TOKEN": collector.token}


def sync(collector: Collector, *more: object, code: int = OK, server: str = "") -> dict[str, Any]:
    """What it tells as JSON."""
    ended = scripts.run_words(
        collector.data.parent,
        words(collector, *more, "--json", server=server),
        120,
        env=environment(collector),
    )
    assert ended.code == code, f"{ended.code}: {ended.out}{ended.err}"
    told: dict[str, Any] = json.loads(ended.out)
    return told


def total(told: dict[str, Any], what: str) -> int:
    return sum(int(upload[what]) for upload in told["uploads"])


def state_at(collector: Collector, run_id: str) -> str:
    """As `logclient ls` shows the run."""
    command = [sys.executable, "-m", "logclient_backend", "ls", "--server", collector.url, "--json"]
    ended = scripts.run_words(collector.data.parent, command, 120, env=environment(collector))
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    (found,) = (run for run in told["runs"] if run["id"] == run_id)
    return str(found["state"])


# ---- C7-2 ------------------------------------------------------------------------------------------------------


def wait_committed(run_dir: Path, records: int) -> None:
    wait_until(lambda: stored(run_dir).records >= records, PATIENCE_S, f"{records} records are committed")


def syncs_of_a_live_run(collector: Collector, run_dir: Path, tmp_path: Path, rounds: int) -> None:
    """Each brings what was committed by then, also from a copy made meanwhile; the last one the rest."""
    trainer = Trainer(tmp_path, OFFLINE, rate=200, until_told=True)
    try:
        sent = 0
        for number in range(rounds):
            wanted = trainer.logged + 1
            wait_committed(run_dir, wanted)
            folder = run_dir
            if number % 2:
                folder = tmp_path / f"copy {number}"
                # not Python's own, which gives up when a file goes while it looks
                subprocess.run(["cp", "-r", str(run_dir), str(folder)], check=False, timeout=PATIENCE_S)
            told = sync(collector, folder)
            sent += total(told, "sent")
            assert sent >= wanted, "what was committed before it began"
            assert state_at(collector, trainer.run_id) == "running", number
        pair = [
            subprocess.Popen(words(collector, run_dir), env=environment(collector), stdout=subprocess.DEVNULL)
            for _ in range(2)
        ]
        assert [one.wait(PATIENCE_S) for one in pair] == [OK, OK], "twice at once"
    finally:
        status = trainer.tell_to_end()
    trainer.wait_gone(PATIENCE_S)
    assert status["forgotten"] == status["damaged"] == 0, "the writer was disturbed"
    sync(collector, run_dir)
    assert state_at(collector, trainer.run_id) == "finished"
    assert total(sync(collector, run_dir), "sent") == 0
    assert collector.stop() == 0
    two_hosts.assert_same(collector.data, run_dir, {trainer.run_id: trainer.logged})


def test_live_offline_run_is_synced_again_and_again(
    collector: Collector, run_dir: Path, tmp_path: Path, pace: Pace
) -> None:
    """C7-2, R2-52: also twice at once, and of copies. No row twice; the run is running until it says that it ended."""
    syncs_of_a_live_run(collector, run_dir, tmp_path, pace.count(40, least=2))


@pytest.mark.root
def test_live_offline_run_is_synced_over_a_network_mount(
    collector: Collector, mount: fuse.Fuse, tmp_path: Path, pace: Pace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C7-2, R2-52: the same where the run folder lies on a share."""
    monkeypatch.setenv("LOGCLIENT_NETWORK_SYNC_S", "0.3")
    syncs_of_a_live_run(collector, mount.path / "runs", tmp_path, pace.count(20))


# ---- C7-4 ------------------------------------------------------------------------------------------------------


def offline_run(folder: Path, records: int) -> Trainer:
    trainer = Trainer(folder, OFFLINE, records=records, rate=10_000)
    trainer.end()
    trainer.wait_gone(PATIENCE_S)
    return trainer


def test_sync_twice_killed_and_of_a_copy(collector: Collector, run_dir: Path, tmp_path: Path) -> None:
    """C7-4: killed on its way it goes on where it was; repeated, or from a copy, it sends nothing, and says so."""
    trainer = offline_run(tmp_path, 15_000)
    with Proxy(collector.address.partition("//")[2]) as proxy:
        proxy.be("delayed", seconds=0.1)  # or it is over before it can be killed
        killed = subprocess.Popen(
            words(collector, run_dir, server=f"grpc://{proxy.address}"), env=environment(collector)
        )
        try:
            wait_until(lambda: proxy.facts()["up"] > 10_000, PATIENCE_S, "a third of it is on its way")
        finally:
            killed.kill()
            killed.wait(PATIENCE_S)
    first = sync(collector, run_dir)
    already = total(first, "already")
    assert already + total(first, "sent") == trainer.logged
    second = sync(collector, run_dir)
    assert (total(second, "sent"), total(second, "points")) == (0, 0)
    copied = tmp_path / "another machine" / "runs"
    shutil.copytree(run_dir, copied)
    assert total(sync(collector, copied), "sent") == 0
    said = scripts.run_words(tmp_path, words(collector, copied), 120, env=environment(collector))
    assert "nothing to send: all 15,000 records were already there" in said.out, said
    assert collector.stop() == 0
    two_hosts.assert_same(collector.data, run_dir, {trainer.run_id: trainer.logged})


def test_deleted_run_stays_deleted_until_it_is_wanted_back(
    collector: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """C7-4, R2-50: late data of a deleted run are refused with a clear word, once; `--revive` brings it back whole."""
    trainer = offline_run(tmp_path, 3000)
    simple_run(run_dir, "other", 50)
    sync(collector, run_dir)
    command = [sys.executable, "-m", "logclient_backend", "server", "delete", trainer.run_id]
    ended = scripts.run_words(tmp_path, [*command, "--data", str(collector.data)], 120)
    assert ended.code == 0, ended
    told = sync(collector, run_dir, code=PARTIAL)
    by_run = {upload["run"]: upload for upload in told["uploads"]}
    assert by_run["other"]["outcome"] == "already there"
    refused = by_run[trainer.run_id]
    assert refused["outcome"] == "failed"
    assert refused["sent"] == 0
    assert "deleted" in " ".join(refused["reasons"])
    assert refused["seconds"] < 30, "no loop of retries"
    sync(collector, run_dir, "--revive")
    assert collector.stop() == 0
    assert_whole(at_collector(collector.data, trainer.run_id), 3000)


# ---- S-5 -------------------------------------------------------------------------------------------------------


def without_rights_of_root(command: list[str]) -> list[str]:
    """Root may read what nobody may, unless it gives that up."""
    if os.geteuid() != 0:
        return command
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux to be somebody who may not read everything")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]


def test_ten_runs_of_which_three_are_none(collector: Collector, run_dir: Path) -> None:
    """S-5: one unreadable, one empty, one of a newer version: seven are sent, three named with reasons."""
    for number in range(7):
        simple_run(run_dir, f"good-{number}", 10)
    (run_dir / "empty").mkdir()
    newer = NodeMaker(run_dir, "newer")
    newer.save({**newer.content(), "version": 99})
    closed = simple_run(run_dir, "closed", 10).path.parent
    closed.chmod(0)
    try:
        command = without_rights_of_root(words(collector, run_dir, "--json"))
        ended = scripts.run_words(run_dir.parent, command, 120, env=environment(collector))
    finally:
        closed.chmod(0o700)
    assert ended.code == PARTIAL, ended
    told = json.loads(ended.out)
    assert {upload["run"]: upload["outcome"] for upload in told["uploads"]} == {
        f"good-{number}": "sent" for number in range(7)
    }
    reasons = {Path(each["path"]).relative_to(run_dir).parts[0]: each["reason"] for each in told["skipped"]}
    assert set(reasons) == {"empty", "newer", "closed"}
    assert "empty" in reasons["empty"]
    assert "newer" in reasons["newer"]
    assert "denied" in reasons["closed"]


# ---- R2-26 -----------------------------------------------------------------------------------------------------

NAMES = (
    *("../../../escape", "/etc/escape", "%2e%2e%2fescape", "%252e%252e%252fescape", "..\\..\\escape"),
    *("a//b", "trailing.", "CON", "con", "nul.txt", "é", "é", " blank ", "x" * 500),
)
IMPOSSIBLE = ("nul\0inside", "x" * 5000)


def one_value(seq: int, key: str) -> Rec:
    return rec(seq)._replace(values=((key, "d", float(seq)),))


def test_names_of_hand_made_runs_are_data(collector: Collector, run_dir: Path, tmp_path: Path) -> None:
    """R2-26: run ids, keys, projects and names that look like paths: stored verbatim, or refused; others go on."""
    for number, name in enumerate((*NAMES, *IMPOSSIBLE)):
        maker = NodeMaker(run_dir, f"run-{number}")
        maker.run_id = name
        maker.process(1, documents={"about": {"project": name[:100], "name": name[:100]}})
        maker.segment({(1, 1, 0): [one_value(seq, name[:400]) for seq in range(1, 5)]})
        maker.told(1, 1, 4, 4)
        maker.save()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.wal").write_bytes(b"not yours")
    (run_dir / "run-0" / "linked").symlink_to(outside)
    before = everything_below(tmp_path, but=collector.data)
    told = sync(collector, run_dir, code=PARTIAL)
    assert everything_below(tmp_path, but=collector.data) == before, "something beside the store was written"
    assert collector.process is not None and collector.process.poll() is None
    outcomes = {upload["run"]: upload["outcome"] for upload in told["uploads"]}
    assert {name: outcomes[name] for name in NAMES} == dict.fromkeys(NAMES, "sent")
    failed = [upload for upload in told["uploads"] if upload["outcome"] == "failed"]
    assert len(failed) == len(IMPOSSIBLE)
    assert all(upload["reasons"] for upload in failed)
    assert collector.stop() == 0
    from logclient_backend.collector.store.open import open_store

    store = open_store(str(collector.data / "store"))
    try:
        for name in NAMES:
            run = store.reader.run(name)
            assert run is not None and run.id == name
            assert run.records == 4
            assert [key.name for key in store.reader.keys(name).keys] == [name[:400]]
    finally:
        store.close()


def everything_below(folder: Path, but: Path) -> dict[str, int]:
    """Sizes of all files but those of the collector."""
    own = (str(but), str(but.with_name(but.name + ".log")))
    return {
        str(path): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not str(path).startswith(own)
    }


# ---- R2-52 -----------------------------------------------------------------------------------------------------


def test_damaged_copy_loses_the_damaged_records_only(
    collector: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """R2-52: a flipped byte, a cut end and a missing file: the rest is sent, and what is wrong is said.

    The whole folder, synced afterwards, fills the gaps: what a copy had lost was never lost.
    """
    env = {"LOGCLIENT_SEGMENT_BYTES": "65536"}
    trainer = Trainer(tmp_path, {**OFFLINE, **env}, records=20_000, rate=10_000)
    trainer.end()
    trainer.wait_gone(PATIENCE_S)
    copied = tmp_path / "copy"
    shutil.copytree(run_dir, copied)
    (folder,) = node_folders(copied)
    segments = sorted(path for path in folder.iterdir() if path.suffix == ".seg")
    assert len(segments) >= 4, "several segments"
    data = bytearray(segments[1].read_bytes())
    data[len(data) // 2] ^= 0xFF
    segments[1].write_bytes(data)
    os.truncate(segments[2], segments[2].stat().st_size - 100)
    segments[0].unlink()
    told = sync(collector, copied, code=PARTIAL)
    sent = total(told, "sent")
    assert 0 < sent < trainer.logged
    (upload,) = told["uploads"]
    (reason,) = upload["reasons"]
    assert f"{trainer.logged - sent:,} records were durable once and cannot be read any more" in reason
    again = sync(collector, copied, code=PARTIAL)
    assert (total(again, "sent"), again["uploads"][0]["reasons"]) == (0, [reason]), "it stays true"
    sync(collector, run_dir)
    assert collector.stop() == 0
    two_hosts.assert_same(collector.data, run_dir, {trainer.run_id: trainer.logged})


@pytest.mark.root
def test_share_hangs_while_it_is_read(
    collector: Collector, mount: fuse.Fuse, tmp_path: Path, pace: Pace
) -> None:
    """R2-52: the share does not answer for 30 s: sync waits, then goes on; the writer's files are as they were."""
    run_dir = mount.path / "runs"
    trainer = offline_run(tmp_path, 5000)
    files = {path: path.read_bytes() for path in run_dir.rglob("*.seg")}
    mount.hang("read")
    try:
        waiting = subprocess.Popen(
            words(collector, run_dir, "--json"), env=environment(collector), stdout=subprocess.PIPE
        )
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(pace.seconds(30))
        except BaseException:
            waiting.send_signal(signal.SIGKILL)
            raise
    finally:
        mount.release("read")
    try:
        out, _ = waiting.communicate(timeout=PATIENCE_S)
    finally:
        waiting.kill()
    assert waiting.returncode == OK
    assert total(json.loads(out), "sent") == trainer.logged
    assert {path: path.read_bytes() for path in run_dir.rglob("*.seg")} == files
