"""Edits in a run's folder: two editors, copies, damage, a kill in the middle, modes, and what readers show of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import logclient
from logclient.errors import LogclientError, NoRun
from logclient_backend.cli import cli
from logclient_backend.remote import editing
from logclient_backend.runs import edit_file, folder
from logclient_backend.runs.edits import NONE, Changes, Edits
from logclient_backend.runs.view import RunView, view
from tests.process.disturbed import wait_until

from .build import NodeMaker, rec, simple_run

EDITOR = """
import sys
from logclient_backend.remote.editing import edit
from logclient_backend.runs.edits import Changes
folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(count):
    edit(folder, "run-1", Changes(tags=[f"{name}-{number}"]))
    print(number, flush=True)
"""


def editor(base: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", EDITOR, str(base), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def shown(base: Path) -> RunView:
    (run,) = folder.find(str(base), live_dirs=[], home="")
    return view(run)


def test_two_editors_at_once_lose_nothing(tmp_path: Path) -> None:
    """Processes that edit the same run at the same time: all tags of both are there."""
    maker = simple_run(tmp_path)
    editors = [editor(tmp_path, name, 25) for name in ("anna", "bert")]
    for each in editors:
        each.communicate(timeout=60)
        assert each.returncode == 0
    tags = {f"{name}-{number}" for name in ("anna", "bert") for number in range(25)}
    assert set(shown(tmp_path).tags) == tags
    left = {path.name for path in maker.path.parent.iterdir()}
    assert left == {edit_file.FILE, edit_file.LOCK, maker.node}


def test_a_killed_editor_loses_its_own_edit_at_most(tmp_path: Path) -> None:
    """SIGKILL at any moment: what it printed is stored, and the next editor goes on at once."""
    simple_run(tmp_path)
    for number in range(4):
        with editor(tmp_path, f"k{number}", 10_000) as killed:
            assert killed.stdout is not None
            done = [killed.stdout.readline() for _ in range(3)]
            killed.send_signal(signal.SIGKILL)
            done += killed.stdout.readlines()
        tags = set(shown(tmp_path).tags)
        assert {f"k{number}-{line.strip()}" for line in done if line.endswith("\n")} <= tags
    (tmp_path / "run-1" / "edits.json.00000000.new").write_bytes(b"{")
    assert editing.edit(str(tmp_path), "run-1", Changes(name="after"))["name"] == "after"
    assert not list((tmp_path / "run-1").glob("*.new"))


def test_copied_folders_merge_both_ways(tmp_path: Path) -> None:
    """Edited apart, and brought together in either direction, both folders show the same."""
    here, there = tmp_path / "here", tmp_path / "there"
    simple_run(here)
    editing.edit(str(here), "run-1", Changes(name="first", tags=["both"]))
    shutil.copytree(here, there)
    editing.edit(str(here), "run-1", Changes(name="here", tags=["here"]))
    editing.edit(str(there), "run-1", Changes(name="there", tags=["there"], untag=["both"]))
    one, other = here / "run-1", there / "run-1"
    edits = [edit_file.load(str(each)) for each in (one, other)]
    merged = [
        edit_file.change(str(one), lambda edits: edits.merged(edit_file.load(str(other)))),
        edit_file.change(str(other), lambda _: edits[1].merged(edits[0])),
    ]
    assert merged[0] == merged[1] and (one / "edits.json").read_bytes() == (other / "edits.json").read_bytes()
    names = {run.name for run in (shown(here), shown(there))}
    assert len(names) == 1 and names <= {"here", "there"}
    assert set(shown(here).tags) == {"here", "there"}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\0" * 4096, b'{"version":1,"digest":"00","edits":[]}', b'{"version":9}']
)
def test_damage_costs_the_edits_alone(tmp_path: Path, damage: bytes) -> None:
    """The run is shown as its program left it, the file is named, and nobody overwrites it."""
    simple_run(tmp_path, name="mlp")
    editing.edit(str(tmp_path), "mlp", Changes(name="better"))
    path = tmp_path / "run-1" / edit_file.FILE
    path.write_bytes(damage)
    run = shown(tmp_path)
    assert run.name == "mlp" and not run.edits and not run.unedited
    assert any(str(path) in line for line in run.troubles())
    with pytest.raises(LogclientError, match=r"edits\.json"):
        editing.edit(str(tmp_path), "mlp", Changes(name="again"))
    assert path.read_bytes() == damage
    path.unlink()
    assert editing.edit(str(tmp_path), "mlp", Changes(name="again"))["name"] == "again"


def test_a_fifo_in_its_place_holds_nobody_up(tmp_path: Path) -> None:
    simple_run(tmp_path)
    os.mkfifo(tmp_path / "run-1" / edit_file.FILE)
    assert any("FIFO" in line for line in shown(tmp_path).troubles())


def test_a_lock_that_is_held_is_waited_for_by_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another editor hangs: a sentence after the deadline; readers do not wait at all."""
    simple_run(tmp_path)
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / "run-1" / edit_file.LOCK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        monkeypatch.setattr(edit_file, "_LOCK_S", 0.2)
        with pytest.raises(LogclientError, match="locked by another editor"):
            editing.edit(str(tmp_path), "run-1", Changes(name="x"))
        assert shown(tmp_path).name == "run-1"
        holder.communicate(b"\n", timeout=60)
    monkeypatch.undo()
    assert editing.edit(str(tmp_path), "run-1", Changes(name="x"))["name"] == "x"


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o770, 0o777])
def test_edits_are_as_open_as_their_folder(tmp_path: Path, mode: int) -> None:
    """Whoever may read or write the run's folder may read or replace its edits, whatever the editor's umask."""
    maker = simple_run(tmp_path)
    maker.path.parent.chmod(mode)
    before = os.umask(0o077)
    try:
        editing.edit(str(tmp_path), "run-1", Changes(name="x"))
    finally:
        os.umask(before)
    for name in (edit_file.FILE, edit_file.LOCK):
        assert (maker.path.parent / name).stat().st_mode & 0o777 == mode & 0o666


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Nothing is left there."""
    with pytest.raises(LogclientError, match="cannot be edited"):
        edit_file.change(
            str(tmp_path / "gone"), lambda edits: edits.edited(Changes(name="x"), "me", "folder", 0)
        )
    assert edit_file.load(str(tmp_path / "gone")) == NONE


def test_every_reader_shows_what_was_edited(tmp_path: Path) -> None:
    """`ls`, `show`, `logclient.read`, the answer of `logclient.edit`; state, config and points are as they were."""
    maker = NodeMaker(tmp_path, "run-1")
    maker.name = "mlp"
    about = {"name": "mlp", "tags": ["draft", "kept"], "notes": "n", "group": "g"}
    maker.process(1, documents={"about": about, "config": {"lr": 1}})
    maker.segment({(1, 1, 0): [rec(seq) for seq in range(1, 6)]})
    maker.save()
    before = logclient.read(tmp_path)["mlp"]
    held = logclient.edit(
        "mlp", where=tmp_path, name="better", tags="good", untag=["draft"], group="", notes="a\nb"
    )
    assert (held["name"], held["tags"], held["group"], held["notes"]) == (
        "better",
        ["kept", "good"],
        "",
        "a\nb",
    )
    assert held["unedited"] == {"name": "mlp", "group": "g", "notes": "n", "tags": ["draft", "kept"]}
    run = logclient.read(tmp_path)["better"]
    assert run.tags == ("kept", "good") and run.about["group"] == "" and run.about["notes"] == "a\nb"
    assert {each["field"] for each in run.about["edits"]} == {"name", "tag", "group", "notes"}
    assert (run.state, run.config) == (before.state, before.config)
    assert run.series("loss").value.tolist() == before.series("loss").value.tolist()
    listed = json.loads(_cli("ls", "good", "--dir", tmp_path, "--json"))["runs"]
    assert [(row["name"], row["edited"]) for row in listed] == [
        ("better", ["name", "group", "notes", "tags"])
    ]
    assert "better*" in _cli("ls", "--dir", tmp_path)
    told = json.loads(_cli("show", "better", "--dir", tmp_path, "--json"))
    assert told["unedited"] == held["unedited"] and len(told["edits"]) == 5
    text = _cli("show", "better", "--dir", tmp_path)
    assert "“better” (was “mlp”), by uid" in text and "tag “draft” taken away" in text
    with pytest.raises(NoRun):
        logclient.edit("nobody", where=tmp_path, name="x")
    undone = logclient.edit("better", where=tmp_path / "run-1", undo=["name", "group", "notes", "tags"])
    assert {field: undone[field] for field in about} == about and undone["unedited"] == {}


def test_the_command_edits_shows_and_undoes(tmp_path: Path) -> None:
    """`logclient edit`, for people and as JSON; called wrongly it says what to give."""
    simple_run(tmp_path, name="mlp")
    text = _cli("edit", "mlp", "--dir", tmp_path, "--name", "wide", "--tag", "a", "--tag", "b")
    assert "wide" in text and "a · b" in text and "by uid" in text
    _cli("edit", "wide", "--dir", tmp_path, "--untag", "b", "--notes", "\x7f", code=2)
    held = json.loads(_cli("edit", "wide", "--dir", tmp_path, "--undo", "all", "--json"))
    assert (held["name"], held["tags"]) == ("mlp", []) and len(held["edits"]) == 6
    assert "tag “b” undone" in _cli("edit", "mlp", "--dir", tmp_path, "--show")
    assert "nothing to change" in _cli("edit", "mlp", "--dir", tmp_path, code=2)
    assert "no run" in _cli("edit", "nobody", "--dir", tmp_path, "--name", "x", code=3)


def test_edits_of_the_home_folder_and_the_other_merge(tmp_path: Path) -> None:
    """A run of which a part lies in the home folder is shown with the edits of both."""
    run_dir, home = tmp_path / "runs", tmp_path / "home"
    simple_run(run_dir)
    NodeMaker(home, "run-1", "00000000000000bb").save()
    (home / "run-1" / "wanted.json").write_text(json.dumps({"dir": str(run_dir)}))
    for base, tag in ((run_dir, "here"), (home, "home")):
        made = NONE.edited(Changes(tags=[tag]), "me", "folder", 0)
        edit_file.change(str(base / "run-1"), made.merged)
    (run,) = folder.find(str(run_dir), live_dirs=[], home=str(home))
    assert set(view(run).tags) == {"here", "home"} and isinstance(run.edits, Edits)


def test_an_editor_that_waits_sees_what_came_between(tmp_path: Path) -> None:
    """The counter of the second is above that of the first, so it wins, whatever their clocks show."""
    simple_run(tmp_path)
    waiting = [editor(tmp_path, "one", 1), editor(tmp_path, "two", 1)]
    wait_until(lambda: all(each.poll() is not None for each in waiting), 60, "both have edited")
    for each in waiting:
        each.communicate()
    counters = sorted(each.counter for each in edit_file.load(str(tmp_path / "run-1")))
    assert counters == [1, 2]


def _cli(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split()) if "--json" not in words else done.output
