"""A shipper and whatever may happen to its collector: late, never lost, never twice."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from logclient_backend.ship import progress as states
from logclient_backend.ship.progress import Progress
from logclient_backend.ship.settings import ShipSettings
from logclient_backend.ship.shipper import Shipper
from logclient_backend.ship.source import FolderSource
from logclient_backend.wal.codec import Codec
from logclient_backend.wal.documents import DocumentFile
from logclient_backend.wal.scan import Gap
from logclient_backend.wal.seqs import SeqSet
from logclient_backend.wire.address import Address
from logclient_backend.wire.client import Patience, Session
from logclient_backend.wire.credentials import Access
from logclient_backend.wire.messages import Hello, NotTaken, Parcel, digest
from logclient_backend.wire.service import Limits
from tests import badpeers
from tests.badpeers import Peer
from tests.collectors import MemoryCollector, gaps_of
from tests.process.disturbed import ROOT, wait_until

from .samples import PROCESS, append, documents, item, stream, write, write_open

WAIT_S = 60
QUICK = ShipSettings(
    parcel_points=200, flush_s=0.01, idle_s=0.02, documents_s=0.01, first_pause_s=0.01, most_pause_s=0.1
)
PATIENCE = Patience(connect_s=5.0, ack_s=2.0)


class Running:
    """A shipper in a thread."""

    def __init__(
        self, folder: Path, address: Callable[[], Address], settings: ShipSettings, hello: Hello
    ) -> None:
        self.progress = Progress()
        self.said: list[str] = []
        self.source = FolderSource([str(folder)], poll_s=0.02)
        self.shipper = Shipper(
            lambda: Session(Access(address()), hello, PATIENCE),
            self.source,
            self.progress,
            settings,
            self.said.append,
        )
        self.is_wanted = True
        self.result: bool | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.result = self.shipper.run(lambda: self.is_wanted)

    def end(self) -> bool | None:
        """Until it has ended by itself."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"still {self.progress.state}: {self.progress.error}"
        return self.result

    def stop(self) -> None:
        self.is_wanted = False
        self.end()


Ship = Callable[..., Running]


@pytest.fixture
def ship() -> Iterator[Ship]:
    made: list[Running] = []

    def start(
        folder: Path,
        to: MemoryCollector | Address | Callable[[], Address],
        settings: ShipSettings = QUICK,
        hello: Hello | None = None,
    ) -> Running:
        if isinstance(to, MemoryCollector):
            to = to.address
        address = (lambda: to) if isinstance(to, Address) else to
        new = Running(folder, address, settings, hello or Hello("run", "node"))
        made.append(new)
        return new

    yield start
    for each in made:
        each.stop()


@pytest.fixture
def collector() -> Iterator[MemoryCollector]:
    with MemoryCollector() as made:
        yield made


def fill(folder: Path, records: int) -> Path:
    """A finished node."""
    for number, first in enumerate(range(1, records + 1, 500)):
        write(folder, number + 1, item(min(500, records + 1 - first), first))
    DocumentFile(str(folder)).save(documents(records))
    return folder


def test_all_that_lies_there_arrives(tmp_path: Path, collector: MemoryCollector, ship: Ship) -> None:
    """Records, gaps, documents, and what is missing; then it ends, and a second one has nothing to send."""
    fill(tmp_path, 2000)
    write(tmp_path, 9, Gap(stream(), PROCESS, 0, 2001, 2010, "forgotten"))
    DocumentFile(str(tmp_path)).save(documents(2020))
    settings = replace(QUICK, until_done=True)
    running = ship(tmp_path, collector, settings)
    assert running.end() is True
    assert running.shipper.is_done
    node = collector.node()
    assert node.steps() == list(range(1, 2001))
    assert node.documents == documents(2020)
    assert sorted((gap.first, gap.last, gap.cause) for gap in gaps_of(node)) == [
        (2001, 2010, "forgotten"),
        (2011, 2020, "damaged"),
    ]
    progress = running.progress
    assert (progress.records, progress.points, progress.already) == (2000, 4000, 0)
    assert progress.acked_copy() == {stream(): SeqSet([(1, 2020)])}
    assert progress.documents_acked == digest(documents(2020))
    assert progress.state == states.STOPPED
    parcels = collector.parcels
    again = ship(tmp_path, collector, settings)
    assert again.end() is True
    assert (again.progress.records, again.progress.bytes, again.progress.already) == (0, 0, 2000)
    assert collector.parcels == parcels


