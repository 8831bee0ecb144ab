"""What is new of a node, over several folders: each record once, also beside a disk that hangs."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logclient.shm import layout
from logclient_backend.ship.folder_reader import FolderReader
from logclient_backend.ship.source import FolderSource
from logclient_backend.wal.dedup import Seen
from logclient_backend.wal.documents import DocumentFile
from logclient_backend.wal.encoded import StreamColumns
from logclient_backend.wal.files import RealFiles
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seqs import SeqSet
from logclient_backend.wire.messages import HeldStream
from tests.process.disturbed import wait_until

from .samples import PROCESS, append, documents, item, stream, write, write_open

WAIT_S = 60
POLL_S = 0.02

Make = Callable[..., FolderSource]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes sources, and stops their threads at the end."""
    made: list[FolderSource] = []

    def source(*folders: Path, held: dict[bytes, HeldStream] | None = None, **more) -> FolderSource:
        new = FolderSource([str(folder) for folder in folders], poll_s=POLL_S, **more)
        made.append(new)
        new.start(held or {})
        return new

    yield source
    for each in made:
        each.stop()


class Taken:
    """All that a source gave."""

    def __init__(self, source: FolderSource) -> None:
        self.source = source
        self.seqs: list[int] = []
        self.gaps: list[Gap] = []

    def take(self) -> None:
        for each in self.source.take(1 << 20):
            if isinstance(each, StreamColumns):
                self.seqs.extend(each.columns.seq)
            else:
                self.gaps.append(each)

    def until(self, wanted: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self.take()
            return wanted()

        wait_until(look, WAIT_S, what)

    def all(self) -> list[int]:
        """Until all that lies there now was given; sorted."""
        now = time.monotonic()
        self.source.hurry()
        self.until(lambda: self.source.has_passed(now), "all is given")
        return sorted(self.seqs)


def test_what_is_held_is_not_given(tmp_path: Path, make: Make) -> None:
    """Neither records nor gaps that the collector knows."""
    gap = Gap(stream(), PROCESS, 0, 31, 40, "forgotten")
    write(tmp_path, 1, item(20), gap)
    write(tmp_path, 2, item(10, 21))
    held = {stream(): HeldStream(SeqSet([(1, 25)]), {"forgotten": SeqSet([(31, 35)])})}
    taken = Taken(make(tmp_path, held=held))
    assert taken.all() == [26, 27, 28, 29, 30]
    assert [(each.first, each.last) for each in taken.gaps] == [(36, 40)]


def test_folders_that_hold_the_same_give_it_once(tmp_path: Path, make: Make) -> None:
    """Run folder and spool, and one that is added later; a folder that is not there is nothing."""
    for number, name in enumerate(("home", "spool", "late")):
        write(tmp_path / name, 1 + number, item(20, 1 + 10 * number))
    source = make(tmp_path / "home", tmp_path / "spool", tmp_path / "none")
    taken = Taken(source)
    assert taken.all() == list(range(1, 31))
    source.add_folder(str(tmp_path / "late"))
    source.add_folder(str(tmp_path / "late"))
    assert taken.all() == list(range(1, 41))


def test_what_is_written_meanwhile_comes(tmp_path: Path, make: Make) -> None:
    """In an open segment, then in the next one."""
    segment = write_open(tmp_path, 1, item(5))
    taken = Taken(make(tmp_path))
    taken.until(lambda: len(taken.seqs) == 5, "the first come")
    append(segment, item(5, 6))
    taken.until(lambda: len(taken.seqs) == 10, "the next come")
    segment.close()
    write(tmp_path, 2, item(5, 11))
    assert taken.all() == list(range(1, 16))


def test_only_what_is_committed_is_read_from_tmpfs(tmp_path: Path, make: Make) -> None:
    """Up to the commit word; of a finished segment all; and the copy on the disk is not read meanwhile."""
    shm_dir, disk = tmp_path / "shm_dir", tmp_path / "disk"
    status = memoryview(bytearray(layout.STATUS_BYTES)).cast("Q")
    status[layout.AGENT_STAGE_WRITER] = int.from_bytes(b"writer-1", "little")
    first = write_open(shm_dir, 1, item(5))
    second = write_open(shm_dir, 2, item(5, 6))
    committed = second.end
    append(second, item(5, 11))
    status[layout.AGENT_STAGE_COMMIT] = 2 << 40 | committed
    write_open(disk, 2, item(10, 6)).close()  # the copier was faster than we
    source = make(disk, shm_dir=str(shm_dir), status=status)
    taken = Taken(source)
    assert taken.all() == list(range(1, 11))
    status[layout.AGENT_STAGE_COMMIT] = 2 << 40 | second.end
    assert taken.all() == list(range(1, 16))
    for segment in (first, second):
        segment.close()
        os.unlink(segment.path)  # sealed on the disk, and given back
    assert taken.all() == list(range(1, 16))


class HungFiles(RealFiles):
    """A disk on which nothing returns until it is released."""

    def __init__(self) -> None:
        self.hangs = threading.Event()
        self.released = threading.Event()

    def list(self, folder: str) -> list[str]:
        self.hangs.set()
        assert self.released.wait(2 * WAIT_S)
        return super().list(folder)


def test_tmpfs_goes_on_while_a_disk_hangs(tmp_path: Path, make: Make) -> None:
    """And what lies on the disk comes when it wakes."""
    shm_dir, disk = tmp_path / "shm_dir", tmp_path / "disk"
    segment = write_open(shm_dir, 1, item(5, 101))
    write(disk, 7, item(5))
    files = HungFiles()
    source = make(disk, shm_dir=str(shm_dir), files=files)
    try:
        assert files.hangs.wait(WAIT_S)
        taken = Taken(source)
        begun = time.monotonic()
        taken.until(lambda: len(taken.seqs) == 5, "what is on tmpfs comes")
        append(segment, item(5, 106))
        taken.until(lambda: len(taken.seqs) == 10, "and what is new there")
        assert not source.has_passed(begun)
        wait_until(lambda: source.silent_s > 0, WAIT_S, "the silence is noticed")
    finally:
        files.released.set()
        segment.close()
    assert taken.all() == [*range(1, 6), *range(101, 111)]


def test_memory_is_bounded_while_nobody_takes(tmp_path: Path) -> None:
    """The thread of a disk waits; and what it held comes when somebody takes again."""
    for number in range(1, 21):
        write(tmp_path, number, item(500, 1 + 500 * (number - 1)))
    feed = FolderReader(str(tmp_path), Seen(), poll_s=POLL_S, most_bytes=100_000)
    try:
        wait_until(lambda: feed._bytes >= 100_000, WAIT_S, "it is full")
        assert feed._bytes < 150_000
        assert feed.silent_s == 0.0
        seqs: list[int] = []

        def look() -> bool:
            while (each := feed.next()) is not None:
                assert isinstance(each, StreamColumns)
                seqs.extend(each.columns.seq)
            return len(seqs) == 10_000

        wait_until(look, WAIT_S, "all comes")
        assert seqs == list(range(1, 10_001))
    finally:
        feed.stop()


class SickFiles(RealFiles):
    """One file gives EIO."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_sick = True

    def open(self, path: str, flags: int) -> int:
        if self.is_sick and self.name in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().open(path, flags)


def test_a_file_that_cannot_be_read_hides_no_other(tmp_path: Path, make: Make) -> None:
    """It is named; nothing is taken for missing; and it is read once it can be."""
    for number in (1, 2, 3):
        write(tmp_path, number, item(10, 1 + 10 * (number - 1)))
    files = SickFiles(sorted(path.name for path in tmp_path.iterdir())[1])
    source = make(tmp_path, files=files)
    taken = Taken(source)
    assert taken.all() == [*range(1, 11), *range(21, 31)]
    assert "Input/output error" in " ".join(source.troubles().values())
    assert source.missing(documents(30)) == []
    files.is_sick = False
    assert taken.all() == list(range(1, 31))
    assert source.troubles() == {}


def test_what_is_durable_and_nowhere_is_missing(tmp_path: Path, make: Make) -> None:
    """Of streams that have ended; what is known to be gone is not missing too."""
    write(tmp_path, 1, item(10), Gap(stream(), PROCESS, 0, 11, 15, "forgotten"))
    write(tmp_path, 3, item(10, 21))
    source = make(tmp_path)
    Taken(source).all()
    ranges = [(gap.first, gap.last, gap.cause) for gap in source.missing(documents(32))]
    assert ranges == [(16, 20, "damaged"), (31, 32, "damaged")]
    alive = documents(32, closed=False)
    assert source.missing(alive) == []
    assert len(source.missing(alive, is_over=True)) == 2
    ended = documents(32, closed=False, processes={PROCESS.hex(): {"end": {"time": 1}}})
    assert len(source.missing(ended)) == 2


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"streams": 3}', b'{"closed": true, "streams": {"x": {}}}']
)
def test_documents_that_are_nonsense_miss_nothing(tmp_path: Path, make: Make, content: bytes) -> None:
    """They are another's, or damaged."""
    source = make(tmp_path)
    Taken(source).all()
    assert source.missing(content, is_over=True) == []


def test_documents_come_from_tmpfs_first(tmp_path: Path, make: Make) -> None:
    """The agent's newest are there; what it saved last is on the disk."""
    shm_dir, disk = tmp_path / "shm_dir", tmp_path / "disk"
    shm_dir.mkdir()
    disk.mkdir()
    source = make(disk, shm_dir=str(shm_dir))
    assert source.documents() is None
    DocumentFile(str(disk)).save(b"saved")
    wait_until(lambda: source.documents() == b"saved", WAIT_S, "those on the disk are seen")
    (shm_dir / "ledger.json").write_bytes(b"newest")
    assert source.documents() == b"newest"
    (shm_dir / "new").write_bytes(b"newer")
    os.rename(shm_dir / "new", shm_dir / "ledger.json")
    assert source.documents() == b"newer"


@pytest.mark.parametrize("revisions", [(), (4, 5)])
def test_documents_of_copies_are_those_of_the_newest(
    tmp_path: Path, make: Make, revisions: tuple[int, ...]
) -> None:
    """By their revision, and where an earlier build wrote them by their time."""
    if revisions:
        older, newest = (documents(3, revision=each, heard_ns=20 - each) for each in revisions)
    else:
        newest, older = documents(5, heard_ns=20), documents(3, heard_ns=19)
    for name, content in (("a", older), ("b", newest), ("c", b"nonsense")):
        (tmp_path / name).mkdir()
        DocumentFile(str(tmp_path / name)).save(content)
    source = make(*(tmp_path / name for name in "abc"))
    Taken(source).all()
    assert source.documents() == newest


def test_a_collector_that_has_nothing_gets_everything_again(tmp_path: Path, make: Make) -> None:
    """`start` once more, with what that one holds."""
    write(tmp_path, 1, item(20))
    source = make(tmp_path)
    assert Taken(source).all() == list(range(1, 21))
    source.start({stream(): HeldStream(SeqSet([(1, 5)]))})
    assert Taken(source).all() == list(range(6, 21))
