"""Documents: two slots each, whole or older, whoever is killed or writes at the same time; config and summary."""

from __future__ import annotations

import copy
import json
import math
import mmap
import os
import pickle
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logclient.encode import nested_config as nested
from logclient.encode.lanes import Lanes
from logclient.shm import layout
from logclient.shm.documents import DocumentWriter, read_document
from logclient.shm.ring import Forked
from tests.conftest import Pace
from tests.interrupts import interrupted
from tests.lanes import opened


def fresh(folder: Path, mark: Any = b"\1") -> tuple[Lanes, DocumentWriter]:
    lanes = Lanes(str(folder), 256 << 10, 2, None)
    lanes.show()
    return lanes, DocumentWriter(lanes.mem, lanes.path, mark)


def load(lanes: Lanes, kind: str) -> tuple[int, Any] | None:
    """Version and content of the newest document, as a reader would who comes now."""
    found = read_document(lanes.mem, kind)
    if found is None:
        return None
    content = json.loads(found[1])
    if "file" in content:
        content = json.loads(Path(lanes.path).with_name(content["file"]).read_bytes())
    return found[0], content["data"]


@pytest.mark.parametrize("kind", layout.DOCUMENT_KINDS)
def test_newest_document_wins(kind: str, tmp_path: Path) -> None:
    """Each kind has its place; DOCUMENTS_WRITTEN tells readers to look, seen versions are not read again."""
    lanes, writer = fresh(tmp_path)
    assert load(lanes, kind) is None
    for version in range(1, 6):
        writer.write(kind, {"version": version})
        assert load(lanes, kind) == (version, {"version": version})
        assert read_document(lanes.mem, kind, version) is None
        assert lanes.words[layout.DOCUMENTS_WRITTEN] == version
    assert all(load(lanes, other) is None for other in layout.DOCUMENT_KINDS if other != kind)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 300_000], ids=["slot", "file"])
