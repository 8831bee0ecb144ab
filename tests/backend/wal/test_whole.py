"""A file has its name when it is whole, and what fails leaves the one before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logclient_backend.wal.whole import made_whole, write_whole


@pytest.mark.parametrize("sync_folder", [False, True])
def test_the_name_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync_folder: bool) -> None:
    """The file is past an fsync before it is renamed, and the folder afterwards, where that is asked for."""
    done: list[str] = []
    path = tmp_path / "file"
    fsync, rename = os.fsync, os.rename

    def noted_fsync(fd: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def noted_rename(here: str, there: str) -> None:
        done.append("rename")
        rename(here, there)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    write_whole(str(path), b"content", 0o640, sync_folder=sync_folder)
    assert path.read_bytes() == b"content" and path.stat().st_mode & 0o137 == 0
    assert done[0].startswith(f"{path}.") and done[1:] == ["rename", *[str(tmp_path)] * sync_folder]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_what_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """A disk that refuses, and a caller that gets no further."""

    def refuse(*arguments: object) -> None:
        raise OSError(5, "refused")

    path = tmp_path / "file"
    write_whole(str(path), b"before")
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="refused"):
        write_whole(str(path), b"after")
    monkeypatch.undo()
    with pytest.raises(KeyError), made_whole(str(path)) as file:
        file.write(b"after")
        raise KeyError
    assert os.listdir(tmp_path) == ["file"] and path.read_bytes() == b"before"
