"""`ls`, `show`, `export`, `import` and `wal` on runs made by hand: what they print, and how they exit."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from logclient_backend.cli import cli, screen, show
from logclient_backend.cli.export import Screen
from tests.backend.runs.build import NOW_NS, SECOND, NodeMaker, Rec, rec, simple_run

from .conftest import Command


@pytest.fixture
def runs(run_dir: Path) -> Path:
    """A sound run, a damaged one, and folders that are none."""
    simple_run(run_dir, "sound", 100, name="mlp")
    damage(simple_run(run_dir, "hurt", 100, name="cnn", created_ns=NOW_NS + SECOND))
    (run_dir / "empty").mkdir()
    (run_dir / "foreign" / "src").mkdir(parents=True)
    newer = NodeMaker(run_dir, "newer")
    newer.save({**newer.content(), "version": 99})
    return run_dir


def damage(maker: NodeMaker) -> None:
    """Flip a byte in the only block of its only segment."""
    (path,) = maker.path.glob("*.seg")
    data = bytearray(path.read_bytes())
    data[data.find(b"\xb7\x03") + 60] ^= 1
    path.write_bytes(data)


def command_line(*arguments: str | Path, **how: object) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    command = [sys.executable, "-m", "logclient_backend", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **how)  # type: ignore[call-overload, no-any-return]


def test_ls_lists_runs_and_what_is_none(logclient: Command, runs: Path) -> None:
    """S-5: with the reason; nothing hides anything."""
    text = logclient("ls").stdout
    lines = text.splitlines()
    assert [line.split()[1] for line in lines[1:3]] == ["mlp", "cnn"]
    assert "no runs (3):" in text and "written by a newer logclient" in text
    found = logclient.json("ls")
    assert [(run["id"], run["state"], run["counts"]["stored"]) for run in found["runs"]] == [
        ("sound", "finished", 100),
        ("hurt", "finished", 100),
    ]
    assert {each["folder"]: each["reason"] for each in found["no_runs"]} == {
        "empty": "empty",
        "foreign": "empty",
        "newer": "written by a newer logclient: update to read it",
    }


def test_ls_shows_the_newest(logclient: Command, run_dir: Path) -> None:
    """The last line is the newest run; older ones are counted."""
    for number in range(7):
        simple_run(run_dir, f"run-{number}", created_ns=NOW_NS + number * SECOND)
    found = logclient.json("ls", "-n", "3")
    assert ([run["id"] for run in found["runs"]], found["older"]) == (["run-4", "run-5", "run-6"], 4)
    assert "4 older runs not shown" in logclient("ls", "-n", "3").stdout
    assert len(logclient.json("ls", "-n", "3", "--all")["runs"]) == 7
    assert [run["id"] for run in logclient.json("ls", "n-5")["runs"]] == ["run-5"]


def test_missing_and_empty_folders(logclient: Command, run_dir: Path) -> None:
    """No folder: exit code 3, and which one was meant; an empty one is no error."""
    result = logclient("ls", code=3)
    assert (
        f"there is no folder {run_dir}; name the folder of the runs with --dir DIR or LOGCLIENT_DIR"
        in result.stderr
    )
    run_dir.mkdir()
    assert "no runs in" in logclient("ls").stdout
    assert "there is no run in" in logclient("show", code=3).stderr
    nobody = str(run_dir / "nobody")
    assert f"there is no folder {nobody}" in logclient("show", "x", "--dir", nobody, code=3).stderr


def test_wrong_runs_say_what_there_is(logclient: Command, runs: Path) -> None:
    """Exit code 3 with the runs that could be meant."""
    assert "  hurt  cnn\n  sound  mlp" in logclient("show", "resnet", code=3).stderr
    assert "is part of 2 ids" in logclient("show", "u", code=3).stderr
    assert "newer is no run that can be read" in logclient("show", "newer", code=3).stderr


def test_show_tells_everything(logclient: Command, runs: Path) -> None:
    """Config, state, last values, drops, a curve."""
    text = logclient("show", "mlp").stdout
    for part in ("mlp  sound", "✓ finished", "100 stored, none dropped", "loss", "14.2857", "┤"):
        assert part in text
    assert "gaps" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_show_tells_damage_with_steps(logclient: Command, runs: Path) -> None:
    """R2-52: which steps are gone; the exit code says that not all could be read."""
    text = logclient("show", "cnn", code=4).stdout
    assert "0 stored, 100 damaged" in text
    assert "steps 10..1000" in text
    found = logclient.json("show", "cnn", code=4)
    assert (found["counts"]["damaged"], len(found["damage"])) == (100, 1)
    assert found["counts"]["accepted"] == 100


def test_show_limits_and_says_what_it_left_out(logclient: Command, run_dir: Path) -> None:
    """A hundred keys: forty rows, six curves, and how to see the others."""
    maker = NodeMaker(run_dir, "wide")
    config = {f"c{number}": number for number in range(100)}
    maker.process(1, documents={"config": config, "state": {"state": "finished", "by": "finish"}})
    values = tuple((f"m{number:03d}", "d", float(number)) for number in range(100))
    maker.segment({(1, 1, 0): [Rec(seq, seq, seq, NOW_NS + seq, values) for seq in (1, 2)]})
    maker.save()
    text = logclient("show").stdout
    assert "and 60 more keys (--all, or --key PATTERN)" in text
    assert "94 more curves (--curves N, or --key PATTERN)" in text
    assert "and 60 more lines (--all)" in text
    assert "m099" in logclient("show", "--all").stdout
    some = logclient("show", "--key", "m09*", "--curves", "3").stdout
    assert "m099" in some and "m000" not in some and "7 more curves" in some
    assert list(logclient.json("show", "--key", "m001")["keys"]) == ["m001"]


def test_names_cannot_talk_to_the_terminal(logclient: Command, run_dir: Path) -> None:
    """Control characters, escapes and direction marks are shown as what they are."""
    maker = NodeMaker(run_dir, "evil")
    maker.name = "\x1b[31mred\x07"
    about = {"name": maker.name, "tags": ["\x9b2J"], "notes": "a\nb\x1b]0;title\x07"}
    alert = {"time": NOW_NS, "title": "\x1b[2J", "text": "[bold]no markup[/bold]", "level": "warn"}
    failed = {"state": "failed", "exception": {"type": "X", "text": "\x1b[5m", "last_lines": ["\x1b[1m"]}}
    notices = {"alerts": [alert], "notices": ["\x1b[1A"]}
    documents = {"about": about, "notices": notices, "state": failed, "config": {"\x1b[3m": "\u202e\x00"}}
    maker.process(1, documents=documents)
    maker.segment(
        {(1, 1, 0): [Rec(1, 1, 1, NOW_NS, (("\x1b[7m\u202ekey", "s", "\x1b[0m"), ("[red]", "d", 1.0)))]}
    )
    maker.save()
    for arguments in (["ls"], ["show"], ["tail"], ["show", "\x1b[31mno"]):
        result = CliRunner().invoke(cli, arguments)
        shown = result.output.replace("\n", "")
        assert shown.isprintable(), (arguments, [char for char in shown if not char.isprintable()])
    text = logclient("show").stdout
    assert "[bold]no markup[/bold]" in text and "[red]" in text and "\\x1b[31mred\\x07" in text


def test_config_paths_stay_apart(logclient: Command, run_dir: Path) -> None:
    """R2-57: three different keys are shown as three, each under the path it was given."""
    maker = NodeMaker(run_dir, "run")
    maker.process(
        1, documents={"config": {"a": {"b": 1}, "a.b": 2, "a/b": 3, "list": [1, {"y": 4}], "none": None}}
    )
    maker.save()
    lines = [line.split() for line in logclient("show").stdout.splitlines()]
    start = lines.index(["config"])
    assert lines[start + 1 : start + 7] == [
        ["a"], ["b", "1"], ["a.b", "2"], ["a/b", "3"], ["list", "[1,", "{'y':", "4}]"], ["none", "none"],
    ]  # fmt: skip


def test_gap_is_shown_between_its_steps(logclient: Command, run_dir: Path) -> None:
    """P5: next to the curve, with its cause."""
    maker = NodeMaker(run_dir, "run")
    maker.process(1)
    records = [rec(seq) for seq in range(1, 200) if not 50 <= seq < 90]
    maker.segment({(1, 1, 0): records}, gaps=[((1, 1, 0), 50, 89, "forgotten")])
    maker.told(1, 1, 199, 159)
    maker.save()
    text = logclient("show").stdout
    assert "159 stored, 40 forgotten" in text
    assert "gaps: 40 records in 1 place" in text
    assert "490 – 900" in text
    assert "░ records missing" in text


@pytest.mark.slow
def test_export_to_a_pipe_that_closes(logclient: Command, runs: Path) -> None:
    """`logclient export | head`: no traceback."""
    big = simple_run(runs, "big", 5)
    big.number = 1
    big.segment({(1, 1, 0): [rec(seq) for seq in range(6, 60_000)]})
    script = f"{sys.executable} -m logclient_backend export big | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    first, code = done.stdout.splitlines()
    assert json.loads(first)["step"] == 10
    assert (code, done.stderr) == ("141", "")


def test_export_says_where_and_what_is_missing(logclient: Command, runs: Path, tmp_path: Path) -> None:
    """Exit code 4 where damage was left out; an earlier export is not overwritten unasked."""
    out = tmp_path / "out"
    assert "100 points of sound" in logclient("export", "mlp", "--out", out).stdout
    assert "exist in" in logclient("export", "mlp", "--out", out, code=2).stderr
    assert logclient.json("export", "mlp", "--out", out, "--replace")["points"] == 100
    result = logclient("export", "cnn", code=4)
    assert result.stdout == ""
    assert "left out" in result.stderr and "steps 10..1000" in result.stderr
    assert "give --out" in logclient("export", "mlp", "--json", code=2).stderr
    assert sorted(os.listdir(out)) == ["points.jsonl", "run.json"]


def test_parquet_without_pyarrow_is_a_sentence(
    logclient: Command, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra, and the sentence says which."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert (
        "pip install 'logclient[parquet]'" in logclient("export", "mlp", "--format", "parquet", code=2).stderr
    )


@pytest.mark.slow
def test_parquet_to_a_pipe(logclient: Command, runs: Path, tmp_path: Path) -> None:
    """Without --out it goes to standard output, like the others."""
    parquet = pytest.importorskip("pyarrow.parquet")
    command = [sys.executable, "-m", "logclient_backend", "export", "mlp", "--format", "parquet"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    (tmp_path / "points.parquet").write_bytes(done.stdout)
    assert parquet.read_table(tmp_path / "points.parquet").num_rows == 100


def test_import_refuses_what_is_there_and_what_makes_no_sense(
    logclient: Command, runs: Path, tmp_path: Path
) -> None:
    """One sentence, exit code 2; 3 where there is nothing to import."""
    out = tmp_path / "out"
    logclient("export", "mlp", "--out", out)
    assert "run sound is in" in logclient("import", out, code=2).stderr
    assert "100 points in 100 records" in logclient("import", out, "--dir", tmp_path / "other").stdout
    assert logclient.json("import", out, "--replace")["records"] == 100
    (out / "points.jsonl").write_text("rubbish\n")
    assert "points.jsonl line 1: no JSON" in logclient("import", out, "--replace", code=2).stderr
    assert "give the folder that" in logclient("import", tmp_path, code=3).stderr
    assert logclient.json("show", "mlp")["counts"]["stored"] == 100


def test_wal_verify_finds_damage(logclient: Command, runs: Path) -> None:
    """Exit code 1, and which records; sound files are said to be."""
    assert "sound" in logclient("wal", "verify", "mlp").stdout
    text = logclient("wal", "verify", "cnn", code=1).stdout
    assert "1 damaged piece" in text and "steps 10..1000" in text
    assert logclient.json("wal", "verify", "mlp")["sound"] is True
    damage_found = logclient.json("wal", "verify", "cnn", code=1)["nodes"][0]["segments"][0]["damage"]
    assert (damage_found[0]["first_seq"], damage_found[0]["last_seq"]) == (1, 100)


def test_wal_verify_takes_paths(logclient: Command, runs: Path) -> None:
    """The folder of a run, or of one node."""
    for path in (runs / "sound", runs / "sound" / "00000000000000aa"):
        assert "100 records" in logclient("wal", "verify", path).stdout
    assert "neither segments nor nodes" in logclient("wal", "verify", runs / "empty", code=3).stderr
    assert "no run in" in logclient("wal", "verify", "nix", code=3).stderr


def test_wal_verify_finds_damaged_documents(logclient: Command, runs: Path) -> None:
    """They are part of the run, too."""
    for path in (runs / "sound").rglob("documents.*"):
        path.write_bytes(b"rubbish")
    assert "documents: no documents" in logclient("wal", "verify", "sound", code=1).stdout


def test_torn_tail_is_no_damage(logclient: Command, run_dir: Path) -> None:
    """It was never promised; repair cuts it."""
    maker = simple_run(run_dir, "run", 5)
    path = maker.segment({(1, 1, 0): [rec(6), rec(7)], (2, 1, 1): [rec(1, order=9)]}, is_open=True)
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 2] ^= 1
    path.write_bytes(data)
    assert "torn tail, nothing promised is lost" in logclient("wal", "verify", "run").stdout
    assert "cut" in logclient("wal", "repair", "run").stdout
    assert "nothing to repair" in logclient("wal", "repair", "run").stdout
    assert logclient.json("wal", "verify", "run")["sound"] is True


def test_wal_repair_keeps_what_it_rewrites(logclient: Command, runs: Path) -> None:
    """The damaged bytes stay as .broken; afterwards the run is sound, and the loss is a gap."""
    maker = NodeMaker(runs, "half")
    maker.process(1)
    keys: tuple[tuple[str, str, float], ...] = (("b", "d", 1.0),)
    maker.segment({(1, 1, 0): [rec(seq) for seq in range(1, 11)], (2, 1, 1): [Rec(1, 11, 1, NOW_NS, keys)]})
    maker.told(1, 1, 10, 10)
    maker.told(2, 1, 1, 1, lane=1)
    maker.save()
    damage(maker)
    repairs = logclient.json("wal", "repair", "half")["repairs"]
    assert [repair["action"] for repair in repairs] == ["rewritten"]
    assert len(list(maker.path.glob("*.broken"))) == 1
    assert "sound" in logclient("wal", "verify", "half").stdout
    counts = logclient.json("show", "half")["counts"]
    assert (counts["stored"], counts["damaged"]) == (1, 10)


def test_wal_dump_prints_blocks(logclient: Command, runs: Path) -> None:
    """As they lie; exit code 1 where something does not check."""
    (path,) = (runs / "sound").rglob("*.seg")
    kinds = [line.split()[2] for line in logclient("wal", "dump", path).stdout.splitlines()]
    assert kinds == ["header", "stream", "shape", "columns", "footer"]
    (path,) = (runs / "hurt").rglob("*.seg")
    lines = logclient("wal", "dump", path, "--json", code=1).stdout.splitlines()
    assert any("expected" in json.loads(line)["text"] for line in lines)
    assert "is no segment" in logclient("wal", "dump", "run.json", code=3).stderr


@pytest.mark.slow
def test_output_without_utf8_is_ascii(logclient: Command, runs: Path) -> None:
    """On a terminal of another age."""
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = command_line("show", "mlp", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii() and "*" in done.stdout
    assert command_line("ls", env=env).returncode == 0


def test_unreadable_files_are_sentences(logclient: Command, runs: Path, tmp_path: Path) -> None:
    """No traceback for what the file system refuses."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    result = logclient("export", "mlp", "--out", blocked / "out", code=1)
    assert result.stderr.startswith("logclient: ") and "Traceback" not in result.stderr
    result = logclient("import", blocked, code=1)
    assert "Not a directory" in result.stderr


def test_csv_on_a_terminal_is_escaped() -> None:
    """A file or pipe gets the bytes as they are; a terminal what it cannot obey."""
    out = io.BytesIO()
    Screen(out).write("1,\x1b[2J损失,2\n3,\u202ex,4\n".encode())
    assert out.getvalue().decode() == "1,\\x1b[2J损失,2\n3,\\u202ex,4\n"


def test_long_setting_stays_in_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path on a terminal goes on below itself; elsewhere it is one line."""
    path = "/checkpoints/" * 12
    assert screen.folded(path, 14) == [path]
    monkeypatch.setattr(screen, "is_terminal", lambda: True)
    monkeypatch.setattr(screen, "width", lambda: 100)
    _, best, rest, step = (str(line) for line in show._tree("summary", {"best": path, "step": 66}, 40))
    assert len(best) <= 100 and best.removeprefix("  best  ") + rest.removeprefix(" " * 8) == path
    assert step == "  step  66"