def test_killed_writer_leaves_the_older_or_the_newer_version_whole(
    size: int, tmp_path: Path, pace: Pace
) -> None:
    """SIGKILL at random moments: what can be read is whole, and never older than what write() returned for."""
    seed = random.Random(size)
    for _ in range(pace.count(600)):
        lanes, writer = fresh(tmp_path)
        told = mmap.mmap(-1, mmap.PAGESIZE)
        words = memoryview(told).cast("Q")
        child = os.fork()
        if child == 0:
            try:
                version = 0
                while True:
                    version += 1
                    writer.write(
                        "config", {"version": version, "fill": str(version) * (size // len(str(version)))}
                    )
                    words[0] = version
            finally:
                os._exit(1)
        time.sleep(seed.random() * 0.008)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        written, found = words[0], load(lanes, "config")
        if found is None:
            assert written == 0
            continue
        version, content = found
        assert version in (written, written + 1) and content["version"] == version
        assert content["fill"] == str(version) * (size // len(str(version)))


def test_large_documents_keep_two_files_at_most(tmp_path: Path) -> None:
    """What does not fit a slot lies beside the lane file, mode 0600; older ones go, a small version too."""
    lanes, writer = fresh(tmp_path)
    for version in range(1, 8):
        content = "x" * (200_000 + version)
        writer.write("summary", content)
        assert load(lanes, "summary") == (version, content)
        files = list(tmp_path.glob("*.summary.*.block"))
        assert 1 <= len(files) <= 2
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    for version in (8, 9):
        writer.write("summary", "small")
        assert load(lanes, "summary") == (version, "small")
    assert not list(tmp_path.glob("*.block*"))


def test_writers_at_the_same_time_lose_no_change(tmp_path: Path) -> None:
    """Threads change one live dict and write it: nobody waits, and the last version holds everything."""
    lanes, writer = fresh(tmp_path)
    live: dict[str, int] = {}

    def work(number: int) -> None:
        for step in range(200):
            live[f"{number}/{step % 20}"] = step
            writer.write("config" if step % 2 else "summary", live)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.write("config", live)
    assert load(lanes, "config")[1] == live  # type: ignore[index]
    assert len(load(lanes, "summary")[1]) == len(live)  # type: ignore[index]


def test_handler_that_writes_the_same_document_is_not_undone(tmp_path: Path) -> None:
    """Wherever a write is interrupted by another one of the same kind, the newest version has both changes."""
    at, was_reached = 0, True
    while was_reached:
        at += 1
        lanes, writer = fresh(tmp_path)
        writer.write("summary", {})
        live = {"outer": 1}

        def inner(live: dict[str, int] = live, writer: DocumentWriter = writer) -> None:
            live["inner"] = 2
            writer.write("summary", live)

        was_reached = interrupted(
            writer.write, "summary", live, at=at, module="logclient.shm.documents", action=inner
        )
        expected = {"outer": 1, "inner": 2} if was_reached else {"outer": 1}
        assert load(lanes, "summary")[1] == expected, at  # type: ignore[index]
    assert at > 10


def test_interrupted_write_leaves_a_version_and_the_next_one_works(tmp_path: Path) -> None:
    """An exception at any point: the older or the newer version, nothing stuck, no file that outlives the process's."""
    at, was_reached = 0, True
    seen: set[str] = set()
    while was_reached:
        at += 1
        lanes, writer = fresh(tmp_path)
        writer.write("summary", "old")
        was_reached = interrupted(
            writer.write, "summary", "new" * 20_000, at=at, module="logclient.shm.documents"
        )
        assert load(lanes, "summary") in ((1, "old"), (2, "new" * 20_000))
        writer.write("summary", "last")
        assert load(lanes, "summary")[1] == "last"  # type: ignore[index]
        stems = {name.partition(".")[0] for name in os.listdir(tmp_path)}
        assert stems <= seen | {lanes.process.hex()}, "a file that goes with nobody's lanes"
        seen.add(lanes.process.hex())


def test_forked_process_never_writes_to_its_parents_documents(tmp_path: Path) -> None:
    """With the fork mark gone, no byte of the file changes."""
    mark = bytearray(b"\1")
    lanes, writer = fresh(tmp_path, mark)
    writer.write("state", {"a": 1})
    mark[0] = 0
    before = bytes(lanes.mem)
    with pytest.raises(Forked):
        writer.write("state", {"b": 1})
    assert bytes(lanes.mem) == before


# ---- config and summary -------------------------------------------------------------------------------


def test_config_is_a_deep_copy_that_refuses_deep_changes(run_dir: Path) -> None:
    """Case R2-57: a deep change of the user's own dict is plainly not seen, one of ours raises and says what to do."""
    given: dict[Any, Any] = {"a": {"b": 1}, "a.b": 2, "a/b": 3, "enc": ["x", {"y": 4}], 5: 6, "5": 7}
    with opened(config=given) as (run, file):
        given["a"]["b"] = 99
        expected = {"a": {"b": 1}, "a.b": 2, "a/b": 3, "enc": ["x", {"y": 4}], "5": 7}
        stored = file.document("config")
        assert {key: value for key, value in stored.items() if key in expected} == expected
        assert len(stored) == 6 and 6 in stored.values()
        with pytest.raises(TypeError, match="assign its whole top-level key"):
            run.config["a"]["b"] = 5
        for change in ("clear", "popitem"):
            with pytest.raises(TypeError):
                getattr(run.config["a"], change)()
        run.config["a"] = {"b": 5}
        run.config.update(lr=0.1)
        del run.config["a/b"]
        assert file.document("config")["a"] == {"b": 5} and file.document("config")["lr"] == 0.1
        assert "a/b" not in file.document("config")
        assert json.loads(json.dumps(dict(run.config))) == file.document("config")
        assert copy.deepcopy(run.config["a"]) == pickle.loads(pickle.dumps(run.config["a"])) == {"b": 5}


def test_summary_keeps_what_json_has_no_word_for(run_dir: Path) -> None:
    """NaN, infinities, huge ints, NumPy and odd objects: numbers stay numbers, the rest becomes text."""
    with opened() as (run, file):
        run.summary.update(
            nan=math.nan, inf=-math.inf, big=2**70, huge=1 << 40_000, np=np.float32(0.5), array=np.ones(2),
            flag=np.True_,
            obj=object, nested=[(1, {2: {3}})], none=None, bad="\ud800",
        )  # fmt: skip
        found = file.document("summary")
        assert math.isnan(found.pop("nan")) and found.pop("inf") == -math.inf
        assert found.pop("big") == 2**70 and found.pop("huge").startswith("0x1000")
        assert found == {
            "np": 0.5, "array": "[1. 1.]", "flag": True, "obj": "<class 'object'>", "nested": [[1, {"2": [3]}]],
            "none": None, "bad": "\\ud800",
        }  # fmt: skip


class Failing(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_config_is_cut_at_stated_limits_with_one_notice_each(run_dir: Path) -> None:
    """Case R2-57: depth, self-reference, number of items, bytes of text; foreign failures cost their value only."""
    itself: dict[str, Any] = {"x": 1}
    itself["me"] = itself
    deep: Any = 1
    for _ in range(40):
        deep = {"d": deep}
    config = {"self": itself, "deep": deep, "failing": Failing(), "ok": 1}
    with opened(config=config) as (run, file):
        assert file.document("config")["self"] == {"x": 1, "me": "..."} and file.document("config")["ok"] == 1
        assert sum("nested deeper" in line for line in run.status()["notices"]) == 1
        begun = time.perf_counter()
        run.summary.update({f"k{i}": i for i in range(100_000)})
        print(f"summary of 100,000 items: {1e3 * (time.perf_counter() - begun):.0f} ms")
        assert len(file.document("summary")) <= nested.MAX_ITEMS
        run.config.update({f"t{i}": "x" * 60_000 for i in range(200)})
        assert sum(map(len, map(str, file.document("config").values()))) < nested.MAX_BYTES + 100_000
        assert any("100,000 entries, of which 20,000 are stored" in line for line in run.status()["notices"])
        assert any(
            "t0 of a config or summary is cut: a text of 60,000" in line for line in run.status()["notices"]
        )


def test_alerts_are_kept_newest_last_and_bounded(run_dir: Path) -> None:
    """50 of them, titles and texts cut; an unknown level is said and taken as info."""
    with opened() as (run, file):
        for number in range(60):
            run.alert(f"alert {number}", "x" * 5000, "warn" if number % 2 else "odd")
        alerts = file.document("notices")["alerts"]
        assert [alert["title"] for alert in alerts] == [f"alert {number}" for number in range(10, 60)]
        assert {alert["level"] for alert in alerts} == {"warn", "info"} and len(alerts[0]["text"]) == 2000
        run.tags = ["a", 1]
        assert run.tags == ("a", "1") and file.document("about")["tags"] == ["a", "1"]
