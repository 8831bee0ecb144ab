"""Somebody left a FIFO, a folder or a huge sparse file in a run folder, under a name of ours: 7.2.

Every command ends by its deadline, reads what is there and names the file; a run whose own folder it is goes on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import logclient

from .. import scripts
from ..agents import WORKER, checked, kill, log_of, successor
from ..disturbed import ROOMY, Trainer, node_folders, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("patient")]

SEGMENTS = ("00000000000000aa-000001.wal", "00000000000000aa-000002.seg")
DOCUMENTS = ("documents.ff.0", "documents.ff.1")


def _sparse(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 42)


KINDS: dict[str, Callable[[Path], None]] = {"fifo": os.mkfifo, "folder": Path.mkdir, "sparse": _sparse}


def command(where: Path, *words: str, codes: tuple[int, ...] = (0,)) -> scripts.Ended:
    """Run `logclient` with these words; it must end with one of these codes within the usual deadline."""
    ended = scripts.run_words(where, [sys.executable, "-m", "logclient_backend", *words])
    assert ended.code in codes, ended
    assert "Traceback" not in ended.err, ended
    return ended


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [SEGMENTS, DOCUMENTS], ids=["segments", "documents"])
def test_every_command_ends_and_names_them(
    run_dir: Path, tmp_path: Path, kind: str, names: tuple[str, ...]
) -> None:
    """Two finished runs, and the odd files in the folder of one."""
    for run_id in ("first", "second"):
        code = f"import logclient\nwith logclient.init(id={run_id!r}) as run: run.log(1, {{'a': 1.0}})"
        scripts.run_well(tmp_path / "work", code)
    scripts.wait_gone()
    (node,) = [path for path in (run_dir / "second").iterdir() if path.is_dir()]
    for name in names:
        KINDS[kind](node / name)
    listed = json.loads(command(tmp_path, "ls", "--json").out)
    assert [(run["id"], run["state"]) for run in listed["runs"]] == [
        ("first", "finished"),
        ("second", "finished"),
    ]
    assert "finished" in command(tmp_path, "show", "first").out
    shown = command(tmp_path, "show", "second", codes=(0, 4))
    told = command(tmp_path, "wal", "verify", "second", codes=(4,))
    assert all(name.split(".")[0] in told.out for name in names)
    if names is DOCUMENTS:
        assert all(name in shown.out for name in names)
    exported = command(tmp_path, "export", "second", codes=(0, 4))
    assert exported.out.count("\n") == 1, "the point"
    command(tmp_path, "wal", "repair", "second", codes=(0, 4))
    assert [run.series("a").value.tolist() for run in logclient.read(run_dir)] == [[1.0], [1.0]]
    command(tmp_path, "recover")
    nowhere = ("--server", "grpc://127.0.0.1:9", "--timeout", "1")
    command(tmp_path, "sync", *nowhere, str(run_dir), codes=(1,))
    code = "import logclient\nwith logclient.init(id='second') as run: run.log(2, {'a': 2.0})"
    scripts.run_well(tmp_path / "work", code)
    scripts.wait_gone()
    assert logclient.read(run_dir)["second"].series("a").value.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_whose_folder_they_lie_is_stored_whole(run_dir: Path, tmp_path: Path, kind: str) -> None:
    """They come while the agent seals, trims and writes its documents, and are there when a successor looks."""
    settings = {**ROOMY, "LOGCLIENT_SEGMENT_BYTES": "65536", "LOGCLIENT_SEAL_S": "0.2"}
    trainer = Trainer(tmp_path, settings, rate=5_000, until_told=True)
    wait_until(lambda: node_folders(run_dir), 20, "the node's folder is there")
    (node,) = node_folders(run_dir)
    for name in (*SEGMENTS, *DOCUMENTS):
        KINDS[kind](node / name)
    worker = trainer.agent_pid()
    kill(worker)
    successor(trainer, WORKER, worker)
    logged = trainer.logged
    wait_until(lambda: trainer.logged > logged + 5_000, 30, "it goes on logging")
    status = trainer.tell_to_end()
    trainer.wait_gone()
    checked(run_dir, status["accepted"])
    assert all(os.path.lexists(node / name) for name in (*SEGMENTS, *DOCUMENTS))
    assert "is passed over" in log_of(run_dir)
