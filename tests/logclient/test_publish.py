"""Files of shared memory appear whole or not at all, and removing them fails for nobody."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from logclient.shm import modes


def test_the_last_one_that_publishes_wins(tmp_path: Path) -> None:
    """The file is replaced as a whole, whatever a killed writer left behind; nobody else may read it."""
    path = tmp_path / "told"
    (tmp_path / f"told{modes.MAKING}").write_bytes(b"x" * 100)  # of one that was killed
    old = os.umask(0o277)
    try:
        for data, at_once in ((b"first", False), (b"2", True), (b"", False), (b"last", True)):
            modes.publish(str(path), data, at_once=at_once)
            assert path.read_bytes() == data and path.stat().st_mode & 0o777 == modes.FILE
            assert os.listdir(tmp_path) == ["told"]
    finally:
        os.umask(old)


def test_the_first_one_that_publishes_wins(tmp_path: Path) -> None:
    """A later writer changes nothing and leaves nothing."""
    path = tmp_path / "facts"
    modes.publish_first(str(path), b"first")
    modes.publish_first(str(path), b"second")
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["facts"]
    assert path.stat().st_mode & 0o777 == modes.FILE


@pytest.mark.parametrize("publish", [modes.publish, modes.publish_first])
def test_what_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[str, bytes], None]
) -> None:
    """A full mount raises, and the folder is as it was."""

    def full(fd: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "told").write_bytes(b"before")
    monkeypatch.setattr(modes, "reserve", full)
    with pytest.raises(OSError, match="No space"):
        publish(str(tmp_path / "told"), b"after")
    assert os.listdir(tmp_path) == ["told"] and (tmp_path / "told").read_bytes() == b"before"


def test_what_is_gone_need_not_be_removed(tmp_path: Path) -> None:
    """`remove` never fails, `remove_if_there` fails where the file stays, and `remove_if_empty` says so."""
    path, folder = str(tmp_path / "file"), str(tmp_path / "folder")
    os.mkdir(folder)
    for remove in (modes.remove, modes.remove_if_there):
        Path(path).touch()
        remove(path)
        assert not os.path.exists(path)
        remove(path)
    modes.remove(folder)
    with pytest.raises(OSError, match="folder"):
        modes.remove_if_there(folder)
    Path(folder, "other").touch()
    assert not modes.remove_if_empty(folder)
    os.unlink(os.path.join(folder, "other"))
    assert modes.remove_if_empty(folder) and not modes.remove_if_empty(folder)


@pytest.mark.parametrize("remove", [modes.remove, modes.remove_if_there, modes.remove_if_empty])
def test_what_a_handler_raises_meanwhile_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[str], object]
) -> None:
    """Also an error that would be ours to swallow."""

    def handler(number: int, frame: object) -> None:
        raise FileNotFoundError(2, "of the user")

    def interrupted(path: str) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(os, "unlink", interrupted)
        monkeypatch.setattr(os, "rmdir", interrupted)
        with pytest.raises(FileNotFoundError, match="of the user"):
            remove(str(tmp_path / "gone"))
    finally:
        monkeypatch.undo()
        signal.signal(signal.SIGUSR1, before)
