"""Edits of a live run, on their way to a collector, and of copies: what is shown where."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from logclient_backend.collector.tokens import Tokens
from tests.collectors import MemoryCollector
from tools.collector import Collector

from .. import scripts
from ..disturbed import Trainer, stored, wait_until
from ..hosts import PATIENCE_S, PATIENT

OK, PARTIAL = 0, 4


def command(*words: object, code: int = OK, **env: str) -> dict[str, Any]:
    """What it prints as JSON."""
    line = [sys.executable, "-m", "logclient_backend", *map(str, words), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, env=scripts.environment(**env), timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def there(collector: Collector, run: str) -> dict[str, Any]:
    found: dict[str, Any] = collector.get("/api/v1/run", params={"run": run}).json()
    return found


def test_edits_of_a_live_run_are_at_its_collector(
    collector: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """Edited in its folder and at the collector while it logs, and again when it is over: both places are merged, once.

    Nothing of it disturbs the run; sync sends edits once; a run that was deleted and taken back has them.
    """
    tokens = Tokens(str(collector.data))
    edits, admin = (tokens.add(role, [role]) for role in ("edit", "admin"))
    env = {**PATIENT, "LOGCLIENT_SERVER": collector.address, "LOGCLIENT_TOKEN": collector.token}
    trainer = Trainer(tmp_path, env, rate=200, until_told=True, init={"tags": ["draft"]})
    run = trainer.run_id
    try:
        wait_until(
            lambda: there(collector, run).get("tags") == ["draft"], PATIENCE_S, "its documents are there"
        )
        wait_until((run_dir / run).exists, PATIENCE_S, "it has a folder")
        held = command("edit", run, "--dir", run_dir, "--name", "mine", "--tag", "here", "--untag", "draft")
        assert (held["name"], held["tags"]) == ("mine", ["here"])
        wait_until(
            lambda: there(collector, run)["name"] == "mine", PATIENCE_S, "the ship process has sent it"
        )
        whole = there(collector, run)
        assert (whole["tags"], whole["state"], whole["edited"]) == (["here"], "running", ["name", "tags"])
        command(
            "edit", run, "--server", collector.url, "--tag", "there", "--notes", "n", LOGCLIENT_TOKEN=edits
        )
        trainer.wait_logged_more(50)
        assert there(collector, run)["notes"] == "n", "new documents change nothing above them"
    finally:
        status = trainer.tell_to_end()
    trainer.wait_gone(PATIENCE_S)
    assert status["forgotten"] == status["damaged"] == status["refused"] == 0
    assert stored(run_dir).records == trainer.logged and stored(run_dir).wrong == 0
    command("edit", run, "--dir", run_dir, "--tag", "after")
    assert command("ls", "--dir", run_dir)["runs"][0]["tags"] == ["here", "after"]
    upload = ("sync", run_dir, "--server", collector.address)
    (told,) = command(*upload, LOGCLIENT_TOKEN=collector.token)["uploads"]
    assert (told["sent"], told["reasons"]) == (0, []) and told["bytes"] > 0
    whole = there(collector, run)
    assert (set(whole["tags"]), whole["name"], whole["state"]) == (
        {"here", "there", "after"},
        "mine",
        "finished",
    )
    copy = tmp_path / "copy"
    shutil.copytree(run_dir / run, copy)
    command("sync", copy, "--server", collector.address, LOGCLIENT_TOKEN=collector.token)
    assert there(collector, run)["more"]["edits"] == whole["more"]["edits"]
    who = {edit["who"].split(" ")[0] for edit in whole["more"]["edits"]}
    assert who == {"uid", "token"}
    for method, path in (("DELETE", "/api/v1/run"), ("POST", "/api/v1/run/undelete")):
        assert collector.ask(method, path, admin, params={"run": run}).status_code == 200
    assert set(there(collector, run)["tags"]) == {"here", "there", "after"}
    collector.kill()
    collector.start()
    assert set(there(collector, run)["tags"]) == {"here", "there", "after"}
    assert command("show", run, "--server", collector.url, LOGCLIENT_TOKEN=collector.token)["unedited"][
        "tags"
    ] == ["draft"]


def test_edits_go_once_where_the_collector_has_no_others(
    collector: Collector, run_dir: Path, tmp_path: Path
) -> None:
    """The second sync sends nothing at all; damaged edits are named, and the records go all the same."""
    trainer = Trainer(tmp_path, {"LOGCLIENT_MODE": "offline", **PATIENT}, records=20)
    trainer.end()
    trainer.wait_gone(PATIENCE_S)
    command("edit", trainer.run_id, "--dir", run_dir, "--name", "mine")
    upload = ("sync", run_dir, "--server", collector.address)
    sent = [command(*upload, LOGCLIENT_TOKEN=collector.token)["uploads"][0]["bytes"] for _ in range(2)]
    assert sent[0] > 0 and sent[1] == 0
    assert there(collector, trainer.run_id)["name"] == "mine"
    (run_dir / trainer.run_id / "edits.json").write_bytes(b"{}")
    told = command(*upload, code=PARTIAL, LOGCLIENT_TOKEN=collector.token)["uploads"][0]
    assert any("edits.json" in reason for reason in told["reasons"])
    assert there(collector, trainer.run_id)["name"] == "mine"


def test_an_older_collector_is_sent_no_edits_and_that_is_said(run_dir: Path, tmp_path: Path) -> None:
    """The records are there, and sync says what is not."""
    trainer = Trainer(tmp_path, {"LOGCLIENT_MODE": "offline", **PATIENT}, records=20)
    trainer.end()
    trainer.wait_gone(PATIENCE_S)
    command("edit", trainer.run_id, "--dir", run_dir, "--name", "mine")
    with MemoryCollector() as old:
        told = command("sync", run_dir, "--server", old.address, code=PARTIAL)["uploads"][0]
        assert told["sent"] == old.records == 20
        assert any("too old to take edits" in reason for reason in told["reasons"])
        assert not any(parcel.edits for talk in old.talks for parcel in talk.parcels)


def test_edits_of_strangers_are_not_taken_for_those_of_a_token(collector: Collector) -> None:
    """What a client sends as made at the collector is left out; what is no edit is refused, and records are taken."""
    from logclient_backend.runs.edits import COLLECTOR, FOLDER, Changes, Edits
    from logclient_backend.wire.messages import NotTaken, Parcel
    from tests.ingest import records

    honest = Edits().edited(Changes(name="honest"), "uid 1", FOLDER, 0)
    forged = honest.edited(Changes(notes="forged"), "token admin", COLLECTOR, 0)
    client = collector.client()
    try:
        client.send(records(1, 3))
        for data in (forged.dumps(), b"{}"):
            assert client.session.send(Parcel(0, edits=data))
        client.send(records(4, 3))
        answers = client.settle()
    finally:
        client.close()
    assert [answer.reason for answer in answers if isinstance(answer, NotTaken)] == ["invalid"]
    whole = there(collector, "mlp")
    assert (whole["name"], whole["notes"], whole["records"]) == ("honest", "", 6)
