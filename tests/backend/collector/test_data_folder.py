"""The data folder, and orders to the collector that has it."""

from __future__ import annotations

import io
import os
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logclient_backend.collector import data_folder as folders
from logclient_backend.collector.control_socket import Control, ask
from logclient_backend.collector.data_folder import DataFolder
from logclient_backend.collector.eventlog import EventLog
from logclient_backend.collector.store.interface import StoreError


def test_new_folder_is_the_owners_alone(tmp_path: Path) -> None:
    """Also where it was made before, for everybody, and is empty."""
    (tmp_path / "b").mkdir(mode=0o755)
    for name in ("a/deep", "b"):
        made = folders.make(str(tmp_path / name))
        assert stat.S_IMODE(os.stat(made.path).st_mode) == 0o700
        assert not made.has_store and not made.has_tokens


def test_folder_with_other_things_in_it_is_not_closed_to_others(tmp_path: Path) -> None:
    """Somebody named a home folder by mistake: its mode is not ours to change."""
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(StoreError, match="holds other files"):
        folders.make(str(tmp_path))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize("kind", ["file", "below a file", "missing"])
def test_what_cannot_be_a_data_folder_is_told(tmp_path: Path, kind: str) -> None:
    """A sentence, no traceback."""
    path = tmp_path / "x"
    if kind != "missing":
        path.write_text("")
    with pytest.raises(StoreError):
        folders.use(str(path / "y")) if kind != "file" else folders.make(str(path))


@pytest.mark.root
def test_folder_of_another_user_is_refused_to_root_too(tmp_path: Path) -> None:
    """What root makes there the collector could not use."""
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(StoreError, match="sudo -u"):
        folders.use(str(path))


def test_last_backup_is_kept_and_damage_of_the_note_is_no_trouble(tmp_path: Path) -> None:
    """Never: 0."""
    data = DataFolder(str(tmp_path))
    assert data.last_backup() == (0, "")
    data.note_backup(5, "/b")
    assert data.last_backup() == (5, "/b")
    (tmp_path / "backup.json").write_text("{")
    assert data.last_backup() == (0, "")


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    return folders.make(str(tmp_path / ("long" * 40)))  # longer than the path of a socket may be


def control_of(data: DataFolder, **orders: Any) -> Control:
    return Control(data, orders, EventLog(io.StringIO()))


def test_orders_are_carried_out_and_errors_come_back(data: DataFolder) -> None:
    """As sentences, whatever went wrong."""

    def fails(order: Mapping[str, Any]) -> Mapping[str, Any]:
        raise StoreError("no room on the disk")

    def breaks(order: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ZeroDivisionError

    control = control_of(data, double=lambda order: {"is": 2 * order["n"]}, fails=fails, breaks=breaks)
    try:
        assert ask(data, "double", timeout_s=30, n=21) == {"ok": True, "is": 42}
        with pytest.raises(StoreError, match="no room"):
            ask(data, "fails", timeout_s=30)
        with pytest.raises(StoreError, match="a fault in the collector"):
            ask(data, "breaks", timeout_s=30)
        with pytest.raises(StoreError, match="knows no such order"):
            ask(data, "dance", timeout_s=30)
    finally:
        control.stop()
    assert ask(data, "double", timeout_s=30, n=1) is None


def test_socket_of_a_collector_that_was_killed_is_replaced(data: DataFolder) -> None:
    """It answers nobody, and is in nobody's way."""
    folder = os.open(data.path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"/proc/self/fd/{folder}/control.sock")
    os.close(folder)
    assert ask(data, "about", timeout_s=30) is None
    control = control_of(data, about=lambda order: {})
    try:
        assert ask(data, "about", timeout_s=30) == {"ok": True}
        mode = os.stat(os.path.join(data.path, "control.sock")).st_mode
        assert stat.S_IMODE(mode) == 0o600
    finally:
        control.stop()


@pytest.mark.parametrize("nonsense", [b"\n", b"5\n", b"\xff\xfe\n", b"x" * 100_000, b'{"do": ["a"]}\n', b""])
def test_nonsense_does_not_stop_it(data: DataFolder, nonsense: bytes) -> None:
    """The next order is carried out."""
    control = control_of(data, about=lambda order: {})
    folder = os.open(data.path, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as call:
            call.connect(f"/proc/self/fd/{folder}/control.sock")
            call.settimeout(30)
            try:
                call.sendall(nonsense)
                call.shutdown(socket.SHUT_WR)
                call.recv(4096)
            except OSError:
                pass  # it hung up
        assert ask(data, "about", timeout_s=30) == {"ok": True}
    finally:
        os.close(folder)
        control.stop()


def test_answer_that_does_not_come_is_told(data: DataFolder) -> None:
    """By the deadline."""

    def slow(order: Mapping[str, Any]) -> Mapping[str, Any]:
        time.sleep(1.0)
        return {}

    control = control_of(data, slow=slow)
    try:
        with pytest.raises(StoreError, match="has not answered"):
            ask(data, "slow", timeout_s=0.1)
    finally:
        control.stop()


def test_log_leaves_out_what_repeats_and_writes_one_line_each() -> None:
    """A client that fails a thousand times a second fills no disk."""
    out = io.StringIO()
    log = EventLog(out)
    for _ in range(1000):
        log.write("busy", "too much\n\x1b[2J of it")
    log.write("disk", "full")
    log.event("stopped")
    lines = out.getvalue().splitlines()
    assert len(lines) == 3 and all(line[4] == "-" and line[19] == "Z" for line in lines)
    assert "\x1b" not in out.getvalue()
