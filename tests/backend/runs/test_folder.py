"""Which runs a folder holds, and which of them somebody means."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from logclient.errors import NoRun
from logclient.shm.shm_dir import folder_name
from logclient_backend.runs.folder import Found, find, resolve
from logclient_backend.wal.documents import DocumentFile

from .build import NOW_NS, SECOND, NodeMaker, rec, simple_run


def look(folder: Path, home: Path | None = None) -> list[Found]:
    return find(str(folder), live_dirs=[], home=str(home or folder / "no-home"))


def test_runs_come_oldest_first(tmp_path: Path) -> None:
    """By start of their first attempt, whatever their folders are called."""
    simple_run(tmp_path, "a", created_ns=NOW_NS + 9 * SECOND)
    simple_run(tmp_path, "b", created_ns=NOW_NS)
    assert [run.id for run in look(tmp_path)] == ["b", "a"]


def test_awkward_id_is_shown_verbatim(tmp_path: Path) -> None:
    """R2-26: an id that is no folder name is stored under an opaque one, and told as it was given."""
    for run_id in ("../../etc/passwd", "Run", "run", "con", "x" * 5000, "a/b\\c", "\u202eevil\0", "损失"):
        simple_run(tmp_path, run_id)
        assert folder_name(run_id) in os.listdir(tmp_path)
        assert resolve(look(tmp_path), run_id, "").id == run_id
    assert len(look(tmp_path)) == 8


def test_renamed_copy_has_the_name_of_its_folder(tmp_path: Path) -> None:
    """Two folders never answer to one id."""
    maker = simple_run(tmp_path, "run-1")
    os.rename(maker.path.parent, tmp_path / "the-good-one")
    simple_run(tmp_path, "run-1")
    assert sorted(run.id for run in look(tmp_path)) == ["run-1", "the-good-one"]


def test_what_is_no_run_is_listed_with_a_reason_and_hides_none(tmp_path: Path) -> None:
    """S-5: not readable, empty, foreign, damaged, of a newer version: seven good ones are there all the same."""
    for number in range(7):
        simple_run(tmp_path, f"good-{number}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign" / "src").mkdir(parents=True)
    (tmp_path / "foreign" / "src" / "main.py").write_text("print(1)")
    (tmp_path / "notes.txt").write_text("a file is nothing")
    NodeMaker(tmp_path, "started")  # a node that was made and never written
    newer = NodeMaker(tmp_path, "newer")
    newer.save({**newer.content(), "version": 99})
    (tmp_path / "link").symlink_to("/etc")
    runs = look(tmp_path)
    assert [run.id for run in runs if not run.problem] == [f"good-{number}" for number in range(7)]
    assert {run.name: run.problem for run in runs if run.problem} == {
        "empty": "empty",
        "foreign": "empty",
        "started": "empty",
        "newer": "written by a newer logclient: update to read it",
    }


def test_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that may not be listed is told so; root may list everything, so the refusal is made here."""
    simple_run(tmp_path, "good")
    closed = simple_run(tmp_path, "closed").path.parent
    listdir = os.listdir

    def refuse(path: str) -> list[str]:
        if path == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuse)
    runs = look(tmp_path)
    assert [(run.name, run.problem) for run in runs] == [
        ("good", ""),
        ("closed", "not readable: Permission denied"),
    ]
    with pytest.raises(NoRun, match="closed is no run that can be read: not readable"):
        resolve(runs, "closed", str(tmp_path))


