"""The shm directory: ours alone, within its share of the mount, and somewhere else where that cannot be."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logclient
from logclient.config import Config
from logclient.encode import lanes
from logclient.session.session import Session
from logclient.shm import layout, modes, proc
from logclient.shm import shm_dir as shm_dirs
from tests.lanes import opened

MIB = 1 << 20
FLOOR = shm_dirs.LANES_FLOOR
FreeBytes = Callable[..., None]


@pytest.fixture
def shm(run_dir: Path) -> Path:
    return Path(os.environ["LOGCLIENT_SHM_DIR"])


@pytest.fixture
def free_bytes(monkeypatch: pytest.MonkeyPatch) -> FreeBytes:
    """Sets what the mounts say is free, by prefix of the path."""

    def set_free(default: int, **by_folder: int) -> None:
        real = os.statvfs

        def statvfs(path: Any) -> Any:
            if not isinstance(path, str):
                return real(path)
            free = next((free for folder, free in by_folder.items() if folder in path), default)
            return SimpleNamespace(f_blocks=free // 4096, f_bavail=free // 4096, f_frsize=4096)

        monkeypatch.setattr(os, "statvfs", statvfs)

    return set_free


def base_of(shm: Path) -> Path:
    return shm / f"logclient-{os.getuid()}"


def test_folder_and_files_are_for_the_user_alone(shm: Path) -> None:
    """Folders 0700, files 0600, whatever the umask lets through."""
    before = os.umask(0)
    try:
        with opened(config={"large": "x" * 100_000}):
            found = [base_of(shm), *base_of(shm).rglob("*")]
            assert len(found) > 6
            for path in found:
                assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path
            assert {path.suffix for path in found} >= {".lanes", ".live", ".block", ".json", ".status"}
    finally:
        os.umask(before)


def _link(path: Path, elsewhere: Path) -> None:
    elsewhere.mkdir(mode=0o700)
    path.symlink_to(elsewhere)


def _foreign(path: Path, elsewhere: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to give a folder away")
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)


def _open(path: Path, elsewhere: Path) -> None:
    path.mkdir()
    path.chmod(0o770)


BAD_BASES: dict[str, Callable[[Path, Path], object]] = {
    "link": _link,
    "foreign": _foreign,
    "open": _open,
    "file": lambda path, _: path.write_text("x"),
    "dangling": lambda path, elsewhere: path.symlink_to(elsewhere),
}


@pytest.mark.parametrize("how", BAD_BASES)
def test_shm_root_that_is_not_ours_is_left_alone(how: str, shm: Path, tmp_path: Path) -> None:
    """A link, another user's folder, one that others may enter, a file: a fresh name, found by the next process."""
    elsewhere = tmp_path / "elsewhere"
    BAD_BASES[how](base_of(shm), elsewhere)
    with opened() as (run, file):
        run.log(1, {"a": 1.0})
        shm_dir = Path(run._session.shm_dir.path)
        assert shm_dir.parent.name.startswith(f"logclient-{os.getuid()}-") and shm_dir.parent.parent == shm
        assert modes.is_ours(str(shm_dir)) and len(file.read()) == 1
        with opened("other") as (other, _):
            assert Path(other._session.shm_dir.path).parent == shm_dir.parent
        found = shm_dirs.find(Config({"shm_dir": str(shm)}), shm_dir.name)
        assert found is not None and found.path == str(shm_dir)
    assert not elsewhere.exists() or not list(elsewhere.iterdir())


def test_links_inside_the_folder_are_not_followed(shm: Path, tmp_path: Path) -> None:
    """run.json and lane files are opened with O_NOFOLLOW."""
    target = tmp_path / "target"
    target.write_text('{"run_id": "x"}')
    folder = base_of(shm) / "run"
    folder.mkdir(parents=True, mode=0o700)
    base_of(shm).chmod(0o700)
    (folder / "run.json").symlink_to(target)
    assert shm_dirs.read(str(folder)) is None


