"""How long a node of a shared folder has been silent, where the clocks of its host and of ours are not the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logclient_backend.cli.sync_nodes import find as uploads
from logclient_backend.runs.folder import find
from logclient_backend.runs.view import view

from .build import NOW_NS, SECOND, NodeMaker

HOUR = 3600 * SECOND
SKEWS = pytest.mark.parametrize("skew_s", [-5 * 3600, -600, 0, 600, 5 * 3600])


def written(folder: Path, at_ns: int, heard_ns: int, **more: object) -> None:
    """A node whose agent wrote its documents at that time of the file system, and says another."""
    maker = NodeMaker(folder, "run")
    maker.process()
    maker.heard_ns = heard_ns
    maker.save({**maker.content(), "closed": False, **more})
    for path in folder.rglob("documents*"):
        os.utime(path, ns=(at_ns, at_ns))


def state(folder: Path, now_ns: int) -> str:
    (found,) = find(str(folder), live_dirs=[], home="/nonexistent")
    return view(found, now_ns).state.name


@SKEWS
def test_a_host_whose_clock_is_wrong_is_neither_lost_nor_alive_for_that(tmp_path: Path, skew_s: int) -> None:
    """While it writes it is running, and lost soon after it stopped."""
    written(tmp_path, NOW_NS - skew_s * SECOND, NOW_NS)
    now_ns = NOW_NS - skew_s * SECOND
    assert state(tmp_path, now_ns + 10 * SECOND) == "running"
    assert state(tmp_path, now_ns + 60 * SECOND) == "lost"


def test_a_node_at_rest_is_waited_for_as_long_as_it_promised(tmp_path: Path) -> None:
    """Its heartbeat is slower: lost 45 s after it should have come, less the usual 10."""
    written(tmp_path, NOW_NS, NOW_NS, heartbeat_s=40)
    assert state(tmp_path, NOW_NS + 70 * SECOND) == "running"
    assert state(tmp_path, NOW_NS + 80 * SECOND) == "lost"


def test_a_copy_of_a_folder_is_as_old_as_it_says(tmp_path: Path) -> None:
    """The copy is new, the node was heard last long before."""
    written(tmp_path, NOW_NS + 48 * HOUR, NOW_NS)
    assert state(tmp_path, NOW_NS + 48 * HOUR + SECOND) == "lost"


@SKEWS
def test_sync_waits_for_a_node_that_still_writes(
    tmp_path: Path, skew_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no longer for one that has not written for ten minutes."""
    monkeypatch.setenv("LOGCLIENT_SHM_DIR", str(tmp_path))
    written(tmp_path / "runs", NOW_NS - skew_s * SECOND, NOW_NS)
    for silent_s, is_over in ((100, False), (700, True)):
        now_ns = NOW_NS + (silent_s - skew_s) * SECOND
        monkeypatch.setattr("time.time_ns", lambda now_ns=now_ns: now_ns)
        ((upload,), _) = uploads([str(tmp_path / "runs")])
        assert upload.is_over == is_over