def test_run_without_documents_is_still_a_run(tmp_path: Path) -> None:
    """Its segments may be whole: it goes by the name of its folder."""
    maker = simple_run(tmp_path, "run-1")
    for path in maker.path.glob("documents.*"):
        path.write_bytes(b"rubbish")
    (run,) = look(tmp_path)
    assert (run.id, run.problem, run.nodes[0].problem) == (
        "run-1",
        "",
        "its documents are missing or damaged",
    )


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"not json",
        b'{"version": "one"}',
        b"{" * 100_000,
        b'{"processes": {"x": 5, "y": {}}, "run": 3}',
    ],
)
def test_documents_that_make_no_sense_stop_nobody(tmp_path: Path, content: bytes) -> None:
    """Whatever JSON, or none, is in there: the run is listed, with its records."""
    maker = NodeMaker(tmp_path, "run-1")
    maker.segment({(1, 1, 0): [rec(1)]})
    DocumentFile(str(maker.path)).save(content)
    simple_run(tmp_path, "good")
    assert {run.id: run.problem for run in look(tmp_path)} == {"run-1": "", "good": ""}


def test_run_that_had_to_go_home_is_found_where_it_was_meant(tmp_path: Path) -> None:
    """C6-4: readers that look in the wanted folder find what was stored elsewhere, and nothing that was not meant."""
    wanted, home = tmp_path / "wanted", tmp_path / "home"
    for name, dir in (("mine", str(wanted)), ("others", "/somewhere/else")):
        maker = simple_run(home, name)
        (maker.path.parent / "wanted.json").write_text(json.dumps({"dir": dir}))
    simple_run(home, "homely")
    assert [run.id for run in look(wanted, home)] == ["mine"]
    simple_run(wanted, "local")
    assert {run.id for run in look(wanted, home)} == {"local", "mine"}
    assert {run.id for run in look(home, home)} == {"mine", "others", "homely"}


def test_attempts_in_two_folders_are_one_run(tmp_path: Path) -> None:
    """The first attempt lies in the folder, the second had to go home."""
    wanted, home = tmp_path / "wanted", tmp_path / "home"
    simple_run(wanted, "run-1")
    maker = NodeMaker(home, "run-1", "00000000000000bb")
    maker.process(2)
    maker.save()
    (maker.path.parent / "wanted.json").write_text(json.dumps({"dir": str(wanted)}))
    (run,) = look(wanted, home)
    assert [node.id for node in run.nodes] == ["00000000000000aa", "00000000000000bb"]


def test_missing_folder_is_an_error_unless_runs_lie_elsewhere(tmp_path: Path) -> None:
    """An empty folder is no error, one that is not there is."""
    with pytest.raises(NoRun, match="there is no folder"):
        look(tmp_path / "nix")
    assert look(tmp_path) == []


def test_run_is_id_then_name_then_part(tmp_path: Path) -> None:
    """An id counts before a name, a name before a part, the newest of a name before the older ones."""
    simple_run(tmp_path, "2024-abc", name="mlp", created_ns=NOW_NS)
    simple_run(tmp_path, "2024-abd", name="mlp", created_ns=NOW_NS + SECOND)
    simple_run(tmp_path, "2024-xyz", name="2024-abc", created_ns=NOW_NS + 2 * SECOND)
    runs = look(tmp_path)

    def of(wanted: str | None) -> str:
        return resolve(runs, wanted, str(tmp_path)).id

    assert of("2024-abc") == "2024-abc"
    assert of("mlp") == "2024-abd"
    assert of("abd") == "2024-abd"
    assert of(None) == "2024-xyz"
    with pytest.raises(
        NoRun, match=r"'2024-a' is part of 2 ids; say more of it:\n  2024-abd  mlp\n  2024-abc  mlp"
    ):
        of("2024-a")
    with pytest.raises(NoRun, match=r"no run in .* has 'resnet' as its id"):
        of("resnet")
    with pytest.raises(NoRun, match="has '' as its id"):
        of("")


def test_nothing_there_is_said(tmp_path: Path) -> None:
    """No run at all is told as that."""
    with pytest.raises(NoRun, match="there is no run in"):
        resolve(look(tmp_path), "mlp", str(tmp_path))
    with pytest.raises(NoRun, match="there is no run in"):
        resolve(look(tmp_path), None, str(tmp_path))