@pytest.mark.parametrize(
    ("free", "wanted", "expected"),
    [
        (1 << 40, 4 * MIB, 4 * MIB),
        (64 * MIB, 4 * MIB, 2 * MIB),  # 1/8 for the run, 1/2 of that for lanes, 1/2 of those for one process
        (64 * MIB, 256 * MIB, 2 * MIB),
        (8 * (FLOOR + (32 << 10)), 4 * MIB, FLOOR),
        (1 << 40, 1000, FLOOR),
        (1 << 40, 5_000_000, 5_000_000 // 4096 * 4096),
    ],
)
def test_lanes_take_their_share(
    free: int, wanted: int, expected: int, free_bytes: FreeBytes, run_dir: Path
) -> None:
    """Case C6-2: a run takes 1/8 of what is free, a process 1/4 of that, at least the floor; said with both sizes."""
    free_bytes(free)
    with opened(lanes_bytes=wanted) as (run, file):
        assert len(file.mem) == expected
        assert run._session.shm_dir.budget_bytes == free // 8
        largest = max(reader.size for reader in file.readers)
        assert largest == file.readers[0].size and largest >= expected * 3 // 4 - 8
        run.log(1, {"a": 1.0})
        assert len(file.read()) == 1
        lines = [
            line for line in run.status()["notices"] if f"{expected:,} bytes instead of {wanted:,}" in line
        ]
        assert len(lines) == (1 if expected < wanted // 4096 * 4096 else 0)


@pytest.mark.parametrize("count", range(1, 9))
def test_any_number_of_lanes_fits_the_floor(count: int, run_dir: Path) -> None:
    """One to eight lanes in 256 KiB, none overlaps another area, each takes records."""
    with opened(lanes=count, lanes_bytes=FLOOR) as (run, file):
        words = file.words
        areas = [(0, layout.KEYS_OFFSET), (words[layout.FILE_KEYS], words[layout.FILE_KEYS + 1])]
        large, small = words[layout.FILE_DOCUMENTS + 1], words[layout.FILE_DOCUMENTS + 2]
        kinds = len(layout.DOCUMENT_KINDS) - layout.LARGE_KINDS
        areas.append((words[layout.FILE_DOCUMENTS], 2 * (layout.LARGE_KINDS * large + kinds * small)))
        areas.append(
            (words[layout.FILE_BLOCKS], words[layout.FILE_BLOCKS + 1] * words[layout.FILE_BLOCKS + 2])
        )
        for lane in range(count):
            header = layout.LANE_HEADERS + lane * layout.LANE_HEADER_WORDS
            areas.append((words[header + layout.LANE_OFFSET], words[header + layout.LANE_BYTES]))
        ends = sorted((start, start + size) for start, size in areas if size)
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(ends))
        assert ends[-1][1] <= len(file.mem) and all(start % 8 == 0 for start, _ in ends)
        for writer in list(run._session.lanes):
            run._session.lanes.first[:] = [writer]
            run.log(1, {"a": 1.0})
        assert [record.lane for record in file.read()] == list(range(count + run._session.lanes.device_count))


def test_of_two_containers_that_begin_a_run_at_once_each_has_its_shm_dir(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one, in a PID namespace of its own, writes its facts just before we would write ours."""
    real, wanted = os.statvfs, base_of(shm) / "same"

    def statvfs(path: Any) -> Any:
        if path == str(wanted):  # asked once the folder is there, before the first file
            facts = {"run_id": "same", "pid_namespace": 1}
            (wanted / "run.json").write_text(json.dumps(facts))
        return real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    mine = shm_dirs.make(Config.from_env(), "same", {"run_id": "same"})
    assert mine.path == f"{wanted}.{proc.pid_namespace()}"
    assert shm_dirs.make(Config.from_env(), "same", {"run_id": "same"}).path == mine.path


def test_used_up_share_refuses_and_says_so_once(free_bytes: FreeBytes, run_dir: Path) -> None:
    """With no budget left a process trains on: every record is refused and counted, one notice says why."""
    free_bytes(1 << 40)
    with opened() as (run, _):
        run._session.shm_dir.facts["budget_bytes"] = 1
        free_bytes(1 * MIB)
        session = Session(run._session.shm_dir, run._session.settings, is_owner=False, rank=None)
        child = logclient.Run(session)
        for step in range(5):
            child.log(step, {"a": 1.0})
        child.summary["x"] = 1
        status = child.status()
        assert (status["accepted"], status["refused"]) == (0, 5)
        assert sum("no shared memory" in line and "used up" in line for line in status["notices"]) >= 1
        assert len(status["notices"]) == 2 and child.flush(0) and child.finish(0)
        assert len(list(Path(run._session.shm_dir.path).glob("*.lanes*"))) == 1


@pytest.mark.parametrize("size", [shm_dirs.MIN_LANES, 2 * shm_dirs.MIN_LANES])
def test_a_file_below_the_floor_has_room_for_a_burst(size: int, run_dir: Path) -> None:
    """A quarter of the least file at least is lane 0's, and the second lane takes records, too."""
    with opened() as (run, _):
        made = lanes.Lanes(run._session.shm_dir.path, size, 4, None)
        header = layout.LANE_HEADERS + layout.LANE_BYTES
        sizes = [made.words[header + number * layout.LANE_HEADER_WORDS] for number in range(2)]
        assert len(made) == 2 and made.device_count == 0
        assert sizes[0] >= size // 4 and sizes[1] >= 4096
        made.withdraw()


def test_full_mount_halves_the_lanes_and_never_leaves_half_a_file(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C6-2: memory is reserved for real; where that fails a smaller file is made, down to the least size."""
    real, room = os.posix_fallocate, [1 * MIB]

    def fallocate(fd: int, offset: int, size: int) -> None:
        if size > room[0]:
            raise OSError(errno.ENOSPC, "full")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with opened() as (run, file):
        assert len(file.mem) == 1 * MIB
        room[0] = shm_dirs.MIN_LANES - 1
        with pytest.raises(OSError, match="full"):
            lanes.make(run._session.shm_dir, MIB, 4, None)
        assert len(list(Path(run._session.shm_dir.path).glob("*.lanes*"))) == 1


def test_shm_root_too_small_or_missing_gives_way_to_another(
    shm: Path, tmp_path: Path, free_bytes: FreeBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C6-2: a mount that is filled, not there or no folder: another one, and one line that says which and why."""
    other = tmp_path / "other"
    other.mkdir()
    file = tmp_path / "file"
    file.write_text("")
    for bad, why in ((shm, "bytes are free"), (tmp_path / "gone", "No such"), (file, "Not a directory")):
        free_bytes(1 << 40, **{shm.name: 1 * MIB})
        monkeypatch.setattr(shm_dirs, "shm_roots", lambda _, bad=bad: [str(bad), str(other)])
        with opened() as (run, _):
            assert Path(run._session.shm_dir.path).parent.parent == other
            (line,) = [line for line in run.status()["notices"] if why in line]
            assert str(other) in line and str(bad) in line
    shutil.rmtree(other)


def test_no_shared_memory_anywhere_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Case C6-2: init does not raise, log() counts, one line tells; with folder_errors="raise" it is an error."""
    monkeypatch.setattr(shm_dirs, "shm_roots", lambda _: [str(tmp_path / "gone")])
    run = logclient.init("p", quiet=True)
    run.log(1, {"a": 1.0})
    assert run.status()["refused"] == 1 and run.finish()
    with pytest.raises(logclient.LogclientError, match="no shared memory"):
        logclient.init("p", quiet=True, folder_errors="raise")


def test_shm_roots_are_tried_in_order_and_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder asked for first, then /dev/shm, at last /tmp."""
    monkeypatch.chdir(tmp_path)
    found = shm_dirs.shm_roots(Config({"shm_dir": "here"}))
    assert found[:2] == [str(tmp_path / "here"), "/dev/shm"] and found[-1] == "/tmp"
    assert shm_dirs.shm_roots(Config())[0] == "/dev/shm"


@pytest.mark.parametrize(
    "run_id",
    [
        "../x",
        "/abs",
        "a/b",
        ".hidden",
        "x" * 512,
        "UPPER",
        "upper ",
        "con",
        "id-0",
        "é",
        "..",
        "%2e%2e",
        "a\\b",
    ],
)
def test_awkward_run_ids_get_an_opaque_folder(run_id: str, run_dir: Path) -> None:
    """Case R2-26: stored verbatim, under a name that is harmless anywhere."""
    with opened(id=run_id) as (run, file):
        folder = Path(run._session.shm_dir.path).name
        assert folder.startswith("id-") and folder[3:].isalnum() and len(folder) == 27
        assert run.id == run_id and file.document("start")["run_id"] == run_id


@pytest.mark.parametrize(("name", "shown"), [("mlp", "run mlp (id-1)"), ("id-1", "run id-1")])
def test_a_run_without_a_name_is_not_named_twice(name: str, shown: str) -> None:
    """In the lines at start and at the end."""
    assert shm_dirs.ShmDir("/nowhere", {"run_id": "id-1", "name": name}).shown == shown
