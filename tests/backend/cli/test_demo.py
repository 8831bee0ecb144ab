"""`logclient demo`: it finds what does not add up, leaves nothing behind, and says what it needs."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.cli import demo_check
from logclient_backend.cli.demo_faults import Disk
from logclient_backend.runs import contents, folder
from logclient_backend.runs.view import view

from .conftest import Command

KEYS = ("a", "b")
ROW = struct.Struct("<q2d")
LOGS_40 = """
import os
import logclient
run = logclient.init("checked", id="checked", quiet=True)
for step in range(40):
    run.log(step, {"a": step + 0.5, "b": float("nan") if step == 7 else step - 0.5})
print(os.getpid())
run.finish(20)
"""

Rows = list[bytes]


def rows() -> Rows:
    return [ROW.pack(step, step + 0.5, float("nan") if step == 7 else step - 0.5) for step in range(40)]


def changed(found: Rows) -> Rows:
    return [*found[:20], ROW.pack(20, 20.5, 19.6), *found[21:]]


def swapped(found: Rows) -> Rows:
    return [*found[:20], found[21], found[20], *found[22:]]


def write_notes(path: Path, found: Rows) -> None:
    head = bytearray(demo_check.HEAD_BYTES)
    struct.pack_into("<QQQ", head, 0, len(found), 0, 0)
    names = json.dumps(KEYS).encode()
    head[demo_check.KEYS_AT : demo_check.KEYS_AT + len(names)] = names
    path.write_bytes(bytes(head) + b"".join(found))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For TMPDIR: a socket of a data loader, whose path may have 107 characters, lies there, or the loader hangs."""
    with tempfile.TemporaryDirectory(prefix="demo-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """PID and folder of a run with 40 records."""
    base = tmp_path_factory.mktemp("runs")
    # shared memory of its own: other pytest workers have a run of this id too
    env = {**os.environ, "LOGCLIENT_DIR": str(base), "LOGCLIENT_SHM_DIR": str(tmp_path_factory.mktemp("shm"))}
    done = subprocess.run([sys.executable, "-c", LOGS_40], env=env, stdout=subprocess.PIPE, check=True)
    return int(done.stdout), base


@pytest.mark.parametrize(
    ("tamper", "says"),
    [
        (lambda found: found, []),
        (changed, ["are not what was logged"]),
        (swapped, ["are not what was logged"]),
        (lambda found: [*found, ROW.pack(40, 40.5, 39.5)], ["neither stored nor counted"]),
        (lambda found: found[:-1], ["neither stored nor counted", "are not what was logged"]),
    ],
    ids=[
        "same",
        "changed value",
        "swapped records",
        "record that is not stored",
        "record that was not logged",
    ],
)
def test_the_check_finds_what_is_not_the_same(
    stored: tuple[int, Path], tmp_path: Path, tamper: Callable[[Rows], Rows], says: list[str]
) -> None:
    """Each value, their order and their number are compared, NaN included."""
    pid, base = stored
    write_notes(tmp_path / f"{pid}.truth", tamper(rows()))
    shown = view(next(run for run in folder.find(str(base)) if run.id == "checked"))
    checked = demo_check.check(shown, demo_check.truths(tmp_path), contents.read(shown).counts(shown))
    assert len(checked.troubles) == len(says), checked.troubles
    for words, trouble in zip(says, checked.troubles, strict=True):
        assert words in trouble
    assert checked.is_same == (not says)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("mounts")
def test_the_demo_adds_up_and_leaves_nothing_behind(
    logclient: Command, run_dir: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers killed, the disk frozen where that can be done, every record as the trainer noted it."""
    work = short_path
    command = [sys.executable, "-m", "logclient_backend", "demo", "--seconds", "8", "--json"]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(work)}, stdout=subprocess.PIPE, text=True, timeout=220
    )
    result: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, result["troubles"]) == (0, [])
    assert [event["kind"] for event in result["events"]].count("kill") == 3
    assert result["same"]
    assert len(result["processes"]) == 3
    records = result["records"]
    assert result["records_logged"] == records["stored"] + records["forgotten"] + records["damaged"]
    if Disk.why_not() is None:
        assert result["disk_frozen"]
        assert any(event["kind"] == "thaw" for event in result["events"])
    assert logclient.json("show", result["id"])["state"]["name"] == "finished"
    assert not list(work.glob("logclient-demo-*"))
    assert str(work) not in Path("/proc/self/mountinfo").read_text()
    assert not [
        image
        for image in Path("/sys/block").glob("loop*/loop/backing_file")
        if str(work) in image.read_text()
    ]


def test_without_pytorch_it_says_what_to_install(logclient: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the command, and no traceback."""
    monkeypatch.setitem(sys.modules, "torch", None)
    said = logclient("demo", code=1).stderr
    assert "pip install 'logclient[demo]'" in said
    assert "PyTorch" in said
    assert "scikit-learn" not in said


def test_the_command_never_imports_the_training_script() -> None:
    """What it needs is asked about without importing it: no torch, no client in the command's process."""
    names = ("torch", "sklearn", "numpy", "logclient_backend.cli.demo_train")
    code = f"import sys, logclient_backend.cli.demo; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == "[]"