def test_what_is_logged_meanwhile_follows(tmp_path: Path, collector: MemoryCollector, ship: Ship) -> None:
    """As long as it is wanted; and documents too."""
    segment = write_open(tmp_path, 1, item(5))
    running = ship(tmp_path, collector)
    wait_until(lambda: collector.records == 5, WAIT_S, "the first arrive")
    for number in range(1, 10):
        append(segment, item(5, 1 + 5 * number))
        DocumentFile(str(tmp_path)).save(documents(5 * number, closed=False))
        wait_until(lambda: collector.records >= 5 + 5 * number, WAIT_S, "the next arrive")  # noqa: B023
    wait_until(lambda: collector.node().documents == documents(45, closed=False), WAIT_S, "documents arrive")
    wait_until(lambda: running.progress.state == states.IDLE, WAIT_S, "it has nothing to do")
    running.stop()
    segment.close()
    assert running.result is True
    assert collector.node().repeated == 0


def test_a_conversation_at_rest_is_closed_and_begins_again(
    tmp_path: Path, collector: MemoryCollector, ship: Ship
) -> None:
    """Closed once no record came for a while; a record opens another one, and so do documents, heartbeats too."""
    segment = write_open(tmp_path, 1, item(5))
    store = DocumentFile(str(tmp_path))
    store.save(documents(5, closed=False, revision=1, heard_ns=10))
    running = ship(tmp_path, collector, replace(QUICK, rest_s=0.3))

    def has_closed(number: int) -> None:
        wait_until(
            lambda: len(collector.talks) == number and collector.talks[-1].has_ended, WAIT_S, "it is closed"
        )
        assert running.progress.state == states.IDLE

    has_closed(1)
    append(segment, item(5, 6))
    wait_until(lambda: collector.records == 10, WAIT_S, "a record is sent at once")
    has_closed(2)
    for revision in (2, 3):
        newest = documents(10, closed=False, revision=revision, heard_ns=10 * revision)
        store.save(newest)
        wait_until(lambda: collector.node().documents == newest, WAIT_S, "the documents arrive")  # noqa: B023
        has_closed(revision + 1)
    running.stop()
    segment.close()
    assert collector.node().repeated == 0


def test_documents_of_an_old_copy_are_not_sent(
    tmp_path: Path, collector: MemoryCollector, ship: Ship
) -> None:
    """The collector says which revision it has: the records go, the older documents stay, and that is said once."""
    for name, revision, count in (("newest", 5, 20), ("copied", 4, 10)):
        (tmp_path / name).mkdir()
        write_open(tmp_path / name, 1, item(count)).close()
        DocumentFile(str(tmp_path / name)).save(
            documents(count, revision=revision, heard_ns=10**18 - revision)
        )
        running = ship(tmp_path / name, collector, replace(QUICK, until_done=True))
        wait_until(lambda: running.result is not None, WAIT_S, "all is sent")  # noqa: B023
    assert collector.node().documents == documents(20, revision=5, heard_ns=10**18 - 5)
    assert "revision 4" in running.progress.outdated
    assert "revision 5" in running.progress.outdated
    assert not running.progress.trouble
    sent = [parcel for talk in collector.talks for parcel in talk.parcels if parcel.documents]
    assert len(sent) == 1


def test_a_sync_of_what_never_ends_ends(tmp_path: Path, collector: MemoryCollector, ship: Ship) -> None:
    """A node that is written faster than it is sent: what was there at the start is sent, and nothing is damaged."""
    segment = write_open(tmp_path, 1, item(50))
    DocumentFile(str(tmp_path)).save(documents(50, closed=False))
    is_over = threading.Event()

    def go_on() -> None:
        first = 51
        while not is_over.is_set():
            append(segment, item(5, first))
            first += 5

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        running = ship(tmp_path, collector, replace(QUICK, until_done=True))
        assert running.end() is True
        assert running.shipper.is_done
    finally:
        is_over.set()
        writer.join()
        segment.close()
    steps = collector.node().steps()
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 50
    assert gaps_of(collector.node()) == []


def test_a_collector_that_is_killed_again_and_again(tmp_path: Path, ship: Ship) -> None:
    """Each new process has nothing and another id: everything is sent to it."""
    fill(tmp_path, 3000)
    port = [0]
    running = ship(tmp_path, lambda: Address("127.0.0.1", port[0] or 1))
    wait_until(lambda: running.progress.state == states.WAITING, WAIT_S, "it waits")
    assert "cannot be reached" in running.progress.error
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.collectors", "0"], stdout=subprocess.PIPE, cwd=ROOT
        )
        try:
            assert process.stdout is not None
            before = running.progress.collector
            port[0] = int(process.stdout.readline())
            wait_until(
                lambda: (
                    running.progress.collector != before  # noqa: B023
                    and running.progress.acked_copy() == {stream(): SeqSet([(1, 3000)])}
                ),
                WAIT_S,
                "all is there",
            )
        finally:
            process.kill()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
    wait_until(lambda: running.progress.state == states.WAITING, WAIT_S, "it waits again")
    assert len(running.said) == 1  # a line a minute at most


