"""The phases of a sender: what ends each, and that no other order is possible."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import cast

import pytest

from logclient_backend.ship import phase as drawing
from logclient_backend.ship.phase import NEXT, Phase
from logclient_backend.ship.progress import Progress
from logclient_backend.ship.sender import Sender
from logclient_backend.ship.settings import ShipSettings
from logclient_backend.ship.source import FolderSource
from logclient_backend.ship.throttled_log import ThrottledLog
from logclient_backend.wal.documents import DocumentFile
from logclient_backend.wire.client import Session
from logclient_backend.wire.messages import Parcel, Welcome
from logclient_backend.wire.node_report import NodeReport
from tests.process.disturbed import wait_until

from .samples import append, documents, item, write, write_open

WAIT_S = 30


class Wire:
    """A session that keeps what is sent, and never answers."""

    def __init__(self) -> None:
        self.has_room = True
        self.parcels: list[Parcel] = []
        self.reports: list[NodeReport] = []

    def report(self, report: NodeReport) -> None:
        self.reports.append(report)

    def send(self, parcel: Parcel) -> bool:
        self.parcels.append(parcel)
        parcel.number = len(self.parcels)
        return True


class Sending:
    """A sender over one folder, driven by hand."""

    def __init__(self, folder: Path, *, until_done: bool, rest_s: float) -> None:
        settings = ShipSettings(until_done=until_done, flush_s=0.0, documents_s=0.0, rest_s=rest_s)
        self.source = FolderSource([str(folder)], poll_s=0.01)
        self.sender = Sender(self.source, Progress(), settings, ThrottledLog(None))
        self.wire = Wire()

    def begin(self, collector: str) -> Phase:
        """A new conversation, with a collector that has nothing."""
        self.wire = Wire()
        self.sender.begin(Welcome(collector))
        return self.sender.phase

    def send(self) -> Phase:
        if self.sender.phase is not Phase.DONE:
            self.sender.send(cast(Session, self.wire))
        return self.sender.phase

    def until(self, phase: Phase, *, acks: bool = True) -> None:
        def has_come() -> bool:
            if acks:
                self.sender.acked(len(self.wire.parcels))
            return self.send() is phase

        wait_until(has_come, WAIT_S, f"{phase.name} comes")

    def records(self) -> int:
        return sum(parcel.records for parcel in self.wire.parcels)


Make = Callable[..., Sending]


@pytest.fixture
def sending(tmp_path: Path) -> Iterator[Make]:
    made: list[Sending] = []

    def make(*, until_done: bool, rest_s: float = math.inf) -> Sending:
        made.append(Sending(tmp_path, until_done=until_done, rest_s=rest_s))
        return made[-1]

    yield make
    for each in made:
        each.source.stop()


def test_live_node_is_streamed_for_as_long_as_it_is_wanted(tmp_path: Path, sending: Make) -> None:
    """All that lies there is acknowledged, its documents say that it is over, and the phase stays."""
    write(tmp_path, 1, item(20))
    DocumentFile(str(tmp_path)).save(documents(20))
    made = sending(until_done=False)
    assert made.sender.phase is Phase.NEW
    made.begin("a")
    end = time.monotonic() + 0.2
    while made.records() < 20 or time.monotonic() < end:
        assert made.send() is Phase.STREAMING
        made.sender.acked(len(made.wire.parcels))


def test_node_that_is_over_is_done_once_its_losses_are_acknowledged(tmp_path: Path, sending: Make) -> None:
    """CATCHING_UP until records, documents and gaps are there; another collector gets them again."""
    write(tmp_path, 1, item(20))
    DocumentFile(str(tmp_path)).save(documents(25))
    made = sending(until_done=True)
    assert made.begin("a") is Phase.CATCHING_UP
    wait_until(
        lambda: made.send() and any(parcel.holes for parcel in made.wire.parcels), WAIT_S, "gaps are sent"
    )
    assert made.send() is Phase.CATCHING_UP  # nothing is acknowledged
    assert made.begin("b") is Phase.CATCHING_UP
    made.until(Phase.DONE)
    assert made.records() == 20
    assert [gap[3:5] for parcel in made.wire.parcels for gap in parcel.holes] == [(21, 25)]


def test_node_that_goes_on_is_drained(tmp_path: Path, sending: Make) -> None:
    """Nothing that came after DRAINING began is read; a broken conversation changes nothing, another collector does."""
    segment = write_open(tmp_path, 1, item(20))
    DocumentFile(str(tmp_path)).save(documents(20, closed=False))
    made = sending(until_done=True)
    made.begin("a")
    made.until(Phase.DRAINING, acks=False)
    append(segment, item(5, 21))
    assert made.begin("a") is Phase.DRAINING  # it has nothing: none was acknowledged
    made.until(Phase.DRAINING, acks=False)
    assert made.records() == 20
    assert made.begin("b") is Phase.CATCHING_UP
    made.until(Phase.DONE)
    assert made.records() == 25
    segment.close()


def test_node_that_ends_while_it_is_drained_is_sent_to_its_end(tmp_path: Path, sending: Make) -> None:
    """Its last documents ask for all records before losses are told: to read no more would be to wait for ever."""
    segment = write_open(tmp_path, 1, item(20))
    DocumentFile(str(tmp_path)).save(documents(20, closed=False, revision=1))
    made = sending(until_done=True)
    made.begin("a")
    made.until(Phase.DRAINING, acks=False)
    append(segment, item(5, 21))
    DocumentFile(str(tmp_path)).save(documents(27, revision=2))
    # nothing is acknowledged before it is seen to be over: else it is done with what was there before
    made.until(Phase.CATCHING_UP, acks=False)
    made.until(Phase.DONE)
    assert made.records() == 25
    assert [gap[3:5] for parcel in made.wire.parcels for gap in parcel.holes] == [(26, 27)]
    segment.close()


def test_only_what_is_drawn_may_follow(sending: Make) -> None:
    """The end is the end: nothing follows DONE or REFUSED, and nothing leads back to NEW."""
    sender = sending(until_done=True).sender
    for now, then in product(Phase, Phase):
        sender.phase = now
        if then in NEXT[now]:
            sender.enter(then)
        else:
            with pytest.raises(AssertionError):
                sender.enter(then)
        assert sender.phase is (then if then in NEXT[now] else now)


def test_drawing_has_each_phase_and_what_follows() -> None:
    """The table in `phase.py` and NEXT say the same; REFUSED, which may follow each, stands below the table."""
    rows: dict[str, str] = {}
    row = ""
    table = (drawing.__doc__ or "").partition("::")[2].partition("A final refusal")[0]
    for line in table.splitlines():
        if found := re.match(r"    ([A-Z_]+) ", line):
            row = found[1]
        if row:
            rows[row] = rows.get(row, "") + line.partition(row)[2] if found else rows[row] + line
    assert set(rows) == {phase.name for phase in Phase}
    for phase in Phase:
        drawn = {then for then in Phase if re.search(rf"\b{then.name}\b", rows[phase.name])}
        assert drawn == NEXT[phase] - {Phase.REFUSED}


def test_newest_report_is_sent_once_in_each_conversation(tmp_path: Path, sending: Make) -> None:
    """Also where no record has come for long: it takes a conversation, which is then closed again."""
    made = sending(until_done=False, rest_s=-1.0)
    newest = [NodeReport("ok")]
    made.sender.newest_report = lambda: newest[0]
    made.begin("a")
    made.send()
    made.send()
    assert made.wire.reports == newest and not made.sender.has_due()
    newest[0] = late = NodeReport("stalled", 1.0, 2, b"xx")
    assert made.sender.has_due()
    made.send()
    made.send()
    assert made.wire.reports[1:] == [late] and not made.sender.has_due()
    assert made.sender.is_at_rest
    newest[0] = late = NodeReport("stalled", 2.0, 2, b"yy")
    assert not made.sender.has_due()  # no conversation is opened for it
    made.send()
    assert made.wire.reports[-1] is late
    made.begin("a")  # whether the last one arrived is not known
    assert made.sender.has_due()
    made.send()
    assert made.wire.reports == [late]
    newest[0] = NodeReport("ok")
    assert made.sender.has_due()
    made.send()
    assert made.wire.reports[1:] == newest