def test_errors_at_many_parcels_lose_nothing(tmp_path: Path, collector: MemoryCollector, ship: Ship) -> None:
    """For now refused with each reason there is, before it is stored and after: the ack was lost."""
    fill(tmp_path, 4000)
    refusals = [
        NotTaken("too much", "busy", retry_after_s=0.01),
        NotTaken("disk full", "disk"),
        NotTaken("stopping", "stopping", retry_after_s=0.02),
        NotTaken("no idea"),
    ]
    count = [0]

    def disturb(parcel: Parcel) -> None:
        count[0] += 1
        if count[0] % 3 == 0:
            with collector.lock:
                if count[0] % 2:  # stored, and not acknowledged
                    collector.node().take(parcel)
            raise refusals[count[0] // 3 % 4]

    collector.on_parcel = disturb
    running = ship(tmp_path, collector, replace(QUICK, until_done=True))
    assert running.end() is True
    assert collector.node().steps() == list(range(1, 4001))
    assert running.progress.records == 4000
    assert running.progress.connections > 5
    assert running.progress.error == ""


def test_errors_at_every_parcel_are_waited_out(
    tmp_path: Path, collector: MemoryCollector, ship: Ship
) -> None:
    """Nothing is taken for a while, then all; one line is said, and what is kept meanwhile is the same."""
    fill(tmp_path, 1000)
    is_well = threading.Event()

    def refuse(parcel: Parcel) -> None:
        if not is_well.is_set():
            raise NotTaken("not now", "disk", retry_after_s=0.01)

    collector.on_parcel = refuse
    running = ship(tmp_path, collector)
    wait_until(lambda: running.progress.connections > 10, WAIT_S, "it tries again and again")
    assert (running.progress.error, running.progress.reason) == ("not now", "disk")
    assert running.said == ["not now"]
    assert collector.records == 0
    is_well.set()
    wait_until(lambda: collector.records == 1000, WAIT_S, "all arrives")
    wait_until(lambda: running.progress.error == "", WAIT_S, "the error is over")


def test_resets_in_mid_parcel_lose_nothing(tmp_path: Path, ship: Ship) -> None:
    """The connection is cut behind any number of bytes."""
    fill(tmp_path, 4000)
    with MemoryCollector() as collector:
        left = [2_000]

        def cutting(connection: object) -> None:
            import socket

            assert isinstance(connection, socket.socket)
            left[0] = left[0] * 3 // 2
            with socket.create_connection(("127.0.0.1", collector.address.port)) as onward:
                back = threading.Thread(target=badpeers.pump, args=(onward, connection), daemon=True)
                back.start()
                for _ in range(left[0] // 500):
                    data = connection.recv(500)
                    if not data:
                        break
                    onward.sendall(data)
                linger = b"\1\0\0\0\0\0\0\0"
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                onward.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                onward.shutdown(socket.SHUT_RDWR)
                back.join(5)

        with Peer(cutting) as peer:
            running = ship(tmp_path, peer.address, replace(QUICK, until_done=True))
            assert running.end() is True
            assert peer.connections > 3
        assert collector.node().steps() == list(range(1, 4001))
        assert running.progress.records == 4000


@pytest.mark.parametrize(
    "answer", [badpeers.garbage, badpeers.portal, badpeers.reset], ids=lambda answer: answer.__name__
)
def test_nonsense_in_between_is_waited_out(
    tmp_path: Path, collector: MemoryCollector, ship: Ship, answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A captive portal, then the collector: the same as if it had been away."""
    monkeypatch.setattr("logclient_backend.ship.shipper._SLOW_S", 0.05)
    fill(tmp_path, 500)
    with Peer(answer) as peer:
        target = [peer.address]
        running = ship(tmp_path, lambda: target[0])
        wait_until(lambda: peer.connections > 2, WAIT_S, "it tries again and again")
        assert peer.address.target in running.progress.error
        assert len(running.said) == 1
        target[0] = collector.address
        wait_until(lambda: collector.records == 500, WAIT_S, "all arrives")
        wait_until(lambda: running.progress.error == "", WAIT_S, "the error is over")


@pytest.mark.slow
def test_a_stopped_collector_is_late_and_nothing_more(tmp_path: Path, ship: Ship) -> None:
    """It takes parcels, and does not answer until it wakes: what is kept meanwhile is bounded."""
    fill(tmp_path, 20_000)
    with MemoryCollector(limits=Limits(conversations=64)) as collector:
        collector.acks = False
        settings = replace(QUICK, in_flight_bytes=100_000)
        running = ship(tmp_path, collector, settings)
        wait_until(lambda: running.progress.connections > 1, WAIT_S, "the silence is noticed")
        assert running.shipper.sender.in_flight.size <= 200_000
        assert running.progress.records < 20_000
        collector.acks = True
        wait_until(lambda: collector.records == 20_000, WAIT_S, "all arrives")
        wait_until(
            lambda: running.progress.acked_copy() == {stream(): SeqSet([(1, 20_000)])}, WAIT_S, "all is acked"
        )
        assert running.progress.records == 20_000


def test_a_deleted_run_ends_it(tmp_path: Path, collector: MemoryCollector, ship: Ship) -> None:
    """With the collector's sentence, and no other try; unless it shall be taken back."""
    fill(tmp_path, 100)
    collector.deleted.add("run")
    running = ship(tmp_path, collector)
    assert running.end() is False
    assert running.progress.state == states.REFUSED
    assert "was deleted" in running.progress.error
    assert len(collector.hellos) == 1
    revived = ship(tmp_path, collector, replace(QUICK, until_done=True), Hello("run", "node", revive=True))
    assert revived.end() is True
    assert collector.records == 100


def test_a_missing_token_is_asked_for_slowly_or_ends_a_sync(
    tmp_path: Path, collector: MemoryCollector, ship: Ship
) -> None:
    """An agent tries each minute, since a token may be mended; who waits at a terminal is told at once."""
    fill(tmp_path, 100)
    collector.token = "secret"
    sync = ship(tmp_path, collector, replace(QUICK, until_done=True))
    assert sync.end() is False
    assert "opens nothing" in sync.progress.error
    live = ship(tmp_path, collector)
    wait_until(lambda: live.progress.state == states.WAITING, WAIT_S, "it waits")
    assert live.progress.next_try - time.monotonic() > 30
    assert live.progress.reason == "unauthorized"
    live.stop()


def test_a_parcel_that_is_refused_for_good_is_counted(
    tmp_path: Path, collector: MemoryCollector, ship: Ship
) -> None:
    """And the rest arrives."""
    fill(tmp_path, 1000)

    def refuse(parcel: Parcel) -> None:
        if any(500 in each.columns.seq for each in parcel.batches):
            raise NotTaken("that one is too odd", "invalid", is_final=True)

    collector.on_parcel = refuse
    running = ship(tmp_path, collector, replace(QUICK, until_done=True))
    assert running.end() is True
    progress = running.progress
    assert progress.refused_records > 0
    assert progress.refusal == "that one is too odd"
    assert collector.records == 1000 - progress.refused_records
    assert 500 not in progress.acked_copy()[stream()]


def test_documents_that_are_refused_are_not_sent_again_and_again(
    tmp_path: Path, collector: MemoryCollector, ship: Ship
) -> None:
    """They may have megabytes, and are new each second."""
    refused = []

    def refuse(parcel: Parcel) -> None:
        if parcel.documents is not None:
            refused.append(parcel.documents)
            raise NotTaken("too large", "invalid", is_final=True)

    collector.on_parcel = refuse
    fill(tmp_path, 500)
    running = ship(tmp_path, collector)
    wait_until(lambda: bool(running.progress.documents_refusal), WAIT_S, "documents are refused")
    known = len(refused)
    for number in range(2, 8):
        DocumentFile(str(tmp_path)).save(documents(500 * number))
        write(tmp_path, number, item(500, 500 * (number - 1) + 1))
        wait_until(lambda: collector.records == 500 * number, WAIT_S, "records arrive")  # noqa: B023
    assert len(refused) == known
    assert "too large" in running.progress.trouble


def test_one_batch_that_is_refused_keeps_no_other_from_the_collector(
    tmp_path: Path, collector: MemoryCollector, ship: Ship
) -> None:
    """A run with one key too many, in each parcel: all that has no such key is there, in the right order."""
    for number in range(20):
        first = 10 * number
        write(tmp_path, number + 1, item(9, first + 1), item(1, first + 10, width=3 + number))
    DocumentFile(str(tmp_path)).save(documents(200))

    def refuse(parcel: Parcel) -> None:
        if any(len(each.columns.shape.names) > 3 for each in parcel.batches):
            raise NotTaken("too many keys", "invalid", is_final=True)

    collector.on_parcel = refuse
    running = ship(tmp_path, collector, replace(QUICK, until_done=True, parcel_points=100))
    assert running.end() is True
    kept = sorted(seq for each in collector.node().items for seq in each.columns.seq)
    assert kept == [seq for seq in range(1, 201) if seq % 10 or seq == 10]
    assert running.progress.refused_records == 19


@pytest.mark.parametrize("records", [10, 2000])
def test_a_body_that_nobody_can_decode_keeps_no_other_from_the_collector(
    tmp_path: Path, collector: MemoryCollector, ship: Ship, records: int
) -> None:
    """Its checks hold: the collector, which decodes it first, refuses it; it is counted, and the others are there."""
    segment = write_open(tmp_path, 1)
    for number in range(5):
        odd = mock.patch.object(Codec, "encode", lambda *_: b"\xff" * 40)
        with odd if number == 2 else nullcontext():
            append(segment, item(records, 1 + number * records))
    segment.close()
    DocumentFile(str(tmp_path)).save(documents(5 * records))
    running = ship(tmp_path, collector, replace(QUICK, until_done=True, parcel_points=1 << 20))
    assert running.end() is True
    kept = sorted(seq for each in collector.node().items for seq in each.columns.seq)
    assert kept == [*range(1, 2 * records + 1), *range(3 * records + 1, 5 * records + 1)]
    assert running.progress.refused_records == records and "bodies" in running.progress.refusal


@pytest.mark.parametrize("odd", ["record", "documents"])
def test_documents_and_records_are_refused_each_for_itself(
    tmp_path: Path, collector: MemoryCollector, ship: Ship, odd: str
) -> None:
    """What travelled with the one that is not taken arrives all the same; what did not is told."""
    fill(tmp_path, 400)

    def refuse(parcel: Parcel) -> None:
        is_odd = parcel.documents is not None if odd == "documents" else bool(parcel.batches)
        if is_odd:
            raise NotTaken("that is too odd", "invalid", is_final=True)

    collector.on_parcel = refuse
    running = ship(tmp_path, collector, replace(QUICK, until_done=True))
    assert running.end() is True
    progress = running.progress
    if odd == "record":
        assert (collector.records, progress.refused_records) == (0, 400)
        assert collector.node().documents
        assert progress.trouble == "400 records are refused: that is too odd"
    else:
        assert (collector.records, progress.refused_records) == (400, 0)
        assert progress.trouble == "what the run is, is refused: that is too odd"


def test_documents_that_are_too_large_keep_no_record_back(tmp_path: Path, ship: Ship) -> None:
    """They are left out, and that is said."""
    fill(tmp_path, 500)
    DocumentFile(str(tmp_path)).save(documents(500, more="x" * 50_000))
    with MemoryCollector(limits=Limits(conversations=16, most_parcel_bytes=20_000)) as collector:
        running = ship(tmp_path, collector, replace(QUICK, until_done=True))
        assert running.end() is True
        assert collector.records == 500
        assert collector.node().documents == b""
        assert "documents" in running.said[0]


def test_two_at_once_store_each_record_once(tmp_path: Path, collector: MemoryCollector, ship: Ship) -> None:
    """An agent and a sync, or two syncs."""
    fill(tmp_path, 3000)
    settings = replace(QUICK, until_done=True)
    pair = [ship(tmp_path, collector, settings) for _ in range(2)]
    assert [running.end() for running in pair] == [True, True]
    assert collector.node().steps() == list(range(1, 3001))


def test_it_can_be_stopped_while_it_connects_to_a_black_hole(tmp_path: Path, ship: Ship) -> None:
    """Nobody waits for the deadline of a connection."""
    fill(tmp_path, 10)
    with Peer(badpeers.silence) as peer:
        running = ship(tmp_path, peer.address)
        wait_until(lambda: peer.connections, WAIT_S, "it connects")
        running.stop()
    assert running.result is True


def test_proxy_that_answers_404_for_a_moment_delays_by_ordinary_pauses(tmp_path: Path) -> None:
    """A collector behind it that comes back is found at once, not a minute later."""
    write(tmp_path, 1, item(100))
    with MemoryCollector() as collector, Peer(badpeers.proxy(404)) as away:
        tries: list[float] = []

        def address() -> Address:
            tries.append(time.monotonic())
            return away.address if len(tries) <= 4 else collector.address

        running = Running(tmp_path, address, ShipSettings(first_pause_s=0.05), Hello("run", "node"))
        wait_until(lambda: collector.records == 100, 50, "all is shipped")
        assert tries[4] - tries[0] < 50
        running.stop()
